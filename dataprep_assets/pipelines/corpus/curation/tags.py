"""Tags (`<dataset>/tags_<split>`, one partition per shard): the taggers' values for each row.

`rows.parquet` has the carried fields of each source row. Each tagger has its own file with the same rows. Rules and
their thresholds are not part of tags.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from dataprep_assets.curation.declaration import FloorDeclaration
from dataprep_assets.curation.external_taggers.asset_tagger import AssetTagger
from dataprep_assets.curation.planted import count_found
from dataprep_assets.curation.planted.accuracy import build_accuracy_row, find_inaccurate, list_accuracy
from dataprep_assets.curation.rewriters.declaration import PERSONAL, replaces_personal_data
from dataprep_assets.curation.rewriters.recall import PERSONAL_DATA_REPLACED, PlantedRewriting
from dataprep_assets.curation.table import build_schema, read_joined_tables, split_by_file
from dataprep_assets.curation.tagging import BatchTagger
from dataprep_assets.curation.text_tagger import TextTagger
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, Partitions
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    REBUILD,
    UNREPEATABLE,
    Check,
    Finding,
    OpenedPartition,
    build_verdict,
    choose_sample_count,
    describe_artifact,
)
from dataprep_assets.engine.checks.comparison import compare_claims, compare_files, compare_rows
from dataprep_assets.engine.checks.verdicts import CheckGroup, WholeArtifactChecks
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.scratch import create_scratch
from dataprep_assets.pipelines.corpus.curation.shard_tasks import ShardTasks
from dataprep_assets.pipelines.corpus.curation.tagged_shard import (
    ROWS,
    TAGS,
    VERSION,
    TaggedShard,
    TagsFacts,
    draw_rows,
    ensure_tags,
    list_reported_columns,
    name_tagger_file,
    read_part_batches,
    write_all_tags,
    write_tags,
)
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import estimate_readings
from dataprep_assets.pipelines.corpus.source.source_parts import load_source_parts
from dataprep_assets.sources.readers.read_options import DrawnRows
from dataprep_assets.table import format_share

_MAX_SOURCES, _MAX_SHOWN_SOURCES = 20, 3
"""Maximum number of sources to list per column, in a table and in a sentence."""
_CARRIER_DOCUMENTS = 32
"""Number of documents into which test cases are planted."""


class OpenedTags(OpenedPartition[TaggedShard]):
    """Tags of a shard, opened for checks."""

    @cached_property
    def facts(self) -> TagsFacts:
        """Facts in the receipt; raises IntegrityError if a fact is missing."""
        return TagsFacts.from_receipt(self.receipt)


def _check_rows(tags: OpenedTags) -> Finding:
    shard, facts = tags.planned, tags.facts
    return build_verdict(
        (f"{tags.name}: {defect}" for defect in _find_row_defects(shard, tags.directory, facts)),
        f"{count_of(facts.rows, 'row')} ({facts.bad:,} rejected) in {count_of(len(shard.names), 'file')}.",
        REBUILD,
        facts={"rows": facts.rows, "bad_rows": facts.bad},
    )


def _find_row_defects(shard: TaggedShard, directory: Path, facts: TagsFacts) -> Iterator[str]:
    import pyarrow.parquet as pq

    columns_by_file = {ROWS: shard.fields.columns, **{name_tagger_file(one): one.columns for one in shard.taggers}}
    if set(columns_by_file) != set(facts.made_of):
        yield "must have exactly the files of the declared taggers"
        return
    for name, columns in columns_by_file.items():
        if not pq.read_schema(directory / name).equals(build_schema(columns)):
            yield f"the columns of {name} differ from the declared columns"
            return
    order = {part.label: rank for rank, part in enumerate(shard.files)}
    last_row, rows, bad_count = (-1, 0), 0, 0
    # Read all files together, because `read_joined_tables` raises an error if their numbers of rows differ.
    for piece in read_joined_tables([directory / name for name in columns_by_file]):
        for file, run in split_by_file(piece):
            # Give a file of a different shard a rank below the initial rank, so that the test below reports its rows as
            # out of order.
            rank, numbers = order.get(file, -2), run["row"].to_numpy()
            # Compare each row number with the previous one in the file, which may be in the previous piece. Compare the
            # first row of a file with 0, because rows are counted from 1.
            previous_numbers = np.concatenate([[last_row[1] if rank == last_row[0] else 0], numbers[:-1]])
            if rank < last_row[0] or not (is_after := numbers > previous_numbers).all():
                row = numbers[0] if rank < last_row[0] else numbers[np.argmin(is_after)]
                yield f"{ROWS}: {file}: row {row} is not in the order of the source"
                return
            last_row = (rank, int(numbers[-1]))
        rows, bad_count = rows + piece.num_rows, bad_count + piece.num_rows - piece["bad"].null_count
    if (rows, bad_count) != (facts.rows, facts.bad):
        yield (
            f"has {count_of(rows, 'row')} ({bad_count:,} rejected), but the receipt has {count_of(facts.rows, 'row')} "
            f"({facts.bad:,} rejected)"
        )


def _check_rebuild(tags: OpenedTags) -> Finding:
    shard, directory, receipt, facts = tags.planned, tags.directory, tags.receipt, tags.facts
    # Report tags that are out of date only as a warning, because they may differ from rebuilt tags without being
    # damaged.
    if (change := shard.recipe().find_change(receipt)) is not None:
        out_of_date = f"{describe_artifact(receipt)}: is out of date: {change.reason}"
        return build_verdict([out_of_date], "", "Run the dataset", warning=True)
    with create_scratch(shard.store.root / receipt.dataset) as folder:
        if shard.samples is None:
            faults, rows = _compare_all_rows(shard, directory, receipt, folder), facts.rows
        else:
            sample = draw_rows(receipt, facts.rows, shard.samples)
            faults, rows = _compare_drawn_rows(shard, directory, sample, folder), len(sample.positions)
        if facts.made_of != shard.digest_file_inputs():
            faults["facts"] = "the facts in its receipt differ from a rebuild"
    nondeterministic_files = {name_tagger_file(one) for one in shard.taggers if not one.repeats}
    if shard.samples is None:
        nondeterministic_files &= _find_unstable_files(shard, directory, faults.keys() & nondeterministic_files)
    # List the files of nondeterministic taggers last, because their differences may be due to chance.
    differences = sorted(faults.items(), key=lambda one: one[0] in nondeterministic_files)
    return build_verdict(
        (f"{describe_artifact(receipt)}: {one}" for _, one in differences),
        f"Tagged {rows:,} of {count_of(facts.rows, 'row')} again: all have the stored values.",
        UNREPEATABLE if nondeterministic_files.issuperset(faults) else REBUILD,
        facts={"rows_compared": rows, "rows": facts.rows},
        warning=bool(faults) and nondeterministic_files.issuperset(faults),
    )


def _compare_drawn_rows(shard: TaggedShard, directory: Path, drawn_rows: DrawnRows, folder: Path) -> dict[str, str]:
    """Tag the drawn rows again; return file → sentence for each file in which they differ."""
    # Leave out the files of command and asset taggers, because these taggers cannot process a subset of the documents.
    left_out = frozenset(name_tagger_file(one) for one in shard.taggers if not isinstance(one, BatchTagger))
    write_tags(shard, folder, left_out, drawn_rows)
    names = [name for name in shard.names if name not in left_out]
    differences = {name: compare_rows(folder / name, directory / name, drawn_rows.positions) for name in names}
    return {name: f"{name}: {one}" for name, one in differences.items() if one is not None}


def _compare_all_rows(shard: TaggedShard, directory: Path, receipt: Receipt, folder: Path) -> dict[str, str]:
    """Tag all rows again; return file or claim → sentence for each difference."""
    files = write_all_tags(shard, folder)
    names = [record.path for record in receipt.files]
    claims = {claim: claim for claim in compare_claims(files, receipt)}
    return {**dict(compare_files(folder, directory, names)), **claims}


def _find_unstable_files(shard: TaggedShard, directory: Path, names: Set[str]) -> set[str]:
    """Return those of the tagger files `names` that differ between two further runs."""
    if not names:
        return set()
    with create_scratch(shard.store.root / shard.artifact.dataset) as folder:
        for run in ("first", "second"):
            (folder / run).mkdir()
            write_tags(shard, folder / run, frozenset(shard.names) - names - {ROWS})
        return {name for name in names if compare_rows(folder / "first" / name, folder / "second" / name) is not None}


def check_taggers(
    shard: TaggedShard | None, floors: Mapping[str, FloorDeclaration], taggers: Mapping[str, TextTagger]
) -> Finding:
    """Check that taggers find enough of their planted cases and flag few look-alikes.

    Args:
        shard: The shard whose first documents get the cases; None if there is none.
        floors: Tagger → its minimum accuracy; other taggers have a default.
        taggers: The taggers with test cases, by name.
    """
    if not taggers:
        return Finding(passed=True, summary="No tagger of the dataset has test cases.")
    documents = _read_documents(shard)
    rows: list[dict[str, str | int | float]] = []
    defects: list[str] = []
    facts: dict[str, int | float | str] = {"documents": len(documents)}
    for name, tagger in taggers.items():
        assert tagger.planted is not None
        counts_by_kind = count_found(list(tagger.planted()), tagger.tag, documents)
        rows += [
            {"tagger": name, "kind": kind, **build_accuracy_row(counts)} for kind, counts in counts_by_kind.items()
        ]
        facts |= list_accuracy(counts_by_kind)
        defects += find_inaccurate(counts_by_kind, floors.get(name), f"{name} finds", f"{name} flags")
    return build_verdict(
        defects,
        f"Taggers are accurate enough on their planted cases: {', '.join(taggers)}.",
        "A different version of the tagger or of its library may be the cause. Lower `floors` if the accuracy is "
        "good enough",
        facts=facts,
        table=rows,
    )


def _read_documents(shard: TaggedShard | None) -> list[str]:
    """Return the first texts of a shard; empty if its source cannot be read."""
    if shard is None:
        return []
    for part in shard.files:
        try:
            batch = next(read_part_batches(part, shard.fields), None)
        except (DataprepError, OSError):
            continue
        if batch is not None and batch.texts:
            return batch.texts[:_CARRIER_DOCUMENTS]
    return []


def check_known_values(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that the documents of these shards have a value in each column whose missing values are reported."""
    receipts = store.receipts([corpus.artifact(TAGS, partition) for partition in partitions])
    shard_facts = [TagsFacts.from_receipt(receipt) for receipt in receipts if receipt is not None]
    documents = sum(facts.rows - facts.bad for facts in shard_facts)
    nouns = list_reported_columns(corpus.carried, corpus.taggers)
    counts = {column: Counter[str]() for column in nouns}
    for facts in shard_facts:
        for column, missing_counts in facts.missing.items():
            counts.get(column, Counter[str]()).update(missing_counts)
    totals = {column: missing_counts.total() for column, missing_counts in counts.items() if missing_counts}
    phrases = [
        f"{total:,} ({format_share(total / documents)}) have no {nouns[column]} ({_describe_sources(counts[column])})"
        for column, total in totals.items()
    ]
    return build_verdict(
        [f"of {count_of(documents, 'document')}, {'; '.join(phrases)}"] if phrases else [],
        f"All {count_of(documents, 'document')} have values: {', '.join(nouns.values())}.",
        f"Null in the table: {', '.join(totals)}. A `drop` rule whose result is null keeps the document, and a `keep` "
        f"rule drops it. To decide otherwise, use `{next(iter(totals), '')} is null` in the rule",
        facts={"documents": documents, **{f"without_{column}": sources.total() for column, sources in counts.items()}},
        table=[
            {"column": column, "source": source, "documents_without_value": count}
            for column, missing_counts in counts.items()
            for source, count in missing_counts.most_common(_MAX_SOURCES)
        ],
        warning=True,
    )


