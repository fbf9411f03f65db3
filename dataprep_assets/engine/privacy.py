"""What leaves of a sensitive dataset: the one module that decides it. Of other datasets all leaves as it is.

Texts (terminal, logs, events, errors, results of checks, pages) show names, passed or failed, and positions
(`errors.Position`). Counts leave as integers under a name, in metadata and cells of tables, always rounded; those below
`small_cell` as "< 11". Shares, times, pictures and other texts do not leave.

What is withheld is appended to a file in the dataset's private folder that only the owner can read. `dataprep show
--private NAME` prints it. A `ConfigError` leaves with its text, because it repeats what the user wrote; of every other
error only its class and its position do.

Entry points: `privacy_of`, `Privacy`, `OPEN`.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, Shown, Table
from dataprep_assets.errors import ConfigError, DataprepError, Position

# every command loads this module, and most of them end without a dataset
if TYPE_CHECKING:
    from dataprep_assets.engine.checks.check import Finding
    from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
    from dataprep_assets.integrity.artifacts import ArtifactStore

SMALL_CELL = 11
"""Default limit below which counts of a sensitive dataset are not shown."""
_POSITIONS = {*Position.__annotations__, "record", "note", "document", "chunk", "step", "column", "position", "version"}
"""Entries and columns with locations."""
_NAMES = _POSITIONS | {
    *("accepted", "artifact", "check", "content_digest", "cohort", "dataset", "dagster/uri", "declaration", "engine"),
    *("examined", "key", "kind", "oldest_proof", "partition", "path", "reason", "rule", "source", "stop_token"),
    *("storage", "view"),
}
"""Entries and columns whose texts are names or repeat the declaration."""
_THINGS = {"files", "folders", "shards", "cohorts", "months", "splits", "tasks", "partitions"}
"""Counts of neither people nor documents: they do not hide the counts next to them."""
_SIZES = {"bytes", "source_bytes", "tokens"}
"""Sizes that would reveal a small count next to them."""
_WITHHELD = "withheld"
_LARGEST = 4 << 20
"""Maximum size of the private file in bytes; then a new one is started, and the previous one is kept."""


@dataclass(frozen=True)
class Privacy:
    """Makes the public form of what belongs to a dataset, and keeps the full one.

    Attributes:
        closed: Whether the dataset is sensitive.
        below: Counts from 1 to one less are shown as "< below".
        dataset: The dataset.
        file: Where full texts are kept; None where the store is not known: nothing is kept.
    """

    closed: bool = False
    below: int = SMALL_CELL
    dataset: str = ""
    file: Path | None = None

    def stricter(self, other: "Privacy") -> "Privacy":
        """The public form of what may be about either dataset."""
        if self.closed and other.closed:
            return replace(self, below=max(self.below, other.below))
        return self if self.closed else other

    # --- texts

    def text(self, text: str, public: str = "") -> str:
        """A text, or its public form, which has names and positions only."""
        if not self.closed:
            return text
        self.keep([text])
        public_text = public or f"{self.dataset}: not shown, because the dataset is sensitive"
        return public_text if self.file is None else f"{public_text}. Run `dataprep show --private {self.dataset}`"

    def error(self, error: BaseException, where: str = "", more: str = "") -> str:
        """The text of an error with `more` after it, or its public form: its class, and its position if it has one.

        Args:
            error: The error.
            where: The artifact or partition, for the file; whoever shows the text names it.
            more: What to do, which has names only.
        """
        if not self.closed or isinstance(error, ConfigError):
            return f"{error}{more}"
        public = f"{type(error).__name__}{_error_position(error)}{more}"
        return self.text(f"{where}: {error}{more}" if where else f"{error}{more}", public)

    def finding(self, finding: "Finding", where: str) -> "Finding":
        """What a check found; `where` names the check and its artifact."""
        if not self.closed:
            return finding
        table, full_text = tuple(map(self.row, finding.table)), f"{where}: {finding.summary}"
        if finding.passed:
            self.keep([full_text])
            return replace(finding, summary="passed", table=table, plot=None)
        full_text = "\n".join([full_text, *(f"    {dict(row)}" for row in finding.table)])
        return replace(finding, summary=self.text(full_text, f"failed{_first_position(table)}"), table=table, plot=None)

    def keep(self, texts: Iterable[str]) -> None:
        """Append full texts to the private file."""
        if not self.closed or self.file is None:
            return
        timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        lines = "".join(f"{timestamp}  {text}\n" for text in texts)
        # a disk without room must not hide the error that is being reported
        with suppress(OSError):
            self.file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.file.parent.mkdir(mode=0o700, exist_ok=True)
            if self.file.exists() and self.file.stat().st_size > _LARGEST:
                self.file.replace(self.file.with_suffix(".old"))
            with open(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
                file.write(lines)

    # --- numbers

    def hides(self, number: int) -> bool:
        """Whether a count is shown only as being small."""
        return self.closed and 0 < abs(number) < self.below

    def count(self, number: int) -> str:
        """A count in a cell of a table: `1,234`, or of a sensitive dataset `1,200` and `< 11`."""
        value = self.value(number)
        return f"{value:,}" if isinstance(value, int) else str(value)

    def counts(self, numbers: Sequence[int]) -> list[int | str]:
        """Counts that have a sum: with a small one all others are withheld, or it would be the difference."""
        small = any(map(self.hides, numbers))
        return [_WITHHELD if small and number and not self.hides(number) else self.value(number) for number in numbers]

    def share(self, part: int, whole: int) -> str:
        """A share in words, `7.27 %`; "" of a sensitive dataset."""
        return "" if not whole or self.closed else f"{100 * part / whole:.2f} %"

    def value(self, value: Any) -> Any:
        """A number or a table without a name; what else has none is withheld."""
        # a bool is an int to Python, and counts nobody
        if not self.closed or value is None or isinstance(value, bool | Location):
            return value
        if isinstance(value, Table):
            return Table([self.row(row) for row in value.rows])
        if isinstance(value, Markdown) and value.ready:
            return value
        if isinstance(value, str | float | Markdown):
            return _WITHHELD
        return self._round(int(value))

    def named_value(self, name: str, value: Any) -> Any:
        """A value under its name, which may say that it is a position or a name."""
        if (name in _POSITIONS and type(value) is int) or (name in _NAMES and isinstance(value, str)):
            return value
        return self.value(value)

    def entries(self, shown: Mapping[str, Shown]) -> dict[str, Shown]:
        """Metadata by name. What is withheld has no entry; nor have small ones of Dagster's own, which are numbers."""
        if not self.closed:
            return dict(shown)
        small = self._has_small(shown)
        values = {
            name: self.named_value(name, value) for name, value in shown.items() if not (small and name in _SIZES)
        }
        return {
            name: value
            for name, value in values.items()
            if (value != _WITHHELD or name in _NAMES)
            and not (name.startswith("dagster/") and type(value) is not type(shown[name]))
        }

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of a table; next to a small count, other counts and sizes are withheld, which would reveal it."""
        if not self.closed:
            return dict(row)
        small = self._has_small(row)
        return {
            name: _WITHHELD if small and self._is_count(name, value) and not self.hides(value) else public_value
            for name, value in row.items()
            for public_value in [self.named_value(name, value)]
        }

    def amounts(self, amounts: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers of JSON by name; None for sizes, shares and times, which do not leave."""
        return {name: self._amount(name, value) for name, value in amounts.items()} if self.closed else dict(amounts)

    def _amount(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return self.amounts(value)
        if isinstance(value, list):
            return [self._amount(name, item) for item in value]
        return None if isinstance(value, float) or "bytes" in name else self.named_value(name, value)

    def _round(self, number: int) -> int | str:
        """Two significant digits, and tens at most: two exact totals would tell what was removed between them."""
        if self.hides(number):
            return f"< {self.below}"
        unit = max(10, int(f"1{'0' * (len(str(abs(number))) - 2)}"))
        multiple = (number + unit // 2) // unit * unit
        return multiple + unit if 0 < multiple < self.below else multiple

    def _is_count(self, name: str, value: Any) -> bool:
        return type(value) is int and bool(value) and name not in _POSITIONS | _THINGS

    def _has_small(self, values: Mapping[str, Any]) -> bool:
        return any(self._is_count(name, value) and self.hides(value) for name, value in values.items())


OPEN = Privacy()
"""The rules for a dataset that is not sensitive."""


def privacy_of(declaration: "DatasetDeclaration", store: "ArtifactStore | None" = None) -> Privacy:
    """What leaves of a dataset; without a `store` what is withheld is kept nowhere."""
    if not declaration.sensitive:
        return OPEN
    file = None if store is None else private_file(declaration.dataset, store)
    return Privacy(closed=True, below=declaration.small_cell, dataset=declaration.dataset, file=file)


def private_file(dataset: str, store: "ArtifactStore") -> Path:
    """Where full texts of a sensitive dataset are kept."""
    return store.root / dataset / ".private" / "texts.log"


def _error_position(error: BaseException) -> str:
    """Where an error is: its position, or where in the code one is that is not the project's own, which is a bug."""
    if isinstance(error, DataprepError):
        return _words(error.at)
    frames = extract_tb(error.__traceback__)[-1:]
    return "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def _first_position(table: Sequence[Mapping[str, Any]]) -> str:
    """Where the first row of a finding's table is."""
    return _words({name: value for row in table[:1] for name, value in row.items() if name in Position.__annotations__})


def _words(position: Mapping[str, Any]) -> str:
    return f" at {', '.join(f'{name} {value}' for name, value in position.items())}" if position else ""
