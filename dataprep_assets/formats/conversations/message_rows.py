"""Conversations as messages, for trainers that render them: Parquet and JSON Lines.

    <split>/data-<i:05d>-of-<n:05d>.parquet    for readers that use Arrow
    <split>.jsonl                              for readers that parse each line
    README.md                                  the Parquet files, for `load_dataset`

A line of a JSON Lines file contains the unchanged conversation: `messages`, `tools` if there are any, `extra_info`
with the source file and row, and the row's `chat_template_kwargs`. Keys that a message does not have are absent.

Arrow gives all rows the same keys, at every depth: a call with the argument `city` would get a null `hour` because of
another row. In Parquet, the parts that differ between rows are therefore JSON text: `tools`, the `arguments` of calls,
and `other_keys` (keys without a column). The struct `messages` has each key that any message of the view has, and the
key is null in other messages. A view without calls has no `tool_calls`, because some templates treat a null as a call.

JSON text has the separators of `json.dumps`, like the `tojson` of transformers, so that templates write the same text.
A call without `function` gets one in both files, as in OpenAI's format.

Entry points: `build_row`, `MessageKeys`, `write_files`, `write_parquet`, `read_lines`, `read_parquet`; `restore`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError
from dataprep_assets.formats import json_lines
from dataprep_assets.formats.conversations.sft_rows import split_name
from dataprep_assets.formats.parquet_rows import open_reader, read_rows, require_schema, write_rows
from dataprep_assets.stores.files import create_durably, digest_value

if TYPE_CHECKING:
    import pyarrow as pa

CARD = "README.md"
COLUMNS = {"messages": "list<struct>", "tools": "string", "extra_info": "struct"}
"""Value type of each column."""
COLUMN_DESCRIPTIONS = {
    "messages": "Messages of the conversation, each with a role and its content.",
    "tools": "Declared tools, as JSON.",
    "extra_info": "Origin of the conversation, and the variables of its chat template.",
}
"""Column → a sentence about it."""
_KEYS = {
    "role": "string",
    "content": "string",
    "reasoning_content": "string",
    "name": "string",
    "tool_call_id": "string",
    "weight": "double",
    "train": "bool",
    "tool_calls": "calls",
    "other_keys": "string",
}
"""Keys of a message in Parquet, in this order, with their types."""
_REQUIRED_KEYS = {"role", "content"}
_ROWS = 1000
"""Conversations in a row group."""
Message = dict[str, Any]


def build_parquet_name(split: str, number: int, count: int) -> str:
    """Return the path of a Parquet file of a split."""
    return f"{split_name(split)}/data-{number:05d}-of-{count:05d}.parquet"


def build_lines_name(split: str) -> str:
    """Return the path of a split's JSON Lines file."""
    return f"{split_name(split)}.jsonl"


def build_row(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
    file: str,
    row: int,
) -> dict[str, Any]:
    """Return the row of a conversation in the form of JSON Lines.

    Raises FormatError for content that is not a string.
    """
    for number, message in enumerate(messages):
        if not isinstance(message.get("content", ""), str):
            raise FormatError(
                f"{file}: row {row}, message {number}: `content` is not a string, so Arrow cannot store it in the "
                "same column as strings. Set `sft: {join_text_parts: true}`, or remove the view `messages`"
            )
    info = {"file": file, "row": row, **({"chat_template_kwargs": dict(kwargs)} if kwargs else {})}
    return {
        "messages": [_wrap_calls(message) for message in messages],
        **({"tools": list(tools)} if tools else {}),
        "extra_info": info,
    }


