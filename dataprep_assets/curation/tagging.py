"""Taggers, which compute columns from the texts of documents. Taggers decide nothing; rules do (`rules`).

There are four kinds of taggers. A `TextTagger` is built in, or from another package by its entry point in the group
`dataprep_assets.taggers`. A function of the user's project is called with a batch of documents (`function_tagger`). A
command reads a Parquet file of a whole shard and writes another one (`command_tagger`). A Dagster asset wrote Parquet
files (`asset_tagger`). Their output is checked: columns and types, one value per document, no NaN.

Entry points: `Tagger` and its kinds, `tags_of`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dataprep_assets.curation.module_code import describe_error, place_in_project
from dataprep_assets.curation.table import Columns, ColumnType, DocumentBatch, ParquetRows, is_of, read_joined
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.text_tagger import TextTagger
from dataprep_assets.errors import DataprepError, count_of, raise_alone

KEYS = ("file", "row")
"""The columns that identify rows in the output of a command."""


class TaggingError(DataprepError):
    """A tagger that failed or returned invalid output; names the file and the row."""


@dataclass(frozen=True, kw_only=True)
class Tagger(ABC):
    """A tagger of a dataset. Picklable; `name` is also the name of its file in the artifact."""

    name: str
    columns: Columns

    @property
    @abstractmethod
    def version(self) -> str:
        """The values that determine its output in addition to the documents; part of the output's key."""

    @property
    def repeats(self) -> bool:
        """Whether its version determines its values.

        A function, a command or a package may also depend on time or chance.
        """
        return False

    def why_missing(self) -> str | None:
        """Return a sentence if the tagger is not found before it is called.

        It may still exist on another machine or at import.
        """
        return None

    def located(self) -> "Tagger":
        """Return a copy with all values that can only be found where Dagster is available."""
        return self

    def of_files(self, files: Sequence[str]) -> "Tagger":
        """Return a copy whose version depends only on these source files, if the tagger supports this."""
        return self

    @property
    def key_parts(self) -> list[Any]:
        """The parts of its output's key. Columns are in order, because the file has this order."""
        return [self.name, list(self.columns.items()), self.version]


class BatchTagger(Tagger):
    """A tagger that is called with a batch of documents in this process."""

    @abstractmethod
    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        """Return column → a value for each text of the batch."""


class ExternalTagger(Tagger):
    """A tagger that writes a Parquet file, which `align` reorders to match the table's rows."""

    by: ClassVar[str]
    """Name of the file's writer in messages: `the command`."""


class VersionedTagger(BatchTagger):
    """A tagger whose version determines its columns and their order."""

    @property
    def key_parts(self) -> list[Any]:
        return [self.name, dict(self.columns), self.version]

    @property
    def repeats(self) -> bool:
        return True


class BuiltInTagger(VersionedTagger):
    """A tagger of this or another package, by name."""

    @property
    def version(self) -> str:
        return named_tagger(self.name).version()

    @property
    def repeats(self) -> bool:
        return TAGGERS[self.name].is_own

    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        return named_tagger(self.name).tag(batch.texts)


def named_tagger(name: str) -> TextTagger:
    """Return the tagger with this name, of this or another package.

    Raises ConfigError if it does not exist, if several packages define it, or if it cannot be imported.
    """
    extension = TAGGERS[name]
    tagger = extension.load()
    if not isinstance(tagger, TextTagger):
        raise extension.unfit_error("is not a TextTagger")
    return tagger


def _column(table: Any, name: str, where: str) -> list[Any]:
    """Return the values of a column.

    Raises TaggingError, without showing the value, for a value that Python cannot represent.
    """
    try:
        values: list[Any] = table[name].to_pylist()
    except (ValueError, OverflowError):  # text that is not UTF-8, a date beyond the year 9999
        raise TaggingError(f"{where}: {name} has a value that is not UTF-8, or an invalid date") from None
    return values