def _describe_sources(counts: Counter[str]) -> str:
    """Return the sources with the most documents as text."""
    names = [f"{source} {count:,}" for source, count in counts.most_common(_MAX_SHOWN_SOURCES)]
    return ", ".join(names) + (f" and {len(counts) - len(names):,} more" if len(counts) > len(names) else "")


def build_tags_spec(
    corpus: CorpusDeclaration, split: str, *, partitions: Partitions, snapshot: ArtifactSpec
) -> ArtifactSpec:
    """Return the spec of a split's tags.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        snapshot: The snapshots of the shards.
    """
    check_groups: tuple[CheckGroup, ...] = (
        _TASKS.group(corpus),
        WholeArtifactChecks(checks=(_TAGGERS_ACCURATE,), open=partial(_open_planted_shard, corpus)),
    )
    if replaces_personal_data(corpus.rewrite):
        check_groups += (
            WholeArtifactChecks(checks=(PERSONAL_DATA_REPLACED,), open=partial(_open_planted_rewriting, corpus)),
        )
    if corpus.document.license_field is not None or any(tagger.missing for tagger in corpus.taggers):
        check_groups += (WholeArtifactChecks(checks=(VALUES_KNOWN,), open=partial(_open_split, corpus, split)),)
    return ArtifactSpec(
        declaration=corpus,
        name=TAGS,
        split=split,
        version=VERSION,
        description="Kept fields and taggers' columns of each row, before filter rules are applied.",
        kinds={"parquet"},
        inputs=(
            snapshot,
            *(AssetInput(key=tagger.key) for tagger in corpus.taggers if isinstance(tagger, AssetTagger)),
        ),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_TASKS.recipes, corpus),
        build=partial(_TASKS.build, corpus),
        reads=partial(estimate_readings, corpus, tokenized=True),
        metadata=_build_metadata,
        rows=lambda receipt: TagsFacts.from_receipt(receipt).rows,
        columns={**corpus.columns, "bad": "string"},
        column_descriptions=corpus.column_descriptions,
        check_groups=check_groups,
    )


