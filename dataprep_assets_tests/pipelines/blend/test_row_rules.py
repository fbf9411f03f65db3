"""Rules drop rows of conversations and pairs by columns of the rows and of taggers, and a check applies them again."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from pydantic import ValidationError

import dataprep_assets
from dataprep_assets.engine.artifact.losses import RULE, find_losses
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import BadRecordError, IntegrityError, NotFoundError
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.pipelines.blend.screening.conversation_columns import COLUMNS, measure_rows
from dataprep_assets.pipelines.blend.screening.row_rules import RowRules
from dataprep_assets.tokenization.chat.messages import REFUSALS, Conversation, Preference
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.retracted_blend import STAGES, RetractedBlend
from dataprep_assets_tests.pipelines.blend.ruled_blend import (
    BATCHES,
    BUILD,
    DROPPED,
    LONG,
    PLAIN,
    RULES,
    RuledBlend,
    make_row,
)
from dataprep_assets_tests.pipelines.blend.screened_blend import CALL, TOOLS, make_answer, make_user


@pytest.mark.parametrize("stage", BUILD)
def test_rules_drop_rows_with_their_name_as_the_reason(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage)
    made.run()
    assert made.dropped() == DROPPED
    assert made.kept() == set(range(PLAIN))
    entries = made.quarantined()
    assert Counter(entry["reason"] for entry in entries) == DROPPED
    offset = len(made.rows) // 2
    numbers = {entry["row"] + offset * (entry["file"] == "f1.jsonl") for entry in entries}
    assert numbers == {made.rows.index(row) + 1 for row in made.faulty}
    losses = [loss for loss in find_losses(made.dataset.specs, made.store) if loss.reason in DROPPED]
    assert {loss.reason: (loss.count, loss.of, loss.part, loss.kind) for loss in losses if loss.count} == {
        name: (count, len(made.rows), "first", RULE) for name, count in DROPPED.items()
    }
    assert made.failing() == {}
    entry = entries[0]
    with raises(NotFoundError, f"row {entry['row']} of {entry['file']}", entry["reason"]):
        trace_documents(made.dataset.tracer(made.store), file=entry["file"], row=entry["row"])
    assert made.run() == []
    # A changed rule rebuilds the shards.
    made.changes["drop"] = {**made.changes["drop"], "late": "turns > 2"}
    assert find_stale(made.dataset.specs, made.store)
    made.run()
    assert made.dropped() == {name: count for name, count in DROPPED.items() if name != "late"}
    assert made.failing() == {}


@pytest.mark.parametrize("stage", BUILD)
def test_the_kept_rows_do_not_depend_on_shards_files_or_batches(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage)
    outcomes = set()
    for shards in (1, 2, 5):
        made.changes["num_shards"] = shards
        made.build_shards_here()
        outcomes.add((made.kept(), frozenset(made.dropped().items())))
        assert made.failing() == {}
    made.write_rows(made.rows[::-1])
    with patch(BATCHES[stage], 3):
        made.build_shards_here()
    outcomes.add((made.kept(), frozenset(made.dropped().items())))
    assert len(outcomes) == 1


@pytest.mark.parametrize("stage", BUILD)
def test_a_row_that_a_rule_should_have_dropped_fails_the_check(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage)

    def keep_rows(_: RowRules, rows: Sequence[Any], *__: Any) -> list[None]:
        return [None] * len(rows)

    with patch.object(RowRules, "find_reasons", keep_rows):
        made.build_shards_here()
    assert not made.dropped()
    (defects,) = made.failing().values()
    assert list(made.failing()) == ["rules_applied"]
    numbers = {(text.split(": ")[1], int(re.findall(r"row (\d+)", text)[0])) for text in defects}
    offset = len(made.rows) // 2
    assert {row + offset * (file == "f1.jsonl") for file, row in numbers} == {
        made.rows.index(row) + 1 for row in made.faulty
    }
    assert {name for name in DROPPED for text in defects if f"'{name}'" in text} == set(DROPPED)


@pytest.mark.parametrize("stage", BUILD)
def test_a_row_that_no_rule_drops_but_was_dropped_fails_the_check(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage)

    def drop_rows(rules: RowRules, rows: Sequence[Any], _: str, numbers: Sequence[int]) -> list[str | None]:
        return ["late" if number == 2 else None for number in numbers]

    made.write_rows(made.rows[:20])
    with patch.object(RowRules, "find_reasons", drop_rows):
        made.build_shards_here()
    (defects,) = made.failing().values()
    assert len(defects) == made.dropped()["late"] > 0
    for defect in defects:
        assert_names(defect, "row 2", "'late'")


def test_a_rule_without_a_value_keeps_the_row_if_it_drops_and_drops_it_if_it_keeps(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft", num_shards=1)
    made.changes |= {"tag": ["gopher"], "tag_text": {"gopher": "questions"}, "keep": {}, "drop": {"few": "words < 3"}}
    row = {"messages": [{"role": "system", "content": "Sing."}, make_answer("I sing.")]}
    made.write_rows([*made.rows, row])
    made.build_shards_here()
    assert made.dropped() == {"few": 1}
    made.changes |= {"keep": {"many": "words >= 3"}, "drop": {}}
    made.build_shards_here()
    assert made.dropped() == {"many": 2}
    assert made.failing() == {}


def test_taggers_read_the_declared_texts_and_functions_read_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "def measure(table):\n"
        "    assert table.column_names[1] == 'source'\n"
        "    texts, turns = table['text'].to_pylist(), table['turns'].to_pylist()\n"
        "    return {'mark': [('Bird 3.' in text) + 10 * turn for text, turn in zip(texts, turns)]}\n"
    )
    (tmp_path / "row_mark.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = RuledBlend(tmp_path, "sft")
    tag = {"function": "row_mark:measure", "columns": {"mark": "integer"}, "version": "1"}
    for texts, count in (("answers", 1), ("questions", 0), ("all", 1), ("first_question", 0)):
        made.changes |= {"tag": [tag], "tag_text": {"measure": texts}, "keep": {}, "drop": {"third": "mark = 11"}}
        made.build_shards_here()
        assert made.dropped()["third"] == count
    assert not [remark for remark in find_blend_remarks(made.declaration) if remark.keys[0] == "tag"]
    made.changes["tag"] = [{**tag, "function": "row_mark:gone", "name": "measure"}]
    (remark,) = [remark for remark in find_blend_remarks(made.declaration) if remark.keys[0] == "tag"]
    assert remark.keys == ("tag", 0)
    assert_names(remark.sentence, "gone")


def test_a_rule_may_have_an_expression_for_each_dataset(tmp_path: Path) -> None:
    by_dataset = {"short": {"first": "answer_characters < 4", "default": "turns > 9"}}
    made = RuledBlend(tmp_path, "sft", drop={**RULES["drop"], **by_dataset})
    made.run()
    assert made.dropped() == DROPPED
    assert made.failing() == {}
    assert made.run() == []


def test_rules_do_not_use_up_the_budget_for_bad_rows(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft", bad_records={"policy": "drop", "budget": 0.1})
    made.write_rows([*made.rows, {"messages": []}])
    made.build_shards_here()
    assert made.dropped() == {**DROPPED, "no_messages": 1}
    made.changes["bad_records"] = {"policy": "fail"}
    with raises(BadRecordError, "f1.jsonl", "no_messages"):
        made.build_shards_here()


def test_a_row_that_a_rule_drops_is_not_searched_for_benchmark_items(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft")
    (tmp_path / "quiz.jsonl").write_text('{"question": "' + LONG.replace("bird", "gull") + '"}\n')
    made.changes["decontaminate"] = {"sets": {"quiz": str(tmp_path / "quiz.jsonl")}}
    leak = make_row("sft", "Who sings this song?", make_answer(LONG.replace("bird", "gull")))
    made.write_rows([*made.rows, leak, {**leak, "messages": [*leak["messages"], *leak["messages"]]}])
    made.build_shards_here()
    assert made.dropped() == {**DROPPED, "late": 2, "benchmark": 1}
    assert made.failing() == {}


def test_a_dataset_of_which_nothing_is_left_is_reported_with_the_rule(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft")
    made.changes["drop"] = {"everything": "source = 'first'"}
    with raises(IntegrityError, "first", "everything"):
        made.run()


@pytest.mark.parametrize("stage", STAGES)
def test_a_blend_without_rules_does_not_mention_them(tmp_path: Path, stage: str) -> None:
    made = RetractedBlend(tmp_path, stage)
    made.run()
    for path in made.store.root.rglob("receipt.json"):
        assert "rules" not in orjson.loads(path.read_bytes())["recipe"]["settings"]
    assert "rules_applied" not in [check.name for spec in made.dataset.specs for check in spec.checks]


def test_columns_count_messages_calls_and_characters() -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        make_user("Who sings?"),
        make_answer("", tool_calls=[CALL, CALL]),
        {"role": "tool", "content": "a long result"},
        make_answer("<think>Hm.</think>A bird."),
        make_user("Sure?"),
        make_answer("Yes.", reasoning_content="Hm."),
    ]
    (row,) = zip(*measure_rows([Conversation(messages, TOOLS)], "chats").values(), strict=True)
    assert dict(zip(COLUMNS, row, strict=True)) == {
        "source": "chats",
        "bytes": row[1],
        "characters": row[1],
        "messages": 7,
        "turns": 2,
        "tool_calls": 2,
        "has_system": True,
        "has_tools": True,
        "has_tool_results": True,
        "has_reasoning": True,
        "question_characters": len("Who sings?Sure?"),
        "answer_characters": len("A bird.Yes."),
        "answer_question_ratio": len("A bird.Yes.") / len("Who sings?Sure?"),
    }
    sides = [Conversation([make_user("Who?"), make_answer(text)]) for text in ("A bird.", "No.")]
    pair = Preference(chosen_side=sides[0], rejected_side=sides[1], prompt=1)
    values = measure_rows([pair, Conversation([make_answer("A bird.")])], "pairs")
    assert values["messages"] == [3, 1]
    assert values["turns"] == [1, 0]
    assert values["has_reasoning"] == values["has_tools"] == values["has_system"] == [False, False]
    assert values["answer_characters"] == [10, 7]
    assert values["answer_question_ratio"] == [2.5, None]


def test_every_reason_for_refusing_a_row_is_reserved() -> None:
    folder = Path(dataprep_assets.__file__).parent / "tokenization/chat"
    texts = [path.read_text() for path in folder.glob("*.py")]
    reasons = {name for text in texts for name in re.findall(r'(?:Refusal|RefusedError)\(\s*"([a-z_]+)"', text)}
    assert len(reasons) > 5
    assert reasons <= REFUSALS


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        (
            {"stage": "rl", "rl": {"transforms": ["passthrough"]}, "tokenizer": None, "sft": None},
            ["`tag`", "stage: rl"],
        ),
        ({"drop": {"no_messages": "turns > 1"}}, ["drop.no_messages", "Rename"]),
        ({"drop": {"benchmark": "turns > 1"}}, ["drop.benchmark", "Rename"]),
        ({"drop": {"late": "turn > 1"}}, ["drop.late", "'turn'", "turns"]),
        ({"drop": {"late": {"frist": "turns > 1"}}}, ["drop.late", "'frist'", "'first'"]),
        ({"drop": {"late": {"first": "turn > 1"}}}, ["drop.late.first", "'turn'", "turns"]),
        ({"tag": [{"url_lists": {"lists": {"blocked": "a.txt"}}}], "tag_text": {}}, ["url_lists", "'url'", "source"]),
        ({"tag_text": {"language": "all"}}, ["tag_text", "'language'", "gopher"]),
        ({"tag_text": {"gopher": "some"}}, ["tag_text.gopher"]),
        ({"tag": [{"asset": ["scores"], "columns": {"words": "integer"}}], "tag_text": {}}, ["scores", "function"]),
        ({"tag": [{"function": "m:f", "columns": {"turns": "integer"}}], "tag_text": {}}, ["f", "'turns'"]),
    ],
)
def test_mistakes_are_reported_before_a_run(tmp_path: Path, changes: dict[str, Any], values: list[str]) -> None:
    made = RuledBlend(tmp_path, "sft")
    made.changes |= changes
    with raises(ValidationError, *values):
        _ = made.declaration
