"""Makes the tags of one shard: reads its source once, asks the taggers, writes a file each.

A file that would come out as it is there is taken over, so a tagger runs once a shard and version.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dataprep_assets.curation.asset_tagger import AssetTagger
from dataprep_assets.curation.benchmarks.benchmarks import BenchmarkTagger
from dataprep_assets.curation.command_tagger import CommandTagger
from dataprep_assets.curation.table import CarriedFields, DocumentBatch, ParquetRows, read_batches
from dataprep_assets.curation.tagging import BatchTagger, Tagger, align, tags_of
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import REBUILD, SAMPLED, draw_documents
from dataprep_assets.errors import DataprepError, IntegrityError, count_of
from dataprep_assets.execution.run_task import report
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.integrity.scratch import scratch
from dataprep_assets.sources.readers.input_format import CSV
from dataprep_assets.stores.files import digest_value, require_digest
from dataprep_assets.stream.token_stream import Fetch, SourcePart, fetch_missing

TAGS = "tags"
ROWS = "rows.parquet"
VERSION = 3


class TagsFacts(Facts):
    """Facts of a shard's tags.

    Attributes:
        rows: Its rows.
        bad: Those among them that are refused.
        made_of: What decides each of its files.
        benchmarks: Of each benchmark how many items are looked for (`Coverage`); only where some are declared.
    """

    rows: int
    bad: int
    made_of: dict[str, str]
    benchmarks: dict[str, dict[str, int]] = Field(default_factory=dict)


@dataclass(frozen=True)
class DrawnRows:
    """Rows of a shard that a check builds again: their places from 0, which ascend, among `of`."""

    places: NDArray[np.int64]
    of: int

    def between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Those from `start` to `stop`, counted from `start`."""
        return self.places[slice(*np.searchsorted(self.places, [start, stop]))] - start


def drawn_rows(receipt: Receipt, rows: int, samples: int | None) -> DrawnRows:
    """The rows of a shard that its check builds again, drawn by the key of its receipt."""
    return DrawnRows(draw_documents(receipt.key, rows, samples), rows)


def file_of(tagger: Tagger) -> str:
    """The file with the columns of a tagger."""
    return f"{tagger.name}.parquet"


@dataclass(frozen=True, kw_only=True)
class TaggedShard:
    """The tags of one shard, to be made or proven.

    Attributes:
        artifact: Their artifact.
        store: Where it is.
        files: The shard's source files, in order.
        fields: What is carried along of each row.
        taggers: The taggers, in the order of their columns.
        source_bytes: Bytes of the files as stored.
        samples: How many rows its check builds again; None: all.
    """

    artifact: Artifact
    store: ArtifactStore
    files: tuple[SourcePart, ...]
    fields: CarriedFields
    taggers: tuple[Tagger, ...]
    source_bytes: int
    samples: int | None = SAMPLED

    @property
    def shard(self) -> str:
        """Name used in messages."""
        return f"{self.artifact.dataset}/{self.artifact.partition}"

    @property
    def names(self) -> list[str]:
        """The files of the table, the rows first."""
        return [ROWS, *map(file_of, self.taggers)]

    def made_of(self) -> dict[str, str]:
        """Name of each file → digest of everything that decides it."""
        files = [[f.label, f.sha256, f.format, f.compression, f.limits] for f in self.files]
        # part of what decides each tagger's file: other rows make all of them anew
        rows = digest_value([VERSION, self.fields.key_parts, files])
        return {ROWS: rows, **{file_of(tagger): digest_value([rows, tagger.key_parts]) for tagger in self.taggers}}

    def recipe(self) -> Recipe:
        """The named values whose digest is the key."""
        fields = self.fields
        return Recipe(
            artifact=self.artifact,
            key=digest_value([TAGS, VERSION, self.made_of()]),
            version=VERSION,
            settings={
                "text_field": fields.text,
                "document_ids": None if fields.ids is None else fields.ids.key_parts(),
                "source_field": fields.source,
                "url_field": fields.url,
                "keep_fields": dict(fields.keep),
                "taggers": {
                    tagger.name: {"version": tagger.version, "columns": dict(tagger.columns)} for tagger in self.taggers
                },
            },
            sources={file.label: file.sha256 for file in self.files},
        )


