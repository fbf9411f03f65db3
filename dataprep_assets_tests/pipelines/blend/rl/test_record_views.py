"""Views of RL records: declared, built after the run, checked, traced, and rebuilt only when needed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import BadRecordError, ConfigError, IntegrityError, NotFoundError
from dataprep_assets.formats import parquet_rows
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.rl import record_columns
from dataprep_assets.pipelines.blend.rl import view as view_module
from dataprep_assets.pipelines.blend.rl.view import RecordView
from dataprep_assets.pipelines.blend.rl.views import VIEWS, nemo_gym
from dataprep_assets.pipelines.blend.view import build_view
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    Blend,
    declare_chats,
    declare_tasks,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, write_rows, write_small_sources
from dataprep_assets_tests.pipelines.blend.rl.view_records import NAMES, declare_mixed
from dataprep_assets_tests.pipelines.blend.view_checks import assert_views_change_no_other_artifact, find_in_view
from dataprep_assets_tests.project import failure_of

PARQUET = ["grpo", "verl"]


def build(made: Blend) -> list[str]:
    """Run all artifacts, and return the names of the materialized ones."""
    outcomes = made.run_all()
    assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
    assert find_failed(read_evaluations(outcomes)) == set()
    return [
        event.asset_key.path[-1]
        for outcome in outcomes
        for event in outcome.get_asset_materialization_events()
        if event.asset_key is not None
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("views")
    # Use the smallest shard size, so that a split has several files.
    with (
        patch.object(view_module, "_SHARD_BYTES", 1),
        open_blend(declare_mixed(home / "sources"), home / "artifacts") as made,
    ):
        build(made)
        yield made


@pytest.fixture
def store(finished: Blend, tmp_path: Path) -> LocalArtifacts:
    return LocalArtifacts(Path(shutil.copytree(finished.root, tmp_path / "root")))


def read_run_records(made: Blend, split: str) -> list[Any]:
    """Return the records of a split in the run."""
    path = made.run_directory / "splits" / f"{split}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_view_rows(made: Blend, name: str, split: str) -> list[Any]:
    """Return the rows of a split in a Parquet view."""
    return [
        row
        for path in sorted(made.directory(name).glob(f"{split}-*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def test_every_module_of_the_folder_is_a_view() -> None:
    assert list(VIEWS) == NAMES
    assert [RecordView.load(name).name for name in VIEWS] == NAMES


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"views": ["vrel"]}, ["views", "verl"]),
        ({"views": ["sft_rows"]}, ["views", "`sft_rows`", "`stage: rl`", "verl"]),
        ({"views": ["verl", "verl"]}, ["views", "`verl`", "twice"]),
    ],
)
def test_a_view_of_another_stage_or_listed_twice_is_refused(
    changes: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ValidationError) as raised:
        declare_tasks(tmp_path / "s", **changes)
    assert_names(str(raised.value), *names)


def test_other_stages_do_not_have_these_views(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as raised:
        declare_chats(tmp_path / "chats", views=["verl"])
    assert_names(str(raised.value), "`verl`", "`stage: sft`", "sft_rows")
    with pytest.raises(ValidationError) as raised:
        declare_pretraining(write_small_sources(tmp_path), views=["verl"])
    assert_names(str(raised.value), "`views`", "`stage: pretrain`")


def test_views_change_no_other_artifact(finished: Blend) -> None:
    assert_views_change_no_other_artifact(finished, NAMES)


def find_answer(record: dict[str, Any]) -> tuple[bool, Any]:
    """Return whether a record has an answer, and the answer."""
    if "reward_model" in record:
        return True, record["reward_model"]["ground_truth"]
    return "expected_answer" in record, record.get("expected_answer")


def test_every_answer_has_its_value_and_type(finished: Blend) -> None:
    """Values are read as a reward function reads them: JSON text if the format declares it."""
    formats: set[str] = set()
    for split, key in (("train", "train"), ("validation", "val")):
        records = read_run_records(finished, key)
        verl = [(r["reward_model"]["ground_truth"], r["extra_info"]) for r in read_view_rows(finished, "verl", split)]
        pairs = [(truth, extra["ground_truth_format"]) for truth, extra in verl]
        assert pairs == [(r["solution"], r["solution_format"]) for r in read_view_rows(finished, "grpo", split)]
        assert len(pairs) == len(records)
        formats |= {format for _, format in pairs}
        for record, (stored, format) in zip(records, pairs, strict=True):
            has_answer, answer = find_answer(record)
            assert (format == "none") == (not has_answer)
            value = json.loads(stored) if format == "json" else stored
            assert (value, type(value)) == (answer, type(answer))
    assert formats == {"none", "text", "json"}


def test_prompts_are_messages_and_other_fields_are_kept(finished: Blend) -> None:
    records, rows = read_run_records(finished, "train"), read_view_rows(finished, "verl", "train")
    for number, (record, row) in enumerate(zip(records, rows, strict=True)):
        assert row["extra_info"]["index"] == number
        assert row["data_source"] == record.get("data_source", "knots")
        assert row["ability"] == record.get("ability", "")
        kept = json.loads(row["extra_info"]["record"])
        assert kept["id"] == record["id"]
        assert kept["level"] == record["level"]
        assert all(message["role"] for message in row["prompt"])
        # A prompt that is a text must be the content of the first message.
        prompt = record.get("messages", record.get("prompt", record.get("responses_create_params", {}).get("input")))
        if not (isinstance(prompt, list) and all("content" in m and isinstance(m["content"], str) for m in prompt)):
            texts = [m["content"] for m in row["prompt"]]
            assert (prompt if isinstance(prompt, str) else texts[0]) == texts[0]
        tools = record.get("tools", record.get("responses_create_params", {}).get("tools"))
        assert (None if row["extra_info"]["tools"] is None else json.loads(row["extra_info"]["tools"])) == tools


def test_facts_and_metadata_count_answers_and_tools(finished: Blend) -> None:
    records = read_run_records(finished, "train")
    for name in NAMES:
        facts = finished.store.require(finished.declaration.artifact(name)).facts
        assert list(facts["rows"]) == ["train", "val"]
        assert facts["rows"]["train"] == len(records) == 60
        assert facts["answers"]["train"] == sum(find_answer(record)[0] for record in records)
        shown = finished.metadata(name)
        assert shown["answers_train"] == facts["answers"]["train"]
        assert shown["dagster/row_count"] == sum(facts["rows"].values())
    assert finished.stale() == []
    assert find_failed(finished.check()) == set()


def test_each_trainer_gets_its_line(finished: Blend) -> None:
    lines = finished.component.describe_trainers(finished.store)
    where = {name: str(finished.directory(name).resolve()) for name in NAMES}
    by_trainer = {line.partition(":")[0]: line for line in lines if "no expected answer" not in line}
    files = json.dumps([f"{where['verl']}/train-0000{n}-of-00002.parquet" for n in range(2)])
    assert_names(
        by_trainer["verl"],
        f"data.train_files={files}",
        f'data.val_files=["{where["verl"]}/validation-00000-of-00002.parquet"',
    )
    assert_names(by_trainer["TRL"], f"load_dataset('{where['grpo']}')['train']")
    assert_names(
        by_trainer["NeMo-Gym"], f"jsonl_fpath: {where['nemo_gym']}/validation.jsonl", "type: validation, license: …}"
    )
    assert any("no expected answer" in line for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_traced_to_its_record_and_back(finished: Blend, name: str) -> None:
    tracer = finished.component.tracer(finished.store)
    seen = set()
    for split, count in finished.store.require(finished.declaration.artifact(name)).facts["rows"].items():
        records = read_run_records(finished, split)
        for number in range(count):
            (found,) = trace_documents(tracer, view=name, split=split, sample=number)
            assert found.text is not None
            assert json.loads(found.text) == records[number]
            assert trace_documents(tracer, file=found.file, row=found.row) == [found]
            (place,) = (p for p in found.places if p.artifact.endswith(f"/{name}"))
            assert place.at["sample"] == number
            source = Path(finished.declaration.load_data_blend().list_units()[0].dataset.path) / Path(found.file).name
            assert json.loads(source.read_text(encoding="utf-8").splitlines()[found.row - 1]) == records[number]
            path, row = finished.directory(name) / place.file, place.at["row"]
            assert isinstance(row, int)
            if name == "verl":
                assert pq.read_table(path).to_pylist()[row]["extra_info"]["index"] == number
            elif name == "nemo_gym":
                assert json.loads(path.read_text(encoding="utf-8").splitlines()[row])["id"] == records[number]["id"]
            seen.add((found.file, found.row))
            assert "tokens" not in "\n".join(found.lines())
    assert len(seen) == 67
    partition = finished.plan.partitions[0]
    assert trace_documents(tracer, shard=partition, row=0)[0].row == 1
    for question, error in (
        ({"view": name, "split": "train", "sample": 60}, NotFoundError),
        ({"view": name, "sample": 0}, ConfigError),
        ({"view": "mds", "split": "train", "sample": 0}, NotFoundError),
        ({"file": "train.jsonl", "row": 999}, NotFoundError),
        ({"shard": partition, "row": 999}, NotFoundError),
        ({"shard": "other", "row": 0}, NotFoundError),
        ({"token": 1}, ConfigError),
    ):
        with raises(error, "trace"):
            trace_documents(tracer, **question)  # type: ignore[arg-type]


def change_rows(path: Path, change: Any) -> None:
    """Change the rows of a Parquet file without changing its columns."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    path.unlink()
    parquet_rows.write_rows(path, table.schema, change(rows) or rows, group=1000)


