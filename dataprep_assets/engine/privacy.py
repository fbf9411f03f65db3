"""Privacy of sensitive datasets: the only module that decides which facts may be shown to others.

Facts about other datasets are shown unchanged. Texts about a sensitive dataset (terminal, logs, events, errors, check
results, pages) show only names, `passed` or `failed`, and positions (`errors.Position`). Counts are shown as integers
under a name, in metadata and in cells of tables. They are always rounded, and counts below `small_cell` are shown as
"< 11". Shares, times, pictures and other texts are withheld.

Withheld texts are appended to a file in the dataset's private folder, which only the owner can read. `dataprep show
--private NAME` prints it. A `ConfigError` is shown in full, because it repeats what the user wrote. Any other error
shows only its class and its position.

Entry points: `load_privacy`, `Privacy`, `OPEN`.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, ShownValue, Table
from dataprep_assets.errors import ConfigError, DataprepError, Position
from dataprep_assets.table import format_share

# Import these modules only for types, because every command loads this module but most commands use no dataset.
if TYPE_CHECKING:
    from dataprep_assets.engine.checks.check import Finding
    from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
    from dataprep_assets.integrity.artifacts import ArtifactStore

SMALL_CELL = 11
"""Default limit below which counts of a sensitive dataset are hidden."""
_POSITIONS = {*Position.__annotations__, "record", "note", "document", "chunk", "step", "column", "position", "version"}
"""Entries and columns that are positions."""
_NAMES = _POSITIONS | {
    *("accepted", "artifact", "check", "content_digest", "cohort", "dataset", "dagster/uri", "declaration", "engine"),
    *("checked", "key", "kind", "oldest_check", "partition", "path", "reason", "rule", "source", "stop_token"),
    *("storage", "view"),
}
"""Entries and columns whose texts are names or repeat the declaration."""
_ITEM_COUNTS = {"files", "folders", "shards", "cohorts", "months", "splits", "tasks", "partitions"}
"""Counts that are neither of people nor of documents. They do not hide the counts next to them."""
_SIZES = {"bytes", "source_bytes", "tokens"}
"""Sizes that would reveal a small count next to them."""
_WITHHELD = "withheld"
_MAX_FILE_BYTES = 4 << 20
"""Maximum size of the private file in bytes. A larger file is renamed, replacing the previous one, and a new one is
started."""


@dataclass(frozen=True)
class Privacy:
    """Rules that convert facts about a dataset into their public form. Withheld texts go to a private file.

    Attributes:
        closed: Whether the dataset is sensitive.
        below: Smallest count that is shown as a number. Smaller positive counts are shown as "< below".
        dataset: The dataset's name.
        file: File for full texts; None if the store is unknown, in which case full texts are not stored.
    """

    closed: bool = False
    below: int = SMALL_CELL
    dataset: str = ""
    file: Path | None = None

    def choose_stricter(self, other: "Privacy") -> "Privacy":
        """Return the rules for facts that may be about either dataset."""
        if self.closed and other.closed:
            return replace(self, below=max(self.below, other.below))
        return self if self.closed else other

    # --- Public form of texts

    def public_text(self, text: str, public: str = "") -> str:
        """Return a text, or its public form, which has names and positions only."""
        if not self.closed:
            return text
        self.store_texts([text])
        public_text = public or f"{self.dataset}: not shown, because the dataset is sensitive"
        return public_text if self.file is None else f"{public_text}. Run `dataprep show --private {self.dataset}`"

    def public_error(self, error: BaseException, location: str = "", more: str = "") -> str:
        """Return the text of an error followed by `more`, or its public form: its class and its position, if any.

        Args:
            error: The error.
            location: The artifact or partition, for the private file. Callers that show the text add it themselves.
            more: The remedy, which contains only names.
        """
        if not self.closed or isinstance(error, ConfigError):
            return f"{error}{more}"
        public = f"{type(error).__name__}{_find_error_position(error)}{more}"
        return self.public_text(f"{location}: {error}{more}" if location else f"{error}{more}", public)

    def public_finding(self, finding: "Finding", location: str) -> "Finding":
        """Return a finding or its public form; `location` names the check and its artifact."""
        if not self.closed:
            return finding
        table, full_text = tuple(map(self.public_row, finding.table)), f"{location}: {finding.summary}"
        if finding.passed:
            self.store_texts([full_text])
            return replace(finding, summary="passed", table=table, plot=None)
        full_text = "\n".join([full_text, *(f"    {dict(row)}" for row in finding.table)])
        return replace(
            finding, summary=self.public_text(full_text, f"failed{_find_first_position(table)}"), table=table, plot=None
        )

    def store_texts(self, texts: Iterable[str]) -> None:
        """Append full texts to the private file."""
        if not self.closed or self.file is None:
            return
        timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        lines = "".join(f"{timestamp}  {text}\n" for text in texts)
        # Ignore errors in writing the file, because they must not hide the error that is being reported.
        with suppress(OSError):
            self.file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.file.parent.mkdir(mode=0o700, exist_ok=True)
            if self.file.exists() and self.file.stat().st_size > _MAX_FILE_BYTES:
                self.file.replace(self.file.with_suffix(".old"))
            with open(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
                file.write(lines)

    # --- Public form of numbers

    def hides(self, number: int) -> bool:
        """Return whether a count is so small that its public form is `< below`."""
        return self.closed and 0 < abs(number) < self.below

    def public_count(self, number: int) -> str:
        """Return a count for a cell of a table: `1,234`; for a sensitive dataset, `1,200` or `< 11`."""
        value = self.public_value(number)
        return f"{value:,}" if isinstance(value, int) else str(value)

    def public_counts(self, numbers: Sequence[int]) -> list[int | str]:
        """Return the public form of counts whose sum is shown.

        If one count is small, the others are withheld, because the small count could be computed from them.
        """
        small = any(map(self.hides, numbers))
        return [
            _WITHHELD if small and number and not self.hides(number) else self.public_value(number)
            for number in numbers
        ]

    def public_share(self, part: int, total: int) -> str:
        """Return a share in words, such as `7.3%`; "" for a sensitive dataset."""
        return "" if not total or self.closed else format_share(part / total)

    def public_value(self, value: Any) -> Any:
        """Return the public form of a number or a table without a name; other values without a name are withheld."""
        # Return a bool unchanged, because it is not a count, although it is an int in Python.
        if not self.closed or value is None or isinstance(value, bool | Location):
            return value
        if isinstance(value, Table):
            return Table([self.public_row(row) for row in value.rows])
        if isinstance(value, Markdown) and value.ready:
            return value
        if isinstance(value, str | float | Markdown):
            return _WITHHELD
        return self._round(int(value))

    def public_named_value(self, name: str, value: Any) -> Any:
        """Return the public form of a value under its name, which may identify it as a position or a name."""
        if (name in _POSITIONS and type(value) is int) or (name in _NAMES and isinstance(value, str)):
            return value
        return self.public_value(value)

    def public_entries(self, entries: Mapping[str, ShownValue]) -> dict[str, ShownValue]:
        """Return metadata by name, without withheld entries.

        Small counts under Dagster's own names are also omitted, because these entries must be numbers.
        """
        if not self.closed:
            return dict(entries)
        small = self._has_small(entries)
        values = {
            name: self.public_named_value(name, value)
            for name, value in entries.items()
            if not (small and name in _SIZES)
        }
        return {
            name: value
            for name, value in values.items()
            if (value != _WITHHELD or name in _NAMES)
            and not (name.startswith("dagster/") and type(value) is not type(entries[name]))
        }

    def public_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the public form of a table's row.

        Other counts and sizes next to a small count are withheld, because they would reveal it.
        """
        if not self.closed:
            return dict(row)
        small = self._has_small(row)
        return {
            name: _WITHHELD if small and self._is_count(name, value) and not self.hides(value) else public_value
            for name, value in row.items()
            for public_value in [self.public_named_value(name, value)]
        }

    def public_amounts(self, amounts: Mapping[str, Any]) -> dict[str, Any]:
        """Return amounts by name in their public form: for a sensitive dataset, sizes, shares and times become None."""
        return (
            {name: self._public_amount(name, value) for name, value in amounts.items()}
            if self.closed
            else dict(amounts)
        )

    def _public_amount(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return self.public_amounts(value)
        if isinstance(value, list):
            return [self._public_amount(name, item) for item in value]
        return None if isinstance(value, float) or "bytes" in name else self.public_named_value(name, value)

    def _round(self, number: int) -> int | str:
        """Round to two significant digits, and at least to tens.

        Two exact totals would reveal the number of documents that were removed between them.
        """
        if self.hides(number):
            return f"< {self.below}"
        unit = max(10, int(f"1{'0' * (len(str(abs(number))) - 2)}"))
        multiple = (number + unit // 2) // unit * unit
        return multiple + unit if 0 < multiple < self.below else multiple

    def _is_count(self, name: str, value: Any) -> bool:
        return type(value) is int and bool(value) and name not in _POSITIONS | _ITEM_COUNTS

    def _has_small(self, values: Mapping[str, Any]) -> bool:
        return any(self._is_count(name, value) and self.hides(value) for name, value in values.items())


OPEN = Privacy()
"""The rules for a dataset that is not sensitive."""


def load_privacy(declaration: "DatasetDeclaration", store: "ArtifactStore | None" = None) -> Privacy:
    """Return the privacy rules of a dataset; without a `store`, withheld texts are not stored."""
    if not declaration.sensitive:
        return OPEN
    file = None if store is None else find_private_file(declaration.dataset, store)
    return Privacy(closed=True, below=declaration.small_cell, dataset=declaration.dataset, file=file)


def find_private_file(dataset: str, store: "ArtifactStore") -> Path:
    """Return the file for full texts of a sensitive dataset."""
    return store.root / dataset / ".private" / "texts.log"


def _find_error_position(error: BaseException) -> str:
    """Return the position of an error as text.

    For an error of another library, which is a bug, the position is a line of code.
    """
    if isinstance(error, DataprepError):
        return _format_position(error.at)
    frames = extract_tb(error.__traceback__)[-1:]
    return "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def _find_first_position(table: Sequence[Mapping[str, Any]]) -> str:
    """Return the position in the first row of a finding's table, as text."""
    return _format_position(
        {name: value for row in table[:1] for name, value in row.items() if name in Position.__annotations__}
    )


def _format_position(position: Mapping[str, Any]) -> str:
    return f" at {', '.join(f'{name} {value}' for name, value in position.items())}" if position else ""
