"""Rules drop rows of conversations and pairs by columns of the rows and of taggers, and a check applies them again."""

import ast
import importlib
import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from pydantic import ValidationError

import dataprep_assets
from dataprep_assets.curation.tagging import BuiltInTagger
from dataprep_assets.engine.artifact.losses import RULE, find_losses
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import BadRecordError, IntegrityError, NotFoundError
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.pipelines.blend.rl.record_parts import PartPaths
from dataprep_assets.pipelines.blend.screening.conversation_columns import COLUMNS, measure_rows, select_text
from dataprep_assets.pipelines.blend.screening.reasons import RESERVED
from dataprep_assets.pipelines.blend.screening.row_rules import RowRules, build_row_preparation, load_row_rules
from dataprep_assets.pipelines.blend.screening.row_texts import read_record
from dataprep_assets.pipelines.blend.screening.rule_checks import may_be_chance
from dataprep_assets.tokenization.chat.messages import Conversation, Preference
from dataprep_assets_tests.engine.building import build_all
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
    write_varying_tagger,
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
    part = "first__train" if stage == "rl" else "first"
    assert {loss.reason: (loss.count, loss.of, loss.part, loss.kind) for loss in losses if loss.count} == {
        name: (count, len(made.rows), part, RULE) for name, count in DROPPED.items()
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
        "last_answer_characters": len("Yes."),
        "answer_question_ratio": len("A bird.Yes.") / len("Who sings?Sure?"),
    }
    sides = [Conversation([make_user("Who?"), make_answer(text)]) for text in ("A bird.", "No.")]
    pair = Preference(chosen_side=sides[0], rejected_side=sides[1], prompt=1)
    values = measure_rows([pair, Conversation([make_answer("A bird.")])], "pairs")
    assert values["messages"] == [3, 1]
    assert values["turns"] == [1, 0]
    assert values["has_reasoning"] == values["has_tools"] == values["has_system"] == [False, False]
    assert values["answer_characters"] == [10, 7]
    assert values["last_answer_characters"] == [7, 7]
    assert measure_rows([Conversation([make_user("Who?")])], "pairs")["last_answer_characters"] == [0]
    assert values["answer_question_ratio"] == [2.5, None]


def test_columns_of_records_have_the_prompt_the_answers_and_the_tools() -> None:
    auto = PartPaths("auto", "auto")
    record = {
        "responses_create_params": {"input": [make_user("Who sings?")], "tools": TOOLS},
        "prompt": "Who sings?",
        "expected_answer": "A bird.",
        "environment": "a long name",
    }
    bare = {"environment": "songs", "level": 3}
    preference = {"prompt": "Who?", "chosen": "A bird.", "rejected": [make_answer("No.")], "score": "high"}
    values = measure_rows([read_record(row, auto) for row in (record, bare, preference)], "songs")
    assert values["messages"] == [2, 0, 3]
    assert values["turns"] == [1, 0, 1]
    assert values["has_tools"] == [True, False, False]
    assert values["question_characters"] == [10, 0, 4]
    assert values["answer_characters"] == [7, 0, 10]
    assert values["last_answer_characters"] == [7, 0, 3]
    assert values["characters"][1:] == [len("songs"), len("Who?\nA bird.\nNo.")]
    conversation = read_record(record, auto)
    assert select_text(conversation, "questions") == select_text(conversation, "first_question") == "Who sings?"
    assert select_text(conversation, "answers") == "A bird."
    assert select_text(conversation, "all").startswith("Who sings?\nA bird.")
    assert "a long name" not in select_text(conversation, "all")
    assert select_text(read_record(record, PartPaths("auto", "environment")), "answers") == "a long name"