def set_value(*path: str, value: Any, row: int = 0) -> Any:
    """Return a change of a value of a row."""

    def change(rows: list[dict[str, Any]]) -> None:
        inner: Any = rows[row]
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


FAULTS: list[tuple[str, str, Any]] = [
    ("verl", "matches_records", set_value("reward_model", "ground_truth", value="wrong")),
    ("verl", "matches_records", set_value("reward_model", "style", value="model")),
    # Only the format distinguishes the number 144 from the text "144", because their stored text is equal.
    ("verl", "matches_records", set_value("extra_info", "ground_truth_format", value="text", row=1)),
    ("verl", "matches_records", set_value("extra_info", "record", value="{}")),
    ("verl", "matches_records", set_value("extra_info", "tools", value="[]")),
    ("verl", "matches_records", set_value("extra_info", "index", value=9)),
    ("verl", "matches_records", set_value("data_source", value="other")),
    ("verl", "matches_records", set_value("ability", value="other")),
    ("verl", "matches_records", set_value("prompt", value=[{"role": "user", "content": "other"}])),
    ("verl", "layout_valid", set_value("prompt", value=[])),
    ("verl", "matches_records", lambda rows: [rows[1], rows[0], *rows[2:]]),
    ("verl", "layout_valid", lambda rows: rows[1:]),
    ("grpo", "matches_records", set_value("solution", value="wrong")),
    ("grpo", "matches_records", set_value("solution_format", value="none")),
    ("grpo", "matches_records", set_value("data_source", value="other")),
    ("grpo", "matches_records", set_value("record", value="{}")),
    ("grpo", "matches_records", lambda rows: [*rows, rows[0]]),
]


