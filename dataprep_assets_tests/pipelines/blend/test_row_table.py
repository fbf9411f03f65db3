"""The document table of a blend has every source row once, with its columns and its outcome."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.cli.retract import _list_ids
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.errors import ConfigError, MissingArtifactError, SourceError
from dataprep_assets.execution.run_task import connect
from dataprep_assets.pipelines.blend.dataset import Blend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, prepare_stage_shards
from dataprep_assets.pipelines.blend.table.blend_documents import BlendDocuments
from dataprep_assets.pipelines.blend.table.row_table import DOCUMENTS, TabledShard, ensure_row_table, prepare_row_tables
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.retracted_blend import ROWS, RetractedBlend
from dataprep_assets_tests.pipelines.blend.ruled_blend import (
    BUILD,
    DROPPED,
    LONG,
    PLAIN,
    RuledBlend,
    write_varying_tagger,
)


def open_table(made: RuledBlend) -> BlendDocuments:
    table = made.dataset.documents(made.store)
    assert isinstance(table, BlendDocuments)
    return table


def read_files(made: RuledBlend) -> list[dict[str, Any]]:
    """Return the rows of all stored tables, by file and row."""
    folders = [made.store.directory(made.declaration.artifact(DOCUMENTS, name)) for name in made.partitions]
    rows = [row for folder in folders for row in pq.read_table(folder / "documents.parquet").to_pylist()]
    return sorted(rows, key=lambda row: (row["file"], row["row"]))


def find_failing(made: RuledBlend) -> dict[str, str]:
    spec = made.dataset.spec(DOCUMENTS)
    return {name: one.summary for name, one in spec.examine(made.store, made.partitions) if not one.passed}


@pytest.mark.parametrize("stage", BUILD)
def test_the_table_has_every_row_with_its_outcome(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage, bad_records={"policy": "drop", "budget": 0.2})
    made.write_rows([*made.rows, {"messages": []}, *made.rows[:1]])
    if stage == "sft":
        made.changes["sft"] = {**made.changes["sft"], "pad_to_multiple": 8}
    bad_reason = "left_out_by_select" if stage == "rl" else "no_messages"
    made.run()
    rows = read_files(made)
    assert find_failing(made) == {}
    assert len(rows) == len({(row["file"], row["row"]) for row in rows}) == len(made.rows) + 2 + ROWS
    receipts = [made.receipt(name) for name in made.partitions]
    if stage == "rl":
        assert "tokens" not in rows[0]
    else:
        assert sum(row["tokens"] or 0 for row in rows) == sum(receipt.facts["tokens"] for receipt in receipts)
        assert all((row["tokens"] is not None) == row["kept"] for row in rows)
    assert all(row["kept"] == (row["reason"] is None) for row in rows)
    assert open_table(made).reasons() == {**DROPPED, bad_reason: 1}
    (bad,) = [row for row in rows if row["reason"] == bad_reason]
    assert (bad["source"], bad["bytes"], bad["turns"], bad["words"]) == ("first", None, None, None)
    (late,) = [row for row in rows if row["reason"] == "late"]
    assert (late["turns"], late["kept"], late["has_reasoning"]) == (2, False, False)
    assert {row["source"] for row in rows} == {"first", "second"}
    assert len({row["id"] for row in rows}) == len(rows) - 1
    assert made.run() == []


def test_a_removed_row_that_a_transform_left_out_is_listed_as_removed(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "rl", bad_records={"policy": "drop", "budget": 0.2})
    made.write_rows([*made.rows, {"messages": []}])
    made.run()
    (left_out,) = [row for row in read_files(made) if row["reason"] == "left_out_by_select"]
    made.retract(f'{{"hash": "{left_out["id"]}"}}')
    made.run()
    assert [row["reason"] for row in read_files(made) if row["id"] == left_out["id"]] == ["retracted"]
    assert find_failing(made) == {}


def test_a_column_with_the_name_language_may_be_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numbered_languages.py").write_text("def find(table):\n    return {'language': [7] * len(table)}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    tag = {"function": "numbered_languages:find", "columns": {"language": "integer"}}
    made = RuledBlend(tmp_path, "sft", tag=[tag], tag_text={}, keep={}, drop={"late": "turns > 1"})
    made.run()
    assert find_failing(made) == {}
    assert {row["language"] for row in read_files(made)} == {7}
    assert open_table(made).reasons() == {"late": 1}


@pytest.mark.parametrize("stage", BUILD)
def test_the_rows_do_not_depend_on_the_number_of_shards_and_workers(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage)
    tables = []
    for shards, workers in ((1, 1), (5, 2)):
        made.changes["num_shards"] = shards
        build_all(made.dataset.specs, made.store, workers=workers)
        tables.append(read_files(made))
    assert tables[0] == tables[1]


def test_queries_select_rows_by_reason_expression_and_outcome(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft")
    with raises(MissingArtifactError, "small_sft", "dataprep run"):
        open_table(made)
    made.run()
    table = open_table(made)
    assert [row["turns"] for row in table.rows(reason="late")] == [2]
    assert table.rows(where="answer_characters < 4 and source = 'first'", columns=["file", "row"]).count() == 3
    assert table.rows(kept=True).count() == PLAIN + ROWS
    assert table.rows(splits=["train"]).count() == len(made.rows) + ROWS
    assert [*next(iter(table.rows(where="turns > 1")))] == list(table.columns)
    for query, values in (
        ({"reason": "none"}, ["--reason", "'none'", "late"]),
        ({"where": "turn > 1"}, ["--where", "'turn'", "turns"]),
        ({"splits": ["valid"]}, ["valid", "train"]),
        ({"columns": ["word"]}, ["word", "words"]),
    ):
        with raises(ConfigError, *values):
            table.rows(**query)  # type: ignore[arg-type]
    made.changes |= {"held_out": {"valid": 1}}
    with raises(ConfigError, "small_sft", "--split", "`held_out`", "--where"):
        open_table(made).rows(splits=["train"])
    assert open_table(made).rows(where="turns > 1").columns is None


def test_rows_are_sampled_and_columns_plotted_without_texts(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft")
    made.run()
    table = open_table(made)
    rows = list(table.rows())
    sample = table.rows().sample(5, seed=3)
    assert len(sample) == 5
    assert all(row in rows for row in sample)
    assert table.rows().sample(5, seed=3) == sample
    histogram = table.histogram("turns")
    assert sorted(histogram.values.tolist()) == sorted(row["turns"] for row in rows)
    late = next(rule for rule in histogram.rules if rule.rule == "late")
    assert late.documents == DROPPED["late"]


@pytest.mark.parametrize("stage", BUILD)
def test_texts_of_rows_are_the_messages_of_the_source(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage, bad_records={"policy": "drop", "budget": 0.2})
    made.write_rows([*made.rows, {"messages": []}])
    made.run()
    table = open_table(made)
    rows = [*table.add_texts(table.rows())]
    plain_rows = [{name: value for name, value in row.items() if not name.startswith("text")} for row in rows]
    assert plain_rows == [*table.rows()]
    (refused,) = [row for row in rows if row["bytes"] is None]
    assert (refused["reason"], refused["text"]) == (
        "left_out_by_select" if stage == "rl" else "no_messages",
        '{"messages": []}',
    )
    content = (tmp_path / "sources/first" / refused["file"]).read_bytes()
    assert orjson.loads(content[refused["text_byte"] :].splitlines()[0]) == {"messages": []}
    texts = [row["text"] for row in rows]
    chosen, rejected = (["[chosen]"], ["[rejected]", "assistant: no"]) if stage == "pairs" else ([], [])
    question, answer = "Who sings song 0 now?", f"Bird 0. {LONG}"
    assert "\n".join([f"user: {question}", *chosen, f"assistant: {answer}", *rejected]) in texts
    (late,) = table.add_texts(table.rows(reason="late"))
    lines = [line.partition(": ")[0] for line in late["text"].splitlines()]
    assert lines == ["user", *chosen, "assistant", "user", "assistant", *[line.partition(": ")[0] for line in rejected]]
    thoughts = [
        row["text"].partition("assistant: <think>")[2] for row in table.add_texts(table.rows(reason="with_thoughts"))
    ]
    assert all(text.startswith("It sings.</think>") for text in thoughts)
    sample = table.rows(kept=True).sample(4, seed=2)
    assert [row["text"] in texts for row in table.add_texts(sample)] == [True] * 4


def test_texts_of_changed_or_missing_sources_are_errors(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft")
    made.run()
    table, path = open_table(made), tmp_path / "sources/first/f0.jsonl"
    rows, text = [*table.rows(where="file = 'f0.jsonl'")], path.read_text()
    for changed in (text.replace("sings song 3 now", "sings song 3 too"), text + "\n"):
        path.write_text(changed)
        with raises(SourceError, "f0.jsonl", "`dataprep run small_sft`", relpath="f0.jsonl"):
            list(table.add_texts(rows))
    path.unlink()
    with raises(SourceError, "f0.jsonl", "`dataprep run small_sft`", relpath="f0.jsonl"):
        list(table.add_texts(rows))
    assert len([*table.add_texts(table.rows(where="file = 'f1.jsonl'"))]) == len(made.rows) - len(rows)


def test_unreadable_rows_have_the_text_of_their_line_and_are_compared_with_the_table(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft", bad_records={"policy": "drop", "budget": 0.5, "max_record_bytes": 2000})
    path = tmp_path / "sources/first/f0.jsonl"
    lines = [b'{"messages": [{"role": "us', b"[1, 2]", b'"\xff"', b'{"text": "' + b"a" * 3000 + b'"}']
    path.write_bytes(path.read_bytes() + b"\n".join(lines) + b"\n")
    made.run()
    table = open_table(made)
    rows = [*table.rows(where="bytes is null")]
    assert [row["reason"] for row in rows] == ["bad_json", "not_an_object", "invalid_utf8", "too_large"]
    texts = [*table.add_texts(rows)]
    assert [row["text"] for row in texts] == [line.decode("utf-8", "backslashreplace") for line in lines]
    assert [path.read_bytes()[row["text_byte"] :].splitlines()[0] for row in texts] == lines
    path.write_bytes(path.read_bytes().replace(b"[1, 2]", b"{    }"))
    with raises(SourceError, "f0.jsonl", "`dataprep run small_sft`", relpath="f0.jsonl"):
        list(table.add_texts(rows))


def test_the_drops_of_changed_rules_are_predicted_from_the_table(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft")
    made.run()
    drops = open_table(made).drops()
    assert drops is not None
    assert {rule.rule: rule.documents for rule in drops.rules} == DROPPED
    assert (drops.documents, drops.sources, drops.untagged) == (
        len(made.rows) + ROWS,
        {"first": len(made.rows), "second": ROWS},
        0,
    )
    assert drops.rules[-1].by_source == {"first": 1}
    assert drops.rules[-1].examples == [f"f1.jsonl:{made.rows.index(made.faulty[-1]) + 1 - len(made.rows) // 2}"]
    made.changes["drop"] = {"long": f"answer_characters > {len(LONG)}"}
    made.changes["keep"] = {}
    changed = open_table(made).drops()
    assert changed is not None
    assert {rule.rule: rule.documents for rule in changed.rules} == {"long": PLAIN}
    assert made.dataset.has_rules
    made.changes["tag"] = ["gopher", "repetition", "c4"]
    made.changes["drop"] = {"code": "curly_bracket"}
    missing = open_table(made).drops()
    assert missing is not None
    assert missing.untagged == len(made.partitions)
    (*_, line) = missing.lines(load_privacy(made.declaration, made.store))
    assert_names(line, len(made.partitions), "`dataprep run`", "columns")
    with raises(MissingArtifactError, "'curly_bracket'", "dataprep run"):
        open_table(made).rows(where="curly_bracket").count()


@pytest.mark.parametrize("stage", BUILD)
def test_rules_that_drop_more_than_the_budget_block_the_run(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage, bad_records={"policy": "drop", "budget": 0.2})
    made.write_rows([*made.rows, {"messages": []}])
    made.changes["budget"] = {"per_source": 0.25, "per_rule": {"short": 0.05, "late": 0}}
    made.run()
    findings = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))
    assert_names(findings["within_budget"].summary, "late", 1, len(made.rows) + ROWS)
    assert not findings["within_budget"].passed
    assert not findings["within_budget"].warning
    assert findings["sources_kept"].passed
    facts = findings["within_budget"].facts
    assert (facts["documents"], facts["dropped"]) == (len(made.rows) + ROWS, sum(DROPPED.values()))
    drops = open_table(made).drops()
    assert drops is not None
    assert len(drops.over_budget) == 1
    (run,) = [spec for spec in made.dataset.specs if spec.name == "blend"]
    assert DOCUMENTS in [spec.name for spec in run.inputs]
    made.changes["budget"] = {"per_source": 0.1}
    finding = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))["within_budget"]
    assert_names(finding.summary, "first", sum(DROPPED.values()), len(made.rows), "`budget.per_source`")
    examples = [row for row in finding.table if "example" in row]
    assert len(examples) == 3
    assert all(row["source"] == "first" and str(row["example_text"]).startswith("user: Who sings") for row in examples)
    made.changes["budget"] = {}
    findings = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))
    assert findings["within_budget"].passed


def test_a_rule_without_a_budget_that_drops_nearly_a_whole_dataset_is_reported(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft", keep={})
    made.changes["drop"] = {"first": "source = 'first' and characters > 5 and turns < 2"}
    build_all(made.dataset.specs[: [spec.name for spec in made.dataset.specs].index(DOCUMENTS) + 1], made.store)
    findings = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))
    assert findings["within_budget"].passed
    assert not findings["sources_kept"].passed
    assert findings["sources_kept"].warning
    assert_names(findings["sources_kept"].summary, "first", len(made.rows) - 1, len(made.rows))


def test_a_tagger_without_rules_changes_only_the_table(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft", keep={}, drop={}, tag=[], tag_text={})
    made.run()
    assert not made.dataset.has_rules
    with raises(ConfigError, "small_sft", "`tag`", "`keep`", "`drop`"):
        open_table(made)
    keys = {name: made.receipt(name).key for name in made.partitions}
    made.changes["tag"] = ["gopher"]
    assert made.run() == [f"documents/{name}" for name in sorted(keys)]
    assert {name: made.receipt(name).key for name in made.partitions} == keys
    assert open_table(made).drops() is None
    assert made.failing() == {}
    assert "within_budget" not in [check.name for check in made.dataset.spec(DOCUMENTS).checks]


@pytest.mark.parametrize("stage", BUILD)
def test_a_removed_row_keeps_only_its_id_in_the_table(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage)
    made.run()
    (row,) = open_table(made).rows(where="file = 'f0.jsonl' and row = 3")
    assert row["kept"]
    made.retract(f'{{"hash": "{row["id"]}"}}')
    made.run()
    (removed,) = open_table(made).rows(reason="retracted")
    assert {name for name, value in removed.items() if value is not None} == {
        *("file", "row", "id", "source", "kept", "reason")
    }
    assert removed["id"] == row["id"]
    assert find_failing(made) == {}
    assert made.failing() == {}


def build_tables_here(made: RuledBlend) -> None:
    """Build the tables in this process, whose functions a test may patch."""
    for table in prepare_row_tables(made.declaration, made.store, made.partitions):
        ensure_row_table(table, "full", None)


@pytest.mark.parametrize("stage", BUILD)
def test_a_table_with_wrong_outcomes_or_values_fails_its_checks(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage)
    made.build_shards_here()
    with patch.object(TabledShard, "_sum_tokens", lambda *_: {}):
        build_tables_here(made)
    failing = find_failing(made)
    assert set(failing) == {"sums_match_ledger", "rebuild_matches"}
    assert_names(failing["sums_match_ledger"], "f0.jsonl")
    made.changes["tag"] = ["gopher"]
    with patch("dataprep_assets.pipelines.blend.screening.conversation_columns._count_characters", lambda *_: 1):
        build_tables_here(made)
    assert set(find_failing(made)) == {"rebuild_matches"}


def test_tables_of_sensitive_blends_have_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW_KEY", "k" * 40)
    sensitive = {"sensitive": True, "source_key": {"env": "ROW_KEY"}}
    made = RuledBlend(tmp_path, "sft", **sensitive)
    made.run()
    drops = open_table(made).drops()
    assert drops is not None
    assert {rule.rule: list(rule.examples) for rule in drops.rules} == {name: [] for name in DROPPED}
    made.changes["tag"] = ["gopher", {"function": "m:f", "columns": {"first_words": "string"}}]
    with raises(ValidationError, "tag: f", "sensitive"):
        _ = made.declaration


def test_rows_of_a_sensitive_blend_without_a_key_have_no_ids(tmp_path: Path) -> None:
    remote = {"datasets": [{"name": "first", "path": "hf://some/rows"}]}
    made = RuledBlend(tmp_path, "sft", sensitive=True, blend=remote)
    assert "id" not in made.dataset.spec(DOCUMENTS).columns
    del made.changes["sensitive"], made.changes["blend"]
    assert "id" in made.dataset.spec(DOCUMENTS).columns
    made.run()
    with (
        patch.object(BlendDeclaration, "has_row_ids", False),
        raises(ConfigError, "--where", "`source_key`"),
        _list_ids(made.dataset, made.store, None, "turns > 1"),
    ):
        pass


def test_rules_are_predicted_only_for_rows_that_the_build_tests(tmp_path: Path) -> None:
    made = RuledBlend(tmp_path, "sft", num_shards=1, bad_records={"policy": "drop", "budget": 0.2})
    made.write_rows([*made.rows, {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "1"}]}])
    made.run()
    table = open_table(made)
    assert table.reasons() == {**DROPPED, "other_form": 1}
    (row,) = table.rows(reason="other_form")
    assert (row["source"], row["bytes"], row["answer_characters"]) == ("first", None, None)
    drops = table.drops()
    assert drops is not None
    assert {rule.rule: rule.documents for rule in drops.rules} == DROPPED
    assert drops.documents == len(made.rows) + ROWS
    histogram = table.histogram("answer_characters")
    assert {rule.rule: rule.documents for rule in histogram.rules} == {"short": DROPPED["short"]}
    assert len(histogram.values) == len(made.rows) + ROWS
    assert find_failing(made) == {}


@pytest.mark.parametrize("level", ["sample", "every_document"])
def test_values_of_a_tagger_that_varies_only_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    tag, state = write_varying_tagger(tmp_path, monkeypatch)
    made = RuledBlend(tmp_path, "sft", tag=[tag], tag_text={}, keep={}, drop={}, num_shards=1, prove={"level": level})
    made.build_shards_here()
    build_tables_here(made)
    state.write_text("1")
    findings = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))
    assert not findings["rebuild_matches"].passed
    # If all values are compared, a tagger whose values are stable now does not explain a difference.
    assert findings["rebuild_matches"].warning == (level == "sample")
    assert_names(findings["rebuild_matches"].summary, "mark")
    made.changes["num_shards"] = 2
    made.build_shards_here()
    with patch("dataprep_assets.pipelines.blend.screening.conversation_columns._count_characters", lambda *_: 1):
        build_tables_here(made)
    state.write_text("0")
    finding = dict(made.dataset.spec(DOCUMENTS).examine(made.store, made.partitions))["rebuild_matches"]
    assert not finding.passed
    assert not finding.warning


def test_pretraining_blends_have_no_table(tmp_path: Path) -> None:
    made = RetractedBlend(tmp_path, "pretrain")
    assert DOCUMENTS not in [spec.name for spec in made.dataset.specs]
    with raises(ConfigError, "small_pretrain", "`tag`"):
        Blend(made.declaration).documents(made.store)


@pytest.mark.parametrize("stage", BUILD)
def test_shards_that_share_a_file_report_each_row_at_most_once(tmp_path: Path, stage: str) -> None:
    made = RuledBlend(tmp_path, stage, num_shards=6)
    specs = made.dataset.specs
    build_all(specs[: [spec.name for spec in specs].index(SHARDS[made.declaration.stage].name)], made.store)
    plan = load_blend_plan(made.declaration, made.store)
    total_bytes = sum(unit.size_bytes for unit in plan.units)
    assert all(part.rows for unit in plan.units for shard in unit.shards for part in shard.parts)
    builds: list[tuple[Callable[[], Sequence[Any]], Callable[..., Any]]] = [
        (lambda: prepare_stage_shards(made.declaration, made.store, plan), BUILD[stage]),
        (lambda: prepare_row_tables(made.declaration, made.store, plan.partitions), ensure_row_table),
    ]
    for read_shards, build in builds:
        counts: list[dict[str, int]] = []
        connect(counts.append)
        for shard in read_shards():
            build(shard, "full", None)
        connect(None)
        assert 0 < sum(count.get("source_bytes", 0) for count in counts) <= total_bytes