@pytest.mark.parametrize("stage", BUILD)
def test_results_that_vary_with_a_tagger_only_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    tag, state = write_varying_tagger(tmp_path, monkeypatch)
    made = RuledBlend(tmp_path, stage, prove={"level": "every_document"})
    made.changes |= {"tag": [*RULES["tag"], tag], "drop": {**RULES["drop"], "marked": "mark = 1 and turns = 1"}}
    made.build_shards_here()
    assert made.failing() == {}
    state.write_text("1")
    failing = [(name, finding) for name, finding in made.check_shards() if not finding.passed]
    assert {name for name, _ in failing} == {"rules_applied"}
    assert all(finding.warning for _, finding in failing)
    assert_names(failing[0][1].summary, "'marked'", "seed")
    # A result that does not depend on the tagger blocks, even next to results that do.
    made.changes["num_shards"] = 1
    with patch.object(RowRules, "find_reasons", lambda _, rows, *__: [None] * len(rows)):
        made.build_shards_here()
    finding = next(finding for name, finding in made.check_shards() if name == "rules_applied" and not finding.passed)
    assert not finding.warning
    assert_names(finding.summary, "'asked'")


def test_only_results_that_the_other_rules_allow_may_be_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tag, _ = write_varying_tagger(tmp_path, monkeypatch)
    drop = {"first": "turns > 8", "varying": "mark = 1", "last": "turns > 9"}
    made = RuledBlend(tmp_path, "sft", tag=[tag], tag_text={}, keep={}, drop=drop)
    rules = load_row_rules(made.declaration)
    assert rules is not None
    assert rules.repeatable.names == ("first", "last")
    allowed = [("varying", None), ("varying", "last"), ("last", "last"), (None, None)]
    refused = [("varying", "first"), (None, "last"), ("first", None), ("last", None), ("last", "first")]
    assert all(may_be_chance(rules, *pair) for pair in allowed)
    assert not any(may_be_chance(rules, *pair) for pair in refused)


