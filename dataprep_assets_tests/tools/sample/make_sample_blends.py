"""The sample blends that ship with the package: for pretraining, SFT, pairs and RL, of plainly invented texts.

The package needs sources of every kind that users have (JSON lines, plain and compressed, and Parquet), small, and that
everyone may redistribute. So a lighthouse keeper answers questions about a harbour that does not exist, and a robot
cooks what nobody eats. The tokenizer of the SFT blend is the sample's, cut to its first merges and given the tokens of
a chat.

Each file is seeded by its own path, and only ``Random.random()`` is drawn from: the one method whose sequence Python
promises to keep.

Entry points: ``python -m dataprep_assets_tests.tools.sample.make_sample_blends SAMPLES_DIR``, ``write_samples``.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

import dataprep_assets
from dataprep_assets_tests.tools.sample.make_sample_notes import between, pick

SEED = "dataprep-assets sample blends 1"
TOKENIZER = Path(dataprep_assets.__file__).parent / "defs" / "samples" / "sample_corpus" / "tokenizer"
MERGES = 600
"""The number of the sample's merges that the SFT tokenizer keeps."""
SPECIAL = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")

PLACES = ("Lanternholm", "Cape Teaspoon", "the Isle of Umbrellas", "Port Marmalade", "Saltwhistle Bay")
SHIPS = ("Patient Otter", "Third Biscuit", "Quiet Trombone", "Lady Gravel", "Unlikely Heron")
WINDS = ("a wind that smelled of toast", "no wind at all", "a wind from yesterday", "a sideways wind")
DEEDS = (
    "counted the gulls twice and wrote down the smaller number",
    "polished the lamp until it could see itself",
    "repaired the fog with a needle and grey thread",
    "taught a crab the names of the days",
    "carried the tide up the stairs, one bucket at a time",
)
FOODS = ("cloud", "gravel", "moonlight", "paper", "foghorn", "button")
WAYS = ("soup", "pie", "salad", "pudding", "pancake")
STEPS = (
    "Whisk until it complains.",
    "Fold in one spoon of silence.",
    "Bake for as long as the song lasts.",
    "Let it rest; it has had a hard day.",
    "Sprinkle with sawdust and serve to nobody.",
)


def write_tale(random: Random, number: int) -> str:
    """Return a page of the keeper's log."""
    lines = [f"FICTION. Log of the lighthouse at {pick(random, PLACES)}, day {number}."]
    for _ in range(between(random, 2, 7)):
        lines.append(f"There was {pick(random, WINDS)}; the {pick(random, SHIPS)} passed, and I {pick(random, DEEDS)}.")
    return "\n".join(lines)


def write_recipe(random: Random, number: int) -> str:
    """Return a recipe of the robot."""
    lines = [f"FICTION. Recipe {number}: {pick(random, FOODS)} {pick(random, WAYS)} for {between(random, 2, 9)}."]
    lines += [f"{step}. {pick(random, STEPS)}" for step in range(1, between(random, 3, 8))]
    return "\n".join(lines)


def plain_chat(random: Random, number: int) -> dict[str, Any]:
    """Return a conversation with the keeper, occasionally with a system text."""
    messages = []
    if random.random() < 0.3:
        messages.append({"role": "system", "content": "FICTION. You keep a lighthouse and answer briefly."})
    for _ in range(between(random, 1, 3)):
        question = f"FICTION {number}: what did you see off {pick(random, PLACES)}?"
        answer = f"The {pick(random, SHIPS)}, under {pick(random, WINDS)}. Then I {pick(random, DEEDS)}."
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def thinking_chat(random: Random, number: int) -> dict[str, Any]:
    """Return a conversation with a sum, and with the reasoning that leads to the answer."""
    messages = []
    for _ in range(between(random, 1, 2)):
        boats, more = between(random, 2, 30), between(random, 2, 30)
        question = f"FICTION {number}: {boats} boats lie in {pick(random, PLACES)}, {more} come in. How many?"
        reasoning = f"{boats} and {more} make {boats + more}."
        answer = {"role": "assistant", "content": f"{boats + more} boats.", "reasoning_content": reasoning}
        messages += [{"role": "user", "content": question}, answer]
    return {"messages": messages}


