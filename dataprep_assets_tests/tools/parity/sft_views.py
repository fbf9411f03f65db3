"""Build a blend of 500 conversations with its views, for comparisons with trainers that are not packages."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests.pipelines.blend.dagster_blend import Blend, open_blend
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.sft.equal_conversations import EQUAL, TEMPLATE, make_conversation
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

ROWS = [make_conversation(number) for number in range(EQUAL)]


@contextmanager
def views(home: Path, *names: str, template: str = TEMPLATE, rows: Sequence[dict[str, Any]] = ROWS) -> Iterator[Blend]:
    """Build the views of the conversations in a folder."""
    declared = {
        "dataset": "chats",
        "stage": "sft",
        "blend": {"datasets": [{"name": "chat", "path": str(write_rows(home / "chat.jsonl", rows))}]},
        "tokenizer": {"path": write_chat_tokenizer(home / "tokenizer").directory, "engine": "tokenizers"},
        "sft": {"pack_size": 2048, "chat_template": template},
        "num_shards": 2,
        "views": list(names),
    }
    with open_blend(BlendDeclaration.model_validate(declared), home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        yield made


def sequences(made: Blend) -> dict[int, tuple[list[int], list[int]]]:
    """Return ids and labels of `sft_rows` by the number of the source row, from 0."""
    tracer, rows = made.component.tracer(made.store), []
    for path in sorted((made.directory("sft_rows") / "train").glob("*.arrow")):
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            rows += [(row["input_ids"], row["labels"]) for row in reader.read_all().to_pylist()]
    found = (
        trace_documents(tracer, view="sft_rows", split="train", sample=number, decode=False)
        for number in range(len(rows))
    )
    return {one.row - 1: row for (one,), row in zip(found, rows, strict=True)}


def lines(made: Blend) -> list[dict[str, Any]]:
    """Return the JSON lines of `messages`."""
    text = (made.directory("messages") / "train.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def their_tokenizer(made: Blend, template: str = TEMPLATE) -> Any:
    """Return the tokenizer of transformers, with the template."""
    from transformers import PreTrainedTokenizerFast

    assert made.declaration.required_tokenizer.path is not None
    loaded = PreTrainedTokenizerFast.from_pretrained(
        str(made.declaration.required_tokenizer.path), pad_token="<|endoftext|>"
    )
    loaded.chat_template = template
    return loaded


def is_equal_but_newlines(
    theirs: list[int], mask: Sequence[int], ours: list[int], labels: list[int], tokenizer: Any
) -> bool:
    """Return whether the ids are equal, and the trained ones except for newlines after an answer."""
    newlines = set(tokenizer("\n", add_special_tokens=False)["input_ids"])
    if theirs[: len(ours)] != ours or not set(theirs[len(ours) :]) <= newlines:
        return False
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    trained = [label != -100 for label in labels] + [False] * (len(theirs) - len(ours))
    return all(
        bool(theirs_trained) == ours_trained or (theirs[i] in newlines and theirs[i - 1] == end)
        for i, (theirs_trained, ours_trained) in enumerate(zip(mask, trained, strict=True))
    )


def qwen_template(head: str, tail: str) -> str:
    """Return a chat template that equals the trainers' own for Qwen without a default system text.

    `head` and `tail` are their texts before and after the declared tools.
    """
    return (
        "{% set first = 1 if messages[0].role == 'system' else 0 %}"
        "{% set system = messages[0].content if first else '' %}{% if system or tools %}"
        "{{ '<|im_start|>system\n' + system }}{% if tools %}{{ " + json.dumps(head) + " }}"
        "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ " + json.dumps(tail) + " }}{% endif %}"
        "{{ '<|im_end|>\n' }}{% endif %}"
        "{% for m in messages[first:] %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
        "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ '' if loop.first else '\n' }}"
        "{{ '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
        "{% elif m.role == 'tool' %}"
        "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
