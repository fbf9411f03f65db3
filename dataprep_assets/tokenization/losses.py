"""What a tokenizer does not keep of texts: tokens that stand for anything unknown, and characters without any token.

Most tokenizers of today know every byte, so there is nothing to count, and it costs nothing. Of the
others, whether a character leaves a trace is found out once for each character: it is dropped if the ids are the same
without it. White space is not counted, because many tokenizers leave it out on purpose.

Entry points: `Losses`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine, SpecialTokens
from dataprep_assets.tokenization.library_errors import EncodingError


class Losses:
    """Counts the losses of texts with one tokenizer."""

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        definition = bundle.definition
        self._unknown_id = definition.unknown_id
        self._may_drop, self._bundle, self._mode = definition.may_drop, bundle, special_tokens
        self._known: set[str] = set()
        self._dropped: dict[int, None] = {}
        self.unknown_tokens = self.dropped_characters = 0

    def count(self, texts: Sequence[str], ids: NDArray[Any]) -> None:
        """Count the losses of texts that have these ids."""
        if self._unknown_id is not None:
            self.unknown_tokens += int(np.count_nonzero(ids == self._unknown_id))
        if not self._may_drop:
            return
        if new := set().union(*texts) - self._known:
            self._learn(new)
        if self._dropped:
            self.dropped_characters += sum(len(text) - len(text.translate(self._dropped)) for text in texts)

    def _learn(self, characters: set[str]) -> None:
        """Find out which of these characters leave no trace."""
        self._known |= characters
        asked = sorted(character for character in characters if not character.isspace())
        # alone, within a word and between words: an engine may write a sign of its own before a text
        frames = ("{}", "x{}x", "x {} x")
        without = [self._ids(frame.format("")) for frame in frames]
        for character in asked:
            found = [self._ids(frame.format(character)) for frame in frames]
            # unknown neighbors share one token with an unknown character, which shows nothing
            known = [ids is not None and self._unknown_id not in ids for ids in found]
            same = [ids == bare for ids, bare in zip(found, without, strict=True)]
            if known[0] and any(one and other for one, other in zip(known, same, strict=True)):
                self._dropped[ord(character)] = None

    @cached_property
    def _reference(self) -> ReferenceEngine:
        return ReferenceEngine(self._bundle, self._mode)

    def _ids(self, text: str) -> list[int] | None:
        """The reference's ids of a text; None if it raises for it."""
        try:
            ids: list[int] = self._reference.encode([text])[0].tolist()
            return ids
        except EncodingError:  # without an unknown token: it is named where it is encoded
            return None
