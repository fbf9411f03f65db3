"""The artifact `<dataset>/tags_<split>`, one partition per shard: what is known of each row before any rule decides.

`rows.parquet` has what is carried along of each row of the source; beside it each tagger has a file of its own with the
same rows. Thresholds are no part of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.documents.asset_tagger import AssetTagger
from dataprep_assets.documents.declaration import FloorDeclaration
from dataprep_assets.documents.planted import PlantedCounts, by_kind, found_of
from dataprep_assets.documents.table import DocumentBatch, runs_of, schema_of, side_by_side
from dataprep_assets.documents.tagging import BatchTagger, named_tagger, tags_of
from dataprep_assets.errors import DataprepError, FormatError
from dataprep_assets.graph.finding import REBUILD, Finding, files_intact, judged, name_of, verdict
from dataprep_assets.graph.shown import Shown, Table
from dataprep_assets.graph.spec import ArtifactSpec, OtherAsset, Partitions, Proof, Proofs
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.shard_tasks import ShardTasks
from dataprep_assets.pipelines.corpus.snapshot import readings
from dataprep_assets.pipelines.corpus.source_parts import source_parts
from dataprep_assets.pipelines.corpus.tagged_shard import (
    ROWS,
    TAGS,
    VERSION,
    TaggedShard,
    TagsFacts,
    batches_of,
    ensure_tags,
    file_of,
)

SHARD_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("rows_complete", "Every file has the declared columns and the same rows, in the order of the source."),
    Proof(
        "tags_repeat",
        "A sample of documents, read from the source and tagged again, alone, has the stored values.",
        blocking=False,
    ),
)
TAGS_PROOFS = (
    *SHARD_PROOFS,
    Proof(
        "planted_found",
        "Of cases planted into documents, and of what only looks like them, taggers tell right what `floors` wants.",
    ),
)
_SAMPLE = 32
"""Documents that are tagged again: some time for a model, and any difference shows in a few."""


def prove_tags(shard: TaggedShard) -> dict[str, Finding]:
    """Every proof of the tags of one shard; missing tags fail them all."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        return {
            "files_intact": files_intact(directory, receipt),
            "rows_complete": _rows_complete(shard, directory, receipt),
            "tags_repeat": _tags_repeat(shard, directory, receipt),
        }

    return proven(shard.artifact, shard.store, SHARD_PROOFS, prove)


@judged
def _rows_complete(shard: TaggedShard, directory: Path, receipt: Receipt) -> Finding:
    facts = TagsFacts.of(receipt)
    return verdict(
        (f"{name_of(receipt)}: {defect}" for defect in _row_defects(shard, directory, facts)),
        f"{facts.rows:,} rows in {len(shard.names)} files, {facts.bad:,} of them refused.",
        REBUILD,
        facts={"rows": facts.rows, "refused": facts.bad},
    )


def _row_defects(shard: TaggedShard, directory: Path, facts: TagsFacts) -> Iterator[str]:
    import pyarrow.parquet as pq

    declared = {ROWS: shard.fields.columns, **{file_of(one): one.columns for one in shard.taggers}}
    if set(declared) != set(facts.made_of):
        yield "has files of other taggers than are declared"
        return
    for name, columns in declared.items():
        if not pq.read_schema(directory / name).equals(schema_of(columns)):
            yield f"{name} has other columns than are declared"
            return
    order = {part.label: at for at, part in enumerate(shard.files)}
    last, rows, bad = (-1, 0), 0, 0
    # all files are read, so that their numbers of rows are compared
    for piece in side_by_side([directory / name for name in declared]):
        for file, run in runs_of(piece):
            # a file that is none of the shard's is before all others, and so never in order
            at, numbers = order.get(file, -2), run["row"].to_numpy()
            # of each row the one before it in its file, also from the last piece; 0 for the first, as rows count from 1
            before = np.concatenate([[last[1] if at == last[0] else 0], numbers[:-1]])
            if at < last[0] or not (after := numbers > before).all():
                row = numbers[0] if at < last[0] else numbers[np.argmin(after)]
                yield f"{ROWS}: {file}, row {row} is not in the order of the source"
                return
            last = (at, int(numbers[-1]))
        rows, bad = rows + piece.num_rows, bad + piece.num_rows - piece["bad"].null_count
    if (rows, bad) != (facts.rows, facts.bad):
        yield f"has {rows:,} rows, {bad:,} refused; the receipt says {facts.rows:,} and {facts.bad:,}"


