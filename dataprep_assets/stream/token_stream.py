"""The canonical token stream: the plan that determines its bytes, its source parts, and the result of encoding a part.

The stream is `[BOS] ids separator` for each document, in order. A plan can omit the separator, filter short documents
and truncate long ones. `part_encoder` writes the stream.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.dropped_rows import DroppedRows
from dataprep_assets.curation.selection import Selection
from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.errors import BadRecordError, TokenizerError
from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.readers.read_options import AS_NAMED, MAX_RECORD_BYTES, DrawnRows, ReadOptions, RowRange
from dataprep_assets.stores.files import PLAIN, SourceDigests
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, CertifiedEncoder, select_key_parts
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets.tokenization.engines import SpecialTokens

# Import the readers only in the functions that read, because every command imports this module for the names and keys
# of shards.
if TYPE_CHECKING:
    from dataprep_assets.curation.rewriters.rewriting import Rewriting
    from dataprep_assets.sources.readers.first_rows import FirstRows
    from dataprep_assets.sources.readers.input_format import RowReader
    from dataprep_assets.sources.readers.raw_rows import RawRows
    from dataprep_assets.sources.readers.records import Block, RecordFields, RecordReader

# Since version 2, no text becomes a special token with `special_tokens: text`, regardless of the tokenizer's model.
# Version 3 was introduced together with new versions of all steps.
STREAM_VERSION = 3
"""Part of every downstream key. Increase it if a change to `part_encoder` can change a byte of the stream."""


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """Everything that determines the bytes of a token stream, and how they are checked.

    A plan is picklable and the same for every worker.

    Documents shorter than `min_characters` are dropped. Documents longer than `max_tokens`, including BOS and
    separator, are truncated, so that they still end like every other document. `ids` describes how documents are
    identified in the stream's index; None leaves the ids out. Documents whose id is in `retracted` (uint64 little
    endian, sorted; `retracted_ids` as an array) are dropped. Only the ids that apply to a shard enter its key.
    A check warns if the share of unknown tokens, or of characters without a token, exceeds `max_loss`.
    """

    tokenizer: Path
    tokenizer_digest: str
    certificate: dict[str, Any]
    special_tokens: SpecialTokens
    separator_id: int | None
    bos_id: int | None
    dtype: str
    text_field: str
    bad_records: Literal["fail", "drop"]
    sample_rate: float
    level: Level = SAMPLE
    max_loss: float = 0.01
    min_characters: int | None = None
    max_tokens: int | None = None
    ids: DocumentIds | None = field(default_factory=DocumentIds)
    retracted: bytes = b""

    @property
    def retracted_ids(self) -> NDArray[np.uint64]:
        """Ids of the documents that must not be in the stream: shape ``(ids,)``, uint64, sorted."""
        return np.frombuffer(self.retracted, "<u8").astype(np.uint64, copy=False)

    @property
    def fields(self) -> "RecordFields":
        """The fields of a record that contain its text and, if declared, its id."""
        from dataprep_assets.sources.readers.records import RecordFields

        return RecordFields(self.text_field, self.ids.id_field if self.ids is not None else None)

    @property
    def selection(self) -> Selection:
        """The selection of records that become documents."""
        return Selection(ids=self.ids, retracted=self.retracted_ids, min_characters=self.min_characters)

    @property
    def around(self) -> int:
        """Number of tokens added around a document."""
        return (self.separator_id is not None) + (self.bos_id is not None)

    def key_parts(self) -> dict[str, Any]:
        """Return the parts of the plan that enter a key, without the tokenizer's path and the settings of checks."""
        index = {"document_ids": "none"} if self.ids is None else self.ids.key_parts()
        return (
            index
            | {
                "min_characters": self.min_characters,
                "max_tokens": self.max_tokens,
                "stream": STREAM_VERSION,
                "tokenizer": self.tokenizer_digest,
                "special_tokens": self.special_tokens,
                "separator": self.separator_id,
                "bos": self.bos_id,
                "dtype": self.dtype,
                "text_field": self.text_field,
                "bad_records": self.bad_records,
            }
            | select_key_parts(self.certificate)
        )


