"""One source file into its part of the canonical token stream: the hot path.

Bytes flow in large blocks: decompressed, parsed, encoded and written by native code, with one Python step a document
only where nothing else can do it. Everything a receipt needs is counted on the way: the digest of the source as read,
the ledger, the range of ids. The canonical stream is `[BOS] ids separator` for each document, in order. A plan may
leave the separator out, filter short documents and cut long ones; what it filters is dropped with its reason.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import BadRecordError, FormatError, TokenizerError
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.digests import require_digest
from dataprep_assets.sources.records import Block, RecordReader, read_records
from dataprep_assets.sources.rows import RowRange, RowReader, read_rows
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, CertifiedEncoder
from dataprep_assets.tokenization.engines import SpecialTokens

STREAM_VERSION = 1
"""Raise when a change of this module can change a byte: it is part of every key downstream."""


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """All that decides the bytes of a token stream, and how they are proven. Picklable; the same for every worker.

    Documents of fewer than `min_characters` are dropped; of longer ones than `max_tokens` the first ids are kept, BOS
    and separator counted in, so that a cut document still ends as every other does.
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
    min_characters: int | None = None
    max_tokens: int | None = None

    def key_parts(self) -> dict[str, Any]:
        """What of the plan enters a key: not where the tokenizer lies, not how its output is proven."""
        limits = {"min_characters": self.min_characters, "max_tokens": self.max_tokens}
        return {name: value for name, value in limits.items() if value is not None} | {
            "stream": STREAM_VERSION,
            "tokenizer": self.tokenizer_digest,
            "special_tokens": self.special_tokens,
            "separator": self.separator_id,
            "bos": self.bos_id,
            "dtype": self.dtype,
            "text_field": self.text_field,
            "bad_records": self.bad_records,
            # a class refused since then may have been encoded wrongly by the fast engine
            "refused": sorted(self.certificate["refused"]),
        }


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """One source file to encode, or some of its rows: where it is, what it should be, and how messages name it."""

    label: str
    path: Path
    format: str
    compression: str | None
    sha256: str
    ordinal: int
    rows: RowRange | None = None

    @classmethod
    def of(cls, entry: ManifestEntry, path: Path, sha256: str, rows: RowRange | None = None) -> Self:
        """The file `entry` of a plan, at `path`, of which the snapshot says `sha256`: all of it, or these `rows`."""
        return cls(
            label=entry.relpath,
            path=path,
            format=entry.format,
            compression=entry.compression,
            sha256=sha256,
            ordinal=entry.ordinal,
            rows=rows,
        )

    def read_records(self, text_field: str) -> RecordReader:
        """A reader of its documents, whose text is in the field or column `text_field`."""
        return read_records(
            self.path,
            format=self.format,
            compression=self.compression,
            text_field=text_field,
            label=self.label,
            rows=self.rows,
        )

    def read_rows(self, columns: Sequence[str] | None = None) -> RowReader:
        """A reader of its rows; of a Parquet file's `columns` alone, where they are named."""
        return read_rows(
            self.path,
            format=self.format,
            compression=self.compression,
            label=self.label,
            rows=self.rows,
            columns=columns,
        )


@dataclass(frozen=True, kw_only=True)
class EncodedPart:
    """What `encode_part` found: the ledger, and `(row, byte, reason)` of every record that cannot be a document.

    `truncated` counts documents cut to the plan's `max_tokens`.
    """

    ledger: Ledger
    quarantine: tuple[tuple[int, int, str], ...]
    cpu_seconds: float
    wall_seconds: float
    truncated: int = 0


@lru_cache(maxsize=1)
def _encoder(directory: Path, digest: str, mode: SpecialTokens, certificate: str) -> CertifiedEncoder:
    bundle = TokenizerBundle.load(directory)
    if bundle.digest != digest:
        raise TokenizerError(f"{directory}: the tokenizer changed while the run was going on; start it again")
    return CertifiedEncoder(bundle, mode, Certificate.from_json(json.loads(certificate)))


def load_encoder(plan: StreamPlan) -> CertifiedEncoder:
    """The encoder of a plan, loaded once a process."""
    encoder = _encoder(plan.tokenizer, plan.tokenizer_digest, plan.special_tokens, json.dumps(plan.certificate))
    if plan.sample_rate > 0:
        _ = encoder.reference  # every worker will meet a sampled document: load at the start, not in mid-stream
    return encoder


