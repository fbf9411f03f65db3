"""Shared parts of Parquet views of RL records: the columns, which depend on the records, and the files.

A first pass over the records determines the columns' types, because all files of a view must have the same types:
trainers concatenate them. Values that have no column are stored in the column `record`, as JSON text.

Entry points: `RecordColumns`, `ParquetRecords`, `build_parquet_view`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.errors import BadRecordError, count_of
from dataprep_assets.formats.conversations.record_parquet import (
    CARD,
    OPTIONAL_KEYS,
    ROW_GROUP,
    build_file_name,
    build_message_type,
    decode_messages,
    encode_card,
    encode_messages,
)
from dataprep_assets.formats.json_columns import (
    ABSENT_VALUE,
    Shape,
    build_column_type,
    decode,
    encode,
    is_equal,
    is_native,
    merge_value,
    to_json,
)
from dataprep_assets.formats.parquet_rows import read_rows, write_rows
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.rl.chat_messages import convert_to_chat_messages
from dataprep_assets.pipelines.blend.rl.record_parts import Path as Location
from dataprep_assets.pipelines.blend.rl.record_parts import find_value, remove_paths
from dataprep_assets.pipelines.blend.rl.view import RecordSplit, RecordView, RecordViewFacts, SplitRecord
from dataprep_assets.pipelines.blend.view import BlendViewWriter
from dataprep_assets.stores.files import create_durably, sha256_file

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class RecordColumns:
    """Column types of a view, which its records determine.

    Attributes:
        answer: Shape of the expected answers.
        message_keys: Optional message keys that occur in the records.
        has_tools: Whether a record has tools.
        texts: Top-level fields of the view that contain a string in at least one record.
        values: Shapes of the values that the view needs as native columns, by location.
    """

    answer: Shape | None = None
    message_keys: set[str] = field(default_factory=set)
    has_tools: bool = False
    texts: set[str] = field(default_factory=set)
    values: dict[Location, Shape | None] = field(default_factory=dict)

    @classmethod
    def scan(
        cls, splits: Iterable[RecordSplit], store: ArtifactStore, texts: Sequence[str], values: Sequence[Location]
    ) -> "RecordColumns":
        """Return the columns for all records. Raises BadRecordError if the records do not fit into columns."""
        columns = cls()
        value_counts = dict.fromkeys(values, 0)
        total = 0
        for split in splits:
            for record in split.read_records(store):
                parts = record.parts
                columns._add_messages(record)
                if (answer := parts.get_value(parts.answer)) is not ABSENT_VALUE:
                    columns.answer = merge_value(columns.answer, answer)
                columns.has_tools |= parts.tools is not None
                columns.texts.update(name for name in texts if parts.get_text(name) is not None)
                for location in values:
                    if (value := find_value(parts.record, location)) is not ABSENT_VALUE:
                        columns.values[location] = merge_value(columns.values.get(location), value)
                        value_counts[location] += 1
                total += 1
        for location, shape in columns.values.items():
            # Require the same keys and types in every record, because Parquet would fill a missing key with null, which
            # the trainer would read as a value.
            if value_counts[location] != total or not (is_native(shape) or is_text_column(shape)):
                raise BadRecordError(
                    f"`{'.'.join(location)}` must have the same keys and types in every record (it is in "
                    f"{value_counts[location]} of {count_of(total, 'record')}). Change the records with a transform"
                )
        return columns

    def _add_messages(self, record: SplitRecord) -> None:
        for message in require_messages(record):
            self.message_keys.update(key for key in OPTIONAL_KEYS if key in message)

    def build_schema_fields(self) -> "dict[str, pa.DataType]":
        """Return the column types of the prompt, the expected answer, and the native values, by column."""
        return {
            "prompt": build_message_type(self.message_keys),
            "answer": build_column_type(self.answer),
            **{location[-1]: build_column_type(shape) for location, shape in self.values.items()},
        }

    @property
    def answer_type(self) -> str:
        """Arrow type of the column of expected answers, as text."""
        return str(build_column_type(self.answer))


def is_text_column(shape: Shape | None) -> bool:
    """Return whether all values of a column are strings."""
    return getattr(shape, "name", None) == "string"


def require_messages(record: SplitRecord) -> list[dict[str, Any]]:
    """Return the messages of a record's prompt. Raises BadRecordError, naming the record, for an invalid prompt."""
    try:
        return convert_to_chat_messages(record.parts.get_value(record.parts.prompt))
    except BadRecordError as error:
        raise record.refuse(error) from None


