"""Encoding of one source file into its part of the canonical token stream: the hot path.

Native code decompresses, parses, encodes and writes large blocks of bytes. Python handles single documents only where
this cannot be avoided. The receipt's values are computed in the same pass: the digest of the source as read, the
ledger, the range of ids, and the document index. Documents filtered by the plan are dropped with a reason.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.documents import FileDocuments, sample_rows
from dataprep_assets.curation.selection import SelectedDocuments, drop_empty
from dataprep_assets.errors import BadRecordError, FormatError
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import RunWriter
from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.sources.readers.records import Block
from dataprep_assets.sources.readers.unreadable import ADVICE, describe_place
from dataprep_assets.stores.files import require_digest, sha256_file
from dataprep_assets.stream.token_stream import (
    EncodedPart,
    PartFiles,
    ReadBytes,
    SourcePart,
    StreamPlan,
    find_unreadable_error,
    load_encoder,
)
from dataprep_assets.tokenization.certificate import CertifiedEncoder
from dataprep_assets.tokenization.losses import Losses, encode_or_locate, locate_row


def encode_part(
    plan: StreamPlan,
    part: SourcePart,
    files: PartFiles,
    report: Callable[..., None] | None = None,
) -> EncodedPart:
    """Encode a source file into the new `files`.

    Args:
        plan: Everything that determines the bytes.
        part: The source file, or some of its rows.
        files: The files of its stream.
        report: Called with the tokens, documents, source bytes and CPU time of each block.

    Raises CorruptSourceError if the file is damaged or differs from the manifest, BadRecordError under the policy
    `fail`, CertificateError if a sampled document disagrees with the reference.
    """
    wall_start, cpu_start = time.monotonic(), time.process_time()
    encoder = load_encoder(plan)
    # The encoder serves all files of this process, so its counters do not start at 0 for each file.
    reference_before, sampled_before = encoder.reference_documents, encoder.sampled_documents
    reader = part.read_records(plan.fields)
    counting = _CountingEncoder(plan, encoder, part)
    read_bytes, cpu_before = ReadBytes(part, reader), cpu_start
    try:
        with (
            open(files.tokens, "wb", buffering=0) as tokens_file,
            open(files.ids, "wb") as ids_file,
            open(files.rows, "wb") as rows_file,
        ):
            runs = RunWriter(rows_file, part.first_row)
            for block in reader:
                tokens_before = counting.tokens
                if (encoded := counting.encode(block)) is not None:
                    _write_all(tokens_file, encoded.data)
                    # Hash the texts after they are encoded, because encoding caches the UTF-8 of each text, which makes
                    # hashing several times cheaper.
                    ids_file.write(encoded.documents.id_bytes)
                    runs.add(encoded.documents.rows)
                if report is not None:
                    cpu = time.process_time()
                    report(
                        tokens=counting.tokens - tokens_before,
                        documents=len(block.texts),
                        source_bytes=read_bytes.take(),
                        cpu_ms=int((cpu - cpu_before) * 1000),
                    )
                    cpu_before = cpu
    except BadRecordError:
        # Check the digest before reporting a bad row, because the cause may be a damaged file.
        require_digest(part.label, part.digests.digest_of(sha256_file(part.path)), part.sha256, "`snapshot`")
        counting.require_readable()
        raise
    # Compare the digest only now, because it is known only after the last byte. If it differs, the part is never used,
    # because the counters that mark a part as finished are written later.
    require_digest(part.label, part.digests.digest_of(reader.sha256), part.sha256, "`snapshot`")
    counting.require_readable()
    document_ends.write(files.ends, counting.collect_ends())
    ledger = replace(
        counting.build_ledger(),
        source_bytes=reader.bytes_read,
        reference_documents=encoder.reference_documents - reference_before,
        sampled_documents=encoder.sampled_documents - sampled_before,
    )
    ledger.require_balance(part.label)
    return EncodedPart(
        ledger=ledger,
        quarantine=tuple(counting.quarantine),
        cpu_seconds=time.process_time() - cpu_start,
        wall_seconds=time.monotonic() - wall_start,
        truncated=counting.truncated,
        retracted=tuple(sorted(counting.retracted)),
    )


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]  # an unbuffered write may write only some of the bytes


@dataclass(frozen=True, slots=True)
class _EncodedDocuments:
    """Documents that are in the stream, and their bytes in it."""

    documents: FileDocuments
    data: bytes


class _CountingEncoder:
    """Encoder of one file's blocks, which also keeps the counts of the file's ledger."""

    def __init__(self, plan: StreamPlan, encoder: CertifiedEncoder, part: SourcePart) -> None:
        self._plan, self._encoder, self._part = plan, encoder, part
        self._literals = encoder.bundle.special_literals
        self._losses = Losses(encoder.bundle, plan.special_tokens)
        self._dtype = flat_bins.token_dtype(plan.dtype)
        self._limit = int(np.iinfo(self._dtype).max)
        self._before = b"" if plan.bos_id is None else np.array(plan.bos_id, self._dtype).tobytes()
        self._after = b"" if plan.separator_id is None else np.array(plan.separator_id, self._dtype).tobytes()
        self._selection = plan.selection.limit_to_file(part.ruled_out, part.label)
        # `_ends` has one array per block. The arrays are kept until the end of the file, because a document takes only
        # 8 bytes.
        self._ends: list[NDArray[np.uint64]] = []
        self._dropped: Counter[str] = Counter()
        self.quarantine: list[tuple[int, int, str]] = []
        self.retracted: set[str] = set()
        self.tokens = self.truncated = self._documents = self._rows = self._blank = self._empty = 0
        self._special_literals = self._literal_separators = self._characters = 0
        # `_first_bad` is the position and reason of the file's first bad record. `_has_read` is whether any row could
        # be read.
        self._first_bad, self._has_read = "", False
        # Start with an empty range (`_low` above `_high`), so that the first ids replace both limits.
        self._low, self._high = self._limit, 0

    def encode(self, block: Block) -> "_EncodedDocuments | None":
        """Return a block's documents and their bytes in the stream; None if the block has no documents."""
        self._count_rows(block)
        documents = self._count_dropped_documents(self._selection.select(block))
        if not documents.texts:
            return None
        ids, offsets = encode_or_locate(
            self._encoder.encode,
            documents.texts,
            self._encoder.bundle.name,
            lambda position: locate_row(self._part.label, int(documents.rows[position])),
        )
        # Check the sample before documents are truncated, because the reference encodes whole texts.
        self._recheck_sample(documents, ids, offsets)
        if self._plan.max_tokens is not None:
            ids, offsets = self._truncate(ids, offsets, self._plan.max_tokens - self._plan.around)
        if not self._plan.around:
            lengths = np.diff(offsets)
            documents = self._count_dropped_documents(drop_empty(documents, lengths))
            # An empty document ends where the previous document ends, so its offset can be removed without changing the
            # ids.
            offsets = np.concatenate([offsets[:1], offsets[1:][lengths > 0]])
        if not documents.texts:
            return None
        return _EncodedDocuments(documents, self._lay_out(documents.texts, ids, offsets))

    def _count_rows(self, block: Block) -> None:
        """Count a block's rows; raises BadRecordError for a bad record unless the plan drops bad records."""
        self._has_read |= bool(block.texts)
        for bad_row in block.bad:
            self._first_bad = self._first_bad or describe_place(
                bad_row, self._plan.fields.format_key_hint(bad_row.reason)
            )
            if self._plan.bad_records == "fail":
                raise BadRecordError(
                    f"{self._part.label}: {self._first_bad}. {ADVICE}", file=self._part.label, **bad_row.position
                )
            self._dropped[bad_row.reason] += 1
            self.quarantine.append((bad_row.row, bad_row.byte, bad_row.reason))
        self._rows += len(block.texts) + len(block.bad)
        self._blank += block.blank_lines

    def require_readable(self) -> None:
        """Raise BadRecordError if the file has rows but none is readable, under any policy for bad records."""
        if not self._first_bad or self._has_read:
            return
        if (error := find_unreadable_error(self._part, self._first_bad, self._has_texts)) is not None:
            raise error from None

    def _has_texts(self, part: SourcePart) -> bool:
        return any(block.texts for block in part.read_records(self._plan.fields))

    def _count_dropped_documents(self, selected: SelectedDocuments) -> FileDocuments:
        """Count the dropped documents and return the others."""
        self._dropped += selected.dropped
        self.retracted |= selected.retracted
        return selected.documents

    def _truncate(
        self, ids: NDArray[np.uint32], offsets: NDArray[np.uint64], limit: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        lengths = np.diff(offsets)
        long = lengths > limit
        if not long.any():
            return ids, offsets
        self.truncated += int(np.count_nonzero(long))
        kept_lengths = np.minimum(lengths, np.uint64(limit))
        # `positions` has each token's position in its document. The lengths are converted, because `np.repeat` does not
        # accept uint64.
        positions = np.arange(len(ids), dtype=np.uint64) - np.repeat(offsets[:-1], lengths.astype(np.int64))
        return ids[positions < limit], np.concatenate(
            [np.zeros(1, np.uint64), np.cumsum(kept_lengths, dtype=np.uint64)]
        )

    def _lay_out(self, texts: list[str], ids: NDArray[np.uint32], offsets: NDArray[np.uint64]) -> bytes:
        count = len(texts)
        if len(ids):
            low, high = int(ids.min()), int(ids.max())
            # Check the ids before they are narrowed, because an id that is too large would wrap to a valid but wrong
            # id.
            if high > self._limit:
                raise FormatError(
                    f"{self._part.label}: token id {high} does not fit {self._plan.dtype}. "
                    "Set `dtype: auto` or `uint32`"
                )
            self._low, self._high = min(self._low, low), max(self._high, high)
            if self._plan.separator_id is not None:
                self._literal_separators += int(np.count_nonzero(ids == self._plan.separator_id))
        lengths = np.diff(offsets)
        # The end of document k is its end in `ids`, plus (k + 1) × the tokens added per document, plus the tokens of
        # earlier blocks.
        ends = (
            offsets[1:]
            + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(self._plan.around)
            + np.uint64(self.tokens)
        )
        self._ends.append(ends)
        self.tokens = int(ends[-1])
        self._documents += count
        self._empty += int(np.count_nonzero(lengths == 0))
        self._characters += sum(map(len, texts))
        self._special_literals += self._literals.count(texts)
        self._losses.count(texts, ids)
        # Join the documents with the special tokens between them in one call, because a loop over tokens in Python is
        # slow.
        width = self._dtype.itemsize
        flat = np.ascontiguousarray(ids, self._dtype).view(np.uint8).data
        bounds = (offsets * np.uint64(width)).tolist()
        documents = [flat[start:stop] for start, stop in pairwise(bounds)]
        documents.append(flat[:0])  # this makes the join add a separator after the last document
        block = (self._after + self._before).join(documents)
        # Remove the BOS that the join appended after the last document.
        return self._before + block[: len(block) - len(self._before)] if self._before else block

    def _recheck_sample(self, documents: FileDocuments, ids: NDArray[np.uint32], offsets: NDArray[np.uint64]) -> None:
        if self._plan.sample_rate <= 0:
            return
        for index in sample_rows(documents.rows, self._part.sha256, self._plan.sample_rate):
            self._encoder.recheck(
                documents.texts[index],
                ids[offsets[index] : offsets[index + 1]],
                f"{self._part.label}: row {documents.rows[index]}",
            )

    def collect_ends(self) -> NDArray[np.uint64]:
        """Return the cumulative token ends of the file's documents, uint64."""
        return np.concatenate(self._ends) if self._ends else np.zeros(0, np.uint64)

    def build_ledger(self) -> Ledger:
        """Return the ledger of the blocks encoded so far."""
        # Include the separator and the BOS in the range of ids, because `_low` and `_high` cover only the ids of texts.
        added = [i for i in (self._plan.separator_id, self._plan.bos_id) if i is not None]
        has_documents = self._documents > 0
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
            **self._losses.counts,
            min_id=min([self._low, *added]) if has_documents else None,
            max_id=max([self._high, *added]) if has_documents else None,
        )
