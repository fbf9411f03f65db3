"""Documents before they are encoded into a token stream: their texts, source rows and ids."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.tokenization.document_ids import DocumentIds

if TYPE_CHECKING:
    from dataprep_assets.sources.readers.records import Block

TOP_FOLDER = "."
"""Source of files in the top folder of a dataset's source."""
NONE_RETRACTED = np.empty(0, np.uint64)
"""An empty retraction list."""


class FileDocuments:
    """Some documents of one source file, in file order.

    Ids are hashed on first use. Hashing is several times cheaper after the encoder has processed a text, because Python
    then caches its UTF-8 bytes.
    """

    def __init__(
        self,
        texts: list[str],
        rows: NDArray[np.uint64],
        scheme: DocumentIds | None,
        declared_fields: list[str] | None = None,
        source_texts: list[str] | None = None,
    ) -> None:
        """Store documents in the order in which they were read.

        Args:
            texts: Their texts.
            rows: 1-based row of each document: shape `(documents,)`, uint64.
            scheme: The id scheme; None if ids are left out.
            declared_fields: The declared id of each document, if `scheme` names a field.
            source_texts: Their texts before rewriting, which their ids identify; None if they were not rewritten.
        """
        self.texts, self.rows = texts, rows
        self._scheme, self._declared = scheme, declared_fields
        self._source_texts = source_texts
        self._ids: NDArray[np.uint64] | None = None

    @classmethod
    def from_block(cls, block: "Block", scheme: DocumentIds | None) -> "FileDocuments":
        """Return the documents of a block of records, with ids according to `scheme`."""
        rows = (
            np.arange(block.first_row, block.first_row + len(block.texts), dtype=np.uint64)
            if block.rows is None
            else np.array(block.rows, np.uint64)
        )
        return cls(block.texts, rows, scheme, block.ids, block.source_texts if block.texts_before else None)

    @property
    def ids(self) -> NDArray[np.uint64] | None:
        """The id of each document: shape `(documents,)`, uint64; None if ids are left out."""
        if self._ids is None and self._scheme is not None:
            source_texts = self.texts if self._source_texts is None else self._source_texts
            self._ids = self._scheme.hash_texts(source_texts, self._declared)
        return self._ids

    @property
    def id_bytes(self) -> bytes:
        """The ids in the byte format of `document_ids.bin`."""
        return b"" if self.ids is None else self.ids.astype("<u8", copy=False).tobytes()

    def select(self, kept_rows: Sequence[int]) -> "FileDocuments":
        """Return the documents with these increasing indices."""
        if len(kept_rows) == len(self.texts):
            return self
        indices = np.array(kept_rows, np.intp)
        declared_ids = None if self._declared is None else [self._declared[i] for i in kept_rows]
        source_texts = None if self._source_texts is None else [self._source_texts[i] for i in kept_rows]
        texts = [self.texts[i] for i in kept_rows]
        documents = FileDocuments(texts, self.rows[indices], self._scheme, declared_ids, source_texts)
        documents._ids = None if self._ids is None else self._ids[indices]
        return documents


def find_source(file: str) -> str:
    """Return the source of a file's rows if no field names it: the file's folder."""
    return file.rpartition("/")[0] or TOP_FOLDER


def sample_rows(rows: NDArray[np.uint64], seed: str, rate: float) -> NDArray[np.intp]:
    """Return the indices of the rows in the sample, which depends only on file digest and row, so it is reproducible.

    `rows` are uint64 row numbers, `seed` is hex digits of the file's digest, and `rate` is the requested share of rows.
    """
    # Let the multiplications overflow, because this hash uses each product modulo 2**64.
    mixed_hashes = (rows + np.uint64(int(seed[:15], 16))) * np.uint64(0x9E3779B97F4A7C15)
    mixed_hashes ^= mixed_hashes >> np.uint64(29)
    mixed_hashes *= np.uint64(0xBF58476D1CE4E5B9)
    # Compare only 32 bits, because the 64-bit limit for rate 1 (every row) would be 2**64, which does not fit in
    # uint64.
    return np.flatnonzero(mixed_hashes >> np.uint64(32) < np.uint64(int(rate * (1 << 32))))
