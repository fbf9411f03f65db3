"""Build of the tags of a shard: reads the source once, calls the taggers, and writes one file per tagger.

Files that would not change are copied, so each tagger runs once per shard and version.
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
        rows: Number of rows.
        bad: Number of rejected rows.
        made_of: File → digest of the values that determine it.
        benchmarks: Benchmark → its numbers of items (`Coverage`); only if benchmarks are declared.
    """

    rows: int
    bad: int
    made_of: dict[str, str]
    benchmarks: dict[str, dict[str, int]] = Field(default_factory=dict)


@dataclass(frozen=True)
class DrawnRows:
    """Rows of a shard that a check builds again: ascending positions from 0, among `of` rows."""

    places: NDArray[np.int64]
    of: int

    def between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions from `start` to `stop`, relative to `start`."""
        return self.places[slice(*np.searchsorted(self.places, [start, stop]))] - start


def drawn_rows(receipt: Receipt, rows: int, samples: int | None) -> DrawnRows:
    """Return the rows of a shard for its check to build again, drawn by the key of its receipt."""
    return DrawnRows(draw_documents(receipt.key, rows, samples), rows)


def file_of(tagger: Tagger) -> str:
    """Return the name of the file with a tagger's columns."""
    return f"{tagger.name}.parquet"


@dataclass(frozen=True, kw_only=True)
class TaggedShard:
    """The tags of one shard, to build or to check.

    Attributes:
        artifact: Their artifact.
        store: The artifact's store.
        files: The shard's source files, in order.
        fields: The fields to carry along from each row.
        taggers: The taggers, in the order of their columns.
        source_bytes: Bytes of the files as stored.
        samples: How many rows the check builds again; None for all.
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
        """The files of the tags, the rows first."""
        return [ROWS, *map(file_of, self.taggers)]

    def made_of(self) -> dict[str, str]:
        """Return file name → digest of the values that determine the file."""
        files = [[f.label, f.sha256, f.format, f.compression, f.limits] for f in self.files]
        # part of each tagger's digest, because other rows require all tags again
        rows = digest_value([VERSION, self.fields.key_parts, files])
        return {ROWS: rows, **{file_of(tagger): digest_value([rows, tagger.key_parts]) for tagger in self.taggers}}

    def recipe(self) -> Recipe:
        """Return the named values whose digest is the key."""
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
    """Build the tags of a shard unless they are up to date; return the receipt and whether it was reused.

    Runs in a worker.
    """
    recipe = shard.recipe()

    def write(staged: Path) -> WrittenFiles:
        fetch_missing(shard.files, fetch)
        return _write(shard, staged)

    return ensure(recipe, shard.store, write, verification)


def _write(shard: TaggedShard, staged: Path) -> WrittenFiles:
    made_of = shard.made_of()
    facts, copied_names = _reuse_current_files(shard, staged, made_of)
    if facts is None or len(copied_names) < len(made_of):
        facts = tag(shard, staged, copied_names)
    return _describe(shard, facts, made_of)


def write_anew(shard: TaggedShard, staged: Path) -> WrittenFiles:
    """Write all files of a shard's tags without reusing its present tags."""
    return _describe(shard, tag(shard, staged, frozenset()), shard.made_of())


def _describe(shard: TaggedShard, facts: TagsFacts, made_of: dict[str, str]) -> WrittenFiles:
    return WrittenFiles(
        inputs={file.label: file.sha256 for file in shard.files},
        facts=TagsFacts(rows=facts.rows, bad=facts.bad, made_of=made_of, **_coverage(shard.taggers)),
    )


def _coverage(taggers: Sequence[Tagger]) -> dict[str, Any]:
    """Return the numbers of benchmark items as a fact; empty if no benchmarks are searched for."""
    looking = next((one for one in taggers if isinstance(one, BenchmarkTagger)), None)
    if looking is None:
        return {}
    return {"benchmarks": {name: asdict(one) for name, one in looking.benchmarks.coverage.items()}}


