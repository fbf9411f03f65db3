"""Invented records of reinforcement learning, a list per shape, and the tables to which their placeholders refer."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Record = dict[str, Any]
DAPO = ("nano_v3_sft_profiled_dapo17k", "super_v3_lcsft_step1000_dapo17k")
SKYWORK = ("nano_v3_sft_profiled_skywork_no_omni", "super_v3_lcsft_step1000_skyworks")
NAMES: Mapping[str, str] = {
    **dict.fromkeys(DAPO, "BytedTsinghua-SIA/DAPO-Math-17k"),
    **dict.fromkeys(SKYWORK, "Skywork/Skywork-OR1-RL-Data"),
}
"""The name of a source in records → its repository."""
_ANSWERS = ["34", '["5", "6"]', '{"a": 7}', "[]", "{}", "x+1", "1.50", "true", "null", '"quoted"', "", "[[1], 2]", "½"]
_COUNT = 12
STOPS = "what no table has a row for"
"""The shape of records at which the upstream program stops."""
NULLS = "a prefix and a suffix that are null"
"""The shape of records in which the upstream program writes the word None."""


def write_tables(folder: Path) -> None:
    """Write the files of the sources as in their repositories: `<folder>/<repository>/data/*.parquet`.

    Skywork's has code and mathematics, and code comes first by name: row numbers count only mathematics.
    """
    dapo = [_row(_wrapped(i), _ANSWERS[i % len(_ANSWERS)]) for i in range(40)]
    _write(folder / NAMES[DAPO[0]] / "data" / "dapo-math-17k.parquet", dapo)
    skywork = folder / NAMES[SKYWORK[0]] / "data"
    _write(skywork / "code-00000-of-00001.parquet", [_row(f"code {i}", f"c{i}") for i in range(25)])
    for part in range(2):
        rows = [_row(f"Question {part}.{i}: ∑ {{x}}\n", _ANSWERS[(part + i) % len(_ANSWERS)]) for i in range(20)]
        _write(skywork / f"math-0000{part}-of-00002.parquet", rows)


def _wrapped(number: int) -> str:
    paragraphs = ["Solve this.", *(f"What is {number}+{i}?" for i in range(number % 4)), "Remember the format.\n"]
    return "\n\n".join(paragraphs) if number % 5 else f"Short question {number}"


def _row(question: str, answer: str) -> Record:
    return {"prompt": [{"content": question, "role": "user"}], "reward_model": {"ground_truth": answer}}


def _write(path: Path, rows: list[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


def records_by_shape() -> Iterator[tuple[str, list[Record]]]:
    """Return name and records of each shape, at least 12 each."""
    yield from _plain()
    yield from _placeholders()
    yield from _odd_placeholders()
    mixed = [record for _, records in [*_plain(), *_placeholders()] for record in records]
    Random(7).shuffle(mixed)
    yield "all of these in turn", mixed
    yield (
        STOPS,
        [
            *(_placeholder(DAPO[0], row, {"prefix": "P"}) for row in ("0", [1], {"row": 1})),
            *({"dataset": DAPO[0], "_hf_placeholder": value} for value in ("text", 7, [0])),
            {"dataset": [DAPO[0]], "_hf_placeholder": {"row": 0}},
            {"responses_create_params": {"input": "\ud800"}},
            {"responses_create_params": {"input": 1 << 80}},
        ],
    )


def _plain() -> Iterator[tuple[str, list[Record]]]:
    prompt = [[{"role": "user", "content": f"Frage {i}: ü 漢 \u2028 <|im_end|>"}] for i in range(_COUNT)]
    tools = [{"type": "function", "name": "search", "parameters": {"type": "object"}}]
    more = {"agent_ref": {"name": "a"}, "pass_rate": 0.5, "uuid": 1e5}
    yield "messages", [{"responses_create_params": {"input": text}} for text in prompt]
    yield "messages and tools", [{"responses_create_params": {"input": t, "tools": tools}, **more} for t in prompt]
    yield "tools that are empty", [{"responses_create_params": {"input": t, "tools": []}, **more} for t in prompt]
    yield "tools that are null", [{"id": 1, "responses_create_params": {"tools": None, "input": t}} for t in prompt]
    yield "a prompt that is text", [{"responses_create_params": {"input": f"ask {i}"}} for i in range(_COUNT)]
    yield "several turns", [{"responses_create_params": {"input": [*t, *t], "temperature": 1}} for t in prompt]
    yield "no parameters", [{"messages": t, "id": i} for i, t in enumerate(prompt)]
    yield "parameters that are no object", [{"responses_create_params": v} for v in [None, [], "x", 3] * 3]
    yield "no prompt", [{"responses_create_params": {"tools": tools}, "id": i} for i in range(_COUNT)]
    yield "an empty prompt", [{"responses_create_params": {"input": v}} for v in [None, [], ""] * 4]


def _placeholder(name: str, row: Any, template: Any, **more: Any) -> Record:
    placeholder = {"row": row, "question_template": template}
    return {"id": f"{name}/{row}", "dataset": name, "_hf_placeholder": placeholder, **more}


def _placeholders() -> Iterator[tuple[str, list[Record]]]:
    template = {"prefix": "Please: ", "suffix": "\nThanks.\n\n"}
    for name in DAPO:
        yield f"{name}, prefix and suffix", [_placeholder(name, i, template, pass_rate=i / 7) for i in range(40)]
        yield f"{name}, prefix alone", [_placeholder(name, i, {"prefix": "P "}) for i in range(_COUNT)]
    for name in SKYWORK:
        yield f"{name}, template", [_placeholder(name, i, "Think: {question} Go.") for i in range(40)]
        yield f"{name}, template without a place", [_placeholder(name, i, "Think.") for i in range(_COUNT)]
    given = {"input": "x", "temperature": 0.3, "tools": [{"name": "t"}]}
    yield (
        "parameters beside a placeholder",
        [_placeholder(SKYWORK[0], i, "{question}", responses_create_params=given) for i in range(_COUNT)],
    )
    yield (
        "question and answer given already",
        [
            {"question": "old", "expected_answer": "old", **_placeholder(DAPO[0], i, template), "z": i}
            for i in range(_COUNT)
        ],
    )
    yield "a row that is not there", [_placeholder(DAPO[1], row, template) for row in [99, -1, None, 40] * 3]
    numbers = [True, False, 1.5, 2.0, 1e300]
    yield "a row that is no whole number", [_placeholder(SKYWORK[1], row, "{question}") for row in numbers * 3]
    yield "an unknown dataset", [_placeholder("other_set", i, template) for i in range(_COUNT)]
    yield (
        "a placeholder that is null",
        [
            {"_hf_placeholder": None, "dataset": DAPO[0], "responses_create_params": {"input": [{"content": str(i)}]}}
            for i in range(_COUNT)
        ],
    )


def _odd_placeholders() -> Iterator[tuple[str, list[Record]]]:
    for name in (DAPO[0], SKYWORK[0]):
        yield f"{name}, no template", [_placeholder(name, i, None) for i in range(_COUNT)]
        odd = "text {question} text" if name in DAPO else {"prefix": "P ", "suffix": " S"}
        values: list[Any] = [0, False, [], {}, 7, ["a"], "", None, 1.5, True, {"a": None}, "x"]
        affixes = [_placeholder(name, i, {"prefix": v, "suffix": values[-i]}) for i, v in enumerate(values)]
        yield f"{name}, a prefix and a suffix that are no text", affixes
        yield f"{name}, template of the other kind", [_placeholder(name, i, odd) for i in range(_COUNT)]
    yield NULLS, [_placeholder(DAPO[0], i, {"prefix": None, "suffix": None}) for i in range(_COUNT)]