def plan_tagged_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, partitions: Sequence[str]
) -> list[TaggedShard]:
    """Return the tags of the given shards, to be built or checked; raise MissingArtifactError without a snapshot."""
    fields, taggers, shards = corpus.carried, [tagger.resolve_paths() for tagger in corpus.taggers], []
    for partition in partitions:
        files = load_source_parts(corpus, store, manifest, partition)
        labels = [file.label for file in files]
        shards.append(
            TaggedShard(
                artifact=corpus.artifact(TAGS, partition),
                store=store,
                files=files,
                fields=fields,
                taggers=tuple(tagger.limit_to_files(labels) for tagger in taggers),
                source_bytes=sum(entry.size_bytes for entry in manifest.shard(partition)),
                samples=choose_sample_count(corpus.prove.level),
            )
        )
    return shards


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts, taggers = TagsFacts.from_receipt(receipt), receipt.recipe.get("settings", {}).get("taggers", {})
    table = [
        {"tagger": name, "version": settings["version"][:12], "columns": ", ".join(settings["columns"])}
        for name, settings in taggers.items()
    ]
    return {"rows": facts.rows, "bad_rows": facts.bad, **({"taggers": Table(table)} if table else {})}


def _open_planted_shard(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]
) -> tuple[TaggedShard | None, CorpusDeclaration]:
    """Return the shard whose first documents get the planted cases, and its corpus."""
    shards = plan_tagged_shards(corpus, store, load_manifest(corpus, store), partitions[:1])
    return next(iter(shards), None), corpus