Fetch = Callable[[], None]
"""Fetches a shard's source files to the paths of its `SourcePart`s. Picklable."""


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """A source file to encode, or some of its rows: its path, its expected content, and its label in messages.

    `sha256` is the file's digest as computed by `digests`; `ruled_out` are the rows of its shard that the selection
    drops. Texts are rewritten as they are read, if there is a `rewriting`.
    """

    label: str
    path: Path
    format: str
    compression: str | None
    sha256: str
    ordinal: int
    rows: RowRange | None = None
    digests: SourceDigests = PLAIN
    max_record_bytes: int = MAX_RECORD_BYTES
    reading: ReadOptions = AS_NAMED
    ruled_out: DroppedRows | None = None
    rewriting: "Rewriting | None" = None

    @property
    def first_row(self) -> int:
        """The first row of the file that belongs to the part, from 1."""
        return 1 if self.rows is None else self.rows.first

    @classmethod
    def from_entry(
        cls,
        entry: ManifestEntry,
        path: Path,
        sha256: str,
        rows: RowRange | None = None,
        *,
        digests: SourceDigests = PLAIN,
        max_record_bytes: int = MAX_RECORD_BYTES,
        reading: ReadOptions = AS_NAMED,
        ruled_out: DroppedRows | None = None,
        rewriting: "Rewriting | None" = None,
    ) -> Self:
        """Return the part for the file `entry` of a manifest: the whole file, or only these `rows`.

        The file is at `path`, and the snapshot has its digest `sha256`, computed by `digests`. Records longer than
        `max_record_bytes` are bad, and rows in `ruled_out` are dropped. `reading` has the declared options for reading
        the file, and `rewriting` the declared rewriters.
        """
        return cls(
            label=entry.relpath,
            path=path,
            format=entry.format,
            compression=entry.compression,
            sha256=sha256,
            ordinal=entry.ordinal,
            rows=rows,
            digests=digests,
            max_record_bytes=max_record_bytes,
            reading=reading,
            ruled_out=ruled_out,
            rewriting=rewriting,
        )

    @property
    def limits(self) -> dict[str, int | str]:
        """The parts of a key that determine where records begin and end, and their texts."""
        return {
            "bad_records.max_record_bytes": self.max_record_bytes,
            **self.reading.settings(self.format),
            **self.rewriting_settings,
        }

    @property
    def rewriting_settings(self) -> dict[str, str]:
        """The part of a key that determines how texts are rewritten, if they are."""
        return {} if self.rewriting is None else {"rewrite": self.rewriting.version}

    @property
    def as_stored(self) -> Self:
        """This part without rewriting, so with texts as in the source."""
        return self if self.rewriting is None else replace(self, rewriting=None)

    def rewrite_block(self, block: "Block") -> "Block":
        """Return records of the file with rewritten texts. Raises RewritingError if a rewriter fails."""
        return block if self.rewriting is None else self.rewriting.rewrite_block(block, self.label)

    def read_records(self, fields: "RecordFields", drawn_rows: DrawnRows | None = None) -> "RecordReader":
        """Return a reader of the fields of the file's documents, or of the drawn ones."""
        from dataprep_assets.sources.readers.records import ConvertingReader, RecordFields, read_records

        reader = read_records(
            self.path,
            format=self.format,
            compression=self.compression,
            label=self.label,
            fields=RecordFields(fields.text, fields.id, self.max_record_bytes, fields.carried),
            rows=self.rows,
            reading=self.reading,
            drawn_rows=drawn_rows,
        )
        return reader if self.rewriting is None else ConvertingReader(reader, self.rewrite_block)

    def record_at(self, row: int, fields: "RecordFields") -> "Block | None":
        """Return a block with the record, good or bad, at a 1-based row; None if the row is blank or does not exist."""
        reader = replace(self, rows=RowRange(row, row + 1)).read_records(fields)
        return next((block for block in reader if block.texts or block.bad), None)

    def read_rows(
        self, columns: Sequence[str] | None = None, only: Collection[int] | None = None, *, as_json: bool = False
    ) -> "RowReader":
        """Return a reader of the rows, or of the rows numbered in `only`.

        `columns` limits the columns of Parquet; for `as_json` see `InputFile`.
        """
        from dataprep_assets.sources.readers.rows import read_rows

        return read_rows(
            self.path,
            format=self.format,
            compression=self.compression,
            label=self.label,
            rows=self.rows,
            columns=columns,
            max_record_bytes=self.max_record_bytes,
            only=only,
            reading=self.reading,
            as_json=as_json,
        )

    def open_raw_rows(self, *, as_json: bool = False) -> "RawRows":
        """Return a lookup of the file's rows, which may be bad. For `as_json` see `InputFile`."""
        from dataprep_assets.sources.readers.blocks import TextReader
        from dataprep_assets.sources.readers.raw_rows import RawRows

        def read_from(first_row: int) -> "RowReader":
            return replace(self, rows=RowRange(first_row)).read_rows(as_json=as_json)

        return RawRows(read_from, TextReader(self.path, self.compression, self.label))


class _CountingReader(Protocol):
    @property
    def bytes_read(self) -> int: ...


class ReadBytes:
    """Counter of the bytes that a reader has read for the rows of a part, for the display of progress."""

    def __init__(self, part: SourcePart, reader: _CountingReader) -> None:
        self._reader = reader
        # Do not count the first block of a range, because its bytes include all rows before the range, which are read
        # much faster.
        self._counted_bytes = 0 if part.first_row == 1 else None

    def take(self) -> int:
        """Return the number of bytes since the last call, or since the start."""
        previous_bytes, self._counted_bytes = self._counted_bytes, self._reader.bytes_read
        return 0 if previous_bytes is None else self._counted_bytes - previous_bytes


