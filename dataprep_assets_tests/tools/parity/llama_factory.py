"""The view `sft_rows` by LLaMA-Factory's `tokenized_path`, next to what it prepares from `messages` itself.

LLaMA-Factory does not apply a chat template: it has templates of its own. The rows are rendered with one that equals
its `qwen`. Its converter for OpenAI's form changes system texts, so the rows are also rendered with the changed texts.
Entry point: `compare`.
"""

import copy
import importlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dataprep_assets_tests.tools.parity.absent import bare_package, stand_in
from dataprep_assets_tests.tools.parity.sft_views import (
    ROWS,
    is_equal_but_newlines,
    lines,
    qwen_template,
    sequences,
    their_tokenizer,
    views,
)
from dataprep_assets_tests.tools.parity.table import Row

_COLUMNS = ("input_ids", "labels", "attention_mask")
_BATCH = 50
_ADDED = "detailed thinking off"
_TEMPLATE = {"template": "qwen", "tool_format": None, "default_system": "", "train_on_prompt": False}
_MESSAGES = {
    "formatting": "openai",
    "columns": {"messages": "messages", "tools": "tools"},
    "tags": {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "observation_tag": "tool",
        "function_tag": "function",
        "system_tag": "system",
    },
}


def compare(folder: Path) -> list[Row]:
    """Rows for both views and for the batches. `folder` is a clone of hiyouga/LLaMA-Factory."""
    prepare(folder)
    tools = importlib.import_module("llamafactory.data.tool_utils").QWEN_TOOL_PROMPT
    template = qwen_template(*tools.format(tool_text="\0").split("\0"))
    with tempfile.TemporaryDirectory() as scratch:
        given, changed = (Path(scratch) / name for name in ("given", "changed"))
        with views(changed, "sft_rows", template=template, rows=[_with_changed_system(row) for row in ROWS]) as made:
            expected = sequences(made)
        with views(given, "messages", "sft_rows", template=template) as made:
            tokenizer, ours = their_tokenizer(made, template), sequences(made)
            info = {"chats": {"file_name": str(made.directory("messages") / "train.jsonl"), **_MESSAGES}}
            (Path(scratch) / "dataset_info.json").write_text(json.dumps(info))
            prepared = load(tokenizer, "sft", dataset_dir=scratch, dataset=["chats"])
            read = load(tokenizer, "sft", tokenized_path=str(made.directory("sft_rows")))
            numbers = [line["extra_info"]["row"] - 1 for line in lines(made)]
    chosen = [{name: row[name] for name in _COLUMNS} for row in read]
    equal = sum((row["input_ids"], row["labels"]) == pair for row, pair in zip(chosen, ours.values(), strict=True))
    found = [Row("sft_rows in LLaMA-Factory", "tokenized_path", len(ROWS), equal, 0, ", ".join(_COLUMNS))]
    same, explained = (
        sum(
            is_equal_but_newlines(row["input_ids"], [i != -100 for i in row["labels"]], *wanted[number], tokenizer)
            for number, row in zip(numbers, prepared, strict=True)
        )
        for wanted in (ours, expected)
    )
    note = f"the newline after an answer is trained; explained: `{_ADDED}` or a newline in system texts"
    found.append(Row("messages in LLaMA-Factory", "formatting: openai", len(ROWS), same, explained - same, note))
    return [*found, *_batches(tokenizer, read, prepared, [expected[number] for number in numbers])]


def _batches(
    tokenizer: Any, read: list[Any], prepared: list[Any], expected: list[tuple[list[int], list[int]]]
) -> list[Row]:
    """Rows for the batches of chosen columns, and for those of all columns, which the collator does not pad."""
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    collator = importlib.import_module("llamafactory.data").SFTDataCollatorWith4DAttentionMask(
        template=_template(tokenizer), tokenizer=tokenizer, pad_to_multiple_of=8
    )
    ours = [dict(zip(_COLUMNS, (ids, labels, [1] * len(ids)), strict=True)) for ids, labels in expected]
    theirs = [
        row
        | {
            "labels": [
                -100 if i and row["input_ids"][i - 1] == stop else label for i, label in enumerate(row["labels"])
            ]
        }
        for row in prepared
    ]
    equal = refused = 0
    starts = range(0, len(ours), _BATCH)
    for start in starts:
        one, other = (collator(copy.deepcopy(rows[start : start + _BATCH])) for rows in (ours, theirs))
        equal += {name: one[name].tolist() for name in one} == {name: other[name].tolist() for name in other}
        try:
            collator(copy.deepcopy(read[start : start + _BATCH]))
        except ValueError:
            refused += 1
    area = "batches of LLaMA-Factory"
    note = "its collator refuses the columns assistant_masks and loss_mask"
    return [
        Row(area, "input_ids, labels, attention_mask", len(starts), equal, 0, "from sft_rows, and from its own rows"),
        Row(area, "all columns of sft_rows", len(starts), 0, refused, note),
    ]


def prepare(folder: Path) -> None:
    """Make LLaMA-Factory's modules for data importable."""
    stand_in("peft", "torchaudio")
    for name in ("", "extras"):
        bare_package(f"llamafactory.{name}".rstrip("."), (folder / "src" / "llamafactory").joinpath(name))


def load(tokenizer: Any, stage: str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of the split for training by `get_dataset`."""
    given = {
        "mask_history": False,
        "cutoff_len": 2048,
        "dataset": None,
        "eval_dataset": None,
        "eval_on_each_dataset": False,
        "tokenized_path": None,
        "streaming": False,
        "packing": False,
        "max_samples": None,
        "val_size": 0.0,
        "preprocessing_num_workers": None,
        "preprocessing_batch_size": 1000,
        "overwrite_cache": True,
        "data_shared_file_system": False,
    }
    data = SimpleNamespace(**given | _TEMPLATE | options)
    model = SimpleNamespace(cache_dir=None, hf_hub_token=None)
    get_dataset = importlib.import_module("llamafactory.data").get_dataset
    return get_dataset(_template(tokenizer), model, data, _Training(), stage, tokenizer)["train_dataset"].to_list()


def _template(tokenizer: Any) -> Any:
    theirs = importlib.import_module("llamafactory.data")
    return theirs.get_template_and_fix_tokenizer(tokenizer, SimpleNamespace(**_TEMPLATE))


class _Training(SimpleNamespace):
    seed, local_process_index, predict_with_generate, should_log = 1, 0, False, False

    @contextmanager
    def main_process_first(self, **_: Any) -> Iterator[None]:
        yield


def _with_changed_system(row: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation with the system text that the converter makes."""
    changed = copy.deepcopy(row)
    first = changed["messages"][0]
    if first["role"] == "system":
        first["content"] += "\n" if "tools" in row else f"\n{_ADDED}"
    elif "tools" not in row:
        changed["messages"].insert(0, {"role": "system", "content": _ADDED})
    return changed
