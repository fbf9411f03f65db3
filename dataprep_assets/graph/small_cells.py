"""Small cells: counts of a sensitive dataset shown as "< 11", because a small group can identify a patient.

All output passes through here once, where it leaves the project: metadata and tables (`orchestration.metadata`),
results of checks (`orchestration.checks`), errors of steps, data cards, and what the commands print. Receipts keep the
true counts, which proofs compare, in files that only their owner can read.

A number is hidden unless it is known not to count people: sentences come from all over the project, and hiding too
much does no harm. Zero is shown. What would give a small count away is hidden, too: the other counts in a row of a
table that has one (the tokens of a month of few notes), the singular of what is counted, and, while a retraction list
is so short that totals before and after it tell what those on it had, all but the first digit of larger counts and of
shares. Other sums and differences are not protected.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10, trunc
from typing import Any

from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.shown import Location, Markdown, Shown, Table

_SAFE_NAMES = {
    "files",
    "bytes",
    "source_files",
    "source_bytes",
    "shards",
    "cohorts",
    "months",
    "folders",
    "version",
} | {
    "accepted",
    "declaration",
    "undeclared",
}
"""Entries and columns that do not count people or documents, or that repeat settings of the declaration."""
_SIZES = {"bytes", "source_bytes"}
"""Those of these that tell a small count beside them: of so many documents."""
_POSITION = (
    r"row|line|record|note|patient|document|byte|chunk|number|id|version|step|column|position|part|shard|exit code"
)
_IS_POSITION = re.compile(rf"\b(?:{_POSITION}|rows|lines|bytes)\s$", re.IGNORECASE)
_IS_SETTING = re.compile(r"\b(?:eval|grain|hf|max|train)_\w+=$")
_WITHHELD, _NO_SHARE = "withheld", "…"
_PEOPLE = "patient|note|document|record|row|conversation|sample|line"
_THINGS = (
    "month|cohort|shard|file|folder|check|partition|worker|processe|split|artifact|dataset|core|CPU|column|setting|"
    "format|character|digit|byte|second|minute|hour|day|retry|retrie|process|director(?:y|ie)"
)
_JOINED = "and|at|by|for|from|in|of|on|or|per|to|with|without"
"""Words behind which another thing begins: 4 in shards are no shards."""
_IS_OF_THINGS = re.compile(
    rf"\s(?:of [\d,]+ )?(?:(?!(?:{_PEOPLE}|{_JOINED})s?\b)[\w-]+ )?"
    rf"(?:(?:{_THINGS})s?|[kMGT]i?B|B|ms|s|min|h|GHz)\b(?!-)"
)
_QUOTED = re.compile(r"(`[^`\n]*`)")
_ANY_NUMBER = re.compile(r"(?<!< )(?<![\w/#\-.,:])([1-9]\d{0,2}(?:,\d{3})+|[1-9]\d*)(?![\w/%\-]|[.,:]\d| %)")
_SHARE = re.compile(r"(?<![\w/#\-.,:])(?:0\.\d*[1-9]\d*(?![\w/\-]|[.,:]\d)|[1-9]\d*(?:\.\d+)?(?= ?%))")
_ONE = re.compile(
    rf"(?<![\w/#\-.,:])1 ((?:[\w-]+ )?(?:{_PEOPLE}))\b(?!-| (?:{_THINGS})s?\b)(?: (is|was|has|comes|goes)\b)?"
)
_OF_SEVERAL = {"is": "are", "was": "were", "has": "have", "comes": "come", "goes": "go"}
_NUMBER = re.compile(r"(?<!< )(?<![\w/#\-])(?<!\d[.,:])(?<!\w[.])([1-9]\d{0,5})(?![\w/%\-]|[.,:]\d| %)")


@dataclass(frozen=True)
class SmallCells:
    """Shows counts from 1 to `below` - 1 as "< below"; with `below` 1 or less all counts are shown.

    If they are `rounded`, the others, and shares of them, are shown by their first digit.
    """

    below: int
    rounded: bool = False

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
        """A text without small counts, and in a line with one without shares, which would tell it. Positions
        (`row 3`), dates, versions, parts of a number, counts of things other than people (`4 shards`) and what is in
        backticks, a command or a setting, stay."""
        return text if self.below <= 1 else "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        parts = [one if one.startswith("`") else self._text(one) for one in _QUOTED.split(line)]
        if any(self._hidden in one for one in parts):
            parts = [one if one.startswith("`") else _SHARE.sub(_NO_SHARE, one) for one in parts]
        return "".join(parts)

    def _text(self, sentence: str) -> str:
        sentence = _ONE.sub(_as_several, sentence)
        numbers = _ANY_NUMBER if self.rounded else _NUMBER
        told = numbers.sub(lambda m: self._told(sentence, m), sentence)
        return _SHARE.sub(lambda m: f"about {_first_digit_of_share(float(m[0])):g}", told) if self.rounded else told

    def entries(self, shown: Mapping[str, Shown]) -> dict[str, Shown]:
        """Metadata by name without small counts, and beside one without shares, which would tell it. Dagster's own,
        which must be numbers, are removed if small."""
        found = {}
        small = any(
            type(value) is int and name not in _SAFE_NAMES and self.hides(value) for name, value in shown.items()
        )
        for name, value in shown.items():
            hidden = value if self.below <= 1 or name in _SAFE_NAMES else self.value(value)
            if small and isinstance(value, float) and ("%" in name or "share" in name):
                hidden = _NO_SHARE
            if not (name.startswith("dagster/") and type(hidden) is not type(value)):
                found[name] = hidden
        return found

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of a table without small counts, and beside one without other counts, shares and sizes."""
        if self.below <= 1:
            return dict(row)
        safe = {name for name in row if name in _SAFE_NAMES or re.fullmatch(_POSITION, name)}
        names = [name for name, value in row.items() if name not in safe and type(value) is int]
        counts = dict(zip(names, self.counts([row[name] for name in names]), strict=True))
        others = {name: value if name in safe else self.value(value) for name, value in row.items()}
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

    def _told(self, sentence: str, match: re.Match[str]) -> str:
        number = int(match[1].replace(",", ""))
        if not self.hides(number) and not self.rounded:
            return match[1]
        is_safe = (
            _IS_SETTING.search(sentence[: match.start()])
            or _IS_POSITION.search(sentence[: match.start()])
            or _IS_OF_THINGS.match(sentence[match.end() :])
        )
        return match[1] if is_safe else self.count(number)

    def value(self, value: Any) -> Any:
        """A count, share, text or table as it is shown."""
        if isinstance(value, bool) or value is None:
            return value
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


def _first_digit(number: int) -> int:
    unit = int("1" + "0" * (len(str(abs(number))) - 1))
    return number // unit * unit


def _first_digit_of_share(number: float) -> float:
    if not isfinite(number) or not number:
        return number
    exponent = floor(log10(abs(number)))
    return round(trunc(number / 10.0**exponent + 1e-9) * 10.0**exponent, max(0, -exponent))


def _as_several(match: re.Match[str]) -> str:
    """What is said of one as it is said of several: the singular would tell the count that is hidden."""
    if _IS_POSITION.search(match.string[: match.start()]):
        return match[0]
    verb = f" {_OF_SEVERAL[match[2]]}" if match[2] else ""
    return f"1 {match[1]}s{verb}"


SHOW_ALL = SmallCells(1)


def cells_of(declaration: DatasetDeclaration) -> SmallCells:
    """How counts of a dataset are shown."""
    if not declaration.sensitive:
        return SHOW_ALL
    listing = getattr(declaration, "retractions", None)
    listed = sum(map(bool, listing.read_bytes().splitlines())) if listing is not None and listing.is_file() else 0
    return SmallCells(declaration.small_cell, rounded=0 < listed < declaration.small_cell)
