"""Build of a shard's tags: reads the source once, calls the taggers, and writes one file per tagger.

Files that would not change are copied, so each tagger runs once per shard and version.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from dataprep_assets.curation.benchmarks.benchmarks import BenchmarkTagger
from dataprep_assets.curation.benchmarks.coverage import record_coverage
from dataprep_assets.curation.external_taggers.asset_tagger import AssetTagger
from dataprep_assets.curation.external_taggers.command_tagger import CommandTagger
from dataprep_assets.curation.table import (
    LICENSE,
    CarriedFields,
    DocumentBatch,
    ParquetRowWriter,
    build_batch,
    read_joined_tables,
)
from dataprep_assets.curation.tagging import BatchTagger, Tagger, compute_tags, write_aligned_columns
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import REBUILD, SAMPLED, draw_documents
from dataprep_assets.errors import DataprepError, IntegrityError, count_of
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.integrity.scratch import create_scratch
from dataprep_assets.sources.readers.read_options import CSV, DrawnRows
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
        missing: Column → source → number of documents without a value, for the columns of `list_reported_columns`.
    """

    rows: int
    bad: int
    made_of: dict[str, str]
    benchmarks: dict[str, dict[str, int]] = Field(default_factory=dict)
    missing: dict[str, dict[str, int]] = Field(default_factory=dict)


def draw_rows(receipt: Receipt, rows: int, samples: int | None) -> DrawnRows:
    """Draw the rows of a shard that its check rebuilds; the receipt's key is the seed, and None draws all rows."""
    return DrawnRows(draw_documents(receipt.key, rows, samples), rows)


def name_tagger_file(tagger: Tagger) -> str:
    """Return the name of the file with a tagger's columns."""
    return f"{tagger.name}.parquet"


