"""The artifact `<dataset>/selection_<split>`, one partition per shard: the rows that the rules drop, and by which rule.

A document that is like one that is kept has the reason `duplicate`, with that one and how alike they are.

It is made of the tags, without the texts, so a changed threshold costs little; and token bins depend on the dropped
rows, not on the rules, so it reaches only the shards in which it drops other rows. What is dropped of each source is
counted here, before anything is tokenized: more than the declared budget is a blocking check.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from dataprep_assets.documents.ruled_out import (
    COLUMNS,
    DROPPED,
    RuledOut,
    by_file,
    digest_of,
    other_rows,
    read_dropped,
)
from dataprep_assets.documents.rules import ruled
from dataprep_assets.documents.selection import DUPLICATE
from dataprep_assets.documents.table import Columns, ParquetRows, side_by_side
from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.graph.finding import SHOWN, Finding, files_intact, judged, name_of, verdict
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown, Table
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Partitions, Proof, Proofs
from dataprep_assets.graph.verdicts import Verdicts, of_all_partitions, proven
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.benchmark_proofs import NO_BENCHMARK, no_benchmark
from dataprep_assets.pipelines.corpus.budget_examples import examples_of
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.file_ages import ages_in_shard
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.pipelines.corpus.removed_duplicates import DUPLICATES, duplicates_of, removed_rows
from dataprep_assets.pipelines.corpus.selection_counts import NOTHING, Counted, Counts, added, folded, pair, percent
from dataprep_assets.pipelines.corpus.tagged_shard import ROWS, TAGS, file_of

SELECTION = "selection"
VERSION = 1
_EXAMPLES = 3
"""Sources over their budget of which examples are shown."""


class SelectionFacts(Facts):
    """Facts of a selection: the digest of what is dropped, and of each source what it has and what each rule drops.

    A count is of documents and of bytes; refused records are neither. `ages` are those of the shard's files
    (`file_ages`), where they decide which duplicates are kept.
    """

    dropped: str
    sources: dict[str, Counts]
    by_rule: dict[str, dict[str, Counts]]
    ages: dict[str, int] = Field(default_factory=dict)


def ruled_out_of(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> RuledOut | None:
    """The rows of a shard that the rules drop, or that are duplicates; None if neither is declared.

    Raises MissingArtifactError if its selection is not there.
    """
    if not corpus.selects:
        return None
    artifact = corpus.artifact(SELECTION, partition)
    receipt = store.require(artifact)
    return RuledOut(store, artifact, SelectionFacts.of(receipt).dropped, folded(_totals([receipt])[1].values())[0])


def columns_of(corpus: CorpusDeclaration) -> Columns:
    """The columns of `dropped.parquet`."""
    return COLUMNS if corpus.duplicates is None else {**COLUMNS, "representative": "string", "similarity": "number"}


def selection_spec(
    corpus: CorpusDeclaration,
    split: str,
    *,
    partitions: Partitions,
    tags: ArtifactSpec,
    duplicates: ArtifactSpec | None = None,
) -> ArtifactSpec:
    """The selection of a split.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        tags: The tags of the shards.
        duplicates: The duplicates of the dataset; None if they are not looked for.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=SELECTION,
        split=split,
        version=VERSION,
        description="The rows of each shard that the rules drop, and by which rule.",
        kinds={"parquet"},
        inputs=(tags, *(() if duplicates is None else (duplicates,))),
        partitions=partitions,
        recipes=partial(_recipes, corpus),
        build=partial(_build, corpus),
        foresee=partial(_build, corpus),
        metadata=partial(_metadata, corpus),
        rows=lambda receipt: folded(_totals([receipt])[1].values())[0],
        columns=columns_of(corpus),
        proofs=Proofs(proofs=proofs_of(corpus), examine=partial(_examine, corpus, split)),
    )


