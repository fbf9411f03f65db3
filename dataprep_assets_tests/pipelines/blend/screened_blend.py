"""A blend of one dataset for each stage, with a benchmark whose items are planted in its rows."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.pipelines.blend.pairs.shard import build_pairs_shard
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.rl.shard import build_rl_shard
from dataprep_assets.pipelines.blend.screening.contamination import list_screen_checks
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, prepare_stage_shards
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.pipelines.blend.retracted_blend import RetractedBlend

QUESTION = "Why did the ferry stay at its post for a whole week while the farmers waited on both banks of the river?"
ANSWER = "The river was too high and too fast for the rope, and the old keeper did not want to lose another boat."
SHORT = "Which bridge did the miller repair before the flood?"
ITEMS = [
    {"question": QUESTION, "answer": ANSWER},
    {"question": SHORT, "answer": "It was the middle bridge."},
    {"question": "How many of the eleven lamps in the harbour were lit on the night when the grain ship came in late?"},
]
LEAK = f"From an exam: {QUESTION.upper()} Think."
LONG = " ".join(f"thought{number}" for number in range(60))
STAGES = ("sft", "pairs", "rl")
BUILD: Mapping[str, Callable[..., Any]] = {
    "sft": build_sft_shard,
    "pairs": build_pairs_shard,
    "rl": build_rl_shard,
}


def make_user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


CALL = {"type": "function", "function": {"name": "look", "arguments": {"query": "harbour"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def make_messages(number: int, place: str = "", text: str = LEAK) -> list[dict[str, Any]]:
    """Return a conversation, with a text at a place."""
    user = make_user(f"Who sings song {number}? Answer with one word, please.")
    if place == "system":
        return [{"role": "system", "content": text}, user, make_answer("A bird.")]
    if place == "later user turn":
        return [user, make_answer("A bird."), make_user(text), make_answer("I see.")]
    if place == "reasoning":
        return [user, make_answer("A bird.", reasoning_content=text)]
    if place == "answer":
        return [user, make_answer(text)]
    if place == "tool result":
        return [user, make_answer("", tool_calls=[CALL]), {"role": "tool", "content": text}, make_answer("A bird.")]
    if place == "tool call":
        call = {**CALL, "function": {"name": "look", "arguments": {"query": text}}}
        return [user, make_answer("", tool_calls=[call]), {"role": "tool", "content": "none"}, make_answer("A bird.")]
    if place == "two messages":
        # The question and the answer are short, and reasoning is between them.
        return [make_user(SHORT), make_answer("It was the middle bridge.", reasoning_content=LONG)]
    if place == "thought in the text":
        return [make_user(SHORT), make_answer(f"<think>{LONG}</think>It was the middle bridge.")]
    return [make_user(text), make_answer("Hm.")] if place == "user turn" else [user, make_answer(f"Bird {number}.")]


def make_conversation(number: int, place: str = "", text: str = LEAK) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": make_messages(number, place, text)}
    return row | ({"tools": TOOLS} if place.startswith("tool") else {})


def make_pair(number: int, place: str = "", text: str = LEAK) -> dict[str, Any]:
    sides = {"chosen": make_answer(f"Bird {number}."), "rejected": make_answer("No.")}
    if place in sides:
        sides[place] = make_answer(text)
    if place == "reasoning":
        sides["chosen"] = make_answer("A bird.", reasoning_content=text)
        sides["rejected"] = make_answer("No.", reasoning_content="It sings.")
    prompt = text if place == "prompt" else f"Who sings song {number}?"
    return {"prompt": [make_user(prompt)], **{side: [message] for side, message in sides.items()}}


def make_record(number: int, place: str = "", text: str = LEAK) -> dict[str, Any]:
    if place in ("expected answer", "metadata", "text prompt"):
        record: dict[str, Any] = {"prompt": f"Who sings song {number}?", "answer": f"bird {number}", "note": "song"}
        return record | {{"expected answer": "answer", "metadata": "note", "text prompt": "prompt"}[place]: text}
    prompt = make_messages(number, place, text)
    if place == "tool output":
        prompt = [
            make_user("Who sings?"),
            {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": text},
        ]
    return {"responses_create_params": {"input": prompt}, "expected_answer": f"bird {number}"}


MAKE: Mapping[str, Callable[..., dict[str, Any]]] = {"sft": make_conversation, "pairs": make_pair, "rl": make_record}
PLACES: Mapping[str, list[str]] = {
    "sft": [
        "user turn",
        "later user turn",
        "system",
        "reasoning",
        "answer",
        "tool result",
        "tool call",
        "two messages",
        "thought in the text",
    ],
    "pairs": ["prompt", "chosen", "rejected", "reasoning"],
    "rl": ["user turn", "system", "tool output", "expected answer", "metadata", "text prompt"],
}
"""Stage → places of a row at which an item may be."""
PLAIN = 30
"""Number of rows without an item."""


class ScreenedBlend(RetractedBlend):
    """A blend whose rows in `rows` are in two files of one dataset."""

    def __init__(self, folder: Path, stage: str, **changes: Any) -> None:
        super().__init__(folder, stage)
        self.decontaminate: dict[str, Any] | None = {"sets": {"quiz": "quiz.jsonl"}, **changes}
        self.write_items(ITEMS)
        self.leaks = [MAKE[stage](100 + number, place) for number, place in enumerate(PLACES[stage])]
        plain = [MAKE[stage](number) for number in range(PLAIN)]
        # A phrase of an item is no item.
        plain[7] = MAKE[stage](7, PLACES[stage][0], " ".join(QUESTION.split()[:9]))
        self.rows = [*plain[:20], *self.leaks, *plain[20:]]
        self.write_rows(self.rows)
        if stage == "sft":  # the conversations fit into rows, because truncated ones may have no answer
            self.changes["sft"] = {"pack_size": 512, "chat_template": "chatml_reasoning"}
        if stage == "rl":
            self.changes["rl"] = {"transforms": ["passthrough"]}
        self.changes["blend"] = {"datasets": [{"name": "first", "path": str(folder / "sources/first")}]}

    def write_items(self, items: list[dict[str, Any]]) -> None:
        (self.folder / "quiz.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        for part, some in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            self.write("first", part, some)

    @property
    def declaration(self) -> Any:
        self.changes["decontaminate"] = self.decontaminate
        declaration = super().declaration
        declaration._folder = self.folder
        return declaration

    @property
    def partitions(self) -> list[str]:
        return [str(name) for name in self.dataset.spec(SHARDS[self.declaration.stage].name).slots(self.store)]

    def build_shards_here(self) -> None:
        """Build everything up to the shards, and the shards in this process, whose functions a test may patch."""
        specs, store = self.dataset.specs, self.store
        build_all(specs[: [spec.name for spec in specs].index(SHARDS[self.stage].name)], store)
        plan = load_blend_plan(self.declaration, store)
        for shard in prepare_stage_shards(self.declaration, store, plan):
            BUILD[self.stage](shard, "full", None)

    def drops(self) -> int:
        """Return the number of rows that the shards dropped, all of them for items."""
        ledgers = [self.receipt(partition).ledger for partition in self.partitions]
        drops = [ledger.dropped for ledger in ledgers if ledger is not None]
        assert all(set(one) <= {"benchmark"} for one in drops)
        return sum(one.get("benchmark", 0) for one in drops)

    def quarantined(self) -> list[dict[str, Any]]:
        folders = [self.store.directory(self.shard(partition)) for partition in self.partitions]
        paths = [folder / "quarantine.jsonl" for folder in folders]
        return [orjson.loads(line) for path in paths if path.exists() for line in path.read_bytes().splitlines()]

    def open_shards(self) -> list[Any]:
        """Open all shards for their checks."""
        plan = load_blend_plan(self.declaration, self.store)
        shards = prepare_stage_shards(self.declaration, self.store, plan)
        return [SHARDS[self.stage].open(shard) for shard in shards]

    def find_contamination(self) -> list[Finding]:
        """Return the finding of the check on each shard."""
        (check,) = list_screen_checks(self.declaration)
        return [check.run(shard) for shard in self.open_shards()]

    def find_failing(self) -> dict[str, str]:
        """Return the failing checks of the shards, with a summary."""
        (group,) = self.dataset.spec(SHARDS[self.stage].name).check_groups
        findings = [(check.name, check.run(shard)) for shard in self.open_shards() for check in group.checks]
        return {name: finding.summary for name, finding in findings if not finding.passed}

    def find_failing_verdict(self) -> str:
        """Return the summary of the failing check on all shards, as a run finds it."""
        spec = self.dataset.spec(SHARDS[self.stage].name)
        finding = dict(spec.examine(self.store, self.partitions))["no_benchmark_contamination"]
        assert not finding.passed
        return finding.summary
