"""Positions at which the patterns of the tagger `personal` may match, for all texts of a group at once.

The patterns themselves decide, but applying them to every character takes most of the tagger's time. The positions
include the start of every match with a finding, and of every match before it that overlaps it.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.text_arrays import split_texts
from dataprep_assets.curation.text_arrays.split_texts import Flags, Numbers, SplitTexts, build_kinds, look_up

_MARGIN = 16
"""Number of characters that are added at both ends, so that tests may read beyond the ends."""
_DIGIT, _CAPITAL, _HEXADECIMAL, _PERIOD, _COLON, _OPENING, _SEPARATOR, _GROUP_SEPARATOR = (1 << bit for bit in range(8))
"""Classes of characters: a letter of a hexadecimal number, an opening sign or a separator of a phone number, and a
separator of a card number."""
_PHONE_DIGITS, _PHONE_CHARACTERS = 7, 33
"""Minimum digits of a phone number, and the most characters up to the last one of these digits, with separators."""


@cache
def _build_classes() -> NDArray[np.uint8]:
    """Return the classes of every code point."""
    classes = (build_kinds() & split_texts.DIGIT > 0).astype(np.uint8) * np.uint8(_DIGIT)
    for flag, characters in (
        (_CAPITAL, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        (_HEXADECIMAL, "ABCDEFabcdef"),
        (_PERIOD, "."),
        (_COLON, ":"),
        (_OPENING, "(+\uff08\uff09"),
        (_SEPARATOR, " )-./\u2010\u2011\u2012"),
        (_GROUP_SEPARATOR, " -"),
    ):
        classes[[*map(ord, characters)]] |= flag
    return classes


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
        self._classes: NDArray[np.uint8] = np.pad(look_up(_build_classes(), split.codes), _MARGIN)
        self._is_digit = self._have(_DIGIT)
        self._begins_4_digits = _find_runs(self._is_digit, 4)

    def _have(self, classes: int) -> Flags:
        """Return which characters have one of the classes."""
        return self._classes & classes > 0

    def find_ibans(self) -> Numbers:
        """Find two capitals before two digits."""
        is_digit, is_capital = self._is_digit, self._have(_CAPITAL)
        return np.flatnonzero(is_capital[:-3] & is_capital[1:-2] & is_digit[2:-1] & is_digit[3:])

    def find_cards(self) -> Numbers:
        """Find numbers of at least 13 digits, and numbers of 4 digits before a further group of at least 4."""
        starts = np.flatnonzero(self._begins_4_digits[1:] & ~self._is_digit[:-1]) + 1
        is_long = self._begins_4_digits[starts + 4] & self._begins_4_digits[starts + 8] & self._is_digit[starts + 12]
        is_grouped = (self._classes[starts + 4] & _GROUP_SEPARATOR > 0) & self._begins_4_digits[starts + 5]
        cards: Numbers = starts[is_long | is_grouped]
        return cards

    def find_versions_4(self) -> Numbers:
        """Find up to three digits before three periods, with up to three digits between two periods."""
        is_digit = self._is_digit
        periods = np.flatnonzero(is_digit[:-2] & self._have(_PERIOD)[1:-1] & is_digit[2:]) + 1
        has_next = np.diff(periods) <= 4
        periods = periods[:-2][has_next[:-1] & has_next[1:]]
        return self._step_back(periods, _DIGIT, 3)

    def find_versions_6(self) -> Numbers:
        """Find up to four hexadecimal digits before a colon and three further digits or colons."""
        is_digit, is_part = self._have(_DIGIT | _HEXADECIMAL), self._have(_DIGIT | _HEXADECIMAL | _COLON)
        flags = is_digit[:-4] & self._have(_COLON)[1:-3] & is_part[2:-2] & is_part[3:-1] & is_part[4:]
        return self._step_back(np.flatnonzero(flags) + 1, _DIGIT | _HEXADECIMAL, 4)

    def find_phones(self) -> Numbers:
        """Find a digit, a plus or an opening bracket before enough digits and separators, but not within a number."""
        is_first, is_part = self._have(_DIGIT | _OPENING), self._have(_DIGIT | _OPENING | _SEPARATOR)
        starts = np.flatnonzero(is_first[1:-1] & ~self._is_digit[:-2] & _find_runs(is_part, _PHONE_DIGITS)[2:]) + 1
        # Count the digits only here, because few positions have enough digits and separators.
        padded_classes = np.append(self._classes, np.zeros(_PHONE_CHARACTERS, np.uint8))
        classes = np.lib.stride_tricks.sliding_window_view(padded_classes, _PHONE_CHARACTERS)[starts]
        is_part = np.logical_and.accumulate(classes & (_DIGIT | _OPENING | _SEPARATOR), axis=1)
        phones: Numbers = starts[np.count_nonzero(classes & _DIGIT & is_part, axis=1) >= _PHONE_DIGITS]
        return phones

    def _step_back(self, positions: Numbers, classes: int, max_steps: int) -> Numbers:
        """Return the start of the characters of some classes before each position, at least one, within some steps."""
        starts = positions.copy()
        for _ in range(max_steps):
            starts -= self._classes[starts - 1] & classes > 0
        return starts


def _find_runs(flags: Flags, size: int) -> Flags:
    """Return at which positions at least this many flags follow each other. The last flags must be false."""
    runs = flags.copy()
    known_size = 1
    while known_size < size:
        step = min(known_size, size - known_size)
        runs[:-step] &= runs[step:]
        known_size += step
    return runs
