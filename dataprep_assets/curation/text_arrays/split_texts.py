"""Normalized texts of a batch, split into words and lines at once, in NumPy arrays of code points.

The built-in taggers share this work, because splitting each text into Python strings took most of their time. A
normalized text (`text_tagger.normalize_text`) contains no white space other than single blanks and at most two
consecutive line ends, so every separator ends exactly one word, which is empty on an empty line or in an empty text.

Entry points: `SplitTexts`, `split_batch`, `group_texts`.
"""

import operator
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.tokenization.short_hashes import BYTE_MASKS

if TYPE_CHECKING:
    from dataprep_assets.curation.languages.word_splitter import WordSplitter

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.uint8] | NDArray[np.uint32]
Compose = Callable[[str], str]

_GROUP_CHARACTERS = 1 << 19
"""Characters per group of texts, so that the arrays of a group fit in the processor's cache."""
_CODE_POINTS, _PLAIN_CODE_POINTS = 0x110000, 0x30000
"""Number of code points, and the first one from which on Unicode's composed form changes no character."""
_TABULATOR, _LINE_END, _TEXT_END, _BLANK, _SOFT_HYPHEN = 9, 10, 13, 32, 0xAD
_MULTIPLIER = 0x5851F42D4C957F2D
"""Factor that makes equal sums of different samples unlikely."""
_UNCOMPOSED = np.uint32(1 << 31)
"""Bit of a character that a normalized text may contain in a different form, or not at all."""


def build_table(characters: str) -> Flags:
    """Return for every code point whether it is one of the characters."""
    table = np.zeros(_CODE_POINTS, np.bool_)
    table[[*map(ord, characters)]] = True
    return table


LINE_END, SPACE, ALPHANUMERIC, ALPHABETIC, DIGIT = 1, 2, 4, 8, 16
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


# built on first use, because short commands also import this module
@cache
def build_kinds() -> NDArray[np.uint8]:
    """Return the kinds of every code point: end of a line, white space, letter or digit, letter, digit."""
    characters = np.arange(_CODE_POINTS, dtype=np.uint32).view("U1")
    flags = (
        build_table(_LINE_ENDS),
        np.char.isspace(characters),
        np.char.isalnum(characters),
        np.char.isalpha(characters),
        np.char.isdecimal(characters),
    )
    kinds = np.zeros(_CODE_POINTS, np.uint8)
    for bit, flag in enumerate(flags):
        kinds |= flag * np.uint8(1 << bit)
    return kinds


def _find_uncomposed_characters(compose: Compose) -> list[int]:
    """Return the code points that `compose` may change, also only after a different character."""
    characters = [*map(chr, range(0x80, _PLAIN_CODE_POINTS))]
    lines = "\n".join(characters)
    uncomposed_characters = {
        character for character, line in zip(characters, compose(lines).split("\n"), strict=True) if line != character
    }
    # A mark may change its place among the marks after a letter, or become part of the character before it.
    uncomposed_characters.update(filter(unicodedata.combining, characters))
    uncomposed_characters.update(*[line[1:] for line in unicodedata.normalize("NFD", lines).split("\n")])
    return [*map(ord, uncomposed_characters)]


@cache
def _build_codes(compose: Compose) -> NDArray[np.uint32]:
    """Return the code point of every character in a normalized text.

    White space becomes a blank or a line end, except for the carriage return. Characters that Unicode's composed form
    may change, also only after a different character, and characters that only control layout have `_UNCOMPOSED` added.
    """
    codes = np.arange(_CODE_POINTS, dtype=np.uint32)
    kinds = build_kinds()
    codes[kinds & SPACE > 0] = _BLANK
    codes[kinds & LINE_END > 0] = _LINE_END
    codes[_TEXT_END] = _TEXT_END
    codes[_find_uncomposed_characters(compose)] |= _UNCOMPOSED
    return codes


def look_up(table: NDArray[Any], codes: Codes) -> NDArray[Any]:
    """Return the entry of the table for each code point."""
    if codes.dtype == np.uint8:
        # This is faster than indexing by an array. The entries of these code points are bytes in every table.
        entries = table[:256].astype(np.uint8).tobytes()
        return np.frombuffer(codes.tobytes().translate(entries), min(table.dtype, np.dtype(np.uint8)))
    return np.take(table, codes)


def divide(numerators: Numbers, denominators: Numbers) -> list[float | None]:
    """Return the ratios; None for a zero denominator."""
    pairs = zip(numerators.tolist(), denominators.tolist(), strict=True)
    return [numerator / denominator if denominator else None for numerator, denominator in pairs]