def fetch_missing(files: Iterable[SourcePart], fetch: Fetch | None) -> None:
    """Call `fetch`, unless it is None or all files are on this machine."""
    if fetch is not None and not all(part.path.exists() for part in files):
        fetch()


@dataclass(frozen=True, kw_only=True)
class PartFiles:
    """The paths of the files that contain the stream of one source file.

    Attributes:
        tokens: Ids of the plan's dtype.
        ends: Ends of the documents, from 0.
        ids: Hashes of the documents (`formats/document_index.py`); empty if the plan leaves them out.
        rows: Runs of the rows, with documents counted from 0; empty if no row was omitted.
    """

    tokens: Path
    ends: Path
    ids: Path
    rows: Path

    @property
    def all_files(self) -> tuple[Path, ...]:
        """All four files."""
        return self.tokens, self.ends, self.ids, self.rows


@dataclass(frozen=True, kw_only=True)
class EncodedPart:
    """The result of `encode_part`: the ledger, and `(row, byte, reason)` of every bad record.

    `truncated` counts documents truncated to the plan's `max_tokens`; `retracted` are the ids (16 hex digits) whose
    documents were dropped.
    """

    ledger: Ledger
    quarantine: tuple[tuple[int, int, str], ...]
    cpu_seconds: float
    wall_seconds: float
    truncated: int = 0
    retracted: tuple[str, ...] = ()


# Cache only one encoder, because an engine's vocabulary and word cache take hundreds of megabytes. Pass the
# certificate as text, because a dict cannot be a cache key.
@lru_cache(maxsize=1)
def _load_encoder(directory: Path, digest: str, mode: SpecialTokens, certificate: str) -> CertifiedEncoder:
    bundle = TokenizerBundle.load(directory)
    if bundle.digest != digest:
        raise TokenizerError(f"{directory}: the tokenizer changed during the run. Run the dataset again")
    return CertifiedEncoder(bundle, mode, Certificate.from_json(json.loads(certificate)))


WARM_UP_CHARACTERS = 4_000_000
"""Characters that an engine reads in 0.1 s once it knows their words. A longer warm-up costs more than it saves."""


def load_encoder(plan: StreamPlan) -> CertifiedEncoder:
    """Return the encoder of a plan, loaded once per process."""
    encoder = _load_encoder(plan.tokenizer, plan.tokenizer_digest, plan.special_tokens, json.dumps(plan.certificate))
    if plan.sample_rate > 0:
        # Load the reference now, because every worker needs it, and workers that are forked later inherit it.
        _ = encoder.reference
    return encoder


def load_warm_encoder(plan: StreamPlan, parts: Sequence[SourcePart]) -> None:
    """Load the encoder of a plan and warm it up on the beginnings of some files, so that workers start with its cache.

    An engine encodes a known word several times faster than a new one. The most frequent words of four megabytes are
    also the most frequent words of a corpus.
    """
    encoder, max_characters = load_encoder(plan), WARM_UP_CHARACTERS // len(parts)
    for part in parts:
        if (block := next(iter(part.as_stored.read_records(plan.fields)), None)) is not None:
            # Take whole documents from the beginning of the file while they fit into `max_characters`. If the first
            # document is longer, the file is skipped.
            fitting = takewhile(lambda length: length <= max_characters, accumulate(map(len, block.texts)))
            encoder.warm_up(block.texts[: len(list(fitting))])


def find_unreadable_error(
    part: SourcePart, first: str, has_rows: Callable[[SourcePart], bool]
) -> BadRecordError | None:
    """Return the error of a file without a readable row; None if any row is readable, even outside the part.

    Args:
        part: The file, or some of its rows, without a readable row.
        first: Position of the first bad row, and the reason (`describe_place`).
        has_rows: Returns whether any row of a file can be read.
    """
    from dataprep_assets.sources.readers.unreadable import build_unreadable_error

    # If the file has readable rows elsewhere, do not fail, because only this range of rows is unreadable.
    if has_rows(replace(part, rows=RowRange())):
        return None
    return build_unreadable_error(part.path, part.format, part.compression, part.label, first)


def explain_refusal(
    part: SourcePart,
    first_rows: "FirstRows",
    *,
    policy: str,
    fields: "RecordFields | None" = None,
    present_fields: str = "",
) -> str:
    """Return the reason why a run would refuse a file with these first rows; empty if this policy may accept the file.

    `fields` are the fields that were read from the records, if they are known. `present_fields` is a sentence about the
    fields of a file without readable rows.
    """
    from dataprep_assets.sources.readers.unreadable import ADVICE, build_unreadable_error, describe_place

    if first_rows.bad is None or (first_rows.has_good and policy == "drop"):
        return ""
    location = describe_place(first_rows.bad, "" if fields is None else fields.format_key_hint(first_rows.bad.reason))
    if first_rows.has_good:
        return f"{part.label}: {location}. {ADVICE}"
    return str(
        build_unreadable_error(
            part.path,
            part.format,
            part.compression,
            part.label,
            f"{location}{present_fields}",
            is_whole=first_rows.whole,
        )
    )
