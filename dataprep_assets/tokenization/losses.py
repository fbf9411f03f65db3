"""What a tokenizer does not keep of texts: unknown tokens, characters without any token, and characters that its
normalizer changes, such as capital letters.

Most tokenizers of today know every byte and change none, so there is nothing to count, and it costs nothing. Of the
others, what becomes of a character is found out once for each character: it is dropped if the ids are the same without
it, and changed if it is not in its normalized text. Texts that a normalizer replaces as they are count besides. White
space counts as changed if the normalizer makes other white space of it, or takes it away: at the ends of a text, or of
a run; and as dropped if an added token takes it (`lstrip`, `rstrip`). It does not count where words are split, because
many tokenizers leave it out there on purpose; nor does another Unicode form of a character.

Entry points: `Losses`.
"""

import json
import re
from collections import Counter
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
    """Return where a document is that is a row of a file, for `encode_or_name`."""
    return f"{file}: row {row}", {"file": file, "row": row}


def encode_or_name(
    encode: Callable[[list[_T]], _R],
    documents: Sequence[_T],
    tokenizer: str,
    where: Callable[[int], tuple[str, Position]],
) -> _R:
    """Return what `encode` gives for all documents.

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
                    f"{words}: the tokenizer {tokenizer} cannot encode this document: {error}. Correct the document, "
                    "or use a different tokenizer",
                    **position,
                ) from None
        raise


_SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]
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
        self._replaced = [text for text in replaced if len(text) > 1 and not (text.isspace() and len({*text}) == 1)]
        self._blanks = [
            (content, re.compile(rf"({blanks[strips_left]}){re.escape(content)}({blanks[strips_right]})"))
            for blanks in [(r"", r"\s*")]
            for content, is_special, strips_left, strips_right in definition.takes_blanks
            if special_tokens == "match" or not is_special
        ]
        self.counts = dict.fromkeys(LOSSES, 0)

    def count(self, texts: Sequence[str], ids: NDArray[Any]) -> None:
        """Count the losses of texts that have these ids."""
        if self._unknown_id is not None:
            self.counts["unknown_tokens"] += int(np.count_nonzero(ids == self._unknown_id))
        for token, pattern in self._blanks:
            self.counts["dropped_characters"] += sum(
                len(found[1]) + len(found[2]) for text in texts if token in text for found in pattern.finditer(text)
            )
        if not self._may_drop and self._normalizer is None:
            return
        stripped_texts = [self._spaces.strip(text) for text in texts]
        codes = np.frombuffer("".join(stripped_texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        found = self._kinds[codes]
        if not found.all():
            self._learn([*map(chr, np.unique(codes[found == _NEW]).tolist())])
            found = self._kinds[codes]
        self.counts["dropped_characters"] += int(np.count_nonzero(found == _DROPPED))
        self.counts["changed_characters"] += (
            sum(map(len, texts))
            - sum(map(len, stripped_texts))
            + int(np.count_nonzero(found == _CHANGED))
            + self._spaces.count_repeated(codes, found, [*map(len, stripped_texts)])
            + sum(len(replaced_text) * text.count(replaced_text) for replaced_text in self._replaced for text in texts)
        )

    @cached_property
    def _spaces(self) -> "_Spaces":
        return _Spaces(self._normalizer)

    @cached_property
    def _kinds(self) -> NDArray[np.uint8]:
        """What becomes of each character, by its code."""
        return np.zeros(0x110000, np.uint8)

    def _learn(self, characters: list[str]) -> None:
        """Find out what becomes of these characters."""
        non_spaces = [character for character in characters if not character.isspace()]
        self._kinds[[*map(ord, characters)]] = _KEPT
        if self._normalizer is not None:
            # between letters that compose with none, as a combining mark begins no text
            normalized = normalizing(self._normalizer, [f"q{character}q" for character in non_spaces])
            for character, text in zip(non_spaces, normalized, strict=True):
                if normalize("NFC", character) not in normalize("NFC", text):
                    self._kinds[ord(character)] = _CHANGED
            self._kinds[[*map(ord, self._spaces.changed)]] = _CHANGED
        if self._may_drop:
            self._learn_dropped(non_spaces)

    def _learn_dropped(self, characters: list[str]) -> None:
        """Find out which of these characters leave no trace."""
        # alone, within a word and between words: an engine may write a sign of its own before a text
        frames = ("{}", "x{}x", "x {} x")
        bare_ids = [self._ids(frame.format("")) for frame in frames]
        for character in characters:
            frame_ids = [self._ids(frame.format(character)) for frame in frames]
            # unknown neighbors share one token with an unknown character, which shows nothing
            known_flags = [ids is not None and self._unknown_id not in ids for ids in frame_ids]
            same_flags = [ids == bare for ids, bare in zip(frame_ids, bare_ids, strict=True)]
            if known_flags[0] and any(
                is_known and is_same for is_known, is_same in zip(known_flags, same_flags, strict=True)
            ):
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


class _Spaces:
    """What a normalizer makes of white space.

    `changed` are the characters of which it makes others, or nothing; of a run it may keep one, and none at the ends.
    """

    def __init__(self, normalizer: Any) -> None:
        self.changed: frozenset[str] = frozenset()
        self._at_ends = ("", "")
        self._runs: NDArray[np.uint8] | None = None
        if normalizer is None:
            return
        (bare,), single, double, leading, trailing = (
            normalizing(normalizer, texts)
            for texts in (
                ["qq"],
                [f"q{space}q" for space in _SPACES],
                [f"q{space}{space}q" for space in _SPACES],
                [f"{space}qq" for space in _SPACES],
                [f"qq{space}" for space in _SPACES],
            )
        )
        inside = [(index, space) for index, space in enumerate(_SPACES) if single[index] != bare]
        self._at_ends = (
            "".join(space for index, space in inside if leading[index] == bare),
            "".join(space for index, space in inside if trailing[index] == bare),
        )
        # what stands for a space, such as `▁`, is no loss: so what is the same for two characters is
        alike = Counter(single)
        self.changed = frozenset(
            space
            for space, text in zip(_SPACES, single, strict=True)
            if text == bare
            or (space != " " and alike[text] > 1 and normalize("NFC", space) not in normalize("NFC", text))
        )
        merged_spaces = [
            (space, text) for space, text, twice in zip(_SPACES, single, double, strict=True) if text == twice != bare
        ]
        if merged_spaces:
            classes = {text: index for index, text in enumerate({text for _, text in merged_spaces}, 1)}
            self._runs = np.zeros(0x110000, np.uint8)
            for space, text in merged_spaces:
                self._runs[ord(space)] = classes[text]

    def strip(self, text: str) -> str:
        """The text without what the normalizer takes from its ends."""
        leading, trailing = self._at_ends
        return text.lstrip(leading).rstrip(trailing)

    def count_repeated(self, codes: NDArray[np.uint32], found: NDArray[np.uint8], sizes: Sequence[int]) -> int:
        """Return how many characters follow another of their run, and are changed by nothing else.

        `codes` are the characters of texts of these `sizes`, `found` what becomes of each.
        """
        if self._runs is None or len(codes) == 0:
            return 0
        classes = self._runs[codes]
        repeated = (classes[1:] == classes[:-1]) & (classes[1:] > 0) & (found[1:] != _CHANGED)
        starts = np.cumsum(sizes)[:-1]
        repeated[starts[(starts > 0) & (starts < len(codes))] - 1] = False
        return int(np.count_nonzero(repeated))