def join_pieces(codes: NDArray[Any], starts: Numbers, sizes: Numbers) -> tuple[NDArray[Any], Numbers]:
    """Return pieces of an array as one array, and the end of each piece. Pieces have at least one entry."""
    ends = np.cumsum(sizes)
    positions = np.arange(int(sizes.sum())) + np.repeat(starts - ends + sizes, sizes)
    return codes[positions], ends


def number_pieces(codes: Codes, ends: Numbers) -> Numbers:
    """Return a number per piece of some code points, equal for equal pieces. `ends` is the end of each piece."""
    import pyarrow as pa

    offsets = np.concatenate([[0], ends]) * codes.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(codes)]
    pieces = pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)
    numbers: Numbers = pieces.dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def number_values(values: Numbers | NDArray[np.uint64]) -> Numbers:
    """Return a number per value, which is not negative, in increasing order; equal for equal values."""
    bits = len(values).bit_length()
    if int(values.max(initial=0)) >> (63 - bits):
        return np.unique(values, return_inverse=True)[1]
    sorted_values, positions = sort_with_positions(values.astype(np.int64, copy=False))
    numbers = np.empty(len(values), np.int64)
    numbers[positions] = np.cumsum(np.diff(sorted_values, prepend=-1) > 0) - 1
    return numbers


