"""Preference rows of several forms, and a declared blend of them."""

from pathlib import Path
from typing import Any

from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

CALL = {"type": "function", "function": {"name": "tide", "arguments": {"hour": 6}}}
TOOL = {
    "type": "function",
    "function": {"name": "tide", "parameters": {"type": "object", "properties": {"hour": {"type": "integer"}}}},
}


def make_user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def make_waves(number: int, words: int) -> str:
    return " ".join(f"wave{(number * 7 + i) % 23}" for i in range(1 + words))


def make_pair(number: int, prefix: str = "") -> dict[str, Any]:
    """Return a pair of one of several kinds: more turns, a system text, tools, an implicit prompt."""
    prompt: list[dict[str, Any]] = []
    if number % 3 == 0:
        prompt.append({"role": "system", "content": f"Keeper {number}, 灯台."})
    for turn in range(number % 3):
        prompt += [make_user(f"Before {prefix}{number}.{turn}"), make_assistant(make_waves(turn, number % 4))]
    prompt.append(make_user(f"Question {prefix}{number}?\n{make_waves(number, number % 5)}"))
    chosen, rejected = make_waves(number, (number * 3) % 11), make_waves(number + 1, (number * 5) % 13)
    sides = {"chosen": [make_assistant(f"Yes\n\n{chosen}.")], "rejected": [make_assistant(f"No: {rejected}")]}
    if number % 5 == 0:
        call, result = make_assistant("", tool_calls=[CALL]), {"role": "tool", "content": '{"height": 3}'}
        sides["chosen"] = [call, result, *sides["chosen"]]
        return {"prompt": prompt, **sides, "tools": [TOOL]}
    if number % 4 == 1:
        return {name: [*prompt, *side] for name, side in sides.items()}
    return {"prompt": prompt, **sides}


def make_labeled(number: int) -> dict[str, Any]:
    """Return a row with one labeled answer."""
    answer = [make_assistant(make_waves(number, number % 7))]
    return {"prompt": [make_user(f"Question {number}?")], "completion": answer, "label": number % 3 > 0}


def make_plain(number: int, name: str = "") -> dict[str, Any]:
    """Return a pair of texts."""
    return {
        "prompt": f"Question {name} {number}?",
        "chosen": make_waves(number, 3),
        "rejected": make_waves(number + 1, 9),
    }


def declare_pairs(folder: Path, rows: dict[str, list[dict[str, Any]]], **changes: Any) -> BlendDeclaration:
    """Return a blend of pairs with a dataset for each list of rows."""
    for name, dataset_rows in rows.items():
        write_rows(folder / f"{name}.jsonl", dataset_rows)
    if not (folder / "tokenizer").exists():
        write_chat_tokenizer(folder / "tokenizer")
    return BlendDeclaration.model_validate(
        {
            "dataset": "small_pairs",
            "stage": "pairs",
            "blend": {"datasets": [{"name": name, "path": str(folder / f"{name}.jsonl")} for name in rows]},
            "tokenizer": {"path": folder / "tokenizer", "engine": "tokenizers"},
            "pairs": {"chat_template": "chatml_reasoning", "max_length": 512},
            "num_shards": 2,
            "tolerance": 0.5,
            **changes,
        }
    )
