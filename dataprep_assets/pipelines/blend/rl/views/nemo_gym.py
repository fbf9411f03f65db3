"""View for NeMo-Gym: JSON Lines with `responses_create_params`, one file per split, without `agent_ref`.

Records that already have `responses_create_params.input` are written unchanged. If all records of a split have it, the
file is a link to the run's file. For other records, `responses_create_params` is built from the prompt and the tools in
the form of OpenAI's Responses API, which NeMo-Gym validates (`nemo_gym/openai_utils.py`). `gym dataset collate` adds
`agent_ref` from its own configuration.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.errors import BadRecordError
from dataprep_assets.formats.json_columns import ABSENT_VALUE, is_equal
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.rl.chat_messages import (
    convert_to_chat_messages,
    convert_to_response_input,
    convert_to_response_tool,
)
from dataprep_assets.pipelines.blend.rl.record_parts import RESPONSE_INPUT, RESPONSE_TOOLS, find_value, remove_paths
from dataprep_assets.pipelines.blend.rl.rl_jsonl import read_lines
from dataprep_assets.pipelines.blend.rl.shard import encode_line
from dataprep_assets.pipelines.blend.rl.view import RecordSplit, RecordView, RecordViewFacts, SplitRecord
from dataprep_assets.pipelines.blend.view import BlendViewWriter
from dataprep_assets.stores.files import create_durably, sha256_file

_PARAMS = "responses_create_params"
_ROLES = frozenset({"user", "assistant", "system", "developer"})


def _format_file_name(split: RecordSplit) -> str:
    return f"{split.name}.jsonl"


def _encode_line(record: SplitRecord) -> bytes:
    parts = record.parts
    tools = parts.get_value(parts.tools)
    flat_tools = [convert_to_response_tool(tool) for tool in tools] if isinstance(tools, list) else tools
    if parts.prompt == RESPONSE_INPUT and (tools is ABSENT_VALUE or is_equal(tools, flat_tools)):
        return record.line
    try:
        items = (
            parts.get_value(parts.prompt)
            if parts.prompt == RESPONSE_INPUT
            else convert_to_response_input(parts.get_value(parts.prompt))
        )
    except BadRecordError as error:
        raise record.refuse(error) from None
    moved_paths = [path for path in (parts.prompt, parts.tools) if path is not None]
    remaining = remove_paths(parts.record, moved_paths)
    declared_params = parts.record.get(_PARAMS)
    params = remove_paths(declared_params, [("input",), ("tools",)]) if isinstance(declared_params, dict) else {}
    params = {"input": items, **params, **({} if tools is ABSENT_VALUE else {"tools": flat_tools})}
    return encode_line({**remove_paths(remaining, [(_PARAMS,)]), _PARAMS: params})


def _write_view(splits: Sequence[RecordSplit], view: BlendViewWriter) -> None:
    for split in splits:
        target = view.target / _format_file_name(split)
        is_plain = all(not shard.file.record.path.endswith(".zst") for shard in split.shards)
        if is_plain and all(_encode_line(record) is record.line for record in split.read_records(view.store)):
            # Remove a file that was left behind by a killed run, because `join` fails if the file exists.
            target.unlink(missing_ok=True)
            run_file = FileRef(split.run, view.store.require(split.run).file(split.run_file))
            verify = view.blend.verify == "full"
            view.joined.append(view.store.join(view.target, target.name, [run_file], verify=verify))
            continue
        if not target.exists():
            with create_durably(target) as file:
                file.writelines(map(_encode_line, split.read_records(view.store)))
        view.digests[target.name] = sha256_file(target)


def _read_split(directory: Path, split: RecordSplit) -> Iterator[bytes]:
    return read_lines(directory / _format_file_name(split))


def _find_difference(line: bytes, record: SplitRecord) -> str | None:
    """Return the name of the part in which a line differs from its record; None if they have the same values."""
    row, parts = orjson.loads(line), record.parts
    prompt, items = parts.get_value(parts.prompt), find_value(row, RESPONSE_INPUT)
    if parts.prompt == RESPONSE_INPUT:
        if not is_equal(items, prompt):
            return "the prompt"
    elif not is_equal(_join_calls(convert_to_chat_messages(items)), _join_calls(convert_to_chat_messages(prompt))):
        return "the prompt"
    tools, row_tools = parts.get_value(parts.tools), find_value(row, RESPONSE_TOOLS)
    if not is_equal(
        tools if not isinstance(tools, list) else [convert_to_response_tool(tool) for tool in tools], row_tools
    ):
        return "the tools"
    moved_paths = [path for path in (parts.prompt, parts.tools) if path is not None]
    is_same = is_equal(remove_paths(row, [RESPONSE_INPUT, RESPONSE_TOOLS]), remove_paths(parts.record, moved_paths))
    return None if is_same else "another field"


def _join_calls(messages: list[dict[str, Any]]) -> list[tuple[str, str, Any, Any]]:
    """Return messages in a form in which chat messages and Responses API items can be compared."""
    return [
        (message["role"], message["content"] or "", message.get("tool_call_id"), message.get("tool_calls"))
        for message in messages
    ]


def _find_defects(directory: Path, _: Receipt, splits: Sequence[RecordSplit], __: ArtifactStore) -> Iterator[str]:
    for split in splits:
        for number, line in enumerate(read_lines(directory / _format_file_name(split)), 1):
            if (defect := _find_row_defect(orjson.loads(line))) is not None:
                # Report an invalid line, because NeMo-Gym would skip it without an error.
                yield f"{directory / _format_file_name(split)}: line {number}: {defect}"
                return


def _find_row_defect(row: Any) -> str | None:
    items = find_value(row, RESPONSE_INPUT)
    if not isinstance(items, str | list) or not items:
        return "`responses_create_params.input` must be a string or a list of items"
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict) or ("type" not in item and item.get("role") not in _ROLES):
            return f"an item needs a `type`, or one of the roles {', '.join(sorted(_ROLES))}"
    tools = find_value(row, RESPONSE_TOOLS)
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or (tool.get("type") == "function" and not isinstance(tool.get("name"), str)):
            return "a tool must be an object, and a function must have a `name`"
    return None


def _format_trainer_lines(where: str, facts: RecordViewFacts) -> Iterator[str]:
    entries = []
    for split, (file,) in facts.files.items():
        name = file.removesuffix(".jsonl")
        # Add a placeholder for the license, because NeMo-Gym requires a license for training and validation data.
        kind = "example" if split == "test" else f"{name}, license: …"
        entries.append(f"{{name: {name}, jsonl_fpath: {where}/{file}, type: {kind}}}")
    yield f"NeMo-Gym: datasets: [{', '.join(entries)}]"


VIEW = RecordView(
    name="nemo_gym",
    description="JSON Lines with `responses_create_params`, one file per split, for NeMo-Gym.",
    kinds=frozenset({"json"}),
    settings=("record_locations",),
    columns={_PARAMS: "object"},
    column_descriptions={_PARAMS: "Parameters of the request to the model: the messages and the tools."},
    files=lambda split: [_format_file_name(split)],
    write=_write_view,
    read=_read_split,
    difference=_find_difference,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
