"""Taggers, which compute columns from the texts of documents. Only rules drop documents (`rules`).

There are six kinds of taggers. A `TextTagger` is built in, or from another package by its entry point in the group
`dataprep_assets.taggers`. A function of the user's project is called with a batch of documents (`function_tagger`). A
command reads a Parquet file of a whole shard and writes another one (`command_tagger`). A Dagster asset wrote Parquet
files (`asset_tagger`). A tagger of `web` looks up the URL of a document. A tagger of `classifiers` applies a model of
the user to its text. The output of taggers is checked: columns and types, one value per document, no NaN.

Entry points: `Tagger` and its kinds, `compute_tags`.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from dataprep_assets.curation.module_code import describe_error, locate_in_project
from dataprep_assets.curation.table import (
    Columns,
    ColumnType,
    DocumentBatch,
    ParquetRowWriter,
    has_type,
    read_joined_tables,
)
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.text_tagger import TextTagger
from dataprep_assets.errors import DataprepError, count_of, raise_detached

KEYS = ("file", "row")
"""The columns that identify rows in the output of a command."""


class TaggingError(DataprepError):
    """Error for a tagger that failed or returned invalid output. It names the file and the row."""


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

    @property
    def is_shared(self) -> bool:
        """Whether workers share its models and tables.

        A function or a model of the user may start threads, which prevents sharing.
        """
        return False

    @property
    def is_local(self) -> bool:
        """Whether it needs no download. A check of the declaration does not call the tagger before the download."""
        return True

    @property
    def reads(self) -> Columns:
        """The columns of the carried fields that it needs, in addition to the text."""
        return {}

    @property
    def descriptions(self) -> Mapping[str, str]:
        """Column → a sentence about it."""
        return dict.fromkeys(self.columns, f"Value of the tagger `{self.name}`.")

    @property
    def missing(self) -> Mapping[str, str]:
        """Column → the noun for its missing values, for columns whose missing values a check reports."""
        return {}

    def explain_missing(self) -> str | None:
        """Return a sentence if the tagger cannot be found without calling it; otherwise None.

        A tagger that is not found may still exist on another machine, or after the module is imported.
        """
        return None

    def resolve_paths(self) -> "Tagger":
        """Return a copy with all values that can only be found where Dagster is available."""
        return self

    def limit_to_files(self, files: Sequence[str]) -> "Tagger":
        """Return a copy whose version depends only on these source files, if the tagger supports this."""
        return self

    @property
    def key_parts(self) -> list[Any]:
        """The parts of its output's key. Columns are in order, because the file has this order."""
        return [self.name, list(self.columns.items()), self.version]


class BatchTagger(Tagger):
    """A tagger that is called with a batch of documents in this process."""

    @abstractmethod
    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        """Return column → a value for each text of the batch."""


class ExternalTagger(Tagger):
    """A tagger that writes a Parquet file, which `write_aligned_columns` reorders to match the table's rows."""

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


@dataclass(frozen=True, kw_only=True)
class BuiltInTagger(VersionedTagger):
    """A tagger of this or another package, by name, with the settings that differ from its defaults."""

    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        version = self.load().version()
        return f"{version}, {json.dumps(self.settings, sort_keys=True)}" if self.settings else version

    @property
    def repeats(self) -> bool:
        return TAGGERS[self.name].is_own

    @property
    def is_shared(self) -> bool:
        return self.repeats

    def load(self) -> TextTagger:
        """Return the tagger with its settings."""
        tagger = load_tagger(self.name)
        if not self.settings:
            return tagger
        assert tagger.configure is not None
        return tagger.configure(**self.settings)

    @property
    def descriptions(self) -> Mapping[str, str]:
        return {**super().descriptions, **self.load().descriptions}

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        return self.load().tag(batch.texts)


def build_preparation(taggers: Iterable[Tagger]) -> Callable[[], object]:
    """Return a function that loads what taggers need, so that workers that are forked later share it."""
    return partial(
        _load_taggers, [tagger for tagger in taggers if isinstance(tagger, BatchTagger) and tagger.is_shared]
    )


def _load_taggers(taggers: Sequence[BatchTagger]) -> None:
    import pyarrow as pa

    # The first conversion of Arrow imports pandas if it is installed, which takes longer than importing Arrow.
    pa.array([0])
    for tagger in taggers:
        tagger.tag_batch(DocumentBatch(rows={"row": [1]}, good=[0], texts=["a"], label=""))


def describe_tagger_columns(taggers: Iterable[Tagger]) -> dict[str, str]:
    """Return column → a sentence about it, for the columns of some taggers."""
    return {column: text for tagger in taggers for column, text in tagger.descriptions.items()}


