"""Taggers: what looks at the texts of documents and says columns of them. They decide nothing; rules do (`rules`).

A tagger is one of four: built in, or of another package by its entry point in the group `dataprep_assets.taggers` (a
`TextTagger`); a function of the user's project, called with a batch of documents (`function_tagger`); a command, which
is given a Parquet file of a whole shard and writes another one (`command_tagger`); or a Dagster asset (`asset_tagger`).
What each gives is checked: its columns and their types, a value a document, no NaN.

Entry points: `Tagger` and its kinds, `tags_of`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dataprep_assets.curation.module_code import describe_error, place_in_project
from dataprep_assets.curation.table import Columns, ColumnType, DocumentBatch, ParquetRows, is_of, side_by_side
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.text_tagger import TextTagger
from dataprep_assets.errors import DataprepError, count_of, raise_alone

KEYS = ("file", "row")
"""The columns by which the output of a command names its rows."""


class TaggingError(DataprepError):
    """A tagger that failed, or gave something else than it has to; names the file and the row."""


@dataclass(frozen=True, kw_only=True)
class Tagger(ABC):
    """A tagger of a dataset. Picklable; `name` is that of its file in the artifact."""

    name: str
    columns: Columns

    @property
    @abstractmethod
    def version(self) -> str:
        """The values that determine its output beside the documents: part of the key of what it gave."""

    @property
    def repeats(self) -> bool:
        """Whether its version decides its values: a function, a command or a package may also use time or chance."""
        return False

    def absent(self) -> str | None:
        """Return what is not found before it is called, in a sentence; another machine, or the module itself, may have
        it."""
        return None

    def located(self) -> "Tagger":
        """Return a copy with whatever has to be looked for where Dagster is known."""
        return self

    def of_files(self, files: Sequence[str]) -> "Tagger":
        """The same as far as it is about some source files, where its version is of these alone."""
        return self

    @property
    def key_parts(self) -> list[Any]:
        """What enters the key of its output: columns in their order, which is that of its file."""
        return [self.name, list(self.columns.items()), self.version]


class BatchTagger(Tagger):
    """A tagger that is called with a batch of documents in this process."""

    @abstractmethod
    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        """Column → a value for each text of the batch."""


class ExternalTagger(Tagger):
    """A tagger that leaves a Parquet file, whose columns are put into the order of the table's rows (`align`)."""

    by: ClassVar[str]
    """What wrote the file, for messages: `the command`."""


class VersionedTagger(BatchTagger):
    """A tagger whose columns, and their order, are decided by its version."""

    @property
    def key_parts(self) -> list[Any]:
        return [self.name, dict(self.columns), self.version]

    @property
    def repeats(self) -> bool:
        return True


class BuiltInTagger(VersionedTagger):
    """A tagger of this package or another, by its name."""

    @property
    def version(self) -> str:
        return named_tagger(self.name).version()

    @property
    def repeats(self) -> bool:
        return TAGGERS[self.name].is_own

    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        return named_tagger(self.name).tag(batch.texts)


def named_tagger(name: str) -> TextTagger:
    """The tagger with this name, of this package or of another.

    Raises ConfigError if there is none, several packages have one, or it cannot be imported.
    """
    extension = TAGGERS[name]
    tagger = extension.load()
    if not isinstance(tagger, TextTagger):
        raise extension.unfit("not a TextTagger")
    return tagger


def _column(table: Any, name: str, where: str) -> list[Any]:
    """The values of a column; raises TaggingError where one has no value in Python, without showing it."""
    try:
        values: list[Any] = table[name].to_pylist()
    except (ValueError, OverflowError):  # text that is not UTF-8, a date beyond the year 9999
        raise TaggingError(f"{where}: {name} has a value that is not UTF-8, or an invalid date") from None
    return values


