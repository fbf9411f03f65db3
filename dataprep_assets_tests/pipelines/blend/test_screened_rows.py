"""Rows of blends that contain benchmark items are dropped in every stage, wherever the item is, and a check finds the
rest.
"""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pydantic import ValidationError

from dataprep_assets.engine.artifact.losses import find_losses
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import ConfigError, IntegrityError, NotFoundError
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.pipelines.blend.screening.row_screen import RowScreen
from dataprep_assets.pipelines.blend.screening.row_texts import select_texts
from dataprep_assets.pipelines.blend.table.row_table import DOCUMENTS
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, write_small_sources
from dataprep_assets_tests.pipelines.blend.retracted_blend import RetractedBlend
from dataprep_assets_tests.pipelines.blend.screened_blend import (
    ITEMS,
    MAKE,
    PLACES,
    PLAIN,
    STAGES,
    ScreenedBlend,
    make_answer,
    make_messages,
    make_user,
)


def find_kept(made: ScreenedBlend) -> set[int]:
    """Return the numbers of the plain rows whose text is in the shards."""
    # A shard whose rows all have an item is empty and has no file.
    partitions = [name for name in made.partitions if not made.receipt(name).facts.get("empty")]
    texts = "\n".join(map(made.texts, partitions))
    return {number for number in range(PLAIN) if f"bird {number}" in texts.lower()}


def keep_leaks(_: RowScreen, rows: list[Any]) -> list[None]:
    """Find no item in any row, as a bug would."""
    return [None] * len(rows)


@pytest.mark.parametrize("stage", STAGES)
def test_items_are_found_wherever_they_are_and_nothing_else_is_dropped(tmp_path: Path, stage: str) -> None:
    made = ScreenedBlend(tmp_path, stage)
    made.run()
    rows = {made.rows.index(row) + 1 for row in made.leaks}
    offset = len(made.rows) // 2
    found = {(one["file"], one["row"]): (one["reason"], one["words"]) for one in made.quarantined()}
    assert {row + offset * (file == "f1.jsonl") for file, row in found} == rows
    assert {reason for reason, _ in found.values()} == {"benchmark"}
    assert {item for _, item in found.values()} == {"quiz:1:question", *(["quiz:2"] if stage == "sft" else [])}
    assert made.drops() == len(PLACES[stage])
    # Row 7 has a phrase of the question instead of its own text.
    assert find_kept(made) >= set(range(PLAIN)) - {7}
    assert made.find_failing() == {}
    findings = made.find_contamination()
    assert all(finding.passed for finding in findings)
    assert sum(int(finding.facts["dropped"]) for finding in findings) == len(rows)
    assert sum(int(finding.facts["common_phrases_only"]) for finding in findings) == 1
    hosts = ("user_turn", "tool_result", "reasoning", "answer")
    assert {findings[0].facts[f"detected_{host}_%"] for host in hosts} == {100.0}
    (loss,) = [one for one in find_losses(made.dataset.specs, made.store) if one.reason == "benchmark"]
    assert (loss.action, loss.count, loss.of, loss.kind) == ("dropped", len(rows), len(made.rows), "")
    assert sum(loss.files.values()) == len(rows)
    file, row = next(iter(found))
    with raises(NotFoundError, f"row {row} of {file}", "benchmark", "quiz:1:question"):
        trace_documents(made.dataset.tracer(made.store), file=file, row=row)
    assert made.run() == []
    # A run without decontamination keeps these rows.
    made.decontaminate = None
    made.run()
    assert made.drops() == 0
    assert "no_benchmark_contamination" not in [check.name for spec in made.dataset.specs for check in spec.checks]