@dataclass(frozen=True, kw_only=True)
class ParquetRecords:
    """A Parquet format for records.

    Attributes:
        texts: Fields with their own column, which has the value of each record in which the field is a string.
        values: Locations of values that are native columns.
        schema: Returns the schema for the columns.
        row: Returns the row of a record, given its shared values and its split.
        shared: Returns the shared values of a row. Its `texts` are only the texts that the row stores unchanged.
        compare: Returns additional values to compare, by name: the row's value and the record's value.
    """

    texts: tuple[str, ...]
    values: tuple[Location, ...]
    schema: "Callable[[RecordColumns], pa.Schema]"
    row: Callable[["SharedValues", SplitRecord, str], dict[str, Any]]
    shared: Callable[[Mapping[str, Any]], "SharedValues"]
    compare: Callable[[Mapping[str, Any], SplitRecord], Mapping[str, tuple[Any, Any]]]

    def scan_columns(self, splits: Iterable[RecordSplit], store: ArtifactStore) -> RecordColumns:
        """Return the column types of a view of these splits."""
        return RecordColumns.scan(splits, store, self.texts, self.values)

    def find_columns(self, record: SplitRecord, messages: Sequence[Mapping[str, Any]]) -> list[Location]:
        """Return the locations of the values that have their own column, so that `record` does not repeat them."""
        parts = record.parts
        column_paths = [path for path in (parts.answer, parts.tools) if path is not None]
        prompt = parts.get_value(parts.prompt)
        # Omit the prompt from `record` only if it can be restored from the messages: if it is a string, or if the
        # encoded messages decode to the same value.
        if isinstance(prompt, str) or is_equal(decode_messages(encode_messages(messages, OPTIONAL_KEYS)), prompt):
            column_paths.append(parts.prompt)
        column_paths += [(name,) for name in self.texts if parts.get_text(name) is not None]
        return column_paths + [
            location for location in self.values if find_value(parts.record, location) is not ABSENT_VALUE
        ]

    def build_rows(
        self, split: RecordSplit, columns: RecordColumns, records: Iterable[SplitRecord]
    ) -> Iterator[dict[str, Any]]:
        """Yield a row of the format for each record."""
        for record in records:
            parts, messages = record.parts, require_messages(record)
            answer, answer_format = encode(parts.get_value(parts.answer), columns.answer)
            tools = parts.get_value(parts.tools)
            values = SharedValues(
                prompt=encode_messages(messages, columns.message_keys),
                answer=answer,
                answer_format=answer_format,
                tools=None if tools is ABSENT_VALUE else to_json(tools),
                texts={name: parts.get_text(name) for name in self.texts},
                values={location[-1]: find_value(parts.record, location) for location in columns.values},
                record=to_json(remove_paths(parts.record, self.find_columns(record, messages))),
            )
            yield self.row(values, record, split.split)

    def find_difference(self, row: Mapping[str, Any], record: SplitRecord) -> str | None:
        """Return the name of the first value in which a decoded row differs from its record; None if they are equal."""
        values, parts, messages = self.shared(row), record.parts, require_messages(record)
        pairs: dict[str, tuple[Any, Any]] = {
            "prompt": (decode_messages(values.prompt), messages),
            "answer": (decode(values.answer, values.answer_format), parts.get_value(parts.answer)),
            "tools": (ABSENT_VALUE if values.tools is None else json.loads(values.tools), parts.get_value(parts.tools)),
            "record": (json.loads(values.record), remove_paths(parts.record, self.find_columns(record, messages))),
            **{name: (text, parts.get_text(name)) for name, text in values.texts.items()},
            **{
                ".".join(location): (values.values.get(location[-1], ABSENT_VALUE), find_value(parts.record, location))
                for location in self.values
            },
            **self.compare(row, record),
        }
        return next((name for name, pair in pairs.items() if not is_equal(*pair)), None)


