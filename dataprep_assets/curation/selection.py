"""Which records of a source become documents, and why others are dropped: said once, for whoever needs to know.

The encoder selects by it while it writes a stream, the round trip when it reads the source again, proofs that look for
retracted documents, and `trace` for a row that is no document.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.documents import NONE_RETRACTED, FileDocuments
from dataprep_assets.curation.dropped_rows import RuledOut, RuledOutRows
from dataprep_assets.integrity.receipt import RETRACTED, SELECTED
from dataprep_assets.sources.readers.csv_rows import BAD_CSV
from dataprep_assets.sources.readers.records import ID_REASONS, REASONS, Block
from dataprep_assets.sources.readers.warc import NOT_TEXT
from dataprep_assets.tokenization.document_ids import DocumentIds

SHORT, NO_TOKENS = "below_min_doc_chars", "no_tokens"
DUPLICATE = "duplicate"
"""The reason of a document that is like one that is kept. It counts as a rule, whose name it is."""

FILTERED = {
    SELECTED: "is dropped by the dataset's selection",
    RETRACTED: "is retracted",
    SHORT: "has fewer characters than `min_doc_chars`",
    NO_TOKENS: "has no token, and no token is added around documents",
}
"""Reasons for dropping a good record, in words. Such a record is counted in the ledger of its stream; a bad one is in
the quarantine, too. What the selection drops has a reason of its own there: a rule's name, `duplicate`, `retracted`."""
RESERVED = frozenset((*REASONS, *ID_REASONS, BAD_CSV, NOT_TEXT, *FILTERED))
"""Reasons that no rule may be named: those above, and of bad records those that this package gives. Formats of other
packages have reasons of their own, so a reason that is not here need not be a rule's."""


def bad_rows(dropped: Mapping[str, int]) -> Counter[str]:
    """Return what is dropped because it is bad, out of the counts by reason in the ledger of a stream."""
    return Counter({reason: count for reason, count in dropped.items() if count and reason not in FILTERED})


@dataclass(frozen=True, kw_only=True)
class SelectedDocuments:
    """What becomes of the good records of a block.

    Attributes:
        documents: Those that are kept.
        dropped: Number of the others by reason.
        retracted: The ids, 16 hex digits, that dropped a document.
    """

    documents: FileDocuments
    dropped: Counter[str] = field(default_factory=Counter)
    retracted: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rules by which records become documents.

    Attributes:
        ids: How documents are identified; None if they are not.
        retracted: Ids of the documents that are not wanted: shape `(ids,)`, uint64, sorted.
        min_characters: Fewest characters of a document; None for any number.
        ruled_out: The rows of a file that the dataset's selection drops; None without a selection (`in_file`).
    """

    ids: DocumentIds | None
    retracted: NDArray[np.uint64] = field(default_factory=lambda: NONE_RETRACTED)
    min_characters: int | None = None
    ruled_out: RuledOutRows | None = None

    def in_file(self, ruled_out: RuledOut | None, file: str) -> Self:
        """The selection among the records of one source file."""
        return self if ruled_out is None else replace(self, ruled_out=ruled_out.rows_of(file))

    def select(self, block: Block) -> SelectedDocuments:
        """The documents among the good records of a block.

        What has no tokens is known only when it has been encoded (`with_tokens`).
        """
        documents, drop_counts = FileDocuments.from_block(block, self.ids), Counter[str]()
        # Each record has one reason, the first in this order. A selection knows the list: what it drops is counted as
        # one, so that the ledger depends only on which rows go.
        if self.ruled_out is not None:
            out = self.ruled_out.are_dropped(documents.rows)
            if out.any():
                drop_counts[SELECTED] = int(np.count_nonzero(out))
                documents = documents.only(np.flatnonzero(~out).tolist())
        is_listed = self.are_listed(documents)
        retracted_hashes = frozenset[str]()
        if is_listed.any():
            assert documents.ids is not None
            retracted_hashes = frozenset(f"{document_id:016x}" for document_id in documents.ids[is_listed].tolist())
            drop_counts[RETRACTED] = int(np.count_nonzero(is_listed))
            documents = documents.only(np.flatnonzero(~is_listed).tolist())
        if (least := self.min_characters) is not None:
            long = [index for index, text in enumerate(documents.texts) if len(text) >= least]
            if short := len(documents.texts) - len(long):
                drop_counts[SHORT] = short
                documents = documents.only(long)
        return SelectedDocuments(documents=documents, dropped=drop_counts, retracted=retracted_hashes)

    def are_listed(self, documents: FileDocuments) -> NDArray[np.bool_]:
        """Return which documents are on the retraction list: shape `(documents,)`."""
        if not len(self.retracted):
            return np.zeros(len(documents.texts), np.bool_)
        assert documents.ids is not None, "documents without ids cannot be removed"
        return np.isin(documents.ids, self.retracted)

    def refusal(self, block: Block) -> str | None:
        """Why the only record of a block is no document, in words; None if it may be one."""
        if block.bad:
            return bad_in_words(str(block.bad[0]))
        return next((in_words(reason) for reason in self.select(block).dropped), None)


def bad_in_words(reason: str) -> str:
    """The reason for which a bad record is no document, in words."""
    return f"was dropped as {reason}"


def in_words(reason: str) -> str:
    """A reason for which a good record is no document, in words."""
    if reason == DUPLICATE:
        return "is a duplicate"
    return FILTERED.get(reason, f"is dropped by the rule {reason!r}")


def with_tokens(documents: FileDocuments, lengths: NDArray[np.unsignedinteger]) -> SelectedDocuments:
    """The documents that have tokens, given how many each has: trainers refuse empty sequences.

    It matters only where neither a BOS nor a separator is put around a document.
    """
    filled = np.flatnonzero(lengths)
    if empty := len(lengths) - len(filled):
        return SelectedDocuments(documents=documents.only(filled.tolist()), dropped=Counter({NO_TOKENS: empty}))
    return SelectedDocuments(documents=documents)
