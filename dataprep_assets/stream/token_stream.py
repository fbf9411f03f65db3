"""The canonical token stream: its plan, which decides the bytes, its source parts, and the result of encoding a part.

The stream is `[BOS] ids separator` for each document, in order. A plan may omit the separator, filter short documents
and cut long ones. `part_encoder` writes it.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.dropped_rows import RuledOut
from dataprep_assets.curation.selection import Selection
from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.errors import BadRecordError, TokenizerError
from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.readers.first_rows import FirstRows
from dataprep_assets.sources.readers.input_format import AS_NAMED, ReadOptions, RowReader
from dataprep_assets.sources.readers.records import Block, RecordFields, RecordReader, read_records
from dataprep_assets.sources.readers.row_files import MAX_RECORD_BYTES, RowRange
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.sources.readers.unreadable import ADVICE, place_of, unreadable
from dataprep_assets.stores.files import PLAIN, SourceDigests
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, CertifiedEncoder, decisive
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets.tokenization.engines import SpecialTokens

# 2: no text becomes a special token, whatever the model
STREAM_VERSION = 3
"""Increase it if a change of `part_encoder` can change a byte, because it is part of every downstream key."""


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """Everything that decides the bytes of a token stream, and how they are proven.

    Picklable; the same for every worker.

    Documents of fewer than `min_characters` are dropped; documents of more than `max_tokens`, including BOS and
    separator, are cut, so that a cut document still ends like every other. `ids` says how documents are
    identified in the stream's index; None leaves the ids out. Documents whose id is among `retracted` (uint64 little
    endian, sorted; `retracted_ids` as an array) are dropped; the list enters a shard's key as far as it applies there.
    `max_loss` is the share of unknown tokens and of characters without a token above which a check warns.
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
        """Ids of the documents that are not to be in the stream: shape ``(ids,)``, uint64, sorted."""
        return np.frombuffer(self.retracted, "<u8").astype(np.uint64, copy=False)

    @property
    def fields(self) -> RecordFields:
        """Where a record holds its text and, where it declares one, its id."""
        return RecordFields(self.text_field, self.ids.id_field if self.ids is not None else None)

    @property
    def selection(self) -> Selection:
        """Which records become documents."""
        return Selection(ids=self.ids, retracted=self.retracted_ids, min_characters=self.min_characters)

    @property
    def around(self) -> int:
        """How many tokens are put around a document."""
        return (self.separator_id is not None) + (self.bos_id is not None)

    def key_parts(self) -> dict[str, Any]:
        """The parts of the plan that enter a key: not the tokenizer's path, and not how the output is proven."""
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
            | decisive(self.certificate)
        )


Fetch = Callable[[], None]
"""Fetches a shard's source files to the paths of its `SourcePart`s. Picklable."""


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """One source file to encode, or some of its rows: where it is, what it should be, and how messages name it.

    `sha256` is the file's digest as `digests` makes it, `ruled_out` the rows of its shard that the selection drops.
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
    ruled_out: RuledOut | None = None

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
        ruled_out: RuledOut | None = None,
    ) -> Self:
        """The file `entry` of a plan at `path`, with the snapshot's digest `sha256`: the whole file, or these `rows`.

        `digests` are the snapshot's. Records longer than `max_record_bytes` are refused, and those `ruled_out` are left
        out. `reading` is what the declaration says of the files.
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
        )

    @property
    def limits(self) -> dict[str, int | str]:
        """The part of a key about where records begin and end."""
        return {"bad_records.max_record_bytes": self.max_record_bytes, **self.reading.settings(self.format)}

    def read_records(self, fields: RecordFields) -> RecordReader:
        """A reader of its documents, whose text and ids are in these fields or columns."""
        return read_records(
            self.path,
            format=self.format,
            compression=self.compression,
            text_field=fields.text,
            label=self.label,
            rows=self.rows,
            id_field=fields.id,
            max_record_bytes=self.max_record_bytes,
            reading=self.reading,
        )

    def record_at(self, row: int, fields: RecordFields) -> Block | None:
        """The record, or bad record, at a 1-based row, alone in its block; None if it is blank or not in the file."""
        reader = replace(self, rows=RowRange(row, row + 1)).read_records(fields)
        return next((block for block in reader if block.texts or block.bad), None)

    def read_rows(self, columns: Sequence[str] | None = None, only: Collection[int] | None = None) -> RowReader:
        """A reader of its rows, or of those numbered in `only`; from a Parquet file only the `columns`, if given."""
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
        )