def ensure_tags(shard: TaggedShard, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """A worker's task: the tags of a shard, unless they are current; returns the receipt and whether it was reused."""
    recipe = shard.recipe()

    def write(staged: Path) -> WrittenFiles:
        fetch_missing(shard.files, fetch)
        return _write(shard, staged)

    return ensure(recipe, shard.store, write, verification)


def _write(shard: TaggedShard, staged: Path) -> WrittenFiles:
    made_of = shard.made_of()
    facts, copied_names = _taken_over(shard, staged, made_of)
    if facts is None or len(copied_names) < len(made_of):
        facts = tag(shard, staged, copied_names)
    return _describe(shard, facts, made_of)


def write_anew(shard: TaggedShard, staged: Path) -> WrittenFiles:
    """Write all files of a shard's tags, whatever its present tags have."""
    return _describe(shard, tag(shard, staged, frozenset()), shard.made_of())


def _describe(shard: TaggedShard, facts: TagsFacts, made_of: dict[str, str]) -> WrittenFiles:
    return WrittenFiles(
        inputs={file.label: file.sha256 for file in shard.files},
        facts=TagsFacts(rows=facts.rows, bad=facts.bad, made_of=made_of, **_coverage(shard.taggers)),
    )


def _coverage(taggers: Sequence[Tagger]) -> dict[str, Any]:
    """Return how many items of benchmarks are looked for, as a fact that only those have that look."""
    looking = next((one for one in taggers if isinstance(one, BenchmarkTagger)), None)
    if looking is None:
        return {}
    return {"benchmarks": {name: asdict(one) for name, one in looking.benchmarks.coverage.items()}}


def _taken_over(
    shard: TaggedShard, staged: Path, made_of: Mapping[str, str]
) -> tuple[TagsFacts | None, frozenset[str]]:
    """Copy the files that the present tags of the shard have and that would come out the same; which these are."""
    try:
        if shard.store.must_rebuild(shard.artifact) or (receipt := shard.store.receipt(shard.artifact)) is None:
            return None, frozenset()
        facts = TagsFacts.of(receipt)
        names = [name for name, identity in made_of.items() if facts.made_of.get(name) == identity]
        # Copies get a receipt of their own: a byte that is wrong now would be right by it.
        if shard.store.damage(shard.artifact, receipt, "full"):
            return None, frozenset()
        directory = shard.store.local(shard.artifact, names)
    except DataprepError:  # what cannot be read is made again
        return None, frozenset()
    for name in names:
        shutil.copyfile(directory / name, staged / name)
    return facts if ROWS in names else None, frozenset(names)


def tag(shard: TaggedShard, staged: Path, taken: frozenset[str], some: DrawnRows | None = None) -> TagsFacts:
    """Read the source once, and write every file that is not among the `taken`; of `some` rows if they are given."""
    running = [tagger for tagger in shard.taggers if file_of(tagger) not in taken]
    # texts, and what may be of them, are in files for as long as commands are at work
    with scratch(shard.store.root / shard.artifact.dataset) as folder:
        texts_path, columns_path = folder / "given-texts.parquet", folder / "made-columns.parquet"
        facts = _tag_rows(shard, staged, taken, running, texts_path, some)
        for tagger in running:
            if isinstance(tagger, CommandTagger):
                tagger.run(texts_path, columns_path, shard.shard, sensitive=shard.fields.sensitive)
            elif isinstance(tagger, AssetTagger):
                tagger.write([part.label for part in shard.files], columns_path, shard.shard)
            else:
                # asked batch by batch, while the source was read
                continue
            align(
                tagger,
                columns_path,
                staged / ROWS,
                staged / file_of(tagger),
                shard.shard,
                sensitive=shard.fields.sensitive,
            )
            # the next one writes a file of this name
            columns_path.unlink()
    return facts


def _tag_rows(
    shard: TaggedShard,
    staged: Path,
    taken: frozenset[str],
    running: Sequence[Tagger],
    given: Path,
    some: DrawnRows | None,
) -> TagsFacts:
    """Write the rows, what taggers of this process say of them, and the file `given` to commands, if there are any."""
    rows = bad = 0
    with ExitStack() as stack:
        texts = None
        if any(isinstance(one, CommandTagger) for one in running):
            texts = stack.enter_context(ParquetRows(given, {"text": "string", **_for_commands(shard.fields)}))
        carried = None if ROWS in taken else stack.enter_context(ParquetRows(staged / ROWS, shard.fields.columns))
        files = [
            (one, stack.enter_context(ParquetRows(staged / file_of(one), one.columns)))
            for one in running
            if isinstance(one, BatchTagger)
        ]
        for batch in batches_of_shard(shard.files, shard.fields, some):
            if carried is not None:
                carried.add(batch.rows)
            if texts is not None:
                texts.add({"text": batch.texts, **batch.good_rows})
            for tagger, file in files:
                tags = tags_of(tagger, batch, sensitive=shard.fields.sensitive)
                file.add({name: _scatter(values, batch) for name, values in tags.items()})
            rows, bad = rows + len(batch), bad + len(batch) - len(batch.good)
    # what decides each file is added by `_write`
    return TagsFacts(rows=rows, bad=bad, made_of={})


def _for_commands(fields: CarriedFields) -> dict[str, Any]:
    return {name: kind for name, kind in fields.columns.items() if name != "bad"}


def batches_of_shard(
    files: Sequence[SourcePart], fields: CarriedFields, some: DrawnRows | None = None
) -> Iterator[DocumentBatch]:
    """The rows of a shard's files, or `some` of them; raises IntegrityError if they were drawn of other rows."""
    start = 0
    for part in files:
        for batch in batches_of(part, fields):
            stop = start + len(batch)
            if some is None:
                yield batch
            elif len(positions := some.between(start, stop)):
                yield batch.at(positions)
            start = stop
    if some is not None and start != some.of:
        raise IntegrityError(f"its source has {count_of(start, 'row')}, but its receipt {some.of:,}. {REBUILD}")


def batches_of(part: SourcePart, fields: CarriedFields) -> Iterator[DocumentBatch]:
    """The rows of a source file, read to its end: then its digest is compared."""
    reader = part.read_records(fields.records) if fields.of_texts_alone else part.read_rows(fields.field_names)
    before = 0
    for batch in read_batches(reader, part.label, fields, all_texts=part.format in CSV):
        yield batch
        report(source_bytes=reader.bytes_read - before, documents=len(batch))
        before = reader.bytes_read
    require_digest(part.label, part.digests.digest_of(reader.sha256), part.sha256, "`snapshot`")


def _scatter(values: list[Any], batch: DocumentBatch) -> list[Any]:
    """Values of the texts of a batch as values of all its rows."""
    if len(values) == len(batch):
        return values
    row_values: list[Any] = [None] * len(batch)
    for position, value in zip(batch.good, values, strict=True):
        row_values[position] = value
    return row_values