TIDE_TABLE = {
    "type": "function",
    "function": {
        "name": "tide_table",
        "description": "Tells the height of the tide.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def tool_chat(random: Random, number: int) -> dict[str, Any]:
    """Return a conversation with a call of a tool, whose arguments are JSON text as in some sources."""
    place, height = pick(random, PLACES), between(random, 1, 9)
    call = {"type": "function", "function": {"name": "tide_table", "arguments": json.dumps({"place": place})}}
    return {
        "messages": [
            {"role": "user", "content": f"FICTION {number}: how high is the tide at {place}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": json.dumps({"feet": height})},
            {"role": "assistant", "content": f"{height} feet, and rising slowly."},
        ],
        "tools": [TIDE_TABLE],
    }


def task(random: Random, number: int) -> dict[str, Any]:
    """Return a record of RL data: a question, its answer, and data for the environment."""
    ropes, knots = between(random, 2, 20), between(random, 2, 9)
    question = f"FICTION {number}: {ropes} ropes have {knots} knots each. How many knots are there?"
    return {
        "id": f"knots-{number:04d}",
        "expected_answer": str(ropes * knots),
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
    }


def tool_task(random: Random, number: int) -> dict[str, Any]:
    """Return a record of RL data with a tool."""
    question = f"FICTION {number}: ask for the tide at {pick(random, PLACES)}."
    params = {"input": [{"role": "user", "content": question}], "tools": [TIDE_TABLE]}
    return {"id": f"tide-{number:04d}", "expected_answer": "tide_table", "responses_create_params": params}


def pair(random: Random, number: int) -> dict[str, Any]:
    """Return a question with two answers of the keeper, of which the honest one is chosen; either may be longer."""
    question = f"FICTION {number}: what did you see off {pick(random, PLACES)}?"
    honest = f"The {pick(random, SHIPS)}, under {pick(random, WINDS)}."
    boast = f"Nothing that I did not {pick(random, ('invent', 'buy', 'paint'))} myself."
    longer = f" Then I {pick(random, DEEDS)}."
    if random.random() < 0.5:
        honest += longer
    else:
        boast += longer
    prompt = [{"role": "user", "content": question}]
    if random.random() < 0.3:
        prompt.insert(0, {"role": "system", "content": "FICTION. You keep a lighthouse and answer briefly."})
    sides = {"chosen": honest, "rejected": boast}
    return {"prompt": prompt, **{name: [{"role": "assistant", "content": text}] for name, text in sides.items()}}


def text_pair(random: Random, number: int) -> dict[str, Any]:
    """Return a pair of recipes as plain texts, of which the shorter one is often chosen."""
    question = f"FICTION {number}: how do I cook {pick(random, FOODS)} {pick(random, WAYS)}?"
    short, long = pick(random, STEPS), f"{pick(random, STEPS)} {pick(random, STEPS)} {pick(random, STEPS)}"
    chosen, rejected = (short, long) if random.random() < 0.7 else (long, short)
    return {"prompt": question, "chosen": f"FICTION. {chosen}", "rejected": f"FICTION. Gladly. {rejected}"}


def sample_rows() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Return path below `defs/samples/` → rows of every data file."""
    makers = (
        ("sample_blend_pretrain/data/tales/part-0.jsonl.zst", lambda r, n: {"text": write_tale(r, n)}, 60),
        ("sample_blend_pretrain/data/tales/part-1.jsonl.gz", lambda r, n: {"text": write_tale(r, n)}, 40),
        ("sample_blend_pretrain/data/recipes/train-00000.parquet", lambda r, n: {"body": write_recipe(r, n)}, 80),
        ("sample_blend_sft/data/chat.jsonl", plain_chat, 64),
        ("sample_blend_sft/data/sums.jsonl", thinking_chat, 88),
        ("sample_blend_sft/data/tools.jsonl.zst", tool_chat, 32),
        ("sample_blend_pairs/data/keeper.jsonl", pair, 80),
        ("sample_blend_pairs/data/recipes.jsonl.zst", text_pair, 48),
        ("sample_blend_rl/data/knots/train.jsonl", task, 40),
        ("sample_blend_rl/data/knots/validation.jsonl", task, 8),
        ("sample_blend_rl/data/tides/train.jsonl.gz", tool_task, 24),
    )
    for path, make, count in makers:
        random = Random(f"{SEED} {path}")
        yield path, [make(random, number) for number in range(count)]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows in the format of the path's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=20)
        return
    data = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    if path.suffix == ".zst":
        data = zstandard.compress(data)
    elif path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    path.write_bytes(data)


def write_tokenizer(folder: Path) -> None:
    """Write the sample's tokenizer with only its first merges, and the tokens of a chat."""
    definition = json.loads((TOKENIZER / "tokenizer.json").read_bytes())
    model = definition["model"]
    by_id = sorted(model["vocab"], key=lambda token: int(model["vocab"][token]))
    kept = by_id[: len(by_id) - len(model["merges"]) + MERGES]
    model["vocab"] = {token: index for index, token in enumerate(kept)}
    model["merges"] = model["merges"][:MERGES]
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    definition["added_tokens"] = [
        {"id": len(kept) + offset, "content": content, "special": content in SPECIAL, **base}
        for offset, content in enumerate((*SPECIAL, *PLAIN))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(definition, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    config = json.loads((TOKENIZER / "tokenizer_config.json").read_bytes()) | {"eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def write_samples(folder: Path) -> None:
    """Write every data file and the tokenizer below `folder`, the `defs/samples/` of the package."""
    for path, rows in sample_rows():
        write_rows(folder / path, rows)
    for sample in ("sample_blend_sft", "sample_blend_pairs"):
        write_tokenizer(folder / sample / "tokenizer")


def main() -> None:
    """Write the samples into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", type=Path)
    write_samples(parser.parse_args().target)


if __name__ == "__main__":
    main()