def unreadable_part(part: SourcePart, first: str, has_rows: Callable[[SourcePart], bool]) -> BadRecordError | None:
    """The error of a file of which no row can be read; None if it has one, be it outside of the part.

    Args:
        part: The file, or some of its rows, of which none could be read.
        first: Where the first of them is, and why (`place_of`).
        has_rows: Whether any row of a file can be read.
    """
    # A range without a readable row is no reason to refuse a file that has some elsewhere.
    if has_rows(replace(part, rows=RowRange())):
        return None
    return unreadable(part.path, part.format, part.compression, part.label, first)


def refusal_of(part: SourcePart, first_rows: FirstRows, *, policy: str, fields: RecordFields | None = None) -> str:
    """Why a run would refuse a file with these first rows, under this policy for bad records; empty if it may not.

    `fields` are those that its records were asked for, if they were.
    """
    if first_rows.bad is None or (first_rows.has_good and policy == "drop"):
        return ""
    location = place_of(first_rows.bad, "" if fields is None else fields.key_hint(first_rows.bad.reason))
    if first_rows.has_good:
        return f"{part.label}: {location}. {ADVICE}"
    return str(unreadable(part.path, part.format, part.compression, part.label, location, whole=first_rows.whole))


def fetch_missing(files: Iterable[SourcePart], fetch: Fetch | None) -> None:
    """Call `fetch`, if there is one, where a file of `files` is not on this machine."""
    if fetch is not None and not all(part.path.exists() for part in files):
        fetch()


@dataclass(frozen=True, kw_only=True)
class PartFiles:
    """Where the stream of one source file is written.

    Attributes:
        tokens: Ids of the plan's dtype.
        ends: Ends of its documents, from 0.
        ids: Hashes of its documents (`formats/document_index.py`); empty if the plan leaves them out.
        rows: Runs of its rows, documents counted from 0; empty if no row was left out.
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

    `truncated` counts documents cut to the plan's `max_tokens`, `retracted` holds the ids (16 hex digits) that dropped
    a document.
    """

    ledger: Ledger
    quarantine: tuple[tuple[int, int, str], ...]
    cpu_seconds: float
    wall_seconds: float
    truncated: int = 0
    retracted: tuple[str, ...] = ()


# One at a time: vocabulary and word cache of an engine take hundreds of megabytes. The certificate comes as a text,
# because a dict is no key of a cache.
@lru_cache(maxsize=1)
def _encoder(directory: Path, digest: str, mode: SpecialTokens, certificate: str) -> CertifiedEncoder:
    bundle = TokenizerBundle.load(directory)
    if bundle.digest != digest:
        raise TokenizerError(f"{directory}: the tokenizer changed during the run. Run again")
    return CertifiedEncoder(bundle, mode, Certificate.from_json(json.loads(certificate)))


WARM_UP_CHARACTERS = 4_000_000
"""As many as an engine reads in 0.1 s once it knows their words; a longer warm-up costs more than it saves."""


def load_encoder(plan: StreamPlan) -> CertifiedEncoder:
    """The encoder of a plan, loaded once per process."""
    encoder = _encoder(plan.tokenizer, plan.tokenizer_digest, plan.special_tokens, json.dumps(plan.certificate))
    if plan.sample_rate > 0:
        _ = encoder.reference  # every worker will need it: load it at the start, not in mid-stream
    return encoder


def load_warm_encoder(plan: StreamPlan, parts: Sequence[SourcePart]) -> None:
    """Load the encoder of a plan and let it see the beginnings of some files: workers begin with what it knows then.

    An engine encodes a word that it has seen several times faster than a new one, and the most frequent words of four
    megabytes are those of a corpus.
    """
    encoder, max_characters = load_encoder(plan), WARM_UP_CHARACTERS // len(parts)
    for part in parts:
        if (block := next(iter(part.read_records(plan.fields)), None)) is not None:
            # whole documents: of a file whose first one is too long, none is shown
            fitting = takewhile(lambda read: read <= max_characters, accumulate(map(len, block.texts)))
            encoder.warm_up(block.texts[: len(list(fitting))])