def _wrap_calls(message: Mapping[str, Any]) -> Message:
    if not message.get("tool_calls"):
        return dict(message)
    calls = [call if "function" in call else {"type": "function", "function": call} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


_format_text = json.JSONEncoder(ensure_ascii=False).encode
"""Return a value as JSON text. The encoder is shared, because `json.dumps` builds one for each value."""


@dataclass
class MessageKeys:
    """Keys that occur in the messages and calls of a view."""

    message: set[str] = field(default_factory=lambda: set(_REQUIRED_KEYS))
    has_call_ids: bool = False

    def add(self, messages: Iterable[Message]) -> None:
        """Add the keys of a row's messages, which are in their Parquet form."""
        for message in messages:
            if message.keys() == _REQUIRED_KEYS:
                continue
            self.message.update(message)
            self.has_call_ids = self.has_call_ids or any("id" in call for call in message.get("tool_calls", ()))

    def update(self, keys: "MessageKeys") -> None:
        """Add the keys of more rows of the view."""
        self.message |= keys.message
        self.has_call_ids = self.has_call_ids or keys.has_call_ids

    def build_schema(self) -> "pa.Schema":
        """Return the schema of the Parquet files."""
        import pyarrow as pa

        function = pa.struct([("name", pa.string()), ("arguments", pa.string())])
        ids = [("id", pa.string())] if self.has_call_ids else []
        types = {
            "string": pa.string(),
            "double": pa.float64(),
            "bool": pa.bool_(),
            "calls": pa.list_(pa.struct([*ids, ("type", pa.string()), ("function", function)])),
        }
        message = pa.struct([(key, types[kind]) for key, kind in _KEYS.items() if key in self.message])
        info = pa.struct([("file", pa.string()), ("row", pa.int64()), ("chat_template_kwargs", pa.string())])
        return pa.schema([("messages", pa.list_(message)), ("tools", pa.string()), ("extra_info", info)])


def _convert_message(message: Mapping[str, Any]) -> Message:
    """Return a message in its Parquet form."""
    # Take a fast path for most messages, which have only the required keys, with strings as values.
    if message.keys() == _REQUIRED_KEYS and all(type(value) is str for value in message.values()):
        return dict(message)
    values, other_values = dict[str, Any](), dict[str, Any]()
    for key, value in message.items():
        if key == "tool_calls" and value and all(map(_is_plain, value)):
            values[key] = [_convert_call(call) for call in value]
        elif key in _KEYS and key not in ("tool_calls", "other_keys") and _has_type(value, _KEYS[key]):
            values[key] = value
        else:
            other_values[key] = value
    # If any call has a key or a type that a column cannot hold, keep all calls of the message whole in `other_keys`.
    # Also build calls with only the standard keys, so that templates render them.
    if other_values.get("tool_calls"):
        values["tool_calls"] = [_convert_call(call) for call in other_values["tool_calls"]]
    return {**values, **({"other_keys": _format_text(other_values)} if other_values else {})}


def _has_type(value: Any, kind: str) -> bool:
    if kind == "double":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "bool": bool}[kind])


def _is_plain(call: Mapping[str, Any]) -> bool:
    """Return whether a call has only the keys of a call in Parquet."""
    is_known = call.keys() <= {"id", "type", "function"} and call["function"].keys() == {"name", "arguments"}
    return is_known and isinstance(call.get("id", ""), str) and isinstance(call.get("type", None), str)


def _convert_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function, id_ = call["function"], call.get("id")
    return {
        **({"id": id_} if isinstance(id_, str) else {}),
        "type": "function",
        "function": {"name": function["name"], "arguments": _format_text(function["arguments"])},
    }


def _convert_row(row: Mapping[str, Any]) -> dict[str, Any]:
    info, kwargs = row["extra_info"], row["extra_info"].get("chat_template_kwargs")
    return {
        "messages": [_convert_message(message) for message in row["messages"]],
        "tools": _format_text(row["tools"]) if "tools" in row else None,
        "extra_info": {**info, "chat_template_kwargs": None if kwargs is None else _format_text(kwargs)},
    }


