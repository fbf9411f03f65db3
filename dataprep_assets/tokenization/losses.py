"""What a tokenizer does not keep of texts: unknown tokens, characters without any token, and characters that its
normalizer changes, such as capital letters.

Most tokenizers of today know every byte and change none, so there is nothing to count, and it costs nothing. Of the
others, what becomes of a character is found out once for each character: it is dropped if the ids are the same without
it, and changed if it is not in its normalized text. Texts that a normalizer replaces as they are count besides. White
space is not counted, because many tokenizers leave it out on purpose; nor is another Unicode form of a character.

Entry points: `Losses`.
"""

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import Position, TokenizerError
from dataprep_assets.integrity.receipt import LOSSES
from dataprep_assets.tokenization.bundle import EncodingError, TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine, SpecialTokens
from dataprep_assets.tokenization.reference import normalizing, parts_of

# Names the document that a tokenizer cannot encode.
#
# A vocabulary without an unknown token is right for texts that it covers, so it is not refused; but a library that
# meets anything else raises an error that names no document.

_T = TypeVar("_T")
_R = TypeVar("_R")


def row_of(file: str, row: int) -> tuple[str, Position]:
    """Where a document is that is a row of a file, for `encode_or_name`."""
    return f"{file}: row {row}", {"file": file, "row": row}


def encode_or_name(
    encode: Callable[[list[_T]], _R],
    documents: Sequence[_T],
    tokenizer: str,
    where: Callable[[int], tuple[str, Position]],
) -> _R:
    """What `encode` gives for all documents.

    Args:
        encode: Encodes documents; raises EncodingError.
        documents: The documents.
        tokenizer: Name of the tokenizer, for the message.
        where: Where a document is, by its index: in words and as a position.

    Raises TokenizerError, which names the first document that cannot be encoded and quotes none.
    """
    try:
        return encode(list(documents))
    except EncodingError:
        for index, document in enumerate(documents):
            try:
                encode([document])
            except EncodingError as error:
                words, position = where(index)
                raise TokenizerError(
                    f"{words}: the tokenizer {tokenizer} cannot encode this document: {error}. "
                    "Correct the document, or use another tokenizer",
                    **position,
                ) from None
        raise


_NEW, _KEPT, _DROPPED, _CHANGED = range(4)
"""What becomes of a character; at first that is not known."""


class Losses:
    """Counts the losses of texts with one tokenizer: `counts`, by their names in a ledger."""

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        definition = bundle.definition
        self._unknown_id, self._may_drop = definition.unknown_id, definition.may_drop
        self._bundle, self._mode = bundle, special_tokens
        self._normalizer = None if definition.normalizer is None else json.loads(definition.normalizer)
        replaced = (str((part.get("pattern") or {}).get("String") or "") for part in parts_of(self._normalizer))
        self._replaced = [text for text in replaced if len(text) > 1 and not text.isspace()]
        self.counts = dict.fromkeys(LOSSES, 0)

    def count(self, texts: Sequence[str], ids: NDArray[Any]) -> None:
        """Count the losses of texts that have these ids."""
        if self._unknown_id is not None:
            self.counts["unknown_tokens"] += int(np.count_nonzero(ids == self._unknown_id))
        if not self._may_drop and self._normalizer is None:
            return
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        found = self._kinds[codes]
        if not found.all():
            self._learn([*map(chr, np.unique(codes[found == _NEW]).tolist())])
            found = self._kinds[codes]
        self.counts["dropped_characters"] += int(np.count_nonzero(found == _DROPPED))
        self.counts["changed_characters"] += int(np.count_nonzero(found == _CHANGED)) + sum(
            len(one) * text.count(one) for one in self._replaced for text in texts
        )

    @cached_property
    def _kinds(self) -> NDArray[np.uint8]:
        """What becomes of each character, by its code."""
        return np.zeros(0x110000, np.uint8)

    def _learn(self, characters: list[str]) -> None:
        """Find out what becomes of these characters."""
        asked = [character for character in characters if not character.isspace()]
        self._kinds[[*map(ord, characters)]] = _KEPT
        if self._normalizer is not None:
            # between letters that compose with none, as a combining mark begins no text
            normalized = normalizing(self._normalizer, [f"q{character}q" for character in asked])
            for character, text in zip(asked, normalized, strict=True):
                if normalize("NFC", character) not in normalize("NFC", text):
                    self._kinds[ord(character)] = _CHANGED
        if self._may_drop:
            self._learn_dropped(asked)

    def _learn_dropped(self, characters: list[str]) -> None:
        """Find out which of these characters leave no trace."""
        # alone, within a word and between words: an engine may write a sign of its own before a text
        frames = ("{}", "x{}x", "x {} x")
        without = [self._ids(frame.format("")) for frame in frames]
        for character in characters:
            found = [self._ids(frame.format(character)) for frame in frames]
            # unknown neighbors share one token with an unknown character, which shows nothing
            known = [ids is not None and self._unknown_id not in ids for ids in found]
            same = [ids == bare for ids, bare in zip(found, without, strict=True)]
            if known[0] and any(one and other for one, other in zip(known, same, strict=True)):
                self._kinds[ord(character)] = _DROPPED

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