def encode_part(
    plan: StreamPlan,
    part: SourcePart,
    tokens_path: Path,
    ends_path: Path,
    report: Callable[..., None] | None = None,
) -> EncodedPart:
    """Encode a source file into `tokens_path` (ids of `plan.dtype`) and `ends_path` (uint64 ends, from 0).

    Raises CorruptSourceError when the file is damaged or is not the file of the manifest, BadRecordError under the
    policy `fail`, CertificateError when a sampled document disagrees with the reference.
    """
    started, cpu_started = time.monotonic(), time.process_time()
    encoder = load_encoder(plan)
    reference_before, sampled_before = encoder.reference_documents, encoder.sampled_documents
    reader = part.read_records(plan.text_field)
    counting = _Counting(plan, encoder, part)
    bytes_before, cpu_before = 0, cpu_started
    try:
        with open(tokens_path, "wb", buffering=0) as tokens_file:
            for block in reader:
                before = counting.tokens
                for data in counting.encode(block):
                    _write_all(tokens_file, data)
                if report is not None:
                    cpu = time.process_time()
                    report(
                        tokens=counting.tokens - before,
                        documents=len(block.texts),
                        source_bytes=reader.bytes_read - bytes_before,
                        cpu_ms=int((cpu - cpu_before) * 1000),
                    )
                    bytes_before, cpu_before = reader.bytes_read, cpu
    except BadRecordError:
        # a damaged file is not to be taken for a bad row
        require_digest(part.label, sha256_file(part.path), part.sha256, "`snapshot`")
        raise
    require_digest(part.label, reader.sha256, part.sha256, "`snapshot`")
    document_ends.write(ends_path, counting.all_ends())
    ledger = replace(
        counting.ledger(),
        source_bytes=reader.bytes_read,
        reference_documents=encoder.reference_documents - reference_before,
        sampled_documents=encoder.sampled_documents - sampled_before,
    )
    ledger.balance(part.label)
    return EncodedPart(
        ledger=ledger,
        quarantine=tuple(counting.quarantine),
        cpu_seconds=time.process_time() - cpu_started,
        wall_seconds=time.monotonic() - started,
        truncated=counting.truncated,
    )


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]  # a raw write may be short