def _recipe(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> Recipe:
    tags = store.require(corpus.artifact(TAGS, partition))
    rules = {name: f"{'keep' if keeps else 'drop'}: {rule.text}" for name, (keeps, rule) in corpus.rules.items()}
    # of the duplicates only those of the shard: others change without it
    removed = duplicates_of(corpus, store, partition)
    of_shard = {} if removed is None else {f"{DUPLICATES}/{partition}": removed}
    return Recipe(
        artifact=corpus.artifact(SELECTION, partition),
        # a list, because the first rule is the reason
        key=digest_value(
            [SELECTION, VERSION, tags.content, [list(pair) for pair in rules.items()], *of_shard.values()]
        ),
        version=VERSION,
        settings={"rules": rules, "order": list(rules)},
        upstream={f"{TAGS}/{partition}": tags.content, **of_shard},
    )


def _recipes(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str | None]) -> Iterator[Recipe]:
    for partition in partitions:
        yield _recipe(corpus, store, partition or "")


def _build(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    for partition in request.partitions:
        try:
            recipe = _recipe(corpus, request.store, partition)
            receipt, reused = ensure(recipe, request.store, partial(_write, corpus, request.store, partition))
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            yield Outcome.of(receipt, reused)


def _write(corpus: CorpusDeclaration, store: ArtifactStore, partition: str, staged: Path) -> Written:
    tags = corpus.artifact(TAGS, partition)
    counted = Counted()
    with ParquetRows(staged / DROPPED, columns_of(corpus)) as writer:

        def written() -> Iterator[dict[str, list[Any]]]:
            for rows in ruled_rows_of(corpus, store, partition, counted):
                writer.add(rows)
                yield rows

        found = by_file(written())
    ages = ages_in_shard(corpus, store, partition)
    return Written(
        inputs={str(tags): store.require(tags).content},
        # a fact that is not given is not written: without duplicates receipts are as before
        facts=SelectionFacts(
            dropped=digest_of(found),
            sources=counted.sources,
            by_rule=counted.by_rule,
            **({"ages": ages} if ages else {}),
        ),
    )


def ruled_rows_of(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, counted: Counted | None = None
) -> Iterator[dict[str, list[Any]]]:
    """The rows of a shard that the declared rules drop, by its tags, or that are duplicates of others.

    Yields column of `dropped.parquet` → values. A rule is the reason before a duplicate: only what rules keep is
    compared with others.
    """
    directory = store.local(corpus.artifact(TAGS, partition))
    removed, start = removed_rows(corpus, store, partition), 0
    rules = corpus.rules
    names, wanted = list(rules), {column for _, rule in rules.values() for column in rule.columns}
    files = [ROWS, *(file_of(one) for one in corpus.taggers if wanted & one.columns.keys())]
    always = ("file", "row", "source", "bytes", "bad")
    for piece in side_by_side([directory / file for file in files], [*always, *wanted]):
        good = piece["bad"].is_null().to_numpy()
        by = ruled(piece, rules) if rules else np.full(len(good), -1)
        here = removed.among(start, start + len(good))
        reasons = [names[rule] if rule >= 0 else None for rule in by.tolist()]
        for place in here:
            reasons[place] = reasons[place] or DUPLICATE
        start += len(good)
        if counted is not None:
            kept = piece.select(["source", "bytes"]).filter(piece["bad"].is_null())
            of_good = [reason for reason, is_good in zip(reasons, good.tolist(), strict=True) if is_good]
            counted.add(kept["source"].to_pylist(), kept["bytes"].to_pylist(), of_good)
        rows = zip(reasons, good.tolist(), strict=True)
        at = np.array([place for place, (reason, ok) in enumerate(rows) if ok and reason], np.int64)
        chosen = piece.select(["file", "row"]).take(at)
        by_duplicate = [here.get(one, (None, None)) for one in at.tolist()]
        yield {
            "file": chosen["file"].to_pylist(),
            "row": chosen["row"].to_pylist(),
            "reason": [reasons[one] for one in at.tolist()],
            "representative": [one for one, _ in by_duplicate],
            "similarity": [similar for _, similar in by_duplicate],
        }


def _totals(receipts: Iterable[Receipt]) -> tuple[Counts, dict[str, Counts]]:
    """What all documents of some selections are, and what each rule drops of them."""
    every, by_rule = NOTHING, dict[str, Counts]()
    for receipt in receipts:
        facts = SelectionFacts.of(receipt)
        every = added(every, folded(facts.sources.values()))
        for of_source in facts.by_rule.values():
            for rule, counts in of_source.items():
                by_rule[rule] = added(by_rule.get(rule, NOTHING), counts)
    return every, by_rule


def _metadata(corpus: CorpusDeclaration, _: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    every, by_rule = _totals([receipt])
    shown: dict[str, Shown] = {f"dropped_{rule}": counts[0] for rule, counts in sorted(by_rule.items())}
    return {
        "documents": every[0],
        "dropped": folded(by_rule.values())[0],
        **shown,
        "rules": Table(_rule_rows(corpus, [receipt])),
        "sources": Table(_source_rows([receipt])),
    }


def _rule_rows(corpus: CorpusDeclaration, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """A row for each rule: what it says, and what it drops."""
    every, by_rule = _totals(receipts)
    rows = []
    for name, (keeps, rule) in corpus.rules.items():
        documents, size = by_rule.get(name, NOTHING)
        rows.append(
            {
                "rule": name,
                "drops": f"{'not ' if keeps else ''}({rule.text})" if keeps else rule.text,
                "documents": documents,
                "documents_%": percent(documents, every[0]),
                "bytes": size,
                "bytes_%": percent(size, every[1]),
            }
        )
    return rows


def _source_rows(receipts: Iterable[Receipt]) -> list[dict[str, Any]]:
    """A row for each source, those of which most is dropped first."""
    sources, dropped = _by_source(receipts)
    rows: list[dict[str, Any]] = []
    for source, (documents, size) in sources.items():
        gone, lost = folded(dropped.get(source, {}).values())
        worst = max(dropped.get(source, {}).items(), key=lambda item: item[1], default=("", NOTHING))[0]
        rows.append(
            {
                "source": source,
                "documents": documents,
                "dropped": gone,
                "dropped_%": percent(gone, documents),
                "dropped_bytes_%": percent(lost, size),
                "most_by": worst,
            }
        )
    return sorted(rows, key=lambda row: (-row["dropped_%"], row["source"]))[:SHOWN]


def _by_source(receipts: Iterable[Receipt]) -> tuple[dict[str, Counts], dict[str, dict[str, Counts]]]:
    sources: dict[str, Counts] = {}
    dropped: dict[str, dict[str, Counts]] = {}
    for receipt in receipts:
        facts = SelectionFacts.of(receipt)
        for source, counts in facts.sources.items():
            sources[source] = added(sources.get(source, NOTHING), counts)
        for source, by_rule in facts.by_rule.items():
            for rule, counts in by_rule.items():
                of_source = dropped.setdefault(source, {})
                of_source[rule] = added(of_source.get(rule, NOTHING), counts)
    return sources, dropped


SELECTION_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof(
        "rules_hold",
        "The dropped rows are those of which the rules are true by the tags, and the duplicates, no more and no less.",
    ),
    Proof("within_budget", "Rules drop no more of a source, and each no more in all, than `budget` allows."),
)


def proofs_of(corpus: CorpusDeclaration) -> tuple[Proof, ...]:
    """The proofs of a dataset's selections."""
    asked = corpus.decontaminate
    return SELECTION_PROOFS if asked is None or asked.action == "tag" else (*SELECTION_PROOFS, NO_BENCHMARK)


def _examine(
    corpus: CorpusDeclaration, split: str, store: ArtifactStore, examined: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    manifest = load_manifest(corpus, store)

    def prove(partitions: Sequence[str]) -> Verdicts:
        return ((one, _proven(corpus, store, one)) for one in partitions)

    yield from of_all_partitions(
        store,
        SELECTION_PROOFS[:2],
        manifest.partitions(split),
        examined,
        artifact=partial(corpus.artifact, SELECTION),
        prove=prove,
    )
    yield "within_budget", _within_budget(corpus, split, store, manifest.partitions(split))
    if NO_BENCHMARK in proofs_of(corpus):
        yield NO_BENCHMARK.name, no_benchmark(corpus, store, manifest.partitions(split))


def _proven(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> dict[str, Finding]:
    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        return {
            "files_intact": files_intact(directory, receipt),
            "rules_hold": _rules_hold(corpus, store, partition, directory, receipt),
        }

    return proven(corpus.artifact(SELECTION, partition), store, SELECTION_PROOFS[:2], prove)


@judged
def _rules_hold(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, directory: Path, receipt: Receipt
) -> Finding:
    facts, counted = SelectionFacts.of(receipt), Counted()
    stored = read_dropped(directory)
    wanted = by_file(ruled_rows_of(corpus, store, partition, counted))
    defects = [f"{name_of(receipt)}: {other}" for other in other_rows(wanted, stored)]
    if digest_of(stored) != facts.dropped:
        defects.append(f"{name_of(receipt)}: {DROPPED} has another digest of its rows than the receipt")
    if (facts.sources, facts.by_rule) != (counted.sources, counted.by_rule):
        defects.append(f"{name_of(receipt)}: its receipt counts other documents of a source than the tags")
    return verdict(
        defects,
        f"{sum(len(one.rows) for one in stored.values()):,} rows are dropped, as {len(corpus.rules)} rules say.",
        "Delete the shard's directory and materialize it again",
        facts={"dropped": sum(len(one.rows) for one in stored.values())},
    )


def _within_budget(corpus: CorpusDeclaration, split: str, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    receipts = [one for one in store.receipts([corpus.artifact(SELECTION, p) for p in partitions]) if one is not None]
    every, by_rule = _totals(receipts)
    gone = folded(by_rule.values())
    facts: dict[str, int | float | str] = {
        "documents": every[0],
        "dropped": gone[0],
        "dropped_%": percent(*pair(gone, every, 0)),
        "dropped_bytes_%": percent(*pair(gone, every, 1)),
        **{f"dropped_by_{rule}_%": percent(*pair(counts, every, 0)) for rule, counts in sorted(by_rule.items())},
    }
    over = list(_sources_over(corpus, receipts))
    examples = examples_of(corpus, store, partitions, [name for name, _ in over[:_EXAMPLES]])
    return verdict(
        [*_rules_over(corpus, receipts), *(told for _, told in over)],
        f"Rules drop {gone[0]:,} of {every[0]:,} documents of {split}; no source and no rule is over its budget.",
        "Look at `dataprep documents`, correct the rule, or raise its budget",
        facts=facts,
        table=[*_source_rows(receipts), *examples],
    )


def _rules_over(corpus: CorpusDeclaration, receipts: Sequence[Receipt]) -> Iterator[str]:
    """A sentence for each rule that drops more than its budget."""
    budget = corpus.budget
    every, by_rule = _totals(receipts)
    for rule, most in budget.per_rule.items():
        for noun, at in (("documents", 0), ("bytes", 1)):
            part, whole = pair(by_rule.get(rule, NOTHING), every, at)
            if part > most * whole:
                yield f"the rule {rule} drops {part:,} of {whole:,} {noun} ({part / whole:.2%}), more than {most:.2%}"
                break


def _sources_over(corpus: CorpusDeclaration, receipts: Sequence[Receipt]) -> Iterator[tuple[str, str]]:
    """Each source of which more is dropped than its budget, and a sentence: that which loses most comes first."""
    most = corpus.budget.per_source
    if most is None:
        return
    sources, dropped = _by_source(receipts)
    lost = []
    for source, counts in sources.items():
        gone = folded(dropped.get(source, {}).values())
        shares = [
            (part / whole if whole else 0.0, part, whole)
            for part, whole in (pair(gone, counts, 0), pair(gone, counts, 1))
        ]
        at = 0 if shares[0][0] > most else 1
        if shares[at][0] > most:
            lost.append((max(share for share, _, _ in shares), source, at, shares[at]))
    for _, source, at, (share, part, whole) in sorted(lost, key=lambda one: (-one[0], one[1])):
        worst = Counter({rule: one[at] for rule, one in dropped[source].items()}).most_common(1)[0][0]
        yield (
            source,
            f"of the source {source} rules drop {part:,} of {whole:,} {('documents', 'bytes')[at]} ({share:.2%}), most "
            f"of them {worst}; `budget.per_source` allows {most:.2%}",
        )