def sort_with_positions(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the values in increasing order, and the position of each; equal values keep their order.

    No value may be negative, or so large that it does not fit into 63 bits together with a position.
    """
    bits = len(values).bit_length()
    # Sort each value with its position in one number, because sorting indices takes longer.
    pairs = np.sort((values << bits) | np.arange(len(values)))
    return pairs >> bits, pairs & ((1 << bits) - 1)


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
        ends: The end of each word, which is the position of its separator.
    """

    def __init__(self, texts: Sequence[str], compose: Compose) -> None:
        """Normalize the texts. Everything else is computed when it is first used.

        Args:
            texts: The texts.
            compose: Returns a text in its normalized form except for white space.
        """
        self.compose = compose
        self.codes = _normalize_texts(texts, compose)
        self.ends = np.flatnonzero((self.codes == _BLANK) | (self.codes == _LINE_END) | (self.codes == _TEXT_END))
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
            split = SplitTexts([" ".join(splitter.split_text(text)) for text in self.texts], self.compose)
            self._by_language[splitter.language] = split
        return split

    def get_text(self, start: int, end: int) -> str:
        """Return a part of the joined texts."""
        encoding = "latin-1" if self.codes.dtype == np.uint8 else "utf-32-le"
        return self.codes[start:end].tobytes().decode(encoding, "surrogatepass")

    @cached_property
    def symbols(self) -> NDArray[np.uint8]:
        """The code points as bytes, with 255 for each larger one."""
        return np.minimum(self.codes, 255).astype(np.uint8, copy=False)

    def read_beginnings(self, words: Numbers) -> NDArray[np.uint64]:
        """Return the first eight symbols of each word as a number, with zeros after a shorter word."""
        padded_symbols = self.symbols.tobytes() + bytes(8)
        eight_bytes = np.ndarray((len(self.symbols),), "<u8", padded_symbols, strides=(1,))
        numbers = eight_bytes[self.starts[words]].astype(np.uint64, copy=False)
        return numbers & np.take(BYTE_MASKS, np.minimum(self.sizes[words], 8))

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
        return number_pieces(codes, self.ends + 1)

    @cached_property
    def line_texts(self) -> Numbers:
        """The index of the text of each line."""
        return np.repeat(np.arange(self.count), np.diff(self._text_first_lines, append=len(self.line_lasts)))

    @cached_property
    def repeated_lines(self) -> tuple[Numbers, Numbers]:
        """The number and the characters of each text's lines that occur earlier in it. Empty lines do not count."""
        sizes = self.line_ends - self.line_starts
        # Compare only lines of the same text with equal sizes and samples, because few different lines have them.
        lines = np.flatnonzero(sizes)
        samples = self.line_texts[lines] * _CODE_POINTS + sizes[lines]
        for quarter in range(4):
            samples = samples * _MULTIPLIER + self.codes[self.line_starts[lines] + (sizes[lines] * quarter >> 2)]
        samples = samples * _MULTIPLIER + self.codes[self.line_ends[lines] - 1]
        order = np.argsort(samples)
        is_equal = samples[order[1:]] == samples[order[:-1]]
        is_candidate = np.zeros(len(lines), np.bool_)
        is_candidate[order[1:][is_equal]] = is_candidate[order[:-1][is_equal]] = True
        lines = lines[is_candidate]
        codes, ends = join_pieces(self.codes, self.line_starts[lines], sizes[lines])
        numbers = number_pieces(codes, ends)
        numbers = number_values(self.line_texts[lines] * (int(numbers.max(initial=0)) + 1) + numbers)
        repeated = np.zeros(len(sizes), np.bool_)
        repeated[lines] = True
        repeated[lines[find_first_indices(numbers)]] = False
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


def split_batch(texts: Sequence[str], compose: Compose) -> list[tuple[list[int], SplitTexts]]:
    """Return the texts of a batch in groups, each with the indices of its texts.

    Calls with the same texts return the same groups. `compose` normalizes everything except white space.
    """
    # Keep the groups of the last batch, because all taggers of a shard measure a batch before the next one is read.
    # Compare identities, because a caller may change its list, but not a string.
    global _cached
    cached_texts, groups = _cached
    if len(cached_texts) != len(texts) or not all(map(operator.is_, cached_texts, texts)):
        groups = [(indices, SplitTexts([texts[index] for index in indices], compose)) for indices in group_texts(texts)]
        _cached = list(texts), groups
    return groups


def group_texts(texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the indices of texts in groups of about half a million characters; texts in a group have the same width."""
    # Separate texts by the size of their code points, because arrays of bytes are much faster than larger ones.
    widths = [*map(_find_width, texts)]
    for width in range(3):
        group: list[int] = []
        characters = 0
        for index, text in enumerate(texts):
            if widths[index] != width:
                continue
            group.append(index)
            characters += len(text)
            if characters >= _GROUP_CHARACTERS:
                yield group
                group, characters = [], 0
        if group:
            yield group


def _find_width(text: str) -> int:
    """Return 0 for an ASCII text, 1 for a text of Latin-1, 2 for other texts."""
    if text.isascii():
        return 0
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return 2
    return 1


def _normalize_texts(texts: Sequence[str], compose: Compose) -> Codes:
    """Return the code points of the normalized texts, each followed by a carriage return."""
    # Remove white space at both ends here, so that no run of white space is next to the end of a text.
    stripped_texts = [_unify_line_ends(text).strip() for text in texts]
    table = _build_codes(compose)
    codes = _encode_texts(stripped_texts, table)
    is_uncomposed = codes >= _UNCOMPOSED if codes.dtype == np.uint32 else codes == _SOFT_HYPHEN
    if is_uncomposed.any():
        # Compose only texts with such characters, because composing takes longer than everything else here.
        ends = np.flatnonzero(codes == _TEXT_END)
        pieces = np.split(codes, ends[:-1] + 1)
        for index in np.unique(np.searchsorted(ends, np.flatnonzero(is_uncomposed))).tolist():
            pieces[index] = _encode_texts([compose(stripped_texts[index]).strip()], table)
        codes = np.concatenate(pieces)
        if codes.dtype == np.uint32:
            codes &= _UNCOMPOSED - np.uint32(1)
    return _join_spaces(codes)


def _unify_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _encode_texts(texts: Sequence[str], table: NDArray[np.uint32]) -> Codes:
    """Return the entries of the table for the characters of texts, with a carriage return after each text."""
    joined_text = "\r".join([*texts, ""])
    try:
        codes: Codes = np.frombuffer(joined_text.encode("latin-1"), np.uint8)
    except UnicodeEncodeError:
        codes = np.frombuffer(joined_text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return look_up(table, codes)


def _join_spaces(codes: Codes) -> Codes:
    """Return code points with each run of blanks and line ends reduced to a blank or to at most two line ends."""
    is_line_end = codes == _LINE_END
    is_space = is_line_end | (codes == _BLANK)
    is_removed = np.zeros(len(codes), np.bool_)
    np.logical_and(is_space[1:], is_space[:-1], out=is_removed[1:])
    # A run ends before the end of a text, so each run of at least two characters has two edges.
    edges = np.flatnonzero(is_removed[1:] != is_removed[:-1])
    if not len(edges):
        return codes
    firsts, lasts = edges[::2], edges[1::2]
    line_ends = np.append(np.flatnonzero(is_line_end), [len(codes)] * 2)
    next_line_ends = np.searchsorted(line_ends, firsts)
    codes = codes.copy()
    codes[firsts] = np.where(line_ends[next_line_ends] <= lasts, _LINE_END, _BLANK)
    second_line_ends = firsts[line_ends[next_line_ends + 1] <= lasts] + 1
    codes[second_line_ends] = _LINE_END
    is_removed[second_line_ends] = False
    if codes.dtype == np.uint32:
        return codes[~is_removed]
    # This is faster than indexing by flags. Normalized texts contain no tabulator.
    removal_bytes = is_removed.view(np.uint8)
    codes = codes & (removal_bytes - 1) | removal_bytes * _TABULATOR
    return np.frombuffer(codes.tobytes().translate(None, bytes([_TABULATOR])), np.uint8)
