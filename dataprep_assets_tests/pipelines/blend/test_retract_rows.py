"""When rows are removed from a blend, only their shards are rebuilt, and no trace of the rows remains."""

import json
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.engine.artifact.losses import find_losses
from dataprep_assets.engine.staleness.rebuild import count_retracted_documents
from dataprep_assets.engine.staleness.status import find_retracted_leftovers, find_stale, prune_retracted
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import ConfigError, NotFoundError
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.blend.removal.row_ids import ROW_IDS
from dataprep_assets.tokenization.document_ids import RowIds
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.retracted_blend import (
    ROWS,
    STAGES,
    VIEWS,
    RetractedBlend,
    make_row,
    make_word,
)

GONE = make_word("first", 3)
"""The word of `f0.jsonl:4`, in the second shard of the first dataset."""


@pytest.fixture
def records(tmp_path: Path) -> RetractedBlend:
    made = RetractedBlend(tmp_path, "rl")
    made.run()
    return made


@pytest.mark.parametrize("stage", STAGES)
def test_only_the_shard_of_a_removed_row_is_rebuilt_and_no_trace_of_the_row_remains(tmp_path: Path, stage: str) -> None:
    views = [VIEWS[stage]] if stage in VIEWS else []
    made = RetractedBlend(tmp_path, stage, views=views)
    made.run()
    partition = made.partition("first", 0)
    assert GONE in made.texts(partition)
    result = made.retract("f0.jsonl:4")
    assert (result.found, result.added, result.already) == (1, 1, 0)
    assert [(held.partition, held.counts[0], held.planned) for held in result.held] == [(partition, 1, True)]
    assert [line["id"] for line in made.listed()] == ["f0.jsonl:4"]
    name = made.shard(partition).name
    stale = {decision.name for decision in find_stale(made.dataset.specs, made.store)}
    assert f"small_{stage}/{name}/{partition}" in stale
    assert {f"small_{stage}/{view}" for view in views} <= stale
    manifest = ["rl_manifest"] * (stage == "rl")
    assert made.run() == sorted(["blend", *views, f"{name}/{partition}", *manifest])
    assert GONE not in made.texts(partition)
    assert make_word("first", 4) in made.texts(partition)
    assert made.files_with(GONE) == set()
    # The counts by reason, the check and the trace report the removal.
    (loss,) = [loss for loss in find_losses(made.dataset.specs, made.store) if loss.reason == RETRACTED and loss.count]
    assert (loss.count, loss.kind, dict(loss.files)) == (1, "", {"f0.jsonl": 1})
    finding = made.no_retracted(partition)
    assert finding.passed
    assert finding.facts["retracted"] == 1
    assert list(count_retracted_documents(made.dataset.specs, made.store).values()) == [1]
    words = ["retracted"] if stage == "pretrain" else ["removed", "retraction list"]
    with raises(NotFoundError, "row 4 of f0.jsonl", *words):
        trace_documents(made.dataset.tracer(made.store), file="f0.jsonl", row=4)
    assert trace_documents(made.dataset.tracer(made.store), file="f0.jsonl", row=5)[0].row == 5
    assert all(finding.passed for finding in made.findings(partition).values())
    # A second run rebuilds nothing, and the row returns when its line is removed from the list.
    assert made.run() == []
    made.list.write_text("")
    assert made.run() == sorted(["blend", *views, f"{name}/{partition}", *manifest])
    assert GONE in made.texts(partition)


@pytest.mark.parametrize("stage", STAGES)
def test_removed_rows_stay_out_of_a_shard_that_is_built_later(tmp_path: Path, stage: str) -> None:
    made = RetractedBlend(tmp_path, stage)
    assert made.retract("first/f0.jsonl:4").left_out == {"not built yet": 1}
    made.run()
    assert made.files_with(GONE) == set()
    partition = made.partition("first", 0)
    assert made.receipt(partition).facts["retracted"] == [made.listed()[0]["hash"]]
    assert made.run() == []


