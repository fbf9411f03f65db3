"""Checks the index of a token stream: compares its ids and rows with documents read again from their source."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.documents.documents import Documents
from dataprep_assets.formats.document_index import IDS, ROWS, DocumentRows
from dataprep_assets.tokenization.document_ids import DocumentIds


@dataclass(frozen=True)
class IndexCheck:
    """An index to compare documents with.

    Attributes:
        rows: The source row of each document.
        ids: How ids are made; None: compare only rows.
        stored: The ids of `document_ids.bin`, shape `(documents,)`, uint64; None if there is no such file.
    """

    rows: DocumentRows
    ids: DocumentIds | None
    stored: NDArray[np.uint64] | None

    def differences(self, documents: Documents, file: int, first: int, label: str) -> Iterator[str]:
        """How the index differs from some documents of a source file, at most one sentence of each kind.

        Args:
            documents: The documents as read from the file, identified by `ids`.
            file: The file's number in the stream.
            first: Number, in the stream, of the first of them.
            label: The file's name in messages.
        """
        # a source that has grown has more documents than the index; their number is compared where the file is read
        count = max(0, min(len(documents.texts), self.rows.documents - first))
        expected = documents.rows[:count]
        if len(wrong := np.flatnonzero(self.rows.rows(file, first, first + count) != expected)):
            yield (f"{label}: row {expected[wrong[0]]}: {ROWS} has another row for document {first + int(wrong[0])}")
        if documents.ids is None or self.stored is None:
            return
        if len(wrong := np.flatnonzero(self.stored[first : first + count] != documents.ids[:count])):
            yield (f"{label}: row {expected[wrong[0]]}: {IDS} has another id for document {first + int(wrong[0])}")