def _tags_repeat(shard: TaggedShard, directory: Path, receipt: Receipt) -> Finding:
    # a command or an asset cannot be asked for a few documents alone
    taggers = [one for one in shard.taggers if isinstance(one, BatchTagger)]
    try:
        defects = list(_repeated(shard, directory, receipt, taggers))
    except (DataprepError, OSError) as error:
        return Finding(passed=False, warning=True, summary=str(error), facts={"unreadable": 1})
    return verdict(
        (f"{name_of(receipt)}: {defect}" for defect in defects),
        f"Up to {_SAMPLE} documents have the stored values of {len(taggers)} taggers when they are tagged again.",
        "A tagger whose values depend on time, chance or the other documents of its batch makes a dataset that nobody "
        "can make again: give it a seed, or look at each document alone",
        warning=True,
    )


def _repeated(shard: TaggedShard, directory: Path, receipt: Receipt, taggers: list[BatchTagger]) -> Iterator[str]:
    filled = [part for part in shard.files if part.sha256]
    if not taggers or not filled:
        return
    part = filled[int(receipt.key[:8], 16) % len(filled)]
    batch = next(batches_of(part, shard.fields), None)
    if batch is None or not batch.texts:
        return
    sample = batch.only(slice(0, _SAMPLE))
    for tagger in taggers:
        stored = _stored(directory, tagger, part.label, sample)
        made = tags_of(tagger, sample, sensitive=shard.fields.sensitive)
        for name, values in made.items():
            for at, value in enumerate(values):
                if value != stored[at][name]:
                    yield (
                        f"{part.label}: row {sample.row(at)}: tagger {tagger.name!r} gave another {name} "
                        "when it was asked again"
                    )
                    break