@pytest.mark.parametrize("stage", STAGES)
def test_the_kept_rows_do_not_depend_on_shards_files_or_batches(tmp_path: Path, stage: str) -> None:
    made = ScreenedBlend(tmp_path, stage)
    kept, drops = set(), set()
    for shards in (1, 2, 5):
        made.changes["num_shards"] = shards
        made.build_shards_here()
        assert len(made.partitions) == shards
        kept.add(frozenset(find_kept(made)))
        drops.add(made.drops())
        assert made.find_failing() == {}
    made.write_rows(made.rows[::-1])
    batches = {
        "sft": "dataprep_assets.pipelines.blend.sft.spool.BATCH",
        "pairs": "dataprep_assets.pipelines.blend.pairs.shard._BATCH",
        "rl": "dataprep_assets.pipelines.blend.rl.shard._BATCH",
    }
    with patch(batches[stage], 3):
        made.build_shards_here()
    kept.add(frozenset(find_kept(made)))
    drops.add(made.drops())
    assert (len(kept), drops) == (1, {len(PLACES[stage])})


@pytest.mark.parametrize("stage", STAGES)
def test_a_row_with_an_item_that_was_kept_fails_the_check(tmp_path: Path, stage: str) -> None:
    made = ScreenedBlend(tmp_path, stage)
    with patch.object(RowScreen, "find_leaks", keep_leaks):
        made.build_shards_here()
    assert made.drops() == 0
    findings = made.find_contamination()
    assert {(finding.passed, finding.warning) for finding in findings} <= {(False, False), (True, False)}
    expected = {made.rows.index(row) + 1 for row in made.leaks}
    offset = len(made.rows) // 2
    named = [str(row["defect"]) for finding in findings if not finding.passed for row in finding.table]
    rows = {(text.split(": ")[1], int(text.split("row ")[1].split(" ")[0])) for text in named}
    assert {row + offset * (file == "f1.jsonl") for file, row in rows} == expected
    assert {text.split(" of ")[-1] for text in named} <= {"quiz:1:question", "quiz:2"}


@pytest.mark.parametrize("stage", STAGES)
def test_block_keeps_the_rows_and_fails_the_check(tmp_path: Path, stage: str) -> None:
    made = ScreenedBlend(tmp_path, stage, action="block")
    made.build_shards_here()
    assert made.drops() == 0
    assert_names(made.find_failing()["no_benchmark_contamination"], "quiz:1:question", "action: drop")


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        ("questions", {"user turn", "later user turn"}),
        ("first_question", {"user turn"}),
        ("answers", {"reasoning", "answer", "tool call"}),
    ],
)
def test_only_the_declared_texts_of_conversations_are_searched(tmp_path: Path, text: str, dropped: set[str]) -> None:
    made = ScreenedBlend(tmp_path, "sft", text=text)
    made.build_shards_here()
    assert made.drops() == len(dropped)
    assert made.find_failing() == {}
    with patch.object(RowScreen, "find_leaks", keep_leaks):
        made.changes["force"] = "again"
        made.build_shards_here()
    findings = made.find_contamination()
    assert sum(int(finding.facts["contaminated_kept"]) for finding in findings) == len(dropped)
    assert not all(finding.passed for finding in findings)


@pytest.mark.parametrize(
    ("stage", "text", "dropped"),
    [
        ("pairs", "questions", 1),
        ("pairs", "answers", 3),
        ("rl", "questions", 2),
        ("rl", "first_question", 2),
        ("rl", "answers", 1),
    ],
)
def test_only_the_declared_texts_of_pairs_and_records_are_searched(
    tmp_path: Path, stage: str, text: str, dropped: int
) -> None:
    made = ScreenedBlend(tmp_path, stage, text=text)
    made.build_shards_here()
    assert made.drops() == dropped
    assert made.find_failing() == {}


@pytest.mark.parametrize("stage", ["sft", "pairs"])
def test_items_are_rewritten_as_the_rows_are(tmp_path: Path, stage: str) -> None:
    made = ScreenedBlend(tmp_path, stage, containment=1.0)
    question = f"{ITEMS[0]['question']} Write to the keeper of the three bridges, miller@bridge.example.org, for a map."
    made.write_items([{"question": question}])
    made.write_rows([*made.rows, MAKE[stage](200, PLACES[stage][0], question)])
    made.changes["rewrite"] = [{"personal": {"emails": "<EMAIL>"}}]
    made.run()
    assert made.drops() == 1
    assert made.find_failing() == {}
    assert "miller@bridge" not in "\n".join(map(made.texts, made.partitions))
    (found,) = {one["words"] for one in made.quarantined()}
    assert found.startswith("quiz:1")


