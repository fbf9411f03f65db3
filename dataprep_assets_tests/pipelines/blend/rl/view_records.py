"""Records of many forms for tests of views of RL records, and a blend of them."""

from pathlib import Path
from random import Random
from typing import Any

from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests.pipelines.blend.dagster_blend import declare_tasks
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows

NAMES = ["grpo", "nemo_gym", "verl"]
TOOL = {
    "type": "function",
    "function": {
        "name": "tide_table",
        "description": "Height of the tide.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
FLAT_TOOL = {"type": "function", "strict": True, **TOOL["function"]}  # type: ignore[dict-item]
CALL = {"id": "c1", "type": "function", "function": {"name": "tide_table", "arguments": '{"place":"Ä"}'}}
_ANSWERS: list[Any] = [
    "144",
    144,
    1.5,
    0.1 + 0.2,
    True,
    None,
    ["a", 1],
    [],
    {},
    {"target": ["x"], "n": {"m": None}},
    "null",
]


def make_record(random: Random, number: int) -> dict[str, Any]:
    """Return a record; each dozen has each form of a prompt, each type of an answer and each form of tools."""
    suffix = random.choice(["", " ä😀", " <|im_end|>", "\n"])
    question = f"{number}: how high is the tide?{suffix}"
    user = {"role": "user", "content": question}
    prompt: Any = [
        [user],
        [{"role": "system", "content": "Be short."}, user],
        [user, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [user, {"role": "assistant", "content": "Wait.", "tool_calls": [CALL]}],
        question,
    ][number % 5]
    if number % 5 in (2, 3):
        prompt.append({"role": "tool", "content": "3 m", "tool_call_id": "c1"})
        prompt.append({"role": "user", "content": "And now?"})
    value: dict[str, Any] = {"id": f"r{number}", "level": random.choice([1, 2.5, "hard", None])}
    if number % 3 == 0:
        items: Any = [
            {"role": "user", "content": [{"type": "input_text", "text": question}]},
            {"type": "function_call", "call_id": "c1", "name": "tide_table", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3 m"},
            {"role": "user", "content": "And now?"},
        ]
        value["responses_create_params"] = {"input": items if number % 2 else question, "temperature": 0.5}
        if number % 4 == 0:
            value["responses_create_params"]["tools"] = [TOOL if number % 8 else FLAT_TOOL]
    else:
        value[random.choice(["messages", "prompt"])] = prompt
        if number % 4 == 1:
            value["tools"] = [TOOL]
    answer = _ANSWERS[number % (len(_ANSWERS) + 1)] if number % (len(_ANSWERS) + 1) < len(_ANSWERS) else ...
    if answer is not ...:
        if number % 2:
            value["reward_model"] = {"style": "rule", "ground_truth": answer}
        else:
            value["expected_answer"] = answer
    if number % 7 == 0:
        value |= {"data_source": "openai/gsm8k", "ability": "math"}
    return value


def declare_mixed(folder: Path, train: int = 60, validation: int = 7, **changes: Any) -> BlendDeclaration:
    """Return an RL blend with all views over records of many forms, and a training and a validation split."""
    if not folder.exists():
        for split, count in (("train", train), ("validation", validation)):
            write_rows(folder / f"{split}.jsonl", [make_record(Random(f"{split} {n}"), n) for n in range(count)])
    return declare_tasks(folder, **{"rl": {"transforms": ["passthrough"]}, "views": NAMES, **changes})
