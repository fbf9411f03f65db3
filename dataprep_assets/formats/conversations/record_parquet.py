"""RL prompts as Parquet: one row per record, with the prompt as messages and the expected answer.

    <split>-<i:05d>-of-<n:05d>.parquet
    README.md                            the files of each split and their digest, for `load_dataset`

Trainers read a prompt as a list of messages. A message has the columns `role` and `content`. It also has `name`,
`tool_call_id`, `reasoning_content` or `tool_calls` if any message of the view has this key. The expected answer has the
type of its values if they all have the same type; otherwise, it is a string (`json_columns.py`). The same rows give the
same bytes with the same version of pyarrow.

Entry points: `build_message_type`, `encode_messages`, `decode_messages`, `build_file_name`, `encode_card`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from dataprep_assets.stores.files import digest_value

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_TEXTS = ("name", "tool_call_id", "reasoning_content")
TOOL_CALLS = "tool_calls"
OPTIONAL_KEYS = (*MESSAGE_TEXTS, TOOL_CALLS)
"""Keys of a message that are columns only if a message has them."""
CARD = "README.md"
ROW_GROUP = 4096
"""Rows in a row group."""


def build_file_name(split: str, number: int, count: int) -> str:
    """Return the name of a split's file."""
    return f"{split}-{number:05d}-of-{count:05d}.parquet"


def encode_card(dataset: str, files: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return the bytes of `README.md`.

    Args:
        dataset: Name of the dataset.
        files: Split → name → SHA-256 of each of its files.
    """
    configs = [{"split": split, "path": list(names)} for split, names in files.items()]
    front = {
        "configs": [{"config_name": "default", "data_files": configs}],
        # Include a digest of the files, because `datasets` caches rows under a hash that does not cover their contents.
        "dataset_info": [{"config_name": "default", "description": f"sha256:{digest_value(files)}"}],
    }
    text = yaml.safe_dump(front, sort_keys=False)
    return f"---\n{text}---\n\n# {dataset}\n\nRL prompts, one record per row.\n".encode()


def build_message_type(keys: Collection[str]) -> "pa.DataType":
    """Return the Arrow type of a prompt whose messages have these optional keys."""
    import pyarrow as pa

    function = pa.struct([("name", pa.string()), ("arguments", pa.string())])
    call = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", function)])
    fields = [("role", pa.string()), ("content", pa.string())]
    fields += [(key, pa.string()) for key in MESSAGE_TEXTS if key in keys]
    return pa.list_(pa.struct([*fields, *([(TOOL_CALLS, pa.list_(call))] if TOOL_CALLS in keys else [])]))


def encode_messages(messages: Sequence[Mapping[str, Any]], keys: Collection[str]) -> list[dict[str, Any]]:
    """Return messages as values of the prompt's column, in which absent keys are null."""
    columns = ("role", "content", *(key for key in OPTIONAL_KEYS if key in keys))
    return [{column: message.get(column) for column in columns} for message in messages]


def decode_messages(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a prompt's column, without keys that only other rows have."""
    return [
        {key: value for key, value in message.items() if value is not None or key == "content"} for message in values
    ]