def load_tagger(name: str) -> TextTagger:
    """Return the tagger with this name, of this or another package.

    Raises ConfigError if it does not exist, if several packages define it, or if it cannot be imported.
    """
    extension = TAGGERS[name]
    tagger = extension.load()
    if not isinstance(tagger, TextTagger):
        raise extension.build_unfit_error("is not a TextTagger")
    return tagger


def _read_column(table: Any, name: str, location: str) -> list[Any]:
    """Return the values of a column.

    Raises TaggingError, without showing the value, for a value that Python cannot represent.
    """
    try:
        values: list[Any] = table[name].to_pylist()
    except (ValueError, OverflowError):  # the text is not UTF-8, or a date is beyond the year 9999
        raise TaggingError(
            f"{location}: column {name!r} has text that is not UTF-8, or an invalid date. Write valid values"
        ) from None
    return values


def write_aligned_columns(
    tagger: ExternalTagger, output_path: Path, rows: Path, target: Path, shard: str, *, sensitive: bool
) -> None:
    """Write the columns of an external tagger, in the order of the table's rows.

    Args:
        tagger: A command, or an asset.
        output_path: The Parquet file that it wrote.
        rows: The rows of the table.
        target: The file to write.
        shard: The shard, for messages.
        sensitive: Whether messages must not show the content of `output_path`.

    Raises TaggingError if a row is missing, repeated or not in the shard, or if a value has a wrong type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    producer = tagger.by
    location = f"tag: {tagger.name}: {shard}: the Parquet file of {producer}"
    try:
        table = pq.ParquetFile(output_path, page_checksum_verification=True).read()
    except (pa.ArrowException, OSError) as error:
        raise TaggingError(f"{location} is incomplete or damaged: {error}. Write a complete file") from error
    if missing := [name for name in (*KEYS, *tagger.columns) if name not in table.column_names]:
        columns_text = "" if sensitive else f" (found {', '.join(table.column_names)})"
        raise TaggingError(f"{location} has no column {missing[0]!r}{columns_text}")
    if duplicate_columns := [name for name in (*KEYS, *tagger.columns) if table.column_names.count(name) > 1]:
        raise TaggingError(f"{location} has the column {duplicate_columns[0]!r} twice. Write each column once")
    # Match values by file and row, because a tool may write rows in any order.
    keys = list(zip(*(_read_column(table, name, location) for name in KEYS), strict=True))
    if not all(isinstance(file, str) and isinstance(row, int | float) for file, row in keys):
        raise TaggingError(f"{location}: column `file` must contain strings and `row` integers, in every row")
    positions = {key: position for position, key in enumerate(keys)}
    if len(positions) < len(keys):
        repeated_key = next(key for position, key in enumerate(keys) if positions[key] != position)
        raise TaggingError(
            f"{location} has {'a row' if sensitive else f'row {repeated_key[1]} of {repeated_key[0]}'} more than "
            "once. Write one row per input row"
        )
    columns = {}
    for name, kind in tagger.columns.items():
        values = _read_column(table, name, location)
        if (wrong_value := find_first_wrong(values, kind)) is not None:
            file, row = keys[wrong_value[0]]
            raise TaggingError(
                f"{location}: {'' if sensitive else f'{file}: row {row}: '}{name} is {wrong_value[1]}. Write "
                "values of the declared type"
            )
        columns[name] = values
    expected_rows = 0
    with ParquetRowWriter(target, tagger.columns) as writer:
        for piece in read_joined_tables([rows], [*KEYS, "bad"]):
            row_positions: list[int | None] = []
            for file, row, is_bad in zip(*(piece[name].to_pylist() for name in (*KEYS, "bad")), strict=True):
                if (position := positions.get((file, row))) is None and is_bad is None:
                    raise TaggingError(f"{location} lacks row {row} of {file}. Write one row per input row")
                # A refused row has no values, because it has no text and was not part of the tool's input.
                row_positions.append(position if is_bad is None else None)
            expected_rows += sum(position is not None for position in row_positions)
            writer.add(
                {
                    name: [None if position is None else v[position] for position in row_positions]
                    for name, v in columns.items()
                }
            )
    # Refuse an output with additional rows, because they do not belong to the shard.
    if expected_rows < len(keys):
        raise TaggingError(
            f"{location} has {count_of(len(keys), 'row')}, but the input has {expected_rows:,}. Write one row per "
            "input row"
        )


def compute_tags(tagger: BatchTagger, batch: DocumentBatch, *, sensitive: bool) -> dict[str, list[Any]]:
    """Return a tagger's values for the texts of a batch: column → values, checked.

    Raises TaggingError, naming the row, if the tagger raises or returns different columns.
    """
    try:
        columns = _list_columns(tagger, batch)
    # Do not name a row for an error of this package, such as a failed import, because no row caused it.
    except DataprepError:
        raise
    except (Exception, SystemExit) as error:  # the user's function may raise any error
        # Tag the texts again one by one, to find the row that causes the error.
        index = _find_failing_text(tagger, batch)
        place = locate_in_project(error)
        location = f"row {batch.find_row(index)}" if index is not None else f"rows {batch.find_row(0)} and after"
        reason = type(error).__name__ if sensitive else describe_error(error)
        text = f"{batch.label}: {location}: tagger {tagger.name!r} raised {reason}{f' ({place})' if place else ''}"
        if sensitive:  # the cause's message may quote a text
            raise_detached(TaggingError(text, code=place) if place else TaggingError(text))
        raise TaggingError(text) from error
    if not isinstance(columns, Mapping) or set(columns) != set(tagger.columns):
        if sensitive:  # the returned names may quote a text
            answer = "different columns"
        else:
            answer = ", ".join(map(str, columns)) if isinstance(columns, Mapping) else type(columns).__name__
        raise TaggingError(
            f"{batch.label}: tagger {tagger.name!r} returned {answer}, but declares the columns "
            f"{', '.join(tagger.columns)}. Return exactly these columns"
        )
    return {name: _check_values(tagger, name, columns[name], batch, sensitive=sensitive) for name in tagger.columns}


def _list_columns(tagger: BatchTagger, batch: DocumentBatch) -> Any:
    """Return a tagger's output with its columns as lists, or the output itself if it is not a mapping."""
    columns = tagger.tag_batch(batch)
    return (
        {name: _convert_to_list(values) for name, values in columns.items()}
        if isinstance(columns, Mapping)
        else columns
    )