class _Counting:
    """Encodes blocks and keeps the books of one file."""

    def __init__(self, plan: StreamPlan, encoder: CertifiedEncoder, part: SourcePart) -> None:
        self._plan, self._encoder, self._part = plan, encoder, part
        self._literals = encoder.bundle.special_literals
        self._dtype = flat_bins.token_dtype(plan.dtype)
        self._limit = int(np.iinfo(self._dtype).max)
        self._before = b"" if plan.bos_id is None else np.array(plan.bos_id, self._dtype).tobytes()
        self._after = b"" if plan.separator_id is None else np.array(plan.separator_id, self._dtype).tobytes()
        self._extra = (plan.separator_id is not None) + (plan.bos_id is not None)
        self._ends: list[NDArray[np.uint64]] = []
        self._dropped: Counter[str] = Counter()
        self.quarantine: list[tuple[int, int, str]] = []
        self.tokens = self.truncated = self._documents = self._rows = self._blank = self._empty = 0
        self._special_literals = self._literal_separators = self._characters = 0
        self._low, self._high = self._limit, 0

    def encode(self, block: Block) -> list[bytes]:
        """The stream's bytes for a block of records."""
        for bad in block.bad:
            if self._plan.bad_records == "fail":
                where = f"byte {bad.byte}" if bad.byte >= 0 else "no byte position"
                raise BadRecordError(
                    f"{self._part.label}: row {bad.row}, {where}: {bad.reason}. Mend the source, or set "
                    "`bad_records: {policy: drop}` to count and skip such rows"
                )
            self._dropped[bad.reason] += 1
            self.quarantine.append((bad.row, bad.byte, bad.reason))
        self._rows += len(block.texts) + len(block.bad)
        self._blank += block.blank_lines
        if self._plan.min_characters is not None:
            block = self._long_enough(block, self._plan.min_characters)
        if not block.texts:
            return []
        ids, offsets = self._encoder.encode(block.texts)
        self._recheck_sample(block, ids, offsets)
        texts = block.texts
        if self._plan.max_tokens is not None:
            ids, offsets = self._cut(ids, offsets, self._plan.max_tokens - self._extra)
        if not self._extra:
            texts, offsets = self._not_empty(texts, offsets)
        return [self._lay_out(texts, ids, offsets)] if texts else []

    def _long_enough(self, block: Block, characters: int) -> Block:
        kept = [i for i, text in enumerate(block.texts) if len(text) >= characters]
        if len(kept) == len(block.texts):
            return block
        self._dropped["below_min_doc_chars"] += len(block.texts) - len(kept)
        rows = [block.row(i) for i in kept]
        return Block([block.texts[i] for i in kept], rows[0] if rows else block.first_row, rows)

    def _cut(
        self, ids: NDArray[np.uint32], offsets: NDArray[np.uint64], limit: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        lengths = np.diff(offsets)
        long = lengths > limit
        if not long.any():
            return ids, offsets
        self.truncated += int(np.count_nonzero(long))
        cut = np.minimum(lengths, np.uint64(limit))
        within = np.arange(len(ids), dtype=np.uint64) - np.repeat(offsets[:-1], lengths.astype(np.int64))
        return ids[within < limit], np.concatenate([np.zeros(1, np.uint64), np.cumsum(cut, dtype=np.uint64)])

    def _not_empty(self, texts: list[str], offsets: NDArray[np.uint64]) -> tuple[list[str], NDArray[np.uint64]]:
        """Without BOS and separator a document of no ids would be a sequence of no tokens, which trainers refuse."""
        filled = np.flatnonzero(np.diff(offsets))
        if len(filled) == len(texts):
            return texts, offsets
        self._dropped["no_tokens"] += len(texts) - len(filled)
        return [texts[i] for i in filled], np.concatenate([offsets[:1], offsets[1:][filled]])

    def _lay_out(self, texts: list[str], ids: NDArray[np.uint32], offsets: NDArray[np.uint64]) -> bytes:
        count = len(texts)
        if len(ids):
            low, high = int(ids.min()), int(ids.max())
            if high > self._limit:
                raise FormatError(
                    f"{self._part.label}: token id {high} does not fit {self._plan.dtype}. "
                    "Set `dtype: auto` or `uint32`"
                )
            self._low, self._high = min(self._low, low), max(self._high, high)
        lengths = np.diff(offsets)
        ends = offsets[1:] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(self._extra) + np.uint64(self.tokens)
        self._ends.append(ends)
        self.tokens = int(ends[-1])
        self._documents += count
        self._empty += int(np.count_nonzero(lengths == 0))
        self._characters += sum(map(len, texts))
        self._special_literals += self._literals.count(texts)
        if self._plan.separator_id is not None:
            self._literal_separators += int(np.count_nonzero(ids == self._plan.separator_id))
        # one join copies every document between its neighbours' separators: no per-token work in Python
        width = self._dtype.itemsize
        flat = np.ascontiguousarray(ids, self._dtype).view(np.uint8).data
        bounds = (offsets * np.uint64(width)).tolist()
        documents = [flat[start:stop] for start, stop in pairwise(bounds)]
        documents.append(flat[:0])  # so that the last document gets its separator from the same join
        block = (self._after + self._before).join(documents)
        # the join put a BOS after the last document
        return self._before + block[: len(block) - len(self._before)] if self._before else block

    def _recheck_sample(self, block: Block, ids: NDArray[np.uint32], offsets: NDArray[np.uint64]) -> None:
        if self._plan.sample_rate <= 0:
            return
        for index in sampled(block, self._part.sha256, self._plan.sample_rate):
            self._encoder.recheck(
                block.texts[index],
                ids[offsets[index] : offsets[index + 1]],
                f"{self._part.label}: row {block.row(index)}",
            )

    def all_ends(self) -> NDArray[np.uint64]:
        """Cumulative token ends of the file's documents, uint64."""
        return np.concatenate(self._ends) if self._ends else np.zeros(0, np.uint64)

    def ledger(self) -> Ledger:
        """The books so far."""
        added = [i for i in (self._plan.separator_id, self._plan.bos_id) if i is not None]
        some = self._documents > 0
        return Ledger(
            rows_in=self._rows,
            documents=self._documents,
            dropped=dict(sorted(self._dropped.items())),
            blank_lines=self._blank,
            empty_documents=self._empty,
            tokens=self.tokens,
            separators=self._documents if self._plan.separator_id is not None else 0,
            literal_separators=self._literal_separators,
            special_literals=self._special_literals,
            text_characters=self._characters,
            min_id=min([self._low, *added]) if some else None,
            max_id=max([self._high, *added]) if some else None,
        )


def sampled(block: Block, seed: str, rate: float) -> NDArray[np.intp]:
    """Indexes of the block's documents that fall in the sample: decided by file digest and row, so always the same."""
    rows = (
        np.arange(block.first_row, block.first_row + len(block.texts), dtype=np.uint64)
        if block.rows is None
        else np.array(block.rows, np.uint64)
    )
    mixed = (rows + np.uint64(int(seed[:15], 16))) * np.uint64(0x9E3779B97F4A7C15)  # wraps: Fibonacci hashing
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.flatnonzero(mixed >> np.uint64(32) < np.uint64(int(rate * (1 << 32))))
