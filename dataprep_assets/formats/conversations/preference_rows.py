"""Preference pairs as Parquet: a prompt with a chosen and a rejected answer, as messages and as token ids.

    prompt, chosen, rejected        list<arrow.json>: messages; the prompt is not repeated in the answers
    tools                           arrow.json: the declared tools, null if there are none
    chat_template_kwargs            arrow.json: an object of variables of the template, often empty
    prompt_ids                      list<int32>: the prompt's tokens, which both answers follow
    chosen_ids, rejected_ids        list<int32>: the answers' tokens, with the template's text after them
    chosen_mask, rejected_mask      list<int8>: 1 for tokens that the model writes, 0 for tool results and other text
    prompt_length, …                int32: number of tokens

A row with only a labeled answer has null in the columns of the other side. Messages are JSON, because Arrow would give
each message the keys of all others, and a template would then see arguments that its row does not have. `datasets` 5
reads `arrow.json` as objects. The same rows give the same bytes with the same version of pyarrow.

Entry points: `PreferenceRow`, `write_preferences`, `read_preferences`, `read_lengths`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.parquet_extent import require_no_gaps
from dataprep_assets.formats.parquet_rows import (
    list_stored_values,
    open_reader,
    open_writer,
    parse_schema,
    require_schema,
    to_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

SIDES = ("chosen", "rejected")
Messages = list[dict[str, Any]]
COLUMN_TYPES: Mapping[str, str] = {
    "prompt": "list<arrow.json>",
    "chosen": "list<arrow.json>",
    "rejected": "list<arrow.json>",
    "tools": "arrow.json",
    "chat_template_kwargs": "arrow.json",
    "prompt_ids": "list<int32>",
    "chosen_ids": "list<int32>",
    "rejected_ids": "list<int32>",
    "chosen_mask": "list<int8>",
    "rejected_mask": "list<int8>",
    "prompt_length": "int32",
    "chosen_length": "int32",
    "rejected_length": "int32",
}
"""Type of each column."""
COLUMN_DESCRIPTIONS = {
    "prompt": "Messages before the answers.",
    "chosen": "Messages of the chosen answer.",
    "rejected": "Messages of the rejected answer.",
    "tools": "Declared tools.",
    "chat_template_kwargs": "Variables of the chat template.",
    "prompt_ids": "Token ids of the prompt.",
    **{f"{side}_ids": f"Token ids of the {side} answer." for side in SIDES},
    **{f"{side}_mask": f"1 for tokens of the {side} answer that the model writes." for side in SIDES},
    **{f"{part}_length": f"Number of ids of the {part}." for part in ("prompt", *SIDES)},
}
"""Column → a sentence about it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """One side of a row: its messages, its ids (int32) and its mask (int8), both of shape `(tokens,)`."""

    messages: Messages
    ids: NDArray[np.int32]
    mask: NDArray[np.int8]

    def equals(self, other_answer: "Answer | None") -> bool:
        """Return whether another side has the same messages, ids and mask."""
        return (
            other_answer is not None
            and self.messages == other_answer.messages
            and np.array_equal(self.ids, other_answer.ids)
            and np.array_equal(self.mask, other_answer.mask)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PreferenceRow:
    """A prompt with a chosen and a rejected answer. One of them is None if the row has only one, labeled answer."""

    prompt: Messages
    prompt_ids: NDArray[np.int32]
    chosen_answer: Answer | None
    rejected_answer: Answer | None
    tools: list[dict[str, Any]] | None = None
    kwargs: Mapping[str, Any]

    def get_side(self, name: str) -> Answer | None:
        """Return the `chosen` or the `rejected` answer."""
        return self.chosen_answer if name == "chosen" else self.rejected_answer

    @property
    def answers(self) -> list[Answer]:
        """The row's answers, the chosen answer first."""
        return [answer for answer in (self.chosen_answer, self.rejected_answer) if answer is not None]

    @property
    def tokens(self) -> int:
        """Number of tokens of the prompt and both answers."""
        return len(self.prompt_ids) + sum(len(answer.ids) for answer in self.answers)

    @property
    def length(self) -> int:
        """Number of tokens of the prompt and the longer answer."""
        return len(self.prompt_ids) + max(len(answer.ids) for answer in self.answers)

    def find_differences(self, other_row: "PreferenceRow") -> Iterator[str]:
        """Yield the names of the parts in which two rows differ."""
        if (self.prompt, self.tools, dict(self.kwargs)) != (other_row.prompt, other_row.tools, dict(other_row.kwargs)):
            yield "prompt messages"
        if not np.array_equal(self.prompt_ids, other_row.prompt_ids):
            yield "prompt ids"
        for name in SIDES:
            answer, other_answer = self.get_side(name), other_row.get_side(name)
            if answer is not other_answer and (answer is None or not answer.equals(other_answer)):
                yield f"{name} answer"


def build_schema() -> "pa.Schema":
    """Return the schema of the files."""
    return parse_schema(COLUMN_TYPES)


def write_preferences(path: Path, groups: Iterable[Sequence[PreferenceRow]], *, compression: str = "zstd") -> None:
    """Write each group of rows as a row group of the new Parquet file `path`; only one group is in memory."""
    with open_writer(path, build_schema(), compression=compression) as writer:
        for rows in groups:
            writer.write_table(_build_table(rows), row_group_size=len(rows))


def _build_table(rows: Sequence[PreferenceRow]) -> "pa.Table":
    sides: dict[str, list[Answer | None]] = {name: [row.get_side(name) for row in rows] for name in SIDES}
    columns: dict[str, list[Any]] = {
        "prompt": [row.prompt for row in rows],
        "tools": [row.tools for row in rows],
        "chat_template_kwargs": [dict(row.kwargs) for row in rows],
        "prompt_ids": [row.prompt_ids for row in rows],
        "prompt_length": [len(row.prompt_ids) for row in rows],
    }
    for name, answers in sides.items():
        columns[name] = [answer and answer.messages for answer in answers]
        columns[f"{name}_ids"] = [answer and answer.ids for answer in answers]
        columns[f"{name}_mask"] = [answer and answer.mask for answer in answers]
        columns[f"{name}_length"] = [answer and len(answer.ids) for answer in answers]
    return to_table(columns, build_schema())


def read_preferences(path: Path) -> Iterator[list[PreferenceRow]]:
    """Yield the rows of each row group of a file.

    Raises FormatError if it is damaged or has different columns, or if a row has no prompt or no answer.
    """
    with open_reader(path) as file:
        require_schema(path, file.schema_arrow, build_schema())
        require_no_gaps(path, file.metadata)
        row_count = 0
        for group in range(file.num_row_groups):
            rows = _build_rows(file.read_row_group(group, use_threads=False), path, row_count)
            row_count += len(rows)
            yield rows


def _build_rows(table: "pa.Table", path: Path, start: int) -> list[PreferenceRow]:
    columns = {name: list_stored_values(table.column(name).combine_chunks()) for name in table.column_names}
    rows = []
    for number in range(table.num_rows):
        values = {name: column[number] for name, column in columns.items()}
        location = f"{path}: row {start + number}"
        try:
            answers = {name: _read_answer(values, name) for name in SIDES}
            row = PreferenceRow(
                prompt=[json.loads(text) for text in values["prompt"]],
                prompt_ids=values["prompt_ids"],
                tools=None if values["tools"] is None else json.loads(values["tools"]),
                kwargs=json.loads(values["chat_template_kwargs"]),
                **{f"{name}_answer": answer for name, answer in answers.items()},
            )
        except (TypeError, ValueError) as error:
            raise FormatError(f"{location}: cannot be read: {error}. Rebuild the artifact") from error
        lengths = {"prompt": row.prompt_ids, **{name: a.ids for name, a in answers.items() if a is not None}}
        for name, ids in lengths.items():
            if values[f"{name}_length"] != len(ids):
                raise FormatError(f"{location}: {name}_length differs from the number of its ids. Rebuild the artifact")
        if not row.answers:
            raise FormatError(f"{location}: no answer. Rebuild the artifact")
        rows.append(row)
    return rows


def _read_answer(values: Mapping[str, Any], name: str) -> Answer | None:
    parts = [values[name], values[f"{name}_ids"], values[f"{name}_mask"], values[f"{name}_length"]]
    if all(part is None for part in parts):
        return None
    if any(part is None for part in parts):
        raise ValueError(f"some columns of {name} are null, but not all")
    return Answer(messages=[json.loads(text) for text in parts[0]], ids=parts[1], mask=parts[2])


def read_lengths(path: Path) -> NDArray[np.int64]:
    """Return the token counts of each row's prompt and answers: shape `(rows, 3)`, -1 for a missing answer."""
    names = ["prompt_length", "chosen_length", "rejected_length"]
    with open_reader(path) as file:
        table = file.read(names)
    columns = [table.column(name).fill_null(-1).to_numpy().astype(np.int64) for name in names]
    return np.stack(columns, axis=1)