@dataclass(frozen=True, kw_only=True)
class TaggedShard:
    """Tags of one shard, to be built or checked.

    Attributes:
        artifact: The artifact of the tags.
        store: The artifact's store.
        files: The shard's source files, in order.
        fields: The fields to carry along from each row.
        taggers: The taggers, in the order of their columns.
        source_bytes: Bytes of the files as stored.
        samples: Number of rows that the check rebuilds; None for all rows.
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
        """Name of the shard in messages."""
        return f"{self.artifact.dataset}/{self.artifact.partition}"

    @property
    def names(self) -> list[str]:
        """Names of the files of the tags, `rows.parquet` first."""
        return [ROWS, *map(name_tagger_file, self.taggers)]

    def digest_file_inputs(self) -> dict[str, str]:
        """Return file name → digest of the values that determine the file."""
        files = [[f.label, f.sha256, f.format, f.compression, f.limits] for f in self.files]
        # Include the digest of the rows in each tagger's digest, because changed rows require all tags to be rebuilt.
        rows = digest_value([VERSION, self.fields.key_parts, files])
        return {
            ROWS: rows,
            **{name_tagger_file(tagger): digest_value([rows, tagger.key_parts]) for tagger in self.taggers},
        }

    def recipe(self) -> Recipe:
        """Return the recipe: the shard's key and the named values that determine it."""
        fields = self.fields
        return Recipe(
            artifact=self.artifact,
            key=digest_value([TAGS, VERSION, self.digest_file_inputs()]),
            version=VERSION,
            settings={
                "text_field": fields.text,
                "document_ids": None if fields.ids is None else fields.ids.key_parts(),
                "source_field": fields.source,
                "url_field": fields.url,
                **({} if fields.license is None else {"license_field": fields.license}),
                "keep_fields": dict(fields.keep),
                "taggers": {
                    tagger.name: {"version": tagger.version, "columns": dict(tagger.columns)} for tagger in self.taggers
                },
                **{name: version for file in self.files for name, version in file.rewriting_settings.items()},
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

    return ensure_built(recipe, shard.store, write, verification)


def _write(shard: TaggedShard, staged: Path) -> WrittenFiles:
    inputs = shard.digest_file_inputs()
    facts, copied_names = _reuse_current_files(shard, staged, inputs)
    if facts is None or len(copied_names) < len(inputs):
        facts = write_tags(shard, staged, copied_names)
    return _describe_tags(shard, staged, facts, inputs)


def write_all_tags(shard: TaggedShard, staged: Path) -> WrittenFiles:
    """Write all files of a shard's tags without reusing its current tags."""
    return _describe_tags(shard, staged, write_tags(shard, staged, frozenset()), shard.digest_file_inputs())


def _describe_tags(shard: TaggedShard, staged: Path, facts: TagsFacts, inputs: dict[str, str]) -> WrittenFiles:
    further_facts = {**_record_coverage(shard.taggers), **_count_missing(shard, staged)}
    return WrittenFiles(
        inputs={file.label: file.sha256 for file in shard.files},
        facts=TagsFacts(rows=facts.rows, bad=facts.bad, made_of=inputs, **further_facts),
    )


def list_reported_columns(fields: CarriedFields, taggers: Sequence[Tagger]) -> dict[str, str]:
    """Return column → the noun for its values, for columns whose missing values are reported."""
    nouns = {} if fields.license is None else {LICENSE: LICENSE}
    for tagger in taggers:
        nouns |= tagger.missing
    return nouns


def _count_missing(shard: TaggedShard, staged: Path) -> dict[str, Any]:
    """Return the numbers of documents without a value as a fact; empty if no column is reported."""
    import pyarrow.compute as pc

    columns = list_reported_columns(shard.fields, shard.taggers)
    if not columns:
        return {}
    counts = {column: Counter[str]() for column in columns}
    files = [ROWS, *(name_tagger_file(tagger) for tagger in shard.taggers if tagger.missing)]
    for piece in read_joined_tables([staged / file for file in files], ["source", "bad", *columns]):
        is_document = pc.is_null(piece["bad"])
        for column, missing_counts in counts.items():
            sources = piece["source"].filter(pc.and_(is_document, pc.is_null(piece[column])))
            missing_counts.update(sources.to_pylist())
    return {"missing": {column: dict(sorted(missing_counts.items())) for column, missing_counts in counts.items()}}


def _record_coverage(taggers: Sequence[Tagger]) -> dict[str, Any]:
    """Return the numbers of benchmark items as a fact; empty if no benchmarks are searched for."""
    tagger = next((one for one in taggers if isinstance(one, BenchmarkTagger)), None)
    if tagger is None:
        return {}
    return {"benchmarks": record_coverage(tagger)}


def _reuse_current_files(
    shard: TaggedShard, staged: Path, inputs: Mapping[str, str]
) -> tuple[TagsFacts | None, frozenset[str]]:
    """Copy the current tags' unchanged files; return the facts (None if the rows changed) and the files' names."""
    try:
        if shard.store.must_rebuild(shard.artifact) or (receipt := shard.store.receipt(shard.artifact)) is None:
            return None, frozenset()
        facts = TagsFacts.from_receipt(receipt)
        names = [name for name, identity in inputs.items() if facts.made_of.get(name) == identity]
        # Verify every byte, because the new receipt would list the digest of a damaged copy as correct.
        if shard.store.damage(shard.artifact, receipt, "full"):
            return None, frozenset()
        directory = shard.store.local(shard.artifact, names)
    except DataprepError:  # unreadable files are rebuilt
        return None, frozenset()
    for name in names:
        shutil.copyfile(directory / name, staged / name)
    return facts if ROWS in names else None, frozenset(names)


def write_tags(
    shard: TaggedShard, staged: Path, reused_files: frozenset[str], drawn_rows: DrawnRows | None = None
) -> TagsFacts:
    """Read the source once, and write all files except `reused_files`; only the rows in `drawn_rows` if given."""
    running = [tagger for tagger in shard.taggers if name_tagger_file(tagger) not in reused_files]
    # Write the texts, and columns that may contain texts, to a temporary folder, so that they are deleted after the
    # commands have run.
    with create_scratch(shard.store.root / shard.artifact.dataset) as folder:
        texts_path, columns_path = folder / "given-texts.parquet", folder / "made-columns.parquet"
        facts = _tag_rows(shard, staged, reused_files, running, texts_path, drawn_rows)
        for tagger in running:
            if isinstance(tagger, CommandTagger):
                tagger.run(texts_path, columns_path, shard.shard, sensitive=shard.fields.sensitive)
            elif isinstance(tagger, AssetTagger):
                tagger.write([part.label for part in shard.files], columns_path, shard.shard)
            else:
                # Skip batch taggers, because `_tag_rows` has already called them.
                continue
            write_aligned_columns(
                tagger,
                columns_path,
                staged / ROWS,
                staged / name_tagger_file(tagger),
                shard.shard,
                sensitive=shard.fields.sensitive,
            )
            # Remove the output, because the next tagger has the same output path. If that tagger wrote no file, this
            # output would otherwise be taken for its output.
            columns_path.unlink()
    return facts


def _tag_rows(
    shard: TaggedShard,
    staged: Path,
    reused_files: frozenset[str],
    running: Sequence[Tagger],
    input_path: Path,
    drawn_rows: DrawnRows | None,
) -> TagsFacts:
    """Write the rows, the columns of batch taggers, and the file `input_path` for commands, if there are any."""
    rows = bad_count = 0
    with ExitStack() as stack:
        texts = None
        if any(isinstance(one, CommandTagger) for one in running):
            texts = stack.enter_context(
                ParquetRowWriter(input_path, {"text": "string", **_list_command_columns(shard.fields)})
            )
        carried_columns = (
            None if ROWS in reused_files else stack.enter_context(ParquetRowWriter(staged / ROWS, shard.fields.columns))
        )
        files = [
            (one, stack.enter_context(ParquetRowWriter(staged / name_tagger_file(one), one.columns)))
            for one in running
            if isinstance(one, BatchTagger)
        ]
        for batch in read_shard_batches(shard.files, shard.fields, drawn_rows):
            if carried_columns is not None:
                carried_columns.add(batch.rows)
            if texts is not None:
                texts.add({"text": batch.texts, **batch.good_rows})
            for tagger, file in files:
                tags = compute_tags(tagger, batch, sensitive=shard.fields.sensitive)
                file.add({name: batch.expand_to_rows(values) for name, values in tags.items()})
            rows, bad_count = rows + len(batch), bad_count + len(batch) - len(batch.good)
    # Leave `made_of` empty, because `_describe_tags` adds the digests.
    return TagsFacts(rows=rows, bad=bad_count, made_of={})


def _list_command_columns(fields: CarriedFields) -> dict[str, Any]:
    return {name: kind for name, kind in fields.columns.items() if name != "bad"}


def read_shard_batches(
    files: Sequence[SourcePart], fields: CarriedFields, drawn_rows: DrawnRows | None = None
) -> Iterator[DocumentBatch]:
    """Yield the rows of a shard's files in batches; only the rows in `drawn_rows` if given.

    Raises IntegrityError if `drawn_rows` were drawn from a different number of rows.
    """
    for part in files:
        yield from read_part_batches(part, fields, drawn_rows)
    if drawn_rows is not None and drawn_rows.row_count != drawn_rows.total:
        raise IntegrityError(
            f"the source has {count_of(drawn_rows.row_count, 'row')}, but the receipt has {drawn_rows.total:,}. "
            f"{REBUILD}"
        )


def read_part_batches(
    part: SourcePart, fields: CarriedFields, drawn_rows: DrawnRows | None = None
) -> Iterator[DocumentBatch]:
    """Yield the rows of a source file, or its drawn ones, in batches; after the last, verify the file's digest."""
    reader = part.read_records(fields.records, drawn_rows)
    reported_bytes = 0
    for block in reader:
        batch = build_batch(block, part.label, fields, all_texts=part.format in CSV)
        if len(batch) or drawn_rows is None:
            yield batch
        report_work(source_bytes=reader.bytes_read - reported_bytes, documents=len(batch))
        reported_bytes = reader.bytes_read
    require_digest(part.label, part.digests.digest_of(reader.sha256), part.sha256, "`snapshot`")