@pytest.mark.parametrize("stage", STAGES)
def test_the_budget_limits_the_rows_with_items(tmp_path: Path, stage: str) -> None:
    made = ScreenedBlend(tmp_path, stage)
    made.changes["budget"] = {"per_rule": {"benchmark": 0.9}}
    made.run()
    finding = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))["within_budget"]
    assert (finding.passed, finding.facts["dropped"]) == (True, len(made.leaks))
    made.changes["budget"] = {"per_rule": {"benchmark": 0.001}}
    finding = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))["within_budget"]
    assert not finding.passed
    assert_names(finding.summary, "benchmark", len(made.leaks))
    drops = made.dataset.documents(made.store).drops()
    assert drops is not None
    assert [(rule.rule, rule.documents) for rule in drops.rules] == [("benchmark", len(made.leaks))]
    assert len(drops.over_budget) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_changed_benchmark_rebuilds_the_shards_and_a_changed_coverage_only_checks(tmp_path: Path, stage: str) -> None:
    made = ScreenedBlend(tmp_path, stage)
    made.run()
    before = {partition: made.receipt(partition).key for partition in made.partitions}
    name = made.shard(made.partitions[0]).name
    made.write_items(ITEMS[1:])
    stale = {one.name for one in find_stale(made.dataset.specs, made.store)}
    assert any(one.endswith(f"/{name}/{made.partitions[0]}") for one in stale) or any(
        "blend_plan" in one for one in stale
    )
    built = made.run()
    assert {one for one in built if not one.startswith("rl_manifest")} == {
        "blend",
        *(f"{name}/{partition}" for partition in made.partitions),
    }
    assert made.drops() == (2 if stage == "sft" else 0)
    made.write_items(ITEMS)
    made.run()
    assert {partition: made.receipt(partition).key for partition in made.partitions} == before
    made.write_items([*ITEMS, {"question": "What?"}])
    assert made.decontaminate is not None
    made.decontaminate["coverage"] = 0.5
    made.run()
    assert made.find_failing() == {}
    made.decontaminate["coverage"] = 0.9
    assert made.run() == []
    assert_names(made.find_failing_verdict(), "coverage", "too short")


def test_spools_of_another_benchmark_are_not_packed(tmp_path: Path) -> None:
    made = ScreenedBlend(tmp_path, "sft")
    stopped = patch("dataprep_assets.pipelines.blend.sft.packing.pack_shard", side_effect=IntegrityError("stopped"))
    with stopped, pytest.raises(IntegrityError):
        made.build_shards_here()
    assert list(made.store.root.rglob("tokens.bin"))
    made.write_items(ITEMS[1:2])
    made.run()
    assert made.drops() == 2
    assert made.find_failing() == {}


@pytest.mark.parametrize("stage", STAGES)
def test_a_blend_without_decontamination_does_not_mention_it(tmp_path: Path, stage: str) -> None:
    made = RetractedBlend(tmp_path, stage)
    made.run()
    for path in made.store.root.rglob("receipt.json"):
        assert "decontaminate" not in path.read_text()
        assert "benchmarks" not in json.loads(path.read_text())["facts"]


def test_kept_rows_can_be_traced_without_the_benchmark(tmp_path: Path) -> None:
    made = ScreenedBlend(tmp_path, "sft")
    made.run()
    (tmp_path / "quiz.jsonl").unlink()
    (trace,) = trace_documents(made.dataset.tracer(made.store), file="f0.jsonl", row=2, message=1)
    assert trace.text is not None
    assert "Bird 1." in trace.text