def restore(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a Parquet row to the form of JSON Lines: parse its JSON, and remove keys that a message does not have."""
    info = {name: value for name, value in row["extra_info"].items() if value is not None}
    if "chat_template_kwargs" in info:
        info["chat_template_kwargs"] = load_untrusted_json(info["chat_template_kwargs"])
    tools = {} if row["tools"] is None else {"tools": load_untrusted_json(row["tools"])}
    return {"messages": [_restore_message(message) for message in row["messages"]], **tools, "extra_info": info}


def _restore_message(message: Mapping[str, Any]) -> Message:
    values = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in values:
        values["tool_calls"] = [
            {key: value for key, value in call.items() if value is not None}
            | {"function": call["function"] | {"arguments": load_untrusted_json(call["function"]["arguments"])}}
            for call in values["tool_calls"]
        ]
    if "other_keys" in values:
        values |= load_untrusted_json(values.pop("other_keys"))
    return values


class _NewKeyError(Exception):
    """Error for a row with a key for which a Parquet file has no column."""


def write_files(lines: Path, parquet: Path, rows: Iterable[Mapping[str, Any]]) -> MessageKeys:
    """Write rows to the new JSON Lines file `lines`, and also as Parquet if possible; return their keys.

    The Parquet file has columns for the keys of the first row group. If a later row has a further key, the Parquet file
    is not written.
    """
    for path in (lines, parquet):
        path.parent.mkdir(parents=True, exist_ok=True)
    keys = MessageKeys()
    with create_durably(lines) as file:

        def write_lines() -> Iterator[dict[str, Any]]:
            remaining_rows = iter(rows)
            # Write the lines of a row group at once, because other threads may delay each write by five milliseconds.
            while group := list(islice(remaining_rows, _ROWS)):
                file.write("".join(f"{_format_text(row)}\n" for row in group).encode())
                for parquet_row in map(_convert_row, group):
                    keys.add(parquet_row["messages"])
                    yield parquet_row

        parquet_rows = write_lines()
        first_rows = list(islice(parquet_rows, _ROWS))
        first_keys = replace(keys, message={*keys.message})

        def require_first_keys() -> Iterator[dict[str, Any]]:
            for row in chain(first_rows, parquet_rows):
                if keys != first_keys:
                    raise _NewKeyError
                yield row

        with suppress(_NewKeyError):
            write_rows(parquet, first_keys.build_schema(), require_first_keys(), group=_ROWS)
        # Exhaust the iterator, which writes the remaining lines, because a new key stops only the Parquet file.
        for _ in parquet_rows:
            pass
    return keys


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file; raise FormatError if a line is not a row."""
    for number, row in enumerate(json_lines.read_lines(path), 1):
        if not isinstance(row, dict) or not row.keys() >= {"messages", "extra_info"}:
            raise FormatError(f"{path}: line {number}: not a conversation. Rebuild the artifact")
        yield row


def read_line_keys(path: Path) -> MessageKeys:
    """Return the keys that occur in any row of a JSON Lines file."""
    keys = MessageKeys()
    for row in read_lines(path):
        keys.add(map(_convert_message, row["messages"]))
    return keys


def write_parquet(path: Path, rows: Iterator[Mapping[str, Any]], schema: "pa.Schema") -> None:
    """Write rows in the form of JSON Lines as the new Parquet file `path`. The same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, schema, map(_convert_row, rows), group=_ROWS)


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file in the form of JSON Lines; raise FormatError if the file cannot be read."""
    try:
        yield from map(restore, read_rows(path, group=_ROWS))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: not a file of conversations: {error}. Rebuild the artifact") from error


def read_row_keys(path: Path) -> MessageKeys:
    """Return the keys that occur in any row of a Parquet file. Raises FormatError if the file cannot be read."""
    keys = MessageKeys()
    with open_reader(path) as file:
        for batch in file.iter_batches(_ROWS, columns=["messages"], use_threads=False):
            messages = batch.column("messages").flatten()
            columns = dict(zip((field.name for field in messages.type), messages.flatten(), strict=True))
            keys.message |= {name for name, column in columns.items() if column.null_count < len(column)}
            calls = columns["tool_calls"].flatten() if "tool_calls" in columns else None
            if calls is not None and calls.type.get_field_index("id") >= 0:
                keys.has_call_ids |= calls.field("id").null_count < len(calls)
    return keys


def find_schema_defects(path: Path, schema: "pa.Schema") -> Iterator[str]:
    """Yield a sentence if a Parquet file has a different schema."""
    try:
        with open_reader(path) as file:
            require_schema(path, file.schema_arrow, schema)
    except FormatError as error:
        yield str(error)


def encode_card(files: Mapping[str, Mapping[str, str]], name: str) -> bytes:
    """Return the bytes of the card. `files` has the digest of each Parquet file by split."""
    splits = {split_name(split): digests for split, digests in files.items()}
    front = {
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"{split}/*.parquet"} for split in splits],
            }
        ],
        # Include a digest of the files, because `load_dataset` caches rows under a hash that does not cover their
        # contents.
        "dataset_info": {"config_name": "default", "description": f"sha256:{digest_value(splits)}"},
    }
    text = "Conversations as messages. `tools` and the arguments of calls are JSON text."
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {name}\n\n{text}\n".encode()