def _reuse_current_files(
    shard: TaggedShard, staged: Path, made_of: Mapping[str, str]
) -> tuple[TagsFacts | None, frozenset[str]]:
    """Copy the files of the present tags that would not change; return their facts and names."""
    try:
        if shard.store.must_rebuild(shard.artifact) or (receipt := shard.store.receipt(shard.artifact)) is None:
            return None, frozenset()
        facts = TagsFacts.of(receipt)
        names = [name for name, identity in made_of.items() if facts.made_of.get(name) == identity]
        # every byte is verified, because the copies get a new receipt, which would make a damaged byte valid
        if shard.store.damage(shard.artifact, receipt, "full"):
            return None, frozenset()
        directory = shard.store.local(shard.artifact, names)
    except DataprepError:  # unreadable files are built again
        return None, frozenset()
    for name in names:
        shutil.copyfile(directory / name, staged / name)
    return facts if ROWS in names else None, frozenset(names)


def tag(shard: TaggedShard, staged: Path, taken: frozenset[str], some: DrawnRows | None = None) -> TagsFacts:
    """Read the source once, and write every file that is not in `taken`; only the rows in `some` if given."""
    running = [tagger for tagger in shard.taggers if file_of(tagger) not in taken]
    # texts, and columns that may contain texts, are on disk only while commands run
    with scratch(shard.store.root / shard.artifact.dataset) as folder:
        texts_path, columns_path = folder / "given-texts.parquet", folder / "made-columns.parquet"
        facts = _tag_rows(shard, staged, taken, running, texts_path, some)
        for tagger in running:
            if isinstance(tagger, CommandTagger):
                tagger.run(texts_path, columns_path, shard.shard, sensitive=shard.fields.sensitive)
            elif isinstance(tagger, AssetTagger):
                tagger.write([part.label for part in shard.files], columns_path, shard.shard)
            else:
                # batch taggers were called while the source was read
                continue
            align(
                tagger,
                columns_path,
                staged / ROWS,
                staged / file_of(tagger),
                shard.shard,
                sensitive=shard.fields.sensitive,
            )
            # the next tagger writes a file with this name
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
    """Write the rows, the columns of batch taggers, and the file `given` for commands, if there are any."""
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
    # `_describe` adds the digests in `made_of`
    return TagsFacts(rows=rows, bad=bad, made_of={})


def _for_commands(fields: CarriedFields) -> dict[str, Any]:
    return {name: kind for name, kind in fields.columns.items() if name != "bad"}


def batches_of_shard(
    files: Sequence[SourcePart], fields: CarriedFields, some: DrawnRows | None = None
) -> Iterator[DocumentBatch]:
    """Yield the rows of a shard's files, or `some` of them.

    Raises IntegrityError if these were drawn from other rows.
    """
    start = 0
    for part in files:
        for batch in batches_of(part, fields):
            stop = start + len(batch)
            if some is None:
                yield batch
            elif len(positions := some.between(start, stop)):
                yield batch.take(positions)
            start = stop
    if some is not None and start != some.of:
        raise IntegrityError(f"its source has {count_of(start, 'row')}, but its receipt {some.of:,}. {REBUILD}")


def batches_of(part: SourcePart, fields: CarriedFields) -> Iterator[DocumentBatch]:
    """Yield the rows of a source file; after the last one, compare the file's digest."""
    reader = part.read_records(fields.records) if fields.of_texts_alone else part.read_rows(fields.field_names)
    before = 0
    for batch in read_batches(reader, part.label, fields, all_texts=part.format in CSV):
        yield batch
        report(source_bytes=reader.bytes_read - before, documents=len(batch))
        before = reader.bytes_read
    require_digest(part.label, part.digests.digest_of(reader.sha256), part.sha256, "`snapshot`")


def _scatter(values: list[Any], batch: DocumentBatch) -> list[Any]:
    """Expand the values of a batch's texts to all its rows; bad rows get None."""
    if len(values) == len(batch):
        return values
    row_values: list[Any] = [None] * len(batch)
    for position, value in zip(batch.good, values, strict=True):
        row_values[position] = value
    return row_values