def _stored(directory: Path, tagger: BatchTagger, label: str, sample: DocumentBatch) -> list[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = {row: at for at, row in enumerate(sample.rows["row"])}
    found: dict[int, Mapping[str, Any]] = {}
    for piece in side_by_side([directory / ROWS, directory / file_of(tagger)], ["file", "row", *tagger.columns]):
        here = pc.and_(pc.equal(piece["file"], label), pc.is_in(piece["row"], pa.array(list(wanted), pa.int64())))
        for one in piece.filter(here).to_pylist():
            found[wanted[one["row"]]] = one
        if len(found) == len(wanted):
            break
    if missing := [row for row, at in wanted.items() if at not in found]:
        raise FormatError(f"{directory / ROWS}: {label}, row {missing[0]} is not in it. {REBUILD}")
    return [found[at] for at in range(len(wanted))]


@judged
def planted_found(shard: TaggedShard | None, floors: Mapping[str, FloorDeclaration], names: Sequence[str]) -> Finding:
    """What taggers find of their planted cases.

    Args:
        shard: The shard into whose first documents they are put; None if there is none.
        floors: Tagger → the least that it has to find; a default for the others.
        names: The taggers that have cases.
    """
    if not names:
        return Finding(passed=True, summary="No tagger of the dataset has cases of which the truth is known.")
    around = _documents(shard)
    rows: list[dict[str, str | int | float]] = []
    defects: list[str] = []
    facts: dict[str, int | float | str] = {"documents": len(around)}
    for name in names:
        tagger = named_tagger(name)
        assert tagger.planted is not None
        found = found_of(list(tagger.planted()), tagger.tag, around)
        floor = floors.get(name, FloorDeclaration())
        rows += [{"tagger": name, "kind": kind, **_row(counts)} for kind, counts in found.items()]
        for kind, counts in by_kind(found).items():
            facts |= {f"recall_{kind}": round(counts.recall, 4), f"precision_{kind}": round(counts.precision, 4)}
            if counts.recall < floor.recall:
                told = f"{counts.found} of {counts.planted} {kind} ({counts.recall:.2%})"
                defects.append(f"{name} finds {told}, less than {floor.recall:.2%}")
            if counts.precision < floor.precision:
                told = f"{counts.mistaken} of {counts.negatives} texts that only look like {kind}"
                defects.append(
                    f"{name} takes {told} for them: a precision of {counts.precision:.2%}, less than "
                    f"{floor.precision:.2%}"
                )
    return verdict(
        defects,
        f"Taggers find of their planted cases what they have to: {', '.join(names)}.",
        "Another version of the tagger or of its library may be the cause. Lower `floors` if that is good enough",
        facts=facts,
        table=rows,
    )


def _row(counts: PlantedCounts) -> dict[str, int | float]:
    return {
        "planted": counts.planted,
        "found": counts.found,
        "recall_%": round(100 * counts.recall, 2),
        "only_alike": counts.negatives,
        "taken_for_it": counts.mistaken,
        "precision_%": round(100 * counts.precision, 2),
    }


def _documents(shard: TaggedShard | None) -> list[str]:
    """The first texts of a shard; none if its source cannot be read."""
    if shard is None:
        return []
    for part in shard.files:
        try:
            batch = next(batches_of(part, shard.fields), None)
        except (DataprepError, OSError):
            continue
        if batch is not None and batch.texts:
            return batch.texts[:_SAMPLE]
    return []


def tags_spec(corpus: CorpusDeclaration, split: str, *, partitions: Partitions, snapshot: ArtifactSpec) -> ArtifactSpec:
    """The tags of a split.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        snapshot: The snapshots of the shards.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=TAGS,
        split=split,
        version=VERSION,
        description="What is known of each row of a shard before rules decide: carried fields and taggers' columns.",
        kinds={"parquet"},
        inputs=(snapshot, *(OtherAsset(key=one.key) for one in corpus.taggers if isinstance(one, AssetTagger))),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_TASKS.recipes, corpus),
        build=partial(_TASKS.build, corpus),
        reads=partial(readings, corpus, tokenized=True),
        metadata=_metadata,
        rows=lambda receipt: TagsFacts.of(receipt).rows,
        columns={**corpus.columns, "bad": "string"},
        proofs=Proofs(proofs=TAGS_PROOFS, examine=partial(_examine, corpus, split)),
    )


def tagged_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, partitions: Sequence[str]
) -> list[TaggedShard]:
    """The tags of the given shards; raises MissingArtifactError where one has no snapshot."""
    fields, taggers, shards = corpus.carried, [one.located() for one in corpus.taggers], []
    for partition in partitions:
        files = source_parts(corpus, store, manifest, partition)
        labels = [file.label for file in files]
        shards.append(
            TaggedShard(
                artifact=corpus.artifact(TAGS, partition),
                store=store,
                files=files,
                fields=fields,
                taggers=tuple(one.of_files(labels) for one in taggers),
                source_bytes=sum(entry.size_bytes for entry in manifest.shard(partition)),
            )
        )
    return shards


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts, taggers = TagsFacts.of(receipt), receipt.recipe.get("settings", {}).get("taggers", {})
    listed = [
        {"tagger": name, "version": told["version"][:12], "columns": ", ".join(told["columns"])}
        for name, told in taggers.items()
    ]
    return {"rows": facts.rows, "refused": facts.bad, **({"taggers": Table(listed)} if listed else {})}


def _examine(
    corpus: CorpusDeclaration, split: str, store: ArtifactStore, examined: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    yield from _TASKS.examine(corpus, split, store, examined)
    first = next(iter(tagged_shards(corpus, store, load_manifest(corpus, store), examined[:1])), None)
    yield "planted_found", planted_found(first, corpus.floors, corpus.with_cases)


_TASKS = ShardTasks(name=TAGS, shards=tagged_shards, ensure=ensure_tags, proofs=SHARD_PROOFS, prove=prove_tags)