def test_rows_are_named_by_file_and_row_or_hash_and_copies_are_also_removed(records: RetractedBlend) -> None:
    copy = make_row("rl", "first", 3)
    numbers = range(ROWS // 2)
    records.write("second", 0, [*(make_row("rl", "second", number) for number in numbers), copy])
    records.run()
    digits = f"{RowIds().hash_row(copy):016x}"
    result = records.retract(digits)
    assert sorted(held.partition for held in result.held) == ["first__train-00001", "second__train-00000"]
    assert sum(held.counts[0] for held in result.held) == 2
    assert len(result.files) == 2
    records.run()
    assert records.files_with(GONE) == set()
    again = records.retract(digits, "second/s0.jsonl:2", "f0.jsonl:400", "f7.jsonl:1")
    assert (again.already, again.found, [line.text for line in again.not_found]) == (
        1,
        1,
        ["f0.jsonl:400", "f7.jsonl:1"],
    )
    before = records.list.read_bytes()
    assert records.retract("f0.jsonl:5", "f0.jsonl:400", strict=True).added == 0
    assert records.list.read_bytes() == before


def test_a_file_in_two_datasets_is_named_with_its_dataset(tmp_path: Path) -> None:
    made = RetractedBlend(tmp_path, "rl")
    for dataset in ("first", "second"):
        made.write(dataset, 0, [])
        (tmp_path / "sources" / dataset / f"{dataset[0]}0.jsonl").rename(tmp_path / "sources" / dataset / "a.jsonl")
        rows = [make_row("rl", dataset, number) for number in range(12)]
        (tmp_path / "sources" / dataset / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.run()
    with raises(ConfigError, "line 1", "a.jsonl", "first, second", "first/a.jsonl:4"):
        made.retract("a.jsonl:4")
    assert not made.list.exists()
    made.retract("second/a.jsonl:4")
    made.run()
    assert made.files_with(make_word("second", 3)) == set()
    assert made.files_with(make_word("first", 3))


def test_rows_are_named_by_the_declared_field(tmp_path: Path) -> None:
    made = RetractedBlend(tmp_path, "rl", id_field="id")
    made.run()
    with_id = made.retract("first-3", "f0.jsonl:5", "first-900")
    assert (with_id.found, [line.text for line in with_id.not_found]) == (2, ["first-900"])
    assert [line["of"] for line in made.listed()] == ["row field id"] * 3
    made.run()
    assert made.files_with(GONE) == made.files_with(make_word("first", 4)) == set()
    # A row that later gets a listed id is also removed.
    made.write("second", 0, [{**make_row("rl", "second", 1), "id": "first-900"}, make_row("rl", "second", 2)])
    made.run()
    assert made.files_with(make_word("second", 1)) == set()
    del made.changes["id_field"]
    with raises(ConfigError, "retracted.jsonl", "line 1", "row field id"):
        made.run()
    made.list.unlink()
    with raises(ConfigError, "line 1", "first-3", "id_field", "file:row"):
        made.retract("first-3")


@pytest.mark.parametrize("stage", ["sft", "pairs", "rl"])
def test_a_removed_row_that_was_dropped_before_is_removed_from_the_quarantine(tmp_path: Path, stage: str) -> None:
    made = RetractedBlend(tmp_path, stage, bad_records={"policy": "drop", "budget": 0.5})
    rows = [make_row(stage, "first", number) for number in range(12)]
    made.write("first", 0, [rows[0], {"nothing": "here"}, b"{not json\n", *rows[2:]])
    made.run()
    partition = made.partition("first", 0)
    quarantine = made.store.directory(made.shard(partition)) / "quarantine.jsonl"
    assert sorted(json.loads(line)["row"] for line in quarantine.read_text().splitlines()) == [2, 3]
    result = made.retract("f0.jsonl:2")
    assert (result.found, list(result.left_out.values()), result.held) == (1, [1], ())
    assert next(iter(result.left_out)).startswith("no_")
    made.run()
    assert [json.loads(line)["row"] for line in quarantine.read_text().splitlines()] == [3]
    dropped = made.receipt(partition).ledger
    assert dropped is not None
    assert dropped.dropped == {RETRACTED: 1, "bad_json": 1}
    assert all(finding.passed for finding in made.findings(partition).values())


def test_the_first_row_of_a_file_decides_its_form_even_after_its_removal(tmp_path: Path) -> None:
    made = RetractedBlend(tmp_path, "sft", bad_records={"policy": "drop", "budget": 0.9})
    other = {"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "The wren."}]}
    made.write("first", 0, [make_row("sft", "first", 0), other, make_row("sft", "first", 2)])
    made.run()
    before = made.receipt("first-00001").ledger
    made.retract("f0.jsonl:1")
    made.run()
    after = made.receipt("first-00001").ledger
    assert before is not None
    assert after is not None
    assert after.dropped == {**before.dropped, RETRACTED: 1}


def test_a_file_whose_rows_are_all_removed_is_no_error(tmp_path: Path) -> None:
    made = RetractedBlend(tmp_path, "sft")
    made.run()
    made.retract(*(f"f0.jsonl:{row}" for row in range(1, ROWS // 2 + 1)))
    made.run()
    assert made.receipt("first-00001").facts["empty"]
    assert made.no_retracted("first-00001").passed


def test_a_killed_removal_does_not_reuse_spools_of_another_list(tmp_path: Path) -> None:
    from dataprep_assets.integrity.artifacts import LocalArtifacts
    from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
    from dataprep_assets.pipelines.blend.sft.packed_sft import prepare_sft_shards
    from dataprep_assets.pipelines.blend.sft.spool import spool_source

    made = RetractedBlend(tmp_path, "sft")
    made.run()
    made.retract("f0.jsonl:4")

    def spool() -> None:
        plan = load_blend_plan(made.declaration, made.store)
        (shard,) = prepare_sft_shards(made.declaration, made.store, plan, ["first-00001"])
        for source in shard.sources:
            spool_source(shard.plan, source, shard.scratch, shard.artifact)
        assert LocalArtifacts(shard.scratch).names(made.declaration.dataset) == ["sft_spool"]

    spool()
    made.retract("f0.jsonl:5")
    made.run()
    text = made.texts("first-00001")
    assert GONE not in text
    assert make_word("first", 4) not in text
    assert make_word("first", 5) in text
    assert made.files_with("sft_spool") == set()


def test_obsolete_shards_with_removed_rows_are_removed_at_the_end_of_a_run(records: RetractedBlend) -> None:
    records.changes["num_shards"] = 1
    records.run()
    specs = records.dataset.specs
    assert find_retracted_leftovers(specs, records.store) == []
    old = [records.shard(f"{name}__train-00001") for name in ("first", "second")]
    assert all(records.store.receipt(artifact) is not None for artifact in old)
    result = records.retract("f0.jsonl:4")
    assert [(held.partition, held.planned) for held in result.held] == [
        ("first__train-00000", True),
        ("first__train-00001", False),
    ]
    left = find_retracted_leftovers(specs, records.store)
    assert old[0] in left
    assert old[1] not in left
    # The run of the old plan is also a leftover, because it was built from the old shard.
    assert {artifact.name for artifact in left} == {"runs", "rl_jsonl"}
    records.run()
    assert records.files_with(GONE) == set()
    assert list(prune_retracted(specs, records.store)) == []
    assert records.store.receipt(old[1]) is not None


@pytest.mark.parametrize("stage", STAGES)
def test_the_check_finds_a_listed_row_and_a_wrong_index(tmp_path: Path, stage: str) -> None:
    made = RetractedBlend(tmp_path, stage)
    made.run()
    partition = made.partition("first", 0)
    made.retract("f0.jsonl:4")
    finding = made.no_retracted(partition)
    assert not finding.passed
    assert_names(finding.summary, "f0.jsonl: row 4", "retracted")
    if stage == "pretrain":
        return
    made.run()
    directory = made.store.directory(made.shard(partition))
    table = np.load(directory / ROW_IDS)
    table[0, 2] += 1
    np.save(directory / ROW_IDS, table)
    assert_names(made.no_retracted(partition).summary, "row 1", ROW_IDS)


def test_a_sensitive_blend_without_a_key_stores_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_KEY", "k" * 40)
    made = RetractedBlend(tmp_path, "rl", sensitive=True, source_key={"env": "SOURCE_KEY"})
    made.run()
    result = made.retract("f0.jsonl:4", "f9.jsonl:4")
    assert result.found == 1
    assert [line.text for line in result.not_found] == [None]
    (line,) = made.listed()
    assert line.keys() == {"hash", "of", "key"}
    assert line["hash"] != f"{RowIds().hash_row(make_row('rl', 'first', 3)):016x}"
    made.run()
    assert made.files_with(GONE) == set()


def test_a_corpus_and_a_blend_share_a_list(records: RetractedBlend) -> None:
    records.list.write_text('{"hash": "9e3779b97f4a7c15", "of": "text"}\n')
    assert records.run() == []
    records.retract("f0.jsonl:4")
    assert [line["of"] for line in records.listed()] == ["text", "row"]
    records.run()
    assert records.files_with(GONE) == set()


@pytest.mark.parametrize("stage", STAGES)
def test_a_row_is_traced_by_its_id_in_its_shard_and_view(tmp_path: Path, stage: str) -> None:
    views = [VIEWS[stage]] if stage in VIEWS else []
    made = RetractedBlend(tmp_path, stage, views=views, id_field="id")
    made.run()
    tracer = made.dataset.tracer(made.store)
    (trace,) = trace_documents(tracer, id="first-3")
    assert (trace.file, trace.row) == ("f0.jsonl", 4)
    assert trace == trace_documents(tracer, file="f0.jsonl", row=4)[0]
    artifacts = {place.artifact for place in trace.places}
    assert {f"small_{stage}/{view}" for view in views} <= artifacts
    assert any(made.partition("first", 0) in artifact for artifact in artifacts)
    if stage == "sft":
        (question,) = trace_documents(tracer, id="first-3", message=0)
        assert question.to_json()["message"] == {"index": 0, "role": "user"}
    with raises(NotFoundError, f"small_{stage}", "id"):
        trace_documents(tracer, id="first-99")
    made.retract("first-3")
    made.run()
    # The index of a pretraining shard does not list removed documents, so the error gives no reason.
    with raises(NotFoundError, f"small_{stage}", *(["retraction list"] if stage != "pretrain" else [])):
        trace_documents(made.dataset.tracer(made.store), id="first-3")


def test_rows_without_a_declared_id_cannot_be_traced_by_one(records: RetractedBlend) -> None:
    with raises(ConfigError, "`id_field`", "`file` and `row`"):
        trace_documents(records.dataset.tracer(records.store), id="first-3")
    declared = RetractedBlend(records.folder, "rl", id_field="id")
    with raises(ConfigError, "id_field", "Run small_rl"):
        trace_documents(declared.dataset.tracer(declared.store), id="first-3")
