"""Normalized texts of a batch, split into words and lines at once, in NumPy arrays of code points.

The built-in taggers share this work, because splitting each text into Python strings took most of their time. A
normalized text (`text_tagger.normalize_text`) contains no white space other than single blanks and at most two
consecutive line ends, so every separator ends exactly one word, which is empty on an empty line or in an empty text.

Entry points: `SplitTexts`, `split_batch`, `group_texts`.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dataprep_assets.curation.languages.word_splitter import WordSplitter

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.uint8] | NDArray[np.uint32]

_GROUP_CHARACTERS = 1 << 19
"""Characters per group of texts, so that the arrays of a group fit in the processor's cache."""
_CODE_POINTS = 0x110000
_BLANK, _LINE_END, _TEXT_END = 32, 10, 13


def build_table(characters: str) -> Flags:
    """Return for every code point whether it is one of the characters."""
    table = np.zeros(_CODE_POINTS, np.bool_)
    table[[*map(ord, characters)]] = True
    return table


LINE_END, SPACE, ALPHANUMERIC, ALPHABETIC = 1, 2, 4, 8
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


# built on first use, because short commands also import this module
@cache
def build_kinds() -> NDArray[np.uint8]:
    """Return the kinds of every code point: end of a line, white space, letter or digit, letter."""
    characters = np.arange(_CODE_POINTS, dtype=np.uint32).view("U1")
    flags = (
        build_table(_LINE_ENDS),
        np.char.isspace(characters),
        np.char.isalnum(characters),
        np.char.isalpha(characters),
    )
    kinds = np.zeros(_CODE_POINTS, np.uint8)
    for bit, flag in enumerate(flags):
        kinds |= flag * np.uint8(1 << bit)
    return kinds


def look_up(table: NDArray[Any], codes: Codes) -> NDArray[Any]:
    """Return the entry of the table for each code point."""
    if codes.dtype == np.uint8:
        # This is faster than indexing by an array, and the table's entries are also bytes.
        return np.frombuffer(codes.tobytes().translate(table[:256].tobytes()), table.dtype)
    return np.take(table, codes)


def divide(numerators: Numbers, denominators: Numbers) -> list[float | None]:
    """Return the ratios; None for a zero denominator."""
    pairs = zip(numerators.tolist(), denominators.tolist(), strict=True)
    return [numerator / denominator if denominator else None for numerator, denominator in pairs]