def test_a_recorded_row_that_is_not_in_the_sources_fails_the_check(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft", num_shards=1)
    made.build_shards_here()
    (first, *_) = made.partitions
    path = made.store.directory(made.shard(first)) / "quarantine.jsonl"
    lines = [
        {"file": file, "row": row, "byte": 0, "reason": "late", "message": None}
        for file, row in (("gone.jsonl", 1), ("f0.jsonl", 9_999))
    ]
    path.write_bytes(path.read_bytes() + b"".join(orjson.dumps(line) + b"\n" for line in lines))
    defects = made.failing()["rules_applied"]
    assert len(defects) == 2
    for defect, (file, row) in zip(defects, (("f0.jsonl", 9_999), ("gone.jsonl", 1)), strict=True):
        assert_names(defect, file, f"row {row}")


REASON_POSITIONS = {"Refusal": 0, "RefusedRecord": 0, "_ChatRefusedError": 0, "BadRecord": 2}
"""Class that carries the reason for dropping a row → position of the argument with the reason."""


def find_texts(expression: ast.expr | None, names: Mapping[str, Any]) -> list[str]:
    """Return the texts that an expression of a module with these names may be, without details after a colon."""
    match expression:
        case ast.Constant(value=str(text)):
            return [text.partition(":")[0]]
        case ast.Name(id=name) if isinstance(text := names.get(name), str):
            return [text.partition(":")[0]]
        case ast.IfExp(body=first, orelse=second):
            return [*find_texts(first, names), *find_texts(second, names)]
        case ast.JoinedStr(values=[first, *_]) | ast.FormattedValue(value=first) | ast.BinOp(left=first):
            return find_texts(first, names)
        case ast.BoolOp(values=values):
            return [text for value in values for text in find_texts(value, names)]
    return []


def test_every_reason_for_dropping_a_row_is_reserved() -> None:
    root = Path(dataprep_assets.__file__).parent
    folders = ("tokenization/chat", "pipelines/blend", "sources/readers")
    reasons: set[str] = set()
    for path in (path for folder in folders for path in (root / folder).rglob("*.py")):
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        names = vars(importlib.import_module(module))
        # In these modules, functions that return a row or a text return the reason as the text.
        returns_reasons = path.name in ("messages.py", "row_forms.py", "encoding.py")
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name), args=args) if REASON_POSITIONS.get(name, 9) < len(args):
                    reasons.update(find_texts(args[REASON_POSITIONS[name]], names))
                case ast.FunctionDef(returns=ast.BinOp() as kinds) if returns_reasons and "str" in ast.unparse(kinds):
                    results = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
                    reasons.update(text for result in results for text in find_texts(result, names))
    assert reasons >= {"tool_call_text_without_tools", "not_json", "bad_placeholder", "empty_assistant", "bad_csv"}
    assert len(reasons) > 40
    assert reasons <= RESERVED


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        (
            {"stage": "pretrain", "pretrain": {}, "sft": None},
            ["`tag`", "stage: pretrain", "`TokenizedCorpus`"],
        ),
        ({"drop": {"no_messages": "turns > 1"}}, ["drop.no_messages", "Rename"]),
        ({"drop": {"tool_call_text_without_tools": "turns > 1"}}, ["drop.tool_call_text_without_tools", "Rename"]),
        ({"keep": {"not_json": "turns > 1"}}, ["keep.not_json", "Rename"]),
        ({"keep": {"left_out_by_select": "turns > 1"}}, ["keep.left_out_by_select", "Rename"]),
        ({"drop": {"benchmark": "turns > 1"}}, ["drop.benchmark", "Rename"]),
        ({"drop": {"late": "turn > 1"}}, ["drop.late", "'turn'", "turns"]),
        ({"drop": {"late": {"frist": "turns > 1"}}}, ["drop.late", "'frist'", "'first'"]),
        ({"drop": {"late": {"first": "turn > 1"}}}, ["drop.late.first", "'turn'", "turns"]),
        ({"tag": [{"url_lists": {"lists": {"blocked": "a.txt"}}}], "tag_text": {}}, ["url_lists", "'url'", "source"]),
        ({"budget": {"per_rule": {"lates": 0.1}}}, ["budget.per_rule", "'lates'", "late"]),
        ({"keep": {}, "drop": {}, "budget": {"per_source": 0.1}}, ["budget", "`keep`"]),
        ({"tag_text": {"language": "all"}}, ["tag_text", "'language'", "gopher"]),
        ({"tag_text": {"gopher": "some"}}, ["tag_text.gopher"]),
        ({"tag": [{"asset": ["scores"], "columns": {"words": "integer"}}], "tag_text": {}}, ["scores", "function"]),
        ({"tag": [{"function": "m:f", "columns": {"turns": "integer"}}], "tag_text": {}}, ["f", "'turns'"]),
        ({"tag": [{"function": "m:f", "columns": {"row": "integer"}}], "tag_text": {}}, ["f", "'row'"]),
    ],
)
def test_mistakes_are_reported_before_a_run(tmp_path: Path, changes: dict[str, Any], values: list[str]) -> None:
    made = RuledBlend(tmp_path, "sft")
    made.changes |= changes
    with raises(ValidationError, *values):
        _ = made.declaration


@pytest.mark.parametrize("stage", BUILD)
def test_workers_share_the_models_of_taggers(tmp_path: Path, stage: str) -> None:
    loaded: list[Any] = []

    class Pool(WorkerPool):
        def __init__(self, count: int, environment: Any = None, prepare: Any = None) -> None:
            loaded.append(prepare)
            super().__init__(count, environment, prepare)

    made = RuledBlend(tmp_path, stage)
    with patch("dataprep_assets.execution.processes.WorkerPool", Pool):
        build_all(made.dataset.specs, made.store, workers=2)
    # The shards and the tables are built by workers.
    with patch.object(BuiltInTagger, "tag_batch", autospec=True) as tag_batch:
        for prepare in filter(None, loaded):
            pickle.loads(pickle.dumps(prepare))()
    assert [call.args[0].name for call in tag_batch.call_args_list] == ["gopher", "repetition"] * 2
    made.changes |= {"tag": [], "tag_text": {}, "keep": {}, "drop": {"late": "turns > 1"}}
    assert build_row_preparation(made.declaration) is None