def test_a_removed_row_with_an_item_is_counted_as_removed(tmp_path: Path) -> None:
    made = ScreenedBlend(tmp_path, "rl")
    made.run()
    (first, *_) = made.quarantined()
    made.retract(f"{first['file']}:{first['row']}")
    made.run()
    ledgers = [made.receipt(partition).ledger for partition in made.partitions]
    assert sum(ledger.dropped.get("retracted", 0) for ledger in ledgers if ledger is not None) == 1
    assert made.find_failing() == {}


def test_a_dataset_of_which_nothing_is_left_is_reported(tmp_path: Path) -> None:
    made = ScreenedBlend(tmp_path, "rl")
    made.write_rows(made.leaks)
    with raises(IntegrityError, "first", "benchmark", "decontaminate"):
        made.run()


def test_bad_rows_and_their_budget_are_counted_without_items(tmp_path: Path) -> None:
    """The policy for bad records, which is to fail at the first one, does not apply to rows with an item."""
    made = ScreenedBlend(tmp_path, "rl")
    made.changes["bad_records"] = {"policy": "drop", "budget": 0.03}
    made.write_rows([*made.rows, {"responses_create_params": {"input": []}}])
    made.changes["rl"] = {"transforms": ["passthrough"], "prompt": "auto"}
    made.build_shards_here()
    assert made.find_failing() == {}


def test_show_counts_items_that_are_not_searched_for(tmp_path: Path) -> None:
    made = ScreenedBlend(tmp_path, "pairs", coverage=0.5)
    made.write_items([*ITEMS, {"question": "What?"}])
    made.run()
    (line,) = [line for line in made.dataset.summary(made.store) if line.startswith("benchmark")]
    assert_names(line, "quiz", 1, 4, "too short")
    assert made.find_failing() == {}


def test_mistakes_are_reported_before_a_run(tmp_path: Path) -> None:
    with raises(ValidationError, "`decontaminate`", "pretrain", "TokenizedCorpus"):
        declare_pretraining(write_small_sources(tmp_path / "s"), decontaminate={"sets": {"quiz": "quiz.jsonl"}})
    made = ScreenedBlend(tmp_path, "rl", sets={"quiz": "none.jsonl"})
    (remark,) = find_blend_remarks(made.declaration)
    assert remark.keys == ("decontaminate", "sets", "quiz")
    assert_names(remark.sentence, "none.jsonl", "Correct the path")
    with raises(ConfigError, "decontaminate.sets.quiz", "none.jsonl"):
        made.run()
    made = ScreenedBlend(tmp_path, "rl")
    made.write_items([*ITEMS, {"question": "What?"}, {"question": "Who?"}])
    (remark,) = find_blend_remarks(made.declaration)
    assert (remark.keys, remark.hint) == (("decontaminate", "sets", "quiz"), False)
    for change, value in (("text", "some"), ("action", "tag"), ("min_words", 3)):
        made = ScreenedBlend(tmp_path, "rl", **{change: value})
        with raises(ValidationError, change):
            _ = made.declaration


def test_texts_of_messages_are_joined_with_and_without_reasoning() -> None:
    messages = make_messages(1, "tool result", "a result")
    complete, visible = select_texts(messages, "all", [{"description": "a tool"}])
    assert "a result" in complete
    assert complete.endswith("a tool")
    assert "a result" not in visible
    assert select_texts([make_user("Q"), make_answer("A")], "all") == ["Q\nA"]
    assert select_texts([make_user("Q"), make_answer("A", reasoning_content="R")], "answers") == ["R\nA", "A"]
    assert select_texts([make_user("Q"), make_answer("A"), make_user("P")], "questions") == ["Q\nP"]
    assert select_texts([make_user("Q"), make_user("P")], "first_question") == ["Q"]
    assert select_texts([make_answer("A")], "questions") == []
    assert select_texts([{"role": "user", "content": [{"type": "text", "text": "Q"}]}], "questions") == ["text\nQ"]
    assert select_texts([make_user("Q"), make_answer("<think>R</think>A")], "all") == ["Q\n<think>R</think>A", "Q\n A"]
    assert select_texts([make_user("Q"), make_answer("R</think>A")], "all") == ["Q\nR</think>A", "Q\nA"]
