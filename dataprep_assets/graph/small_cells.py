"""Small cells: counts of a sensitive dataset shown as "< 11", because a small group can identify a patient.

All output passes through here once, where it leaves the project: metadata and tables (`orchestration.metadata`),
results of checks (`orchestration.checks`), errors of steps, data cards, and what the commands print. Receipts keep the
true counts, which proofs compare, in files that only their owner can read.

A number is hidden unless its type, or the name of its entry or column, says that it counts no people and no documents:
what is said wrongly hides too much. Zero is shown. What would give a small count away is hidden, too: the other counts
in a row of a table that has one (the tokens of a month of few notes), the singular of what is counted, and, while a
retraction list is so short that totals before and after it tell what those on it had, all but the first digit of larger
counts and of shares. Other sums and differences are not protected.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isfinite, log10, trunc
from typing import Any, Self

from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.shown import Location, Markdown, Shown, Table
from dataprep_assets.sentences import Sentence, Span, plain

_THINGS = {"files", "folders", "shards", "cohorts", "months", "splits", "tasks"}
_SAFE_NAMES = _THINGS | {"bytes", "source_files", "source_bytes"}
_SAFE_NAMES |= {"row", "line", "record", "note", "document", "byte", "chunk", "step", "column", "position", "version"}
_SAFE_NAMES |= {"accepted", "declaration", "undeclared"}
"""Entries and columns that count no people and no documents, say where something is, or repeat the declaration; others
begin with a thing that they count (`shards_failed`)."""
_SIZES = {"bytes", "source_bytes"}
"""Those of these that tell a small count beside them: of so many documents."""
_WITHHELD, _NO_SHARE = "withheld", "…"
_QUOTED = re.compile(r"`[^`\n]*`")
# after `< ` stands a count that is hidden already: a text that passes here twice stays as it is
_NUMBER = re.compile(
    r"(?<!< )(?<![\w/#\-])(?<!\d[.,:])(?<!\w[.])(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d*)(?![\w/%\-]|[.,:]\d| %)"
)
"""A number that stands alone: not part of a word, a path, a date, a version or a share."""
_SHARE = re.compile(r"(?<![\w/#\-.,:])(?:0\.\d*[1-9]\d*(?![\w/\-]|[.,:]\d)|[1-9]\d*(?:\.\d+)?(?= ?%))")


@dataclass(frozen=True)
class SmallCells:
    """Shows counts from 1 to `below` - 1 as "< below"; with `below` 1 or less all counts are shown.

    If they are `rounded`, the others, and shares of them, are shown by their first digit.
    """

    below: int
    rounded: bool = False

    def stricter(self, other: Self) -> Self:
        """What shows a number only if both do: of texts that may be about either dataset."""
        return replace(self, below=max(self.below, other.below), rounded=self.rounded or other.rounded)

    def count(self, number: int) -> str:
        """A count of people or documents in words: `1,234`, `about 1,000`, or `< 11`."""
        if self.hides(number):
            return self._hidden
        return f"about {_first_digit(number):,}" if self.rounded and number else f"{number:,}"

    def share(self, part: int, whole: int) -> str:
        """A share in words, `7.27 %`; "" where it would tell a count that is not shown."""
        return "" if not whole or self.rounded or self.hides(part) else f"{100 * part / whole:.2f} %"

    def counts(self, numbers: Sequence[int]) -> list[int | str]:
        """Counts that have a sum: with a small one all others are withheld, or it would be the difference."""
        small = any(map(self.hides, numbers))
        return [_WITHHELD if small and number and not self.hides(number) else self.value(number) for number in numbers]

    def text(self, text: str) -> str:
        """A text without small counts, and in a line with one without shares, which would tell it.

        What counts people or documents is what the types in it say (`sentences`), and of all else every number that
        stands alone; what is in backticks, a command or a setting, stays.
        """
        if self.below <= 1:
            return plain(text)
        lines, at = list[str](), 0
        for line in plain(text).split("\n"):
            spans = text[at : at + len(line)].spans if isinstance(text, Sentence) else ()
            lines.append(self._line(line, spans))
            at += len(line) + 1
        return "\n".join(lines)

    def _line(self, line: str, spans: Sequence[Span]) -> str:
        # no number is looked for in what is typed, nor in backticks
        kept = [(one.start, one.stop) for one in spans] + [match.span() for match in _QUOTED.finditer(line)]

        def free(pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
            return (
                m for m in pattern.finditer(line) if all(m.end() <= start or stop <= m.start() for start, stop in kept)
            )

        told = [(one.start, one.stop, one.count, f" {one.noun}") for one in spans if one.count is not None] + [
            (*match.span(), int(match[0].replace(",", "")), "") for match in free(_NUMBER)
        ]
        changes = [
            (start, stop, self.count(number) + noun)
            for start, stop, number, noun in told
            if self.rounded or self.hides(number)
        ]
        # whoever wrote the line may have hidden a count in it already: its shares would tell that one as well
        if self._hidden in line or any(self._hidden in new for _, _, new in changes):
            changes += [(*match.span(), _NO_SHARE) for match in free(_SHARE)]
        elif self.rounded:
            changes += [(*m.span(), f"about {_first_digit_of_share(float(m[0])):g}") for m in free(_SHARE)]
        # from the end of the line, so that the positions before stay right
        for start, stop, new in sorted(changes, reverse=True):
            line = line[:start] + new + line[stop:]
        return line

    def entries(self, shown: Mapping[str, Shown]) -> dict[str, Shown]:
        """Metadata by name without small counts, and beside one without shares, which would tell it. Dagster's own,
        which must be numbers, are removed if small."""
        found = {}
        # `type(…) is int` leaves bools out
        small = any(type(value) is int and not _is_safe(name) and self.hides(value) for name, value in shown.items())
        for name, value in shown.items():
            # what a name says holds for its own number, not for those of a table or a text
            hidden = plain(value) if _is_safe(name) and isinstance(value, int | str) else self.value(value)
            if small and isinstance(value, float) and ("%" in name or "share" in name):
                hidden = _NO_SHARE
            if not (name.startswith("dagster/") and type(hidden) is not type(value)):
                found[name] = hidden
        return found

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of a table without small counts, and beside one without other counts, shares and sizes."""
        if self.below <= 1:
            return {name: plain(value) for name, value in row.items()}
        safe = set(filter(_is_safe, row))
        names = [name for name, value in row.items() if name not in safe and type(value) is int]
        counts = dict(zip(names, self.counts([row[name] for name in names]), strict=True))
        others = {name: plain(value) if name in safe else self.value(value) for name, value in row.items()}
        if any(self.hides(row[name]) for name in names):
            others |= {name: _NO_SHARE for name, value in row.items() if isinstance(value, float)}
            others |= dict.fromkeys(_SIZES & row.keys(), _WITHHELD)
        return others | counts

    @property
    def _hidden(self) -> str:
        return f"< {self.below}"

    def hides(self, number: int) -> bool:
        """Whether a count of people or documents is not shown."""
        return 0 < number < self.below

    def value(self, value: Any) -> Any:
        """A count, share, text or table as it is shown."""
        # a bool is an int to Python, and counts nobody
        if self.below <= 1 or isinstance(value, bool) or value is None:
            return plain(value)
        if isinstance(value, Table):
            return Table([self.row(row) for row in value.rows])
        if isinstance(value, Markdown):
            return value if value.ready else Markdown(self.text(value.text))
        if isinstance(value, Location):
            return value
        if isinstance(value, str):
            # a number given as text is a setting, not a count
            return value if value.isdigit() else self.text(value)
        if isinstance(value, float):  # a share or a time, not a count
            return _first_digit_of_share(value) if self.rounded else value
        if self.hides(int(value)):
            return self._hidden
        return _first_digit(int(value)) if self.rounded else value


def _is_safe(name: str) -> bool:
    return name in _SAFE_NAMES or name.partition("_")[0] in _THINGS


def _first_digit(number: int) -> int:
    unit = int("1" + "0" * (len(str(abs(number))) - 1))
    return number // unit * unit


def _first_digit_of_share(number: float) -> float:
    if not isfinite(number) or not number:
        return number
    exponent = floor(log10(abs(number)))
    # 0.3 / 0.1 is 2.9999999999999996, so a hair is added before it is cut off; 3 * 0.1 is 0.30000000000000004, so the
    # product is rounded
    return round(trunc(number / 10.0**exponent + 1e-9) * 10.0**exponent, max(0, -exponent))


SHOW_ALL = SmallCells(1)


def cells_of(declaration: DatasetDeclaration) -> SmallCells:
    """How counts of a dataset are shown."""
    if not declaration.sensitive:
        return SHOW_ALL
    # not every kind of dataset has a retraction list
    listing = getattr(declaration, "retractions", None)
    listed = sum(map(bool, listing.read_bytes().splitlines())) if listing is not None and listing.is_file() else 0
    return SmallCells(declaration.small_cell, rounded=0 < listed < declaration.small_cell)