@pytest.mark.parametrize(("name", "check", "change"), FAULTS, ids=range(len(FAULTS)))
def test_a_planted_fault_fails(finished: Blend, store: LocalArtifacts, name: str, check: str, change: Any) -> None:
    assert all(finding.passed for finding in find_in_view(finished, store, name).values())
    change_rows(store.directory(finished.declaration.artifact(name)) / "train-00000-of-00002.parquet", change)
    assert not find_in_view(finished, store, name)[check].passed


def _without_input(row: dict[str, Any]) -> None:
    del row["responses_create_params"]["input"]


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("matches_records", lambda row: row.update(id="other")),
        ("matches_records", lambda row: row.update(expected_answer=0)),
        ("matches_records", lambda row: row["responses_create_params"].update(input="other")),
        ("matches_records", lambda row: row["responses_create_params"].update(tools=[])),
        ("layout_valid", _without_input),
        ("layout_valid", lambda row: row["responses_create_params"].update(input=[{"role": "tool", "content": "x"}])),
        ("layout_valid", lambda row: row["responses_create_params"].update(tools=[{"type": "function"}])),
    ],
)
def test_a_planted_fault_in_lines_fails(finished: Blend, store: LocalArtifacts, check: str, change: Any) -> None:
    path = store.directory(finished.declaration.artifact("nemo_gym")) / "train.jsonl"
    first, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    row = json.loads(first)
    change(row)
    path.unlink()
    path.write_text(json.dumps(row) + "\n" + "".join(others), encoding="utf-8")
    assert not find_in_view(finished, store, "nemo_gym")[check].passed