def number_pieces(codes: Codes, ends: Numbers) -> Numbers:
    """Return a number per piece of some code points, equal for equal pieces. `ends` is the end of each piece."""
    import pyarrow as pa

    offsets = np.concatenate([[0], ends + 1]) * codes.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(codes)]
    pieces = pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)
    numbers: Numbers = pieces.dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def number_values(values: Numbers | NDArray[np.uint64]) -> Numbers:
    """Return a number per value, equal for equal values, in the order of their first occurrences."""
    import pyarrow as pa

    numbers: Numbers = pa.array(values).dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def find_first_indices(numbers: Numbers) -> Numbers:
    """Return the index of the first occurrence of each number, which are all numbers from 0 to the largest one."""
    firsts = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    # Assign in reverse order, because the last assignment wins.
    firsts[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return firsts


class SplitTexts:
    """Some texts, at least one, in their normalized form, and the positions of their words and lines.

    Attributes:
        codes: The code points of the joined texts. A carriage return ends each text.
        kinds: Their kinds.
        ends: The end of each word, which is the position of its separator.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Normalize the white space of the texts. Everything else is computed when it is first used."""
        self.codes, self.kinds = _normalize_spaces(texts)
        self.ends = np.flatnonzero(self.kinds & SPACE > 0)
        self._by_language: dict[str, SplitTexts] = {}

    @cached_property
    def texts(self) -> list[str]:
        """The normalized texts."""
        return self.get_text(0, len(self.codes)).split("\r")[:-1]

    def split_words(self, splitter: "WordSplitter | None") -> "SplitTexts":
        """Return the texts with a blank between all words of a language; these texts if there is no splitter."""
        if splitter is None:
            return self
        # Keep the result, because all taggers with the same language use it, and libraries split slowly.
        if (split := self._by_language.get(splitter.language)) is None:
            split = SplitTexts([" ".join(splitter.split_text(text)) for text in self.texts])
            self._by_language[splitter.language] = split
        return split

    def get_text(self, start: int, end: int) -> str:
        """Return a part of the joined texts."""
        encoding = "latin-1" if self.codes.dtype == np.uint8 else "utf-32-le"
        return self.codes[start:end].tobytes().decode(encoding, "surrogatepass")

    @cached_property
    def starts(self) -> Numbers:
        """The start of each word."""
        return _find_firsts(self.ends)

    @cached_property
    def sizes(self) -> Numbers:
        """The characters of each word."""
        return self.ends - self.starts

    @cached_property
    def _separators(self) -> Codes:
        return self.codes[self.ends]

    @cached_property
    def line_lasts(self) -> Numbers:
        """The index of the last word of each line."""
        return np.flatnonzero(self._separators != _BLANK)

    @cached_property
    def line_firsts(self) -> Numbers:
        """The index of the first word of each line."""
        return _find_firsts(self.line_lasts)

    @cached_property
    def line_starts(self) -> Numbers:
        """The start of each line."""
        return self.starts[self.line_firsts]

    @cached_property
    def line_ends(self) -> Numbers:
        """The end of each line."""
        return self.ends[self.line_lasts]

    @cached_property
    def ellipsis_lines(self) -> Flags:
        """Whether each line ends with three periods."""
        flags = self.line_ends - self.line_starts >= 3
        for offset in (1, 2, 3):
            lines = np.flatnonzero(flags)
            flags[lines] = self.codes[self.line_ends[lines] - offset] == ord(".")
        return flags

    @cached_property
    def _text_firsts(self) -> Numbers:
        """The index of the first word of each text."""
        return _find_firsts(np.flatnonzero(self._separators == _TEXT_END))

    @cached_property
    def text_ends(self) -> Numbers:
        """The end of each text."""
        text_ends: Numbers = self.ends[self._separators == _TEXT_END]
        return text_ends

    @cached_property
    def text_starts(self) -> Numbers:
        """The start of each text."""
        return _find_firsts(self.text_ends)

    @cached_property
    def _text_first_lines(self) -> Numbers:
        return _find_firsts(np.flatnonzero(self._separators[self.line_lasts] == _TEXT_END))

    @property
    def count(self) -> int:
        """The number of texts."""
        return len(self._text_firsts)

    @cached_property
    def word_counts(self) -> Numbers:
        """The number of words of each text."""
        return self.sum_words(self.sizes > 0)

    @cached_property
    def line_counts(self) -> Numbers:
        """The number of lines of each text, including empty ones; 0 for an empty text."""
        count = len(self.line_lasts)
        return np.diff(self._text_first_lines, append=count) * (self.word_counts > 0)

    @cached_property
    def word_texts(self) -> Numbers:
        """The index of the text of each word."""
        return np.repeat(np.arange(self.count), np.diff(self._text_firsts, append=len(self.ends)))

    @cached_property
    def word_numbers(self) -> Numbers:
        """A number per word, equal for equal words."""
        codes = self.codes.copy()
        codes[self.ends] = _BLANK
        return number_pieces(codes, self.ends)

    @cached_property
    def line_texts(self) -> Numbers:
        """The index of the text of each line."""
        return np.repeat(np.arange(self.count), np.diff(self._text_first_lines, append=len(self.line_lasts)))

    @cached_property
    def repeated_lines(self) -> tuple[Numbers, Numbers]:
        """The number and the characters of each text's lines that occur earlier in it. Empty lines do not count."""
        sizes = self.line_ends - self.line_starts
        is_filled = sizes > 0
        # Let each line include its separator, because Arrow then needs no copy of the lines.
        codes = self.codes.copy()
        codes[self.line_ends] = _LINE_END
        lines = number_pieces(codes, self.line_ends)[is_filled]
        numbers = number_values(self.line_texts[is_filled] * (int(lines.max(initial=0)) + 1) + lines)
        is_repeated = np.ones(len(numbers), np.bool_)
        is_repeated[find_first_indices(numbers)] = False
        repeated = np.zeros(len(sizes), np.bool_)
        repeated[is_filled] = is_repeated
        return self.sum_lines(repeated), self.sum_lines(repeated * sizes)

    def sum_words(self, values: NDArray[Any]) -> Numbers:
        """Return the sum over the words of each text."""
        # This needs no case for empty texts, because an empty text has one word without characters.
        return np.add.reduceat(values, self._text_firsts, dtype=np.int64)

    def count_positions(self, positions: Numbers) -> Numbers:
        """Return the number of these positions in each text."""
        return np.bincount(np.searchsorted(self.text_ends, positions), minlength=self.count)

    def sum_lines(self, values: NDArray[Any]) -> Numbers:
        """Return the sum over the lines of each text."""
        return np.add.reduceat(values, self._text_first_lines, dtype=np.int64)


def _find_firsts(lasts: Numbers) -> Numbers:
    """Return the positions after the previous last one, from 0."""
    firsts = np.zeros_like(lasts)
    firsts[1:] = lasts[:-1] + 1
    return firsts


_cached: tuple[list[str], list[tuple[list[int], SplitTexts]]] = ([], [])


def split_batch(texts: Sequence[str], compose: Callable[[str], str]) -> list[tuple[list[int], SplitTexts]]:
    """Return the texts of a batch in groups, each with the indices of its texts.

    Calls with the same texts return the same groups. `compose` normalizes everything except white space.
    """
    # Keep the groups of the last batch, because all taggers of a shard measure a batch before the next one is read.
    # Compare identities, because a caller may change its list, but not a string.
    global _cached
    cached_texts, groups = _cached
    if len(cached_texts) != len(texts) or not all(map(operator.is_, cached_texts, texts)):
        groups = [(indices, SplitTexts([compose(texts[index]) for index in indices])) for indices in group_texts(texts)]
        _cached = list(texts), groups
    return groups


def group_texts(texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the indices of texts in groups of about half a million characters, ASCII texts first."""
    # Separate ASCII from other texts, because arrays of bytes are much faster than arrays of code points.
    for is_ascii in (True, False):
        group: list[int] = []
        characters = 0
        for index, text in enumerate(texts):
            if text.isascii() is not is_ascii:
                continue
            group.append(index)
            characters += len(text)
            if characters >= _GROUP_CHARACTERS:
                yield group
                group, characters = [], 0
        if group:
            yield group


def _normalize_spaces(texts: Sequence[str]) -> tuple[Codes, NDArray[np.uint8]]:
    """Return the code points of the texts with normalized white space, and their kinds."""
    # Begin with the end of a text, because white space is removed at both ends of a text.
    raw = " ".join(["", *texts, ""])
    if raw.isascii():
        codes: Codes = np.frombuffer(raw.encode(), np.uint8).copy()
    else:
        codes = np.frombuffer(raw.encode("utf-32-le", "surrogatepass"), np.uint32).copy()
    kinds = look_up(build_kinds(), codes)
    is_kept = kinds & SPACE == 0
    # Every run of white space ends before a word or at the end.
    edges = np.flatnonzero(is_kept[1:] != is_kept[:-1]) + 1
    runs = np.concatenate([[0], edges[1::2]])
    line_ends = np.flatnonzero(kinds & LINE_END > 0)
    # A line feed after a carriage return belongs to the same line end.
    line_ends = line_ends[(codes[line_ends] != 10) | (codes[line_ends - 1] != 13)]
    counts = np.bincount(np.searchsorted(runs, line_ends, "right") - 1, minlength=len(runs))
    text_ends = np.cumsum([0, *[len(text) + 1 for text in texts]])
    # Of each run of white space, keep the ends of texts, else up to two line ends, else one blank.
    codes[runs] = np.where(counts, _LINE_END, _BLANK)
    second_line_ends = runs[counts > 1] + 1
    codes[second_line_ends] = _LINE_END
    is_kept[runs] = is_kept[second_line_ends] = True
    runs_of_text_ends = np.unique(np.searchsorted(runs, text_ends, "right") - 1)
    is_kept[runs[runs_of_text_ends]] = is_kept[runs[runs_of_text_ends[counts[runs_of_text_ends] > 1]] + 1] = False
    codes[text_ends], is_kept[text_ends] = _TEXT_END, True
    is_kept[0] = False
    return codes[is_kept], kinds[is_kept]
