"""View for trainers that render conversations themselves: messages in Parquet and JSON Lines."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from dataprep_assets.errors import count_of
from dataprep_assets.formats.conversations import message_rows
from dataprep_assets.formats.conversations.sft_rows import split_name
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.used_conversations import UsedConversation, UsedConversations
from dataprep_assets.pipelines.blend.sft.view import (
    ConversationView,
    ConversationViewFacts,
    PackedSplit,
)
from dataprep_assets.pipelines.blend.view import BlendViewWriter, OpenedBlendView
from dataprep_assets.stores.files import concatenate, create_durably, sha256_file

_PARTS = "parts"
"""Folder for the JSON Lines file of each shard during the build of the view."""


def _list_file_names(split: PackedSplit) -> list[str]:
    return [message_rows.build_parquet_name(split.split, n, len(split.shards)) for n in range(len(split.shards))]


def _build_row(used: UsedConversation) -> dict[str, Any]:
    conversation = used.conversation
    return message_rows.build_row(conversation.messages, conversation.tools, conversation.kwargs, used.file, used.row)


def _write_view(splits: Sequence[PackedSplit], view: BlendViewWriter) -> None:
    """Write each shard's lines and Parquet file, then each split's lines.

    A Parquet file without columns for all keys of the view is written again from the shard's lines.
    """
    conversations = UsedConversations(view.blend, view.store)
    shards = [(split, number) for split in splits for number in range(len(split.shards))]

    def get_part_path(split: PackedSplit, number: int) -> Path:
        return view.target / _PARTS / f"{split.split}-{number:05d}.jsonl"

    def get_parquet_path(split: PackedSplit, number: int) -> Path:
        return view.target / _list_file_names(split)[number]

    def write_shard(split: PackedSplit, number: int) -> message_rows.MessageKeys:
        # Keep an existing file, because a file gets its final name only when it is complete, and its content depends
        # only on its own shard.
        if (path := get_part_path(split, number)).exists():
            return message_rows.read_line_keys(path)
        rows = map(_build_row, conversations.read(split.shards[number].partition))
        return message_rows.write_files(path, get_parquet_path(split, number), rows)

    def complete_parquet(split: PackedSplit, number: int) -> str:
        path = get_parquet_path(split, number)
        if not path.exists() or any(message_rows.find_schema_defects(path, schema)):
            message_rows.write_parquet(path, message_rows.read_lines(get_part_path(split, number)), schema)
        return sha256_file(path)

    with ThreadPoolExecutor(view.threads) as pool:
        keys = message_rows.MessageKeys()
        for shard_keys in pool.map(lambda shard: write_shard(*shard), shards):
            keys.update(shard_keys)
        schema = keys.build_schema()
        digests = list(pool.map(lambda shard: complete_parquet(*shard), shards))
    view.digests.update(
        {_list_file_names(split)[n]: digest for (split, n), digest in zip(shards, digests, strict=True)}
    )
    for split in splits:
        lines = view.target / message_rows.build_lines_name(split.split)
        # Remove a file that was left behind by a killed run, because `concatenate` fails if the file exists.
        lines.unlink(missing_ok=True)
        concatenate([get_part_path(split, number) for number in range(len(split.shards))], lines)
        view.digests[lines.name] = sha256_file(lines)
    by_split = {split.split: {name: view.digests[name] for name in _list_file_names(split)} for split in splits}
    with create_durably(view.target / message_rows.CARD) as file:
        file.write(message_rows.encode_card(by_split, view.blend.dataset))
    for split, number in shards:
        get_part_path(split, number).unlink()
    (view.target / _PARTS).rmdir()


def _compare_split(subject: OpenedBlendView[PackedSplit], split: PackedSplit) -> Iterator[str]:
    """Yield the first difference between the files of a split and the conversations in its shards' source rows."""
    conversations, directory = UsedConversations(subject.blend, subject.store), subject.directory
    lines = message_rows.read_lines(directory / message_rows.build_lines_name(split.split))
    for shard, name in zip(split.shards, _list_file_names(split), strict=True):
        count = 0
        for used, row in zip_longest(conversations.read(shard.partition), message_rows.read_parquet(directory / name)):
            if used is None or row is None:
                if row is None:
                    yield f"{name}: has only {count_of(count, 'conversation')}, but its shard has more"
                else:
                    yield f"{name}: has more conversations than its shard, which has {count:,}"
                return
            for file, view_row in ((name, row), (message_rows.build_lines_name(split.split), next(lines, None))):
                difference = "the conversation" if view_row is None else _find_difference(used, view_row)
                if difference:
                    yield f"{file}: row {count}: {difference} differs from row {used.row} of {used.file}"
                    return
            count += 1
        if count != shard.facts.conversations:
            yield f"{name}: has {count_of(count, 'conversation')}, but the shard has {shard.facts.conversations:,}"
    if next(lines, None) is not None:
        yield f"{message_rows.build_lines_name(split.split)}: has more conversations than the run"


