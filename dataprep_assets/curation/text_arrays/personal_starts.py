"""Positions at which the patterns of the tagger `personal` may match, for all texts of a group at once.

The patterns themselves decide, but applying them to every character takes most of the tagger's time. The positions
include the start of every match with a finding, and of every match before it that overlaps it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.text_arrays.split_texts import DIGIT, Flags, Numbers, SplitTexts

_MARGIN = 16
"""Number of characters that are added at both ends, so that tests may read beyond the ends."""


def find_starts(split: SplitTexts) -> Mapping[str, list[int]]:
    """Return pattern → the positions in the joined texts, in increasing order, at which it may match."""
    characters = _Characters(split)
    starts = {
        "iban": characters.find_ibans(),
        "card": characters.find_cards(),
        "version_4": characters.find_versions_4(),
        "version_6": characters.find_versions_6(),
        "phone": characters.find_phones(),
    }
    return {pattern: (np.sort(positions) - _MARGIN).tolist() for pattern, positions in starts.items()}


class _Characters:
    """Characters of the joined texts, with a margin at both ends. All positions include the margin."""

    def __init__(self, split: SplitTexts) -> None:
        self.symbols: NDArray[np.uint8] = np.pad(split.symbols, _MARGIN)
        self.is_digit: Flags = np.pad(split.kinds & DIGIT > 0, _MARGIN)
        self._is_wide_bracket: Flags = np.pad((split.codes | 1) == ord("\uff09"), _MARGIN)
        self._is_hyphen: Flags = np.pad((split.codes >= 0x2010) & (split.codes <= 0x2012), _MARGIN)
        self.begins_4_digits = _find_runs(self.is_digit, 4)

    def find_ibans(self) -> Numbers:
        """Find two capitals before two digits."""
        is_capital = self.symbols - ord("A") < 26
        flags = is_capital[:-3] & is_capital[1:-2] & self.is_digit[2:-1] & self.is_digit[3:]
        return np.flatnonzero(flags)

    def find_cards(self) -> Numbers:
        """Find numbers of at least 13 digits, and numbers of 4 digits before a further group of at least 4."""
        starts = np.flatnonzero(self.begins_4_digits[1:] & ~self.is_digit[:-1]) + 1
        is_long = self.begins_4_digits[starts + 4] & self.begins_4_digits[starts + 8] & self.is_digit[starts + 12]
        separators = self.symbols[starts + 4]
        is_grouped = ((separators == ord(" ")) | (separators == ord("-"))) & self.begins_4_digits[starts + 5]
        cards: Numbers = starts[is_long | is_grouped]
        return cards

    def find_versions_4(self) -> Numbers:
        """Find up to three digits before three periods, with up to three digits between two periods."""
        is_period = self.symbols == ord(".")
        periods = np.flatnonzero(self.is_digit[:-2] & is_period[1:-1] & self.is_digit[2:]) + 1
        has_next = np.diff(periods) <= 4
        periods = periods[:-2][has_next[:-1] & has_next[1:]]
        return _step_back(periods, self.is_digit, 3)

    def find_versions_6(self) -> Numbers:
        """Find up to four hexadecimal digits before a colon and three further digits or colons."""
        is_colon = self.symbols == ord(":")
        is_hexadecimal = self.is_digit | ((self.symbols | 0x20) - ord("a") < 6)
        is_part = is_hexadecimal | is_colon
        flags = is_hexadecimal[:-4] & is_colon[1:-3] & is_part[2:-2] & is_part[3:-1] & is_part[4:]
        return _step_back(np.flatnonzero(flags) + 1, is_hexadecimal, 4)

    def find_phones(self) -> Numbers:
        """Find a digit, a plus or an opening bracket before seven digits or separators, but not within a number."""
        symbols = self.symbols
        is_opening = (symbols == ord("(")) | (symbols == ord("+")) | self._is_wide_bracket
        # The range from `-` to `/` also has the period.
        is_separator = (symbols == ord(" ")) | (symbols == ord(")")) | (symbols - ord("-") < 3) | self._is_hyphen
        is_first = self.is_digit | is_opening
        begins_parts = _find_runs(is_first | is_separator, 7)
        return np.flatnonzero(is_first[1:-1] & ~self.is_digit[:-2] & begins_parts[2:]) + 1


def _find_runs(flags: Flags, size: int) -> Flags:
    """Return at which positions at least this many flags follow each other. The last flags must be false."""
    runs = flags.copy()
    known_size = 1
    while known_size < size:
        step = min(known_size, size - known_size)
        runs[:-step] &= runs[step:]
        known_size += step
    return runs


def _step_back(positions: Numbers, flags: Flags, max_steps: int) -> Numbers:
    """Return the start of the flags before each position, which are at least one, within some steps."""
    starts = positions.copy()
    for _ in range(max_steps):
        starts -= flags[starts - 1]
    return starts