def align(tagger: ExternalTagger, made: Path, rows: Path, target: Path, shard: str, *, sensitive: bool) -> None:
    """Write the file of an external tagger's columns from what it wrote, in the order of the table's rows.

    Args:
        tagger: A command, or an asset.
        made: What it wrote, a Parquet file.
        rows: The rows of the table.
        target: The file to write.
        shard: The shard, for messages.
        sensitive: No message shows anything of `made`.

    Raises TaggingError if a row is missing, is there twice, is none of the shard's, or has a value of a wrong type.
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
    # A tool may write its rows in any order: by file and row each value goes back to its place.
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
        for piece in side_by_side([rows], [*KEYS, "bad"]):
            row_positions: list[int | None] = []
            for file, row, bad in zip(*(piece[name].to_pylist() for name in (*KEYS, "bad")), strict=True):
                if (position := positions.get((file, row))) is None and bad is None:
                    raise TaggingError(f"{where} has no {file}, row {row}, but must have every input row")
                # a refused row has no text: it was not given, and has no values
                row_positions.append(position if bad is None else None)
            expected_rows += sum(position is not None for position in row_positions)
            writer.add(
                {
                    name: [None if position is None else v[position] for position in row_positions]
                    for name, v in columns.items()
                }
            )
    # rows that were not taken are none of the shard's
    if expected_rows < len(keys):
        raise TaggingError(f"{where} has {count_of(len(keys), 'row')}, but the input has {expected_rows:,}")


def tags_of(tagger: BatchTagger, batch: DocumentBatch, *, sensitive: bool) -> dict[str, list[Any]]:
    """Return what a tagger says of the texts of a batch: column → values, checked.

    Raises TaggingError, naming the row, if it raises or gives something else than its columns.
    """
    try:
        columns = _list_columns(tagger, batch)
    # an error of this project's, as of a module that cannot be imported, is not one of a row
    except DataprepError:
        raise
    except (Exception, SystemExit) as error:  # whatever a function of the user's raises
        # asked once more, text by text, to name the row
        index = _culprit(tagger, batch)
        place = place_in_project(error)
        where = f"row {batch.row(index)}" if index is not None else f"rows {batch.row(0)} and after"
        why = type(error).__name__ if sensitive else describe_error(error)
        text = f"{batch.label}: {where}: tagger {tagger.name!r} raised {why}{f' ({place})' if place else ''}"
        if sensitive:  # the message of the cause may quote a text
            raise_alone(TaggingError(text, code=place) if place else TaggingError(text))
        raise TaggingError(text) from error
    if not isinstance(columns, Mapping) or set(columns) != set(tagger.columns):
        if sensitive:  # what it gave may be the text
            answer = "something else"
        else:
            answer = ", ".join(map(str, columns)) if isinstance(columns, Mapping) else type(columns).__name__
        raise TaggingError(
            f"{batch.label}: tagger {tagger.name!r} returned {answer}, but its columns are {', '.join(tagger.columns)}"
        )
    return {name: _values(tagger, name, columns[name], batch, sensitive=sensitive) for name in tagger.columns}


def _list_columns(tagger: BatchTagger, batch: DocumentBatch) -> Any:
    """Return what a tagger gives, with its columns as lists; where it gives no columns, as it is."""
    columns = tagger.look(batch)
    return {name: _list(values) for name, values in columns.items()} if isinstance(columns, Mapping) else columns


def _list(values: Any) -> list[Any]:
    # columns of Arrow have the first, arrays of NumPy and series of pandas the second
    plain = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    return list(values if plain is None else plain())


def _culprit(tagger: BatchTagger, batch: DocumentBatch) -> int | None:
    """The first text that a tagger cannot look at alone; None if it can look at each."""
    for index in range(len(batch.texts)):
        try:
            _list_columns(tagger, batch.only(slice(index, index + 1)))
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


# Of numbers floats alone: a whole number may be larger than any of them, and is judged by itself.
_PLAIN: Mapping[ColumnType, set[type]] = {"string": {str}, "integer": {int}, "number": {float}, "boolean": {bool}}


def first_wrong(values: Sequence[Any], kind: ColumnType) -> tuple[int, str] | None:
    """The first value that is not of a column's type, and why; null is of every type."""
    # most columns are of one type, and these are judged without a Python step for each value
    if set(map(type, values)) <= _PLAIN[kind]:
        # whole numbers fit 64 bits if the least and the largest do
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