def _convert_to_list(values: Any) -> list[Any]:
    # Try both names, because Arrow columns have `to_pylist`, but NumPy arrays and pandas series have `tolist`.
    plain = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    return list(values if plain is None else plain())


def _find_failing_text(tagger: BatchTagger, batch: DocumentBatch) -> int | None:
    """Return the index of the first text that raises by itself; None if no text does."""
    for index in range(len(batch.texts)):
        try:
            _list_columns(tagger, batch.slice_texts(slice(index, index + 1)))
        except (Exception, SystemExit):
            return index
    return None


def _check_values(tagger: Tagger, name: str, values: list[Any], batch: DocumentBatch, *, sensitive: bool) -> list[Any]:
    if len(values) != len(batch.texts):
        raise TaggingError(
            f"{batch.label}: rows {batch.find_row(0)} and after: tagger {tagger.name!r} returned "
            f"{count_of(len(values), 'value')} of {name} for {count_of(len(batch.texts), 'document')}. Return one "
            "value per document"
        )
    if (wrong_value := find_first_wrong(values, tagger.columns[name])) is not None:
        index, reason = wrong_value
        description = "" if sensitive else f" {values[index]!r:.60}"
        raise TaggingError(
            f"{batch.label}: row {batch.find_row(index)}: tagger {tagger.name!r}: {name}{description} is {reason}. "
            "Return values of the declared type"
        )
    return values


# `number` excludes int, because an integer may exceed the range of floats. `has_type` checks integers one by one.
_PLAIN: Mapping[ColumnType, set[type]] = {"string": {str}, "integer": {int}, "number": {float}, "boolean": {bool}}


def find_first_wrong(values: Sequence[Any], kind: ColumnType) -> tuple[int, str] | None:
    """Return the index of the first value without the column's type, and the reason. Null has every type."""
    # Check the set of types first, because most columns have a single type and then need no Python step per value.
    if set(map(type, values)) <= _PLAIN[kind]:
        # Check only the smallest and the largest integer, because all others fit in 64 bits if these do.
        ends = (min(values), max(values)) if values and kind == "integer" else ()
        if all(has_type(end, kind) for end in ends) and (kind != "number" or all(map(math.isfinite, values))):
            return None
    for index, value in enumerate(values):
        if value is None:
            continue
        if not has_type(value, kind):
            is_too_large = type(value) is int and kind == "integer"
            return index, "not a 64-bit integer" if is_too_large else f"not {'an' if kind == 'integer' else 'a'} {kind}"
        if isinstance(value, float) and not math.isfinite(value):
            return index, "not a finite number; use null for an unknown value"
    return None