def _open_planted_rewriting(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]
) -> PlantedRewriting:
    """Return the rewriters, and the first documents, which get the planted personal data."""
    shard, _ = _open_planted_shard(corpus, store, partitions)
    assert corpus.rewriting is not None
    return PlantedRewriting(
        rewriting=corpus.rewriting,
        locations={"text": corpus.rewriting.rewrite_texts},
        documents=_read_documents(shard),
        floor=corpus.floors.get(PERSONAL),
    )


def _open_split(corpus: CorpusDeclaration, split: str, store: ArtifactStore, _: Sequence[str]) -> "_Split":
    return corpus, store, load_manifest(corpus, store).partitions(split)


SHARD_CHECKS: tuple[Check[OpenedTags], ...] = (
    FILES_INTACT,
    Check(
        "rows_complete",
        "Every file has the declared columns, and one row for each source row, in the same order.",
        _check_rows,
    ),
    Check(
        "rebuild_matches",
        "Tagging a sample of source rows (or all rows) again reproduces the stored values.",
        _check_rebuild,
        samples=True,
    ),
)
_TAGGERS_ACCURATE: Check[tuple[TaggedShard | None, CorpusDeclaration]] = Check(
    "taggers_accurate",
    "Taggers classify planted cases and look-alikes at least as accurately as `floors` requires.",
    lambda planted: check_taggers(planted[0], planted[1].floors, planted[1].tested_taggers),
)
_Split = tuple[CorpusDeclaration, ArtifactStore, Sequence[str]]
"""Arguments of a check that always reads all tags of a split, even if only some shards are being checked."""
VALUES_KNOWN: Check[_Split] = Check(
    "values_known",
    "Every document has a license if `document.license_field` is set, and the values that taggers look up, such as a "
    "URL.",
    lambda split: check_known_values(*split),
    blocking=False,
)
_TASKS = ShardTasks(name=TAGS, shards=plan_tagged_shards, ensure=ensure_tags, checks=SHARD_CHECKS, open=OpenedTags.open)