@pytest.mark.parametrize("name", NAMES)
def test_damaged_and_missing_files_fail(finished: Blend, store: LocalArtifacts, name: str) -> None:
    path = next(path for path in sorted(store.directory(finished.declaration.artifact(name)).glob("train*")))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-40])
    assert {finding.passed for finding in find_in_view(finished, store, name).values()} == {False}
    path.unlink()
    assert not find_in_view(finished, store, name)["layout_valid"].passed


def test_a_card_that_lists_other_files_fails(finished: Blend, store: LocalArtifacts) -> None:
    path = store.directory(finished.declaration.artifact("grpo")) / "README.md"
    path.write_text(path.read_text().replace("train-00001", "train-00000"))
    assert not find_in_view(finished, store, "grpo")["layout_valid"].passed


@pytest.mark.parametrize("name", PARQUET)
def test_a_killed_build_keeps_its_finished_files(finished: Blend, store: LocalArtifacts, name: str) -> None:
    artifact = finished.declaration.artifact(name)
    whole = store.require(artifact).content
    assert store.remove(artifact)
    with (
        patch.object(record_columns, "encode_card", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        build_view(finished.declaration, store, RecordView.load(name))
    with patch.object(record_columns, "write_rows", side_effect=AssertionError):
        receipt, reused = build_view(finished.declaration, store, RecordView.load(name), threads=3)
    assert (receipt.content, reused) == (whole, False)
    assert build_view(finished.declaration, store, RecordView.load(name))[1]


def test_a_killed_build_of_lines_is_resumed(finished: Blend, store: LocalArtifacts) -> None:
    artifact = finished.declaration.artifact("nemo_gym")
    whole = store.require(artifact).content
    assert store.remove(artifact)
    digests = iter(["a"])
    with (
        patch.object(nemo_gym, "sha256_file", side_effect=lambda _: next(digests)),
        pytest.raises((StopIteration, RuntimeError)),
    ):
        build_view(finished.declaration, store, RecordView.load("nemo_gym"))
    receipt, reused = build_view(finished.declaration, store, RecordView.load("nemo_gym"))
    assert (receipt.content, reused) == (whole, False)


def test_records_in_the_form_of_nemo_gym_are_not_copied(tmp_path: Path) -> None:
    with open_blend(
        declare_tasks(tmp_path / "s", rl={"transforms": ["passthrough"]}, views=["nemo_gym"]), tmp_path / "artifacts"
    ) as made:
        build(made)
        for split, key in (("train", "train"), ("validation", "val")):
            file, run_file = made.directory("nemo_gym") / f"{split}.jsonl", made.run_directory / f"splits/{key}.jsonl"
            assert file.read_bytes() == run_file.read_bytes()
            assert file.stat().st_ino == run_file.stat().st_ino


def test_views_have_the_repetitions_of_the_weights(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_rows(tmp_path / f"{name}.jsonl", [{"prompt": f"{name} {n}", "answer": n} for n in range(5)])
    datasets = [
        {"name": n, "path": str(tmp_path / f"{n}.jsonl"), "weight": w} for n, w in (("first", 2), ("second", 1))
    ]
    declaration = declare_tasks(
        tmp_path, blend={"train": datasets}, rl={"transforms": ["passthrough"], "compression": "zstd"}, views=NAMES
    )
    with open_blend(declaration, tmp_path / "artifacts") as made:
        build(made)
        rows = read_view_rows(made, "verl", "train")
        assert [row["reward_model"]["ground_truth"] for row in rows] == [*range(5), *range(5), *range(5)]
        assert [row["data_source"] for row in rows] == ["first"] * 5 + ["second"] * 5 + ["first"] * 5
        assert {row["extra_info"]["ground_truth_format"] for row in rows} == {"native"}
        (found,) = trace_documents(made.component.tracer(made.store), view="verl", split="train", sample=11)
        assert (found.file, found.row) == ("first.jsonl", 2)
        assert [p.at["sample"] for p in found.places if p.artifact.endswith("/verl")] == [1, 11]


def test_added_and_removed_records_reach_the_views(tmp_path: Path) -> None:
    with open_blend(declare_mixed(tmp_path / "sources", 12, 3), tmp_path / "artifacts") as made:
        assert set(NAMES) <= set(build(made))
        contents = {name: made.store.require(made.declaration.artifact(name)).content for name in NAMES}
        path = tmp_path / "sources" / "train.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:3] + lines[4:]), encoding="utf-8")
        assert {f"small_rl/{name}" for name in NAMES} <= set(made.stale())
        assert set(NAMES) <= set(build(made))
        kept = [json.loads(row["record"])["id"] for row in read_view_rows(made, "grpo", "train")]
        assert kept == [f"r{n}" for n in range(12) if n != 3]
        assert b'"r3"' not in (made.directory("nemo_gym") / "train.jsonl").read_bytes()
        path.write_text("".join(lines), encoding="utf-8")
        build(made)
        assert {name: made.store.require(made.declaration.artifact(name)).content for name in NAMES} == contents
        assert made.stale() == []


def test_a_changed_location_of_the_answer_rebuilds_only_the_views(finished: Blend) -> None:
    options = finished.declaration.rl_options.model_copy(update={"answer": "level"})
    changed = finished.declaration.model_copy(update={"rl": options})
    for spec in TrainingBlend(changed).specs:
        if spec.name not in (*NAMES, "data_card"):
            slots = spec.slots(finished.store)
            for recipe in spec.recipes(finished.store, slots):
                assert finished.store.require(recipe.artifact).key == recipe.key
        elif spec.name in NAMES:
            (recipe,) = spec.recipes(finished.store, [None])
            assert finished.store.require(recipe.artifact).key != recipe.key


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([{"text": "x"}], ["line 1", "no prompt", "rl.prompt"]),
        (
            [{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}],
            ["`messages`, `prompt` differ", "rl.prompt"],
        ),
        ([{"prompt": "a", "answer": "1", "solution": "2"}], ["`solution`, `answer` differ", "rl.answer"]),
        ([{"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}], ["message 0", "image_url"]),
        ([{"prompt": [{"type": "reasoning", "summary": []}]}], ["message 0", "reasoning"]),
        ([{"prompt": [{"role": "user", "content": "a", "images": []}]}], ["message 0", "'images'"]),
        ([{"prompt": 7}], ["the prompt", "int"]),
        ([{"prompt": []}], ["the prompt", "empty list"]),
        ([{"prompt": [{"content": "a"}]}], ["message 0", "`role` is missing"]),
        (
            [{"prompt": "a", "extra_info": {"tools_kwargs": {"t": {"n": 1}}}}, {"prompt": "b"}],
            ["extra_info.tools_kwargs", "1 of 2 records"],
        ),
    ],
)
def test_a_record_that_a_view_cannot_express_stops_it(rows: list[Any], names: list[str], tmp_path: Path) -> None:
    write_rows(tmp_path / "s" / "train.jsonl", rows)
    declaration = declare_tasks(tmp_path / "s", rl={"transforms": ["passthrough"]}, views=["verl"], num_shards=1)
    with open_blend(declaration, tmp_path / "artifacts") as made:
        (outcome,) = made.run_all()
        assert not outcome.success
        with raises(BadRecordError, *names):
            build_view(declaration, made.store, RecordView.load("verl"))


def test_kwargs_of_tools_are_objects(tmp_path: Path) -> None:
    extra = {"need_tools_kwargs": True, "tools_kwargs": {"calc": {"create_kwargs": {"ground_truth": "1"}}}}
    rows = [
        {"prompt": "a", "answer": "1", "agent_name": "tool_agent", "extra_info": {**extra, "n": n}} for n in range(3)
    ]
    write_rows(tmp_path / "s" / "train.jsonl", rows)
    declaration = declare_tasks(tmp_path / "s", rl={"transforms": ["passthrough"]}, views=["verl"], num_shards=1)
    with open_blend(declaration, tmp_path / "artifacts") as made:
        build(made)
        for number, row in enumerate(read_view_rows(made, "verl", "train")):
            assert row["agent_name"] == "tool_agent"
            assert {key: row["extra_info"][key] for key in extra} == extra
            assert json.loads(row["extra_info"]["record"]) == {"extra_info": {"n": number}}


def test_a_view_of_other_records_is_not_traced(finished: Blend, store: LocalArtifacts) -> None:
    path = store.directory(finished.declaration.artifact("verl")) / "receipt.json"
    path.write_text(path.read_text().replace(store.require(finished.declaration.artifact("verl")).key, "0" * 64))
    with raises(IntegrityError, "verl"):
        trace_documents(TrainingBlend(finished.declaration).tracer(store), view="verl", split="train", sample=0)