@dataclass(frozen=True, kw_only=True)
class SharedValues:
    """Values that a row has in every format, as they are stored."""

    prompt: list[dict[str, Any]]
    answer: Any
    answer_format: Any
    tools: str | None
    texts: Mapping[str, str | None]
    values: Mapping[str, Any]
    record: str


def list_parquet_files(split: RecordSplit) -> list[str]:
    """Return the names of a split's files."""
    return [build_file_name(split.name, number, len(split.groups)) for number in range(len(split.groups))]


def _write_files(form: ParquetRecords, splits: Sequence[RecordSplit], view: BlendViewWriter) -> None:
    """Write the Parquet files of every split, and the dataset card."""
    columns = form.scan_columns(splits, view.store)
    schema = form.schema(columns)

    def write(split: RecordSplit, group: int, name: str) -> str:
        # Keep an existing file, because a file gets its final name only when it is complete, and its content depends
        # only on the run's records.
        if not (path := view.target / name).exists():
            write_rows(
                path, schema, form.build_rows(split, columns, split.read_records(view.store, group)), group=ROW_GROUP
            )
        return sha256_file(path)

    files = [(split, group, name) for split in splits for group, name in enumerate(list_parquet_files(split))]
    with ThreadPoolExecutor(view.threads) as pool:
        digests = pool.map(lambda file: write(*file), files)
        view.digests.update({name: digest for (*_, name), digest in zip(files, digests, strict=True)})
    with create_durably(view.target / CARD) as file:
        file.write(_build_card(view.blend.dataset, splits, view.digests))


def _build_card(dataset: str, splits: Sequence[RecordSplit], digests: Mapping[str, str]) -> bytes:
    return encode_card(
        dataset, {split.name: {name: digests[name] for name in list_parquet_files(split)} for split in splits}
    )


def _read_records(directory: Path, split: RecordSplit) -> Iterator[dict[str, Any]]:
    for name in list_parquet_files(split):
        yield from read_rows(directory / name, group=ROW_GROUP)


def _find_defects(
    form: ParquetRecords, directory: Path, receipt: Receipt, splits: Sequence[RecordSplit], store: ArtifactStore
) -> Iterator[str]:
    """Yield a sentence for an incorrect card, for each row without a prompt, and for each incorrect number of rows."""
    digests = {record.path: record.sha256 for record in receipt.files}
    if (directory / CARD).read_bytes() != _build_card(receipt.dataset, splits, digests):
        yield f"{directory / CARD}: does not list the files of the view with their digests"
    schema = form.schema(form.scan_columns(splits, store))
    for split in splits:
        rows = 0
        for name in list_parquet_files(split):
            for row in read_rows(directory / name, schema, group=ROW_GROUP):
                # Require a prompt whose messages have roles, because every trainer renders the prompt with a chat
                # template.
                if not row["prompt"] or any(not message["role"] for message in row["prompt"]):
                    yield f"{directory / name}: row {rows} of {split.split} has no prompt, or a message without a role"
                rows += 1
        if rows != split.rows:
            yield f"{directory}: {split.split} has {count_of(rows, 'row')}, but the run has {split.rows:,}"


def build_parquet_view(
    name: str,
    description: str,
    form: ParquetRecords,
    *,
    columns: Mapping[str, str],
    column_descriptions: Mapping[str, str],
    trainer: Callable[[str, RecordViewFacts], Iterator[str]],
) -> RecordView:
    """Return the view that writes records as Parquet files in the format `form`."""
    return RecordView(
        name=name,
        description=description,
        kinds=frozenset({"parquet", "huggingface"}),
        settings=("record_locations",),
        columns=columns,
        column_descriptions=column_descriptions,
        files=list_parquet_files,
        write=partial(_write_files, form),
        read=_read_records,
        difference=form.find_difference,
        defects=partial(_find_defects, form),
        trainer=trainer,
    )
