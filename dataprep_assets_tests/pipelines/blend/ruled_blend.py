"""A blend of conversations, pairs or RL records with rules, and with rows that each rule drops."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.pipelines.blend.pairs.shard import build_pairs_shard
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.rl.shard import build_rl_shard
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, prepare_stage_shards
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.pipelines.blend.retracted_blend import RetractedBlend
from dataprep_assets_tests.pipelines.blend.screened_blend import make_answer, make_user

BUILD = {"sft": build_sft_shard, "pairs": build_pairs_shard, "rl": build_rl_shard}
BATCHES = {
    "sft": "dataprep_assets.pipelines.blend.sft.spool.BATCH",
    "pairs": "dataprep_assets.pipelines.blend.pairs.shard._BATCH",
    "rl": "dataprep_assets.pipelines.blend.rl.shard._BATCH",
}
PLAIN = 30
LONG = " ".join(["A long answer with many words about a bird that sings."] * 4)
RULES: dict[str, Any] = {
    "tag": ["gopher", "repetition"],
    "tag_text": {"gopher": "questions"},
    "keep": {"asked": "words >= 3"},
    "drop": {
        "with_thoughts": "has_reasoning",
        "short": "source = 'first' and answer_characters < 4",
        "late": "turns > 1",
    },
}
DROPPED = {"asked": 1, "with_thoughts": 2, "short": 3, "late": 1}
"""Rule → the number of rows that it drops."""


def make_row(stage: str, question: str, *messages: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a question and the messages after it.

    They are the chosen side of a pair. The last one is the expected answer of an RL record.
    """
    prompt = [make_user(question)]
    if stage == "rl":
        *earlier_messages, answer = messages
        thoughts = f"<think>{answer['reasoning_content']}</think>" if "reasoning_content" in answer else ""
        prompt += earlier_messages
        return {"responses_create_params": {"input": prompt}, "expected_answer": thoughts + answer["content"]}
    if stage == "sft":
        return {"messages": [*prompt, *messages]}
    reasoning = {key: text for key, text in messages[0].items() if key == "reasoning_content"}
    return {"prompt": prompt, "chosen": list(messages), "rejected": [make_answer("no", **reasoning)]}


def write_varying_tagger(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Path]:
    """Write a tagger whose values depend on a file that its version does not cover; return its tag and the file."""
    state = folder / "state"
    state.write_text("0")
    code = (
        "from pathlib import Path\n"
        "def vary(table):\n"
        f"    mark = int(Path({str(state)!r}).read_text())\n"
        "    return {'mark': [mark] * len(table)}\n"
    )
    # Use a different module in each test, because Python loads a module only once.
    module = f"varying_{folder.name}"
    (folder / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    return {"function": f"{module}:vary", "columns": {"mark": "integer"}, "version": "1"}, state


class RuledBlend(RetractedBlend):
    """A blend whose first dataset has rows that the rules drop."""

    def __init__(self, folder: Path, stage: str, **changes: Any) -> None:
        super().__init__(folder, stage, **{**RULES, "tolerance": 1.0, **changes})
        if stage == "sft":
            self.changes["sft"] = {"pack_size": 512, "chat_template": "chatml_reasoning"}
        if stage == "rl":
            self.changes["rl"] = {"transforms": [{"select": ["responses_create_params", "expected_answer"]}]}
        plain = [make_row(stage, f"Who sings song {n} now?", make_answer(f"Bird {n}. {LONG}")) for n in range(PLAIN)]
        thoughts = make_answer("A bird.", reasoning_content="It sings.")
        unclear = make_answer("I see it.")
        self.faulty = [
            make_row(stage, "Who sings?", make_answer(LONG)),
            make_row(stage, "Who sings this song?", thoughts),
            make_row(stage, "Who sings this song, and why?", make_answer("<think>It sings.</think>A bird.")),
            *(make_row(stage, f"Who sings song {number}?", make_answer("1")) for number in range(103, 106)),
            make_row(stage, "Who sings this song?", unclear, make_user("And that?"), make_answer("I do not know.")),
        ]
        self.rows = [*plain[:20], *self.faulty, *plain[20:]]
        self.write_rows(self.rows)

    def write_rows(self, rows: Sequence[Any]) -> None:
        for part, some in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            self.write("first", part, some)

    @property
    def partitions(self) -> list[str]:
        return [str(name) for name in self.dataset.spec(SHARDS[self.declaration.stage].name).slots(self.store)]

    def build_shards_here(self) -> None:
        """Build everything up to the shards, and the shards in this process, whose functions a test may patch."""
        specs = self.dataset.specs
        build_all(specs[: [spec.name for spec in specs].index(SHARDS[self.declaration.stage].name)], self.store)
        for shard in prepare_stage_shards(self.declaration, self.store, load_blend_plan(self.declaration, self.store)):
            BUILD[self.stage](shard, "full", None)  # type: ignore[arg-type]

    def dropped(self) -> Counter[str]:
        """Return the numbers of dropped rows by reason, from the ledgers."""
        ledgers = [self.receipt(partition).ledger for partition in self.partitions]
        return sum((Counter(ledger.dropped) for ledger in ledgers if ledger is not None), Counter[str]())

    def quarantined(self) -> list[dict[str, Any]]:
        paths = [self.store.directory(self.shard(name)) / "quarantine.jsonl" for name in self.partitions]
        return [orjson.loads(line) for path in paths if path.exists() for line in path.read_bytes().splitlines()]

    def kept(self) -> frozenset[int]:
        """Return the numbers of the plain rows of the first dataset that are in the shards."""
        names = [name for name in self.partitions if not self.receipt(name).facts.get("empty")]
        texts = "\n".join(map(self.texts, names)).lower()
        return frozenset(number for number in range(PLAIN) if f"bird {number}." in texts)

    def check_shards(self) -> Iterator[tuple[str, Finding]]:
        """Yield the findings of all checks of the shards, by check."""
        declaration = self.declaration
        shards = prepare_stage_shards(declaration, self.store, load_blend_plan(declaration, self.store))
        (group,) = self.dataset.spec(SHARDS[declaration.stage].name).check_groups
        for shard in shards:
            opened = SHARDS[declaration.stage].open(shard)
            yield from ((check.name, check.run(opened)) for check in group.checks)

    def failing(self) -> dict[str, list[str]]:
        """Return the failing checks of the shards, each with its defects."""
        failing: dict[str, list[str]] = {}
        for name, finding in self.check_shards():
            if not finding.passed:
                failing.setdefault(name, []).extend(str(row.get("defect")) for row in finding.table)
        return failing
