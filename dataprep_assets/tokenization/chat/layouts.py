"""What is known of a conversation's ids before its texts are encoded: the special tokens, and the texts between them.

A *layout* is the list of items of a conversation's sequences, each either a run of ids that are known, or a text that
an engine encodes. It is made by cutting the chunks at their special tokens. For an outline it is made once: its texts
with holes are left to fill, those without are known as soon as they were encoded once.

Entry point: `Layouts`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.tokenization.bundle import SpecialToken
from dataprep_assets.tokenization.chat.chunks import Filled, Outline, Rendered

__all__ = ["Layout", "Layouts"]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The items of the sequences of a conversation, in order.

    `runs` is the number of known ids of each item, 0 for a text; `trained` whether its tokens are trained: int64 and
    bool, shape `(items,)`. `known` are the ids of all runs one after another, uint32. `items` is the number of items of
    each sequence, int64.
    """

    runs: NDArray[np.int64]
    trained: NDArray[np.bool_]
    known: NDArray[np.uint32]
    items: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """A text with holes: `before`, the value of `hole`, `after`; and pairs of a further hole and what is after it."""

    before: str
    hole: int
    after: str
    more: tuple[tuple[int, str], ...]

    def filled(self, values: list[str]) -> str:
        text = self.before + values[self.hole] + self.after
        for hole, after in self.more:
            text += values[hole] + after
        return text


class _Items:
    """Items as they are found, sequence by sequence."""

    def __init__(self) -> None:
        self._runs: list[int] = []
        self._trained: list[bool] = []
        self._known: list[int] = []
        self._items: list[int] = []

    def add_text(self, trained: bool) -> None:
        self._runs.append(0)
        self._trained.append(trained)

    def add_known(self, ids: Sequence[int], trained: bool) -> None:
        self._runs.append(len(ids))
        self._trained.append(trained)
        self._known += ids

    def end_sequence(self) -> None:
        self._items.append(len(self._runs) - sum(self._items))

    def layout(self) -> Layout:
        return Layout(
            np.array(self._runs, np.int64),
            np.array(self._trained, np.bool_),
            np.array(self._known, np.uint32),
            np.array(self._items, np.int64),
        )


class Layouts:
    """Makes the layouts of conversations, and keeps those of outlines.

    `specials` are the special tokens at which text is cut; `encoded` gives the ids of one text between them.
    """

    def __init__(self, specials: Sequence[SpecialToken], encoded: Callable[[str], Sequence[int]]) -> None:
        self._encoded = encoded
        self._contents = [token.content for token in specials]
        self._ids = {token.content: token.id for token in specials}
        self._special = _any_of(self._contents)
        self._kept: dict[Outline, tuple[Layout, list[_Text]] | None] = {}
        """None for an outline whose special tokens are not always those of its own texts."""

    def of(self, rendered: Rendered, texts: list[str]) -> Layout:
        """The layout of a conversation; its texts are appended to `texts`."""
        if isinstance(rendered.given, Filled):
            outline, values = rendered.given.outline, rendered.given.values
            if outline not in self._kept:
                self._kept[outline] = self._of_outline(outline)
            if (kept := self._kept[outline]) is not None:
                texts += [
                    text.filled(values) if text.more else text.before + values[text.hole] + text.after
                    for text in kept[1]
                ]
                return kept[0]
        return self._of_chunks(rendered, texts)

    def _of_chunks(self, rendered: Rendered, texts: list[str]) -> Layout:
        items = _Items()
        for chunks in rendered.sequences:
            for chunk in chunks:
                for part in filter(None, self._special.split(chunk.text)):
                    if part in self._ids:
                        items.add_known([self._ids[part]], chunk.trained)
                    else:
                        items.add_text(chunk.trained)
                        texts.append(part if rendered.mark is None else self._restored(part, rendered.mark))
            items.end_sequence()
        return items.layout()

    def _restored(self, text: str, mark: str) -> str:
        """Text with its placeholders put back."""
        parts = text.split(mark)
        parts[1::2] = [self._contents[int(index)] for index in parts[1::2]]
        return "".join(parts)

    def _of_outline(self, outline: Outline) -> tuple[Layout, list[_Text]] | None:
        items = _Items()
        texts: list[_Text] = []
        for chunks in outline.sequences:
            for parts, trained in chunks:
                if any(self._may_join(*sides) for sides in pairwise(parts)):
                    return None
                run: list[int] = []
                for text in self._cut(parts):
                    if isinstance(text, _Text):
                        if run:
                            items.add_known(run, trained)
                            run = []
                        items.add_text(trained)
                        texts.append(text)
                    else:
                        run += [self._ids[text]] if text in self._ids else self._encoded(text)
                if run:
                    items.add_known(run, trained)
            items.end_sequence()
        return items.layout(), texts

    def _cut(self, parts: Sequence[str | int]) -> Iterator[str | _Text]:
        """The special tokens of a chunk and the texts between them. No two holes are side by side."""
        found: list[tuple[list[str], list[int]]] = [([""], [])]  # a text in front of each hole, and one at the end
        for part in parts:
            texts, holes = found[-1]
            if isinstance(part, int):
                holes.append(part)
                texts.append("")
            else:
                first, *others = self._special.split(part)
                texts[-1] += first
                found += [([text], []) for text in others]
        for (before, *behind), holes in found:
            if holes:
                (hole, after), *more = zip(holes, behind, strict=True)
                yield _Text(before, hole, after, tuple(more))
            elif before:
                yield before

    def _may_join(self, left: str | int, right: str | int) -> bool:
        """Whether a special token may be partly in one part and partly in the next, for some value of the hole."""
        if isinstance(left, int) and isinstance(right, int):
            return True
        if isinstance(left, str):
            return any(left.endswith(token[:size]) for token in self._contents for size in range(1, len(token)))
        text = str(right)
        return any(
            text in token[1:] or text.startswith(token[size:])
            for token in self._contents
            for size in range(1, len(token))
        )


def _any_of(literals: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted((re.escape(literal) for literal in literals), key=len, reverse=True)
    return re.compile(f"({'|'.join(longest_first) or '(?!)'})")
