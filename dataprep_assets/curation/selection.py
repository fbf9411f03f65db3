"""Selection of the records of a source that become documents, with the reasons for dropped records.

This module defines the selection once for all users. They are the encoder, the round trip that reads the source again,
checks that look for retracted documents, and `trace`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.documents import NONE_RETRACTED, FileDocuments
from dataprep_assets.curation.dropped_rows import DroppedFileRows, DroppedRows
from dataprep_assets.integrity.receipt import RETRACTED, SELECTED
from dataprep_assets.sources.readers.read_options import BAD_CSV, ID_REASONS, NOT_TEXT, REASONS
from dataprep_assets.tokenization.document_ids import DocumentIds

if TYPE_CHECKING:
    from dataprep_assets.sources.readers.records import Block

SHORT, NO_TOKENS = "below_min_doc_chars", "no_tokens"
DUPLICATE = "duplicate"
"""The reason for a document that duplicates a kept document. It counts as a rule of this name."""

FILTERED = {
    SELECTED: "is dropped by the dataset's selection",
    RETRACTED: "is retracted",
    SHORT: "has fewer characters than `min_doc_chars`",
    NO_TOKENS: "has no tokens, and no tokens are added around documents",
}
"""Reasons for dropping a good record, in words.

Such a record is counted in the ledger of its stream; a bad record is also in the quarantine. The selection has its own
reasons for the rows that it drops: a rule's name, `duplicate`, `retracted`.
"""
RESERVED = frozenset((*REASONS, *ID_REASONS, BAD_CSV, NOT_TEXT, *FILTERED))
"""Reasons that cannot be names of rules: the reasons above, and this package's reasons for bad records.

Formats of other packages may define further reasons, so a reason that is not in this set may still not be a rule.
"""


def is_bad_row(reason: str) -> bool:
    """Return whether a reason in the ledger of a stream is a defect of the row."""
    return reason not in FILTERED


def count_bad_rows(dropped_counts: Mapping[str, int]) -> Counter[str]:
    """Return the counts of bad rows among the counts by reason in the ledger of a stream."""
    return Counter({reason: count for reason, count in dropped_counts.items() if count and is_bad_row(reason)})


@dataclass(frozen=True, kw_only=True)
class SelectedDocuments:
    """Result of selecting documents among the good records of a block.

    Attributes:
        documents: The kept documents.
        dropped: Number of dropped documents by reason.
        retracted: The ids, 16 hex digits, of retracted documents.
    """

    documents: FileDocuments
    dropped: Counter[str] = field(default_factory=Counter)
    retracted: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rules that decide which records become documents.

    Attributes:
        ids: The id scheme; None if documents have no ids.
        retracted: Ids of retracted documents: shape `(ids,)`, uint64, sorted.
        min_characters: Minimum number of characters of a document; None for no minimum.
        ruled_out: Rows of a file that the dataset's selection drops; None if there is no selection (`limit_to_file`).
    """

    ids: DocumentIds | None
    retracted: NDArray[np.uint64] = field(default_factory=lambda: NONE_RETRACTED)
    min_characters: int | None = None
    ruled_out: DroppedFileRows | None = None

    def limit_to_file(self, ruled_out: DroppedRows | None, file: str) -> Self:
        """Return the selection for the records of one source file."""
        return self if ruled_out is None else replace(self, ruled_out=ruled_out.select_file(file))

    def select(self, block: "Block") -> SelectedDocuments:
        """Return the documents among the good records of a block.

        Documents without tokens are found only after encoding (`drop_empty`).
        """
        documents, drop_counts = FileDocuments.from_block(block, self.ids), Counter[str]()
        # Count each record under the first reason that applies. Check the selection before the retraction list, because
        # the selection already includes the list. The ledger then does not depend on why the selection drops a row.
        if self.ruled_out is not None:
            is_dropped = self.ruled_out.find_dropped(documents.rows)
            if is_dropped.any():
                drop_counts[SELECTED] = int(np.count_nonzero(is_dropped))
                documents = documents.select(np.flatnonzero(~is_dropped).tolist())
        is_listed = self.find_listed(documents)
        retracted_hashes = frozenset[str]()
        if is_listed.any():
            assert documents.ids is not None
            retracted_hashes = frozenset(f"{document_id:016x}" for document_id in documents.ids[is_listed].tolist())
            drop_counts[RETRACTED] = int(np.count_nonzero(is_listed))
            documents = documents.select(np.flatnonzero(~is_listed).tolist())
        if (least := self.min_characters) is not None:
            long = [index for index, text in enumerate(documents.texts) if len(text) >= least]
            if short := len(documents.texts) - len(long):
                drop_counts[SHORT] = short
                documents = documents.select(long)
        return SelectedDocuments(documents=documents, dropped=drop_counts, retracted=retracted_hashes)

    def find_listed(self, documents: FileDocuments) -> NDArray[np.bool_]:
        """Return a mask of the documents that are on the retraction list: shape `(documents,)`."""
        if not len(self.retracted):
            return np.zeros(len(documents.texts), np.bool_)
        assert documents.ids is not None, "documents without ids cannot be removed"
        return np.isin(documents.ids, self.retracted)

    def explain_refusal(self, block: "Block") -> str | None:
        """Return, in words, why the only record of a block does not become a document; None if it may become one."""
        if block.bad:
            return describe_bad_reason(str(block.bad[0]))
        return next((describe_reason(reason) for reason in self.select(block).dropped), None)


def describe_bad_reason(reason: str) -> str:
    """Return the reason why a bad record is not a document, in words."""
    return f"was dropped as {reason}"


def describe_reason(reason: str) -> str:
    """Return the reason why a good record is not a document, in words."""
    if reason == DUPLICATE:
        return "is a duplicate"
    return FILTERED.get(reason, f"is dropped by the rule {reason!r}")


def drop_empty(documents: FileDocuments, lengths: NDArray[np.unsignedinteger]) -> SelectedDocuments:
    """Return the documents that have tokens, because trainers refuse empty sequences.

    `lengths` is the number of tokens of each document.

    This only has an effect if neither a BOS nor a separator is added around documents.
    """
    filled_rows = np.flatnonzero(lengths)
    if empty := len(lengths) - len(filled_rows):
        return SelectedDocuments(documents=documents.select(filled_rows.tolist()), dropped=Counter({NO_TOKENS: empty}))
    return SelectedDocuments(documents=documents)
