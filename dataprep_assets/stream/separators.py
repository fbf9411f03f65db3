"""The check that each document of a shard ends with exactly one separator, and that every separator is explained.

Files are mapped and read in blocks. Offsets in messages are token offsets in the shard's stream.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import (
    REBUILD,
    SHOWN,
    Finding,
    build_verdict,
    describe_artifact,
    fail_on_errors,
    require_ledger,
)
from dataprep_assets.errors import count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts, require_separator
from dataprep_assets.stream.token_stream import StreamPlan

BLOCK = 1 << 20
"""Tokens processed at a time, so that a check needs memory for only a few arrays of this length."""


@fail_on_errors
def separators_match_documents(directory: Path, receipt: Receipt, recipe: StreamPlan | None = None) -> Finding:
    """Check that each document ends with one separator (and starts with one BOS), and that the file has no others.

    The number of separators must equal the number of documents plus the ledger's literal separators. Two separators or
    two BOS in a row mean that special tokens were added twice, except in an empty document. If the text itself
    contains the doubled literal (`special_tokens: match`), the failure is a warning, because the bytes are as planned.
    `recipe` is the shard's plan; None if it is not known.
    """
    require_separator(receipt, TokenBinsFacts.from_receipt(receipt))
    return boundaries_match(directory, receipt, recipe)


def boundaries_match(
    directory: Path, receipt: Receipt, recipe: StreamPlan | None = None, rebuild: str = REBUILD
) -> Finding:
    """Check the boundaries of a shard whose documents may have neither separator nor BOS; `rebuild` is the remedy."""
    ledger = require_ledger(receipt)
    facts = TokenBinsFacts.from_receipt(receipt)
    separator, bos = facts.separator_id, facts.bos_id
    tokens = flat_bins.open_tokens(directory / TOKENS, facts.dtype)
    ends = document_ends.open_ends(directory / ENDS)
    document_ends.validate(directory / ENDS, len(tokens))
    scan = _Boundaries(tokens, ends, separator, bos)
    scan.read_documents()
    scan.read_tokens()
    # If BOS and the separator are the same token, each document has this token twice.
    separators_per_document = 0 if separator is None else 2 if bos == separator else 1
    expected_count = len(ends) * separators_per_document + ledger.literal_separators
    if scan.separators != expected_count:
        scan.defects.append(
            f"{TOKENS} has {count_of(scan.separators, 'separator')} (id {separator}), but must have {expected_count} "
            f"({count_of(len(ends), 'document')} and {count_of(ledger.literal_separators, 'literal separator')})"
        )
    if facts.special_tokens == "text" and ledger.literal_separators:
        scan.defects.append(
            f"{count_of(ledger.literal_separators, 'separator comes', 'separators come')} from text that must be "
            "encoded as plain text"
        )
    scan.defects += [] if recipe is None else find_special_token_defects(facts, recipe)
    if scan.empty != ledger.empty_documents:
        scan.defects.append(
            f"{count_of(scan.empty, 'document is', 'documents are')} empty, but the ledger has {ledger.empty_documents}"
        )
    remedy = "The text contains special tokens. Render it without them, or use `special_tokens: text`"
    from_text = not scan.defects and ledger.special_literals > 0 and facts.special_tokens == "match"
    return build_verdict(
        [f"{describe_artifact(receipt)}: {d}" for d in scan.defects + scan.doubled],
        f"{count_of(len(ends), 'document begins and ends', 'documents begin and end')} as declared (separator "
        f"{separator}, BOS {bos}); "
        f"{count_of(ledger.literal_separators, 'more separator comes', 'more separators come')} from text.",
        remedy if from_text else rebuild,
        facts={
            "documents": len(ends),
            "separators": scan.separators,
            "literal_separators": ledger.literal_separators,
            "empty_documents": scan.empty,
            "repeated_separators": scan.doubled_count,
        },
        warning=from_text,
    )


def find_special_token_defects(facts: TokenBinsFacts, recipe: StreamPlan) -> Iterator[str]:
    """Yield a defect if a shard's separator or BOS differs from its recipe's."""
    for token_name, shard_id, recipe_id in (
        ("separator", facts.separator_id, recipe.separator_id),
        ("BOS", facts.bos_id, recipe.bos_id),
    ):
        if shard_id != recipe_id:
            own_text, recipe_text = ("none" if token_id is None else token_id for token_id in (shard_id, recipe_id))
            yield f"the id of its {token_name} is {own_text}, but the recipe has {recipe_text}"


class _Boundaries:
    """The results of reading a shard twice, once at its document boundaries and once token by token."""

    def __init__(self, tokens: NDArray[Any], ends: NDArray[np.uint64], separator: int | None, bos: int | None) -> None:
        self._tokens, self._ends, self._separator, self._bos = tokens, ends, separator, bos
        self._extra = sum(token_id is not None for token_id in (separator, bos))
        self.defects: list[str] = []
        self.doubled: list[str] = []
        self.doubled_count = self.separators = self.empty = 0

    def read_documents(self) -> None:
        """Check the first and last token of every document."""
        previous = 0
        for first_document in range(0, len(self._ends), document_ends.BLOCK):
            # Use signed ends, because a negative difference of uint64 numbers would wrap.
            ends = np.asarray(self._ends[first_document : first_document + document_ends.BLOCK]).astype(np.int64)
            starts = np.concatenate(([previous], ends[:-1]))
            previous = int(ends[-1])
            lengths = ends - starts
            self._record_defect(
                first_document,
                starts,
                lengths < self._extra,
                f"is too short for its {count_of(self._extra, 'special token')}",
            )
            # Exclude documents that are too short for their special tokens, because the tokens at their ends may belong
            # to neighboring documents.
            has_room = lengths >= self._extra
            self.empty += int(np.count_nonzero(lengths == self._extra))
            if self._separator is not None:
                last_tokens = self._tokens[ends[has_room] - 1]
                unended = _scatter_values(has_room, last_tokens != self._separator)
                self._record_defect(first_document, starts, unended, f"does not end with separator {self._separator}")
            if self._bos is not None:
                begins = self._tokens[starts[has_room]]
                self._record_defect(
                    first_document,
                    starts,
                    _scatter_values(has_room, begins != self._bos),
                    f"does not start with BOS {self._bos}",
                )

    def _record_defect(self, first: int, starts: NDArray[np.int64], is_wrong: NDArray[np.bool_], message: str) -> None:
        positions = np.flatnonzero(is_wrong)
        if len(positions):
            index = int(positions[0])
            self.defects.append(
                f"document {first + index} (from token offset {int(starts[index])}) {message}; "
                f"{count_of(len(positions), 'document has', 'documents have')} this defect among documents {first} to "
                f"{first + len(is_wrong) - 1}"
            )

    def read_tokens(self) -> None:
        """Count separators, and record doubled special tokens that are not explained by an empty document."""
        if self._extra == 0:
            return
        for start in range(0, len(self._tokens), BLOCK):
            # The slice is one token longer than the block, to include the pair across the boundary to the previous
            # block.
            block = self._tokens[max(start - 1, 0) : start + BLOCK]
            is_separator = np.equal(block, -1 if self._separator is None else self._separator)
            # Exclude the token before the block, which was counted with the previous block.
            self.separators += int(np.count_nonzero(is_separator[min(start, 1) :]))
            pairs = np.flatnonzero(is_separator[1:] & is_separator[:-1]) + max(start - 1, 0) + 1
            if self._separator is not None:
                self._record_repeated_separators(pairs[~self._explain(pairs)], "separator", self._separator)
            if self._bos is not None and self._bos != self._separator:
                is_bos = block == self._bos
                self._record_repeated_separators(
                    np.flatnonzero(is_bos[1:] & is_bos[:-1]) + max(start - 1, 0) + 1, "BOS", self._bos
                )

    def _explain(self, seconds: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return a mask of the separator pairs that the layout explains; `seconds` are the offsets of second tokens."""
        if not len(seconds):
            return np.zeros(0, np.bool_)
        document = np.searchsorted(self._ends, seconds.astype(np.uint64), side="right")
        ends = np.asarray(self._ends[document]).astype(np.int64)
        starts = np.where(document > 0, np.asarray(self._ends[np.maximum(document, 1) - 1]).astype(np.int64), 0)
        begins, is_empty = np.equal(starts, seconds), np.equal(ends - starts, self._extra)
        # Without BOS, only an empty document creates a pair, with the separator before it. If BOS is the separator,
        # each beginning of a document and each empty document creates a pair. With a different BOS, no pair is
        # explained.
        combine = np.logical_or if self._bos == self._separator else np.logical_and
        is_explained: NDArray[np.bool_] = combine(begins, is_empty)
        return is_explained

    def _record_repeated_separators(self, offsets: NDArray[np.intp], kind: str, token: int) -> None:
        self.doubled_count += len(offsets)
        for offset in offsets[: SHOWN - len(self.doubled)].tolist():
            document = int(np.searchsorted(self._ends, np.uint64(offset), side="right"))
            self.doubled.append(
                f"doubled {kind} (id {token}) at token offsets {offset - 1} and {offset}, document {document}"
            )


def _scatter_values(mask: NDArray[np.bool_], values: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return an array with `values` at the positions where `mask` is True, and False elsewhere."""
    scattered = np.zeros(len(mask), np.bool_)
    scattered[mask] = values
    return scattered