def align(tagger: ExternalTagger, made: Path, rows: Path, target: Path, shard: str, *, sensitive: bool) -> None:
    """Write the columns of an external tagger, in the order of the table's rows.

    Args:
        tagger: A command, or an asset.
        made: The Parquet file that it wrote.
        rows: The rows of the table.
        target: The file to write.
        shard: The shard, for messages.
        sensitive: Whether messages must not show the content of `made`.

    Raises TaggingError if a row is missing, repeated or not in the shard, or if a value has a wrong type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    producer = tagger.by
    where = f"tag: {tagger.name}: {shard}: the Parquet file of {producer}"
    try:
        table = pq.ParquetFile(made, page_checksum_verification=True).read()
    except (pa.ArrowException, OSError) as error:
        raise TaggingError(f"{where} cannot be read: {error}. It must be complete when {producer} ends") from error
    if missing := [name for name in (*KEYS, *tagger.columns) if name not in table.column_names]:
        only = "" if sensitive else f", only {', '.join(table.column_names)}"
        raise TaggingError(f"{where} has no column {missing[0]!r}{only}")
    if doubled := [name for name in (*KEYS, *tagger.columns) if table.column_names.count(name) > 1]:
        raise TaggingError(f"{where} has two columns {doubled[0]!r}")
    # A tool may write its rows in any order, so values are matched by file and row.
    keys = list(zip(*(_column(table, name, where) for name in KEYS), strict=True))
    if not all(isinstance(file, str) and isinstance(row, int | float) for file, row in keys):
        raise TaggingError(f"{where}: column `file` must contain strings and `row` integers, in every row")
    positions = {key: position for position, key in enumerate(keys)}
    if len(positions) < len(keys):
        repeated_key = next(key for position, key in enumerate(keys) if positions[key] != position)
        raise TaggingError(
            f"{where} has {'a row' if sensitive else f'{repeated_key[0]}, row {repeated_key[1]}'} more than once"
        )
    columns = {}
    for name, kind in tagger.columns.items():
        values = _column(table, name, where)
        if (wrong := first_wrong(values, kind)) is not None:
            file, row = keys[wrong[0]]
            raise TaggingError(f"{where}: {'' if sensitive else f'{file}: row {row}: '}{name} is {wrong[1]}")
        columns[name] = values
    expected_rows = 0
    with ParquetRows(target, tagger.columns) as writer:
        for piece in read_joined([rows], [*KEYS, "bad"]):
            row_positions: list[int | None] = []
            for file, row, bad in zip(*(piece[name].to_pylist() for name in (*KEYS, "bad")), strict=True):
                if (position := positions.get((file, row))) is None and bad is None:
                    raise TaggingError(f"{where} has no {file}, row {row}, but must have every input row")
                # A refused row has no text, so it was not in the input and has no values.
                row_positions.append(position if bad is None else None)
            expected_rows += sum(position is not None for position in row_positions)
            writer.add(
                {
                    name: [None if position is None else v[position] for position in row_positions]
                    for name, v in columns.items()
                }
            )
    # Unmatched rows are not rows of the shard.
    if expected_rows < len(keys):
        raise TaggingError(f"{where} has {count_of(len(keys), 'row')}, but the input has {expected_rows:,}")


def tags_of(tagger: BatchTagger, batch: DocumentBatch, *, sensitive: bool) -> dict[str, list[Any]]:
    """Return a tagger's values for the texts of a batch: column → values, checked.

    Raises TaggingError, naming the row, if the tagger raises or returns different columns.
    """
    try:
        columns = _list_columns(tagger, batch)
    # This package's errors, such as a failed import, do not concern a row.
    except DataprepError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise any error
        # The texts are tagged again one by one to find the row.
        index = _failing_index(tagger, batch)
        place = place_in_project(error)
        where = f"row {batch.row(index)}" if index is not None else f"rows {batch.row(0)} and after"
        why = type(error).__name__ if sensitive else describe_error(error)
        text = f"{batch.label}: {where}: tagger {tagger.name!r} raised {why}{f' ({place})' if place else ''}"
        if sensitive:  # the cause's message may quote a text
            raise_alone(TaggingError(text, code=place) if place else TaggingError(text))
        raise TaggingError(text) from error
    if not isinstance(columns, Mapping) or set(columns) != set(tagger.columns):
        if sensitive:  # the output may contain the text
            answer = "something else"
        else:
            answer = ", ".join(map(str, columns)) if isinstance(columns, Mapping) else type(columns).__name__
        raise TaggingError(
            f"{batch.label}: tagger {tagger.name!r} returned {answer}, but its columns are {', '.join(tagger.columns)}"
        )
    return {name: _values(tagger, name, columns[name], batch, sensitive=sensitive) for name in tagger.columns}


def _list_columns(tagger: BatchTagger, batch: DocumentBatch) -> Any:
    """Return a tagger's output with its columns as lists, or the output itself if it is not a mapping."""
    columns = tagger.look(batch)
    return {name: _list(values) for name, values in columns.items()} if isinstance(columns, Mapping) else columns


def _list(values: Any) -> list[Any]:
    # Arrow columns have `to_pylist`; NumPy arrays and pandas series have `tolist`.
    plain = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    return list(values if plain is None else plain())


def _failing_index(tagger: BatchTagger, batch: DocumentBatch) -> int | None:
    """Return the index of the first text that raises by itself; None if no text does."""
    for index in range(len(batch.texts)):
        try:
            _list_columns(tagger, batch.slice_texts(slice(index, index + 1)))
        except (Exception, SystemExit):
            return index
    return None


def _values(tagger: Tagger, name: str, values: list[Any], batch: DocumentBatch, *, sensitive: bool) -> list[Any]:
    if len(values) != len(batch.texts):
        raise TaggingError(
            f"{batch.label}: rows {batch.row(0)} and after: tagger {tagger.name!r} returned "
            f"{count_of(len(values), 'value')} of {name} for {count_of(len(batch.texts), 'document')}, but must "
            "return one for each"
        )
    if (wrong := first_wrong(values, tagger.columns[name])) is not None:
        index, why = wrong
        description = "" if sensitive else f" {values[index]!r:.60}"
        raise TaggingError(
            f"{batch.label}: row {batch.row(index)}: tagger {tagger.name!r}: {name}{description} is {why}"
        )
    return values


# Only floats are plain numbers, because an integer may exceed the range of floats and is checked separately.
_PLAIN: Mapping[ColumnType, set[type]] = {"string": {str}, "integer": {int}, "number": {float}, "boolean": {bool}}


def first_wrong(values: Sequence[Any], kind: ColumnType) -> tuple[int, str] | None:
    """Return the index of the first value without the column's type, and the reason. Null has every type."""
    # Most columns have a single type, which is checked without a Python step per value.
    if set(map(type, values)) <= _PLAIN[kind]:
        # Integers fit in 64 bits if the smallest and the largest do.
        ends = (min(values), max(values)) if values and kind == "integer" else ()
        if all(is_of(end, kind) for end in ends) and (kind != "number" or all(map(math.isfinite, values))):
            return None
    for index, value in enumerate(values):
        if value is None:
            continue
        if not is_of(value, kind):
            return index, f"no {kind}" + (" of 64 bits" if type(value) is int and kind == "integer" else "")
        if isinstance(value, float) and not math.isfinite(value):
            return index, "not a finite number; use null for an unknown value"
    return None
