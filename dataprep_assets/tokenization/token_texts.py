"""Texts of single tokens, for pages that show where tokens begin and end."""

from collections.abc import Callable, Sequence
from itertools import groupby

_INCOMPLETE = "\ufffd"
"""The character that a tokenizer decodes for a part of a character."""
_LONGEST_CHARACTER = 8
"""Maximum number of tokens that are decoded together to obtain one character."""


class TokenTexts:
    """Divides a decoded text into the texts of its tokens.

    Most tokens have the same text everywhere, so their texts are cached. A token is decoded after another token,
    because some tokenizers remove the space before the first word of a text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._texts: dict[int, str] = {}
        self._anchor: tuple[int, str] | None = None

    def split(self, ids: Sequence[int]) -> list[str]:
        """Return one text per id; joined, they are the decoded text.

        If several tokens form one character, the last one has its text and the others have an empty text.
        """
        if not ids:
            return []
        text = self._decode(ids)
        texts = [self._decode(ids[:1]), *map(self._find_text, ids[1:])]
        if "".join(texts) != text:
            texts = self._complete_characters(ids, texts)
        return texts if "".join(texts) == text else self._split_by_prefixes(ids, text)

    def _find_text(self, token: int) -> str:
        if token not in self._texts:
            if self._anchor is None:
                self._anchor = (token, self._decode([token]))
            anchor, anchor_text = self._anchor
            self._texts[token] = self._decode([anchor, token])[len(anchor_text) :]
        return self._texts[token]

    def _complete_characters(self, ids: Sequence[int], texts: Sequence[str]) -> list[str]:
        """Return the texts of the tokens after decoding adjacent parts of characters together."""
        whole_texts = list(texts)
        for is_part, group in groupby(range(len(ids)), key=lambda position: _INCOMPLETE in texts[position]):
            if is_part:
                positions = list(group)
                part = ids[positions[0] : positions[-1] + 1]
                whole_texts[positions[0] : positions[-1] + 1] = self._split_by_prefixes(part, self._decode(part))
        return whole_texts

    def _split_by_prefixes(self, ids: Sequence[int], text: str) -> list[str]:
        """Return the texts of the tokens, by decoding a token with the ones before it until a character is complete."""
        texts, length = list[str](), 0
        start = context = 0  # the first undivided token, and the first token that is decoded together with it
        before = ""
        for stop in range(1, len(ids) + 1):
            added = self._decode(ids[context:stop])[len(before) :]
            is_complete = not added.endswith(_INCOMPLETE) or stop - start >= _LONGEST_CHARACTER
            if is_complete and text.startswith(added, length):
                texts.append(added)
                length += len(added)
                context, start = start, stop
                before = self._decode(ids[context:start])
            else:
                texts.append("")
        # Add the rest to the last token, because the text must not lose a character.
        texts[-1] += text[length:]
        return texts