def _find_difference(used: UsedConversation, row: dict[str, Any]) -> str:
    """Return the part in which a row differs from its conversation; an empty string if they are equal."""
    conversation, info = used.conversation, row["extra_info"]
    # Compare whole rows first, because this is fast, and most rows have exactly the conversation's messages.
    plain_row = {"messages": conversation.messages, "extra_info": {"file": used.file, "row": used.row}}
    if row == plain_row and not conversation.tools and not conversation.kwargs:
        return ""
    if (info.get("file"), info.get("row")) != (used.file, used.row):
        return "the source row"
    if info.get("chat_template_kwargs", {}) != conversation.kwargs:
        return "chat_template_kwargs"
    if (row.get("tools") or None) != (conversation.tools or None):
        return "tools"
    if len(row["messages"]) != len(conversation.messages):
        return "the number of messages"
    for number, (row_message, message) in enumerate(zip(row["messages"], conversation.messages, strict=True)):
        calls = [call.get("function", call) for call in message.get("tool_calls", ())]
        row_calls = [call["function"] for call in row_message.get("tool_calls", ())]
        if calls != row_calls or _remove_functions(row_message) != _remove_functions(message):
            return f"message {number}"
    return ""


def _remove_functions(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the functions and types of its calls.

    Functions are compared separately, and the view may have added a missing type.
    """
    calls = [
        {key: value for key, value in call.items() if key not in ("function", "type")} if "function" in call else {}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls}


def _find_defects(directory: Path, receipt: Receipt, splits: Sequence[PackedSplit]) -> Iterator[str]:
    """Yield a sentence for each file that does not match the card, the JSON Lines or the schema."""
    digests = {record.path: record.sha256 for record in receipt.files}
    by_split = {split.split: {name: digests[name] for name in _list_file_names(split)} for split in splits}
    if (directory / message_rows.CARD).read_bytes() != message_rows.encode_card(by_split, receipt.dataset):
        yield f"{directory / message_rows.CARD}: does not match the data files in this folder"
    # Examine only the schema of the Parquet files, because `_compare_split` compares the rows of both formats.
    keys, names = message_rows.MessageKeys(), list(chain.from_iterable(map(_list_file_names, splits)))
    for name in names:
        keys.update(message_rows.read_row_keys(directory / name))
    for name in names:
        yield from message_rows.find_schema_defects(directory / name, keys.build_schema())
    names += [message_rows.CARD, *(message_rows.build_lines_name(split.split) for split in splits)]
    for path in sorted(digests.keys() - {*names}):
        yield f"{directory / path}: belongs to no split"


def _format_trainer_lines(where: str, facts: ConversationViewFacts) -> Iterator[str]:
    """Yield the settings of each trainer that reads messages."""
    split = next(iter(facts.rows))
    folder = f"{where}/{split_name(split)}"
    lines = f"{where}/{message_rows.build_lines_name(split)}"
    quoted_where, quoted_lines = (json.dumps(path, ensure_ascii=False) for path in (where, lines))
    yield f"verl: data.train_files={folder} data.messages_key=messages"
    yield (
        f"NeMo-RL: data.train: {{dataset_name: openai_format, data_path: {quoted_lines}, use_preserving_dataset: true}}"
    )
    yield f'prime-rl: data = {{name = {quoted_where}, splits = ["{split_name(split)}"]}}'
    yield (
        f"MaxText: dataset_type=hf hf_path=parquet hf_train_files={folder}/*.parquet use_sft=true "
        # Set the split, because the default in MaxText's `sft.yml` is a different split, but files of `hf_train_files`
        # always have the split `train`.
        "train_split=train train_data_columns=['messages'] "
        # Set this in case `base.yml` is used, because its default trains all tokens.
        "sft_train_on_completion_only=true"
    )
    # Pass Parquet to ms-swift and axolotl, because both parse the JSON text in its columns, but read JSON Lines with
    # Arrow, which may add keys of other rows.
    yield f"ms-swift: --dataset {folder}"
    source = f"path: {quoted_where}, split: {split_name(split)}"
    # Add a mapping, because otherwise axolotl passes no calls to a template unless the template's loop variable is
    # named `message`.
    mappings = ", ".join(f"{key}: {key}" for key in ("role", "content", "reasoning_content", "tool_calls"))
    yield (
        f"axolotl: datasets: [{{{source}, type: chat_template, message_field_training: train, "
        f"message_property_mappings: {{{mappings}}}}}]"
    )
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    tags |= {"observation_tag": "tool", "system_tag": "system"}
    entry = {"file_name": lines, "formatting": "openai", "tags": tags}
    entry["columns"] = {"messages": "messages", "tools": "tools"}
    yield f"LLaMA-Factory: dataset_info.json: {json.dumps({facts.view: entry}, ensure_ascii=False)}"


VIEW = ConversationView(
    name="messages",
    description="Conversations as messages, in Parquet and JSON Lines, for trainers that apply a chat template.",
    kinds=frozenset({"parquet", "json"}),
    columns=message_rows.COLUMNS,
    column_descriptions=message_rows.COLUMN_DESCRIPTIONS,
    is_packed=False,
    file=message_rows.build_parquet_name,
    identity=lambda shard: shard.key,
    write=_write_view,
    compare=_compare_split,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
