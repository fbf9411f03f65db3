"""Proofs of the tags of a shard: all files have the same rows, and a sample comes out the same when made again."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dataprep_assets.documents.table import DocumentBatch, read_batches, schema_of, side_by_side
from dataprep_assets.documents.tagging import BatchTagger, tags_of
from dataprep_assets.errors import DataprepError, FormatError
from dataprep_assets.graph.finding import Finding, files_intact, judged, name_of, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.tagged_shard import ROWS, TaggedShard, TagsFacts, file_of

TAGS_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("rows_complete", "Every file has the declared columns and the same rows, in the order of the source."),
    Proof(
        "tags_repeat",
        "A sample of documents, read from the source and tagged again, alone, has the stored values.",
        blocking=False,
    ),
)
_REBUILD = "Delete the shard's directory and materialize it again"
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

    return proven(shard.artifact, shard.store, TAGS_PROOFS, prove)


@judged
def _rows_complete(shard: TaggedShard, directory: Path, receipt: Receipt) -> Finding:
    facts = TagsFacts.of(receipt)
    return verdict(
        (f"{name_of(receipt)}: {defect}" for defect in _row_defects(shard, directory, facts)),
        f"{facts.rows:,} rows in {len(shard.names)} files, {facts.bad:,} of them refused.",
        _REBUILD,
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
        values = (piece[name].to_pylist() for name in ("file", "row", "bad"))
        for file, row, reason in zip(*values, strict=True):
            here = (order.get(file, -2), row)
            if here <= last:
                yield f"{ROWS}: {file}, row {row} is not in the order of the source"
                return
            last, rows, bad = here, rows + 1, bad + (reason is not None)
    if (rows, bad) != (facts.rows, facts.bad):
        yield f"has {rows:,} rows, {bad:,} refused; the receipt says {facts.rows:,} and {facts.bad:,}"


def _tags_repeat(shard: TaggedShard, directory: Path, receipt: Receipt) -> Finding:
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
    batch = next(iter(read_batches(part.read_rows(shard.fields.read), part.label, shard.fields)), None)
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
                        f"{part.label}: row {sample.row(at)}: tagger {tagger.name!r} gave another {name} when it was "
                        "asked again"
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
        raise FormatError(f"{directory / ROWS}: {label}, row {missing[0]} is not in it. {_REBUILD}")
    return [found[at] for at in range(len(wanted))]
