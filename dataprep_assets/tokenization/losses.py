"""Losses of a tokenizer: unknown tokens, dropped characters, and characters that its normalizer changes.

Most current tokenizers know every byte and change none, so there is nothing to count. For other tokenizers, each
distinct character is classified once. It is dropped if the ids are the same without it, and changed if its normalized
text does not contain it (such as a capital letter). Longer texts that a normalizer replaces are counted separately.

White space counts as changed if the normalizer replaces it with other white space, or removes it at the ends of a text
or within a run. It counts as dropped if an added token absorbs it (`lstrip`, `rstrip`). It does not count at word
boundaries, where many tokenizers drop it on purpose. Different Unicode forms of a character do not count either.

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
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine, SpecialTokens
from dataprep_assets.tokenization.library_errors import EncodingError
from dataprep_assets.tokenization.reference import list_parts, normalize_texts

# If a tokenizer cannot encode a document, the error has the document's location.
#
# A vocabulary without an unknown token is valid for the texts that it covers, so it is not refused. For other texts,
# the library raises an error that does not name the document.

_T = TypeVar("_T")
_R = TypeVar("_R")


def locate_row(file: str, row: int) -> tuple[str, Position]:
    """Return the location of a row of a file, for `encode_or_locate`."""
    return f"{file}: row {row}", {"file": file, "row": row}


def encode_or_locate(
    encode: Callable[[list[_T]], _R],
    documents: Sequence[_T],
    tokenizer: str,
    locate: Callable[[int], tuple[str, Position]],
) -> _R:
    """Return the result of `encode` for all documents.

    Args:
        encode: Encodes documents; raises EncodingError.
        documents: The documents.
        tokenizer: Name of the tokenizer, for the message.
        locate: Returns the location of a document by its index, as text and as a position.

    Raises TokenizerError with the location of the first document that cannot be encoded. No document is quoted.
    """
    try:
        return encode(list(documents))
    except EncodingError:
        for index, document in enumerate(documents):
            try:
                encode([document])
            except EncodingError as error:
                words, position = locate(index)
                raise TokenizerError(
                    f"{words}: the tokenizer {tokenizer} cannot encode this document: {error}. Correct the document, "
                    "or use a different tokenizer",
                    **position,
                ) from None
        raise


_SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]
_NEW, _KEPT, _DROPPED, _CHANGED = range(4)
"""Classes of a character. `_NEW` characters are not classified yet."""


class Losses:
    """Counter of a tokenizer's losses in texts. `counts` maps the name of each loss in a ledger to its count."""

    def __init__(self, bundle: TokenizerBundle, special_tokens: SpecialTokens) -> None:
        definition = bundle.definition
        self._unknown_id, self._may_drop = definition.unknown_id, definition.may_drop
        self._bundle, self._mode = bundle, special_tokens
        self._normalizer = None if definition.normalizer is None else json.loads(definition.normalizer)
        replaced = (str((part.get("pattern") or {}).get("String") or "") for part in list_parts(self._normalizer))
        self._replaced = [text for text in replaced if len(text) > 1 and not (text.isspace() and len({*text}) == 1)]
        self._blanks = [
            (content, re.compile(rf"({blanks[strips_left]}){re.escape(content)}({blanks[strips_right]})"))
            for blanks in [(r"", r"\s*")]
            for content, is_special, strips_left, strips_right in definition.takes_blanks
            if special_tokens == "match" or not is_special
        ]
        self.counts = dict.fromkeys(LOSSES, 0)

    def count(self, texts: Sequence[str], ids: NDArray[Any]) -> None:
        """Add the losses of texts with these ids."""
        if self._unknown_id is not None:
            self.counts["unknown_tokens"] += int(np.count_nonzero(ids == self._unknown_id))
        for token, pattern in self._blanks:
            self.counts["dropped_characters"] += sum(
                len(kinds[1]) + len(kinds[2]) for text in texts if token in text for kinds in pattern.finditer(text)
            )
        if not self._may_drop and self._normalizer is None:
            return
        stripped_texts = [self._spaces.strip(text) for text in texts]
        codes = np.frombuffer("".join(stripped_texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds = self._kinds[codes]
        if not kinds.all():
            self._classify([*map(chr, np.unique(codes[kinds == _NEW]).tolist())])
            kinds = self._kinds[codes]
        self.counts["dropped_characters"] += int(np.count_nonzero(kinds == _DROPPED))
        self.counts["changed_characters"] += (
            sum(map(len, texts))
            - sum(map(len, stripped_texts))
            + int(np.count_nonzero(kinds == _CHANGED))
            + self._spaces.count_repeated(codes, kinds, [*map(len, stripped_texts)])
            + sum(len(replaced_text) * text.count(replaced_text) for replaced_text in self._replaced for text in texts)
        )

    @cached_property
    def _spaces(self) -> "_Spaces":
        return _Spaces(self._normalizer)

    @cached_property
    def _kinds(self) -> NDArray[np.uint8]:
        """The class of each character, by its code point."""
        return np.zeros(0x110000, np.uint8)

    def _classify(self, characters: list[str]) -> None:
        """Classify these characters."""
        non_spaces = [character for character in characters if not character.isspace()]
        self._kinds[[*map(ord, characters)]] = _KEPT
        if self._normalizer is not None:
            # Put the character between two letters `q`, because a combining mark must follow a letter, and `q` does not
            # compose.
            normalized = normalize_texts(self._normalizer, [f"q{character}q" for character in non_spaces])
            for character, text in zip(non_spaces, normalized, strict=True):
                if normalize("NFC", character) not in normalize("NFC", text):
                    self._kinds[ord(character)] = _CHANGED
            self._kinds[[*map(ord, self._spaces.changed)]] = _CHANGED
        if self._may_drop:
            self._find_dropped_characters(non_spaces)

    def _find_dropped_characters(self, characters: list[str]) -> None:
        """Classify the characters that do not affect the ids as dropped."""
        # Also try each character within a word and between words, because by itself, a dropped character may still get
        # the id of the space marker that an engine adds before a text.
        frames = ("{}", "x{}x", "x {} x")
        bare_ids = [self._try_encoding(frame.format("")) for frame in frames]
        for character in characters:
            frame_ids = [self._try_encoding(frame.format(character)) for frame in frames]
            # Ignore ids with the unknown token, because adjacent unknown characters may share one unknown token.
            known_flags = [ids is not None and self._unknown_id not in ids for ids in frame_ids]
            same_flags = [ids == bare for ids, bare in zip(frame_ids, bare_ids, strict=True)]
            if known_flags[0] and any(
                is_known and is_same for is_known, is_same in zip(known_flags, same_flags, strict=True)
            ):
                self._kinds[ord(character)] = _DROPPED

    @cached_property
    def _reference(self) -> ReferenceEngine:
        return ReferenceEngine(self._bundle, self._mode)

    def _try_encoding(self, text: str) -> list[int] | None:
        """Return the reference's ids of a text; None if the reference raises."""
        try:
            ids: list[int] = self._reference.encode([text])[0].tolist()
            return ids
        except EncodingError:  # there is no unknown token; the error is reported when the document is encoded
            return None


class _Spaces:
    """The effect of a normalizer on white space.

    `changed` has the characters that the normalizer replaces or removes. It may also shorten a run to one character,
    and remove white space at the ends of a text.
    """

    def __init__(self, normalizer: Any) -> None:
        self.changed: frozenset[str] = frozenset()
        self._at_ends = ("", "")
        self._runs: NDArray[np.uint8] | None = None
        if normalizer is None:
            return
        (bare,), single, double, leading, trailing = (
            normalize_texts(normalizer, texts)
            for texts in (
                ["qq"],
                [f"q{space}q" for space in _SPACES],
                [f"q{space}{space}q" for space in _SPACES],
                [f"{space}qq" for space in _SPACES],
                [f"qq{space}" for space in _SPACES],
            )
        )
        spaces = [(index, space) for index, space in enumerate(_SPACES) if single[index] != bare]
        self._at_ends = (
            "".join(space for index, space in spaces if leading[index] == bare),
            "".join(space for index, space in spaces if trailing[index] == bare),
        )
        # Replacing a space with a unique character such as `▁` loses nothing, so count only replacements that several
        # white-space characters share.
        repeats = Counter(single)
        self.changed = frozenset(
            space
            for space, text in zip(_SPACES, single, strict=True)
            if text == bare
            or (space != " " and repeats[text] > 1 and normalize("NFC", space) not in normalize("NFC", text))
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
        """Return the text without the white space that the normalizer removes from its ends."""
        leading, trailing = self._at_ends
        return text.lstrip(leading).rstrip(trailing)

    def count_repeated(self, codes: NDArray[np.uint32], loss_codes: NDArray[np.uint8], sizes: Sequence[int]) -> int:
        """Return the number of unchanged characters that follow another character of the same run.

        `codes` are the characters of texts with these `sizes`, and `loss_codes` are their classes.
        """
        if self._runs is None or len(codes) == 0:
            return 0
        classes = self._runs[codes]
        repeated = (classes[1:] == classes[:-1]) & (classes[1:] > 0) & (loss_codes[1:] != _CHANGED)
        starts = np.cumsum(sizes)[:-1]
        repeated[starts[(starts > 0) & (starts < len(codes))] - 1] = False
        return int(np.count_nonzero(repeated))
