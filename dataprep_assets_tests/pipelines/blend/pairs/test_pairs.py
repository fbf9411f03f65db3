"""Blends of preference pairs: built, checked, traced, resumed, and rebuilt only where their sources change."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import ConfigError, IntegrityError, NotFoundError
from dataprep_assets.formats.conversations.preference_rows import PreferenceRow, build_schema, read_preferences
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import record_files
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.pairs.lengths import build_length_rows, find_length_bias
from dataprep_assets.pipelines.blend.pairs.pairs import prepare_pairs_shards
from dataprep_assets.pipelines.blend.pairs.pairs_checks import PAIRS_CHECKS, OpenedPairs
from dataprep_assets.pipelines.blend.pairs.shard import PAIRS_FILE
from dataprep_assets.pipelines.blend.pairs.view import CHECKS, PreferenceView
from dataprep_assets.pipelines.blend.pairs.views import VIEWS
from dataprep_assets.pipelines.blend.view import build_view
from dataprep_assets_tests.faults.edits import edit_receipt
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    REFERENCE,
    Blend,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.pipelines.blend.pairs.preference_rows import (
    declare_pairs,
    make_assistant,
    make_labeled,
    make_pair,
    make_plain,
    make_user,
)
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.view_checks import find_in_view
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle

NAMES = ["kto", "pairs_ranked", "pairs_sharegpt"]


def build(made: Blend) -> list[str]:
    """Run all artifacts, and return the names of the materialized ones."""
    outcomes = made.run_all()
    assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
    assert find_failed(read_evaluations(outcomes)) <= REFERENCE
    return [
        event.asset_key.path[-1]
        for outcome in outcomes
        for event in outcome.get_asset_materialization_events()
        if event.asset_key is not None
    ]


def read_rows(made: Blend) -> dict[tuple[str, int], PreferenceRow]:
    """Return each row of the shards by its source file and row."""
    found = {}
    for key in made.plan.partitions:
        receipt = made.store.require(made.declaration.artifact("pairs", key))
        files = {source["ordinal"]: source["file"] for source in receipt.facts["sources"]}
        folder = made.directory("pairs", key)
        if not (folder / PAIRS_FILE).exists():
            continue
        rows = [row for group in read_preferences(folder / PAIRS_FILE) for row in group]
        for row, (ordinal, number) in zip(rows, np.load(folder / "origins.npy").tolist(), strict=True):
            found[files[ordinal], number] = row
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    """Return a blend of pairs and of labeled answers."""
    home = tmp_path_factory.mktemp("pairs")
    rows = {"mixed": [make_pair(n) for n in range(40)], "labels": [make_labeled(n) for n in range(30)]}
    with open_blend(declare_pairs(home / "sources", rows, views=["kto"]), home / "artifacts") as made:
        build(made)
        yield made


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    """Return a blend of pairs of texts, with every view and a held-out shard."""
    home = tmp_path_factory.mktemp("texts")
    rows = {name: [make_plain(n, name) for n in range(36)] for name in ("first", "second")}
    declaration = declare_pairs(home / "sources", rows, views=NAMES, num_shards=3, held_out={"valid": 1})
    with open_blend(declaration, home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        # `blend.lengths_balanced` fails, because every rejected text is longer than the chosen text.
        assert find_failed(read_evaluations(outcomes)) == {*REFERENCE, "blend.lengths_balanced"}
        yield made


def test_every_row_has_the_rendered_prompt_and_answers(finished: Blend) -> None:
    rows, bundle = read_rows(finished), chat_bundle()
    assert len(rows) == 70
    for n in range(40):
        row, source = rows["mixed.jsonl", n + 1], make_pair(n)
        assert row.chosen_answer is not None
        assert row.rejected_answer is not None
        assert row.rejected_answer.messages == source["rejected"][-1:]
        prompt = bundle.decode(row.prompt_ids)
        assert prompt.endswith("<|im_start|>assistant\n<think></think>")
        assert f"Question {n}?" in prompt
        assert (
            bundle.decode(row.rejected_answer.ids[row.rejected_answer.mask == 1])
            == source["rejected"][-1]["content"] + "<|im_end|>"
        )
        # Results of tools are part of the answer, but are not trained, because the model does not write them.
        assert ("height" in bundle.decode(row.chosen_answer.ids)) == (n % 5 == 0)
        assert "height" not in bundle.decode(row.chosen_answer.ids[row.chosen_answer.mask == 1])
        assert (row.tools is not None) == (n % 5 == 0)
    for n in range(30):
        row = rows["labels.jsonl", n + 1]
        assert (row.chosen_answer is not None, row.rejected_answer is not None) == (n % 3 > 0, n % 3 == 0)


def test_receipt_status_and_card_have_counts(finished: Blend) -> None:
    assert finished.stale() == []
    assert find_failed(finished.check()) == REFERENCE
    lines = finished.component.summary(finished.store)
    assert any(line.startswith("40 pairs, 30 labeled answers: ") for line in lines)
    assert any(line.endswith("labels: form kto") for line in lines)
    card = json.loads((finished.directory("data_card") / "croissant.json").read_bytes())
    assert any("prompt_ids" in json.dumps(record) for record in card["recordSet"])
    (kto,) = (line for line in finished.component.describe_trainers(finished.store) if "KTOTrainer" in line)
    assert_names(kto, str(finished.directory("kto")), "'train'")
    dpo = [line for line in finished.component.describe_trainers(finished.store) if "DPOTrainer" in line]
    assert [str(finished.run_directory) in line for line in dpo] == [True]


def test_bad_rows_are_quarantined_and_long_pairs_dropped(tmp_path: Path) -> None:
    rows: list[Any] = [
        make_plain(0),
        {"prompt": "Q?", "chosen": "A", "rejected": "A"},
        b"{not json\n",
        {"prompt": "Q?", "chosen": "long " * 700, "rejected": "A"},
        {"prompt": [make_user("Q?")], "completion": [make_assistant("A")], "label": True},
        make_plain(5),
    ]
    declaration = declare_pairs(tmp_path, {"rows": rows}, bad_records={"policy": "drop", "budget": 0.6}, num_shards=1)
    with open_blend(declaration, tmp_path / "artifacts") as made:
        build(made)
        (key,) = made.plan.partitions
        receipt = made.store.require(made.declaration.artifact("pairs", key))
        assert receipt.ledger is not None
        assert receipt.ledger.dropped == {
            "bad_json": 1,
            "longer_than_max_length": 1,
            "no_preference": 1,
            "other_form": 1,
        }
        lines = (made.directory("pairs", key) / "quarantine.jsonl").read_text().splitlines()
        assert sorted(json.loads(line)["row"] for line in lines) == [2, 3, 4, 5]
        tracer = made.component.tracer(made.store)
        with raises(NotFoundError, "row 4", "longer_than_max_length"):
            trace_documents(tracer, file="rows.jsonl", row=4)
        assert {row for _, row in read_rows(made)} == {1, 6}


def test_a_bad_row_fails_with_its_place(tmp_path: Path) -> None:
    declaration = declare_pairs(tmp_path, {"rows": [make_plain(0), {"prompt": "Q?", "chosen": "A", "rejected": "A"}]})
    with open_blend(declaration, tmp_path / "artifacts") as made:
        outcomes = made.run_all()
        assert not outcomes[-1].success
        assert_names(failure_of(outcomes[-1]), "rows.jsonl", "row 2", "no_preference")


def test_only_shards_of_a_changed_source_are_rebuilt(tmp_path: Path) -> None:
    """An appended and a removed row change the shards of their file; an interrupted run resumes."""
    rows = {name: [make_pair(n, name) for n in range(12)] for name in ("first", "second")}
    declaration = declare_pairs(tmp_path / "s", rows, views=["kto"])
    with open_blend(declaration, tmp_path / "artifacts") as made:
        build(made)
        before = {
            key: made.store.require(made.declaration.artifact("pairs", key)).content for key in made.plan.partitions
        }
        assert "pairs" not in build(made)
        removed = rows["first"].pop(3)
        rows["first"].append(make_pair(50, "first"))
        write_rows(tmp_path / "s" / "first.jsonl", rows["first"])
        assert "small_pairs/kto" in made.stale()
        build(made)
        after = {
            key: made.store.require(made.declaration.artifact("pairs", key)).content for key in made.plan.partitions
        }
        assert [key for key in after if after[key] == before.get(key)] == [k for k in after if k.startswith("second")]
        prompts = [row.prompt for row in read_rows(made).values()]
        assert make_pair(50, "first")["prompt"] in prompts
        assert removed.get("prompt", removed["chosen"][:-1]) not in prompts
        (one, *_) = [key for key in made.plan.partitions if key.startswith("first")]
        assert made.store.remove(made.declaration.artifact("pairs", one))
        build(made)
        assert made.store.require(made.declaration.artifact("pairs", one)).content == after[one]


def test_parquet_and_json_lines_give_the_same_rows(tmp_path: Path) -> None:
    rows = [make_pair(n) for n in range(0, 30, 5)]
    folder = tmp_path / "s"
    with open_blend(declare_pairs(folder, {"rows": rows}, num_shards=1), tmp_path / "json") as made:
        build(made)
        expected = list(read_rows(made).values())
    write_rows(folder / "rows.parquet", rows)
    data = {"datasets": [{"name": "rows", "path": str(folder / "rows.parquet")}]}
    with open_blend(declare_pairs(folder, {"rows": rows}, num_shards=1, blend=data), tmp_path / "parquet") as made:
        build(made)
        found = list(read_rows(made).values())
    assert [list(a.find_differences(b)) for a, b in zip(expected, found, strict=True)] == [[]] * len(rows)


def test_remarks_name_unread_keys_and_texts_that_the_template_drops(tmp_path: Path) -> None:
    silent = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    silent += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    rows = [{**make_pair(0), "score": 3}, make_pair(1)]
    options = {"chat_template": silent}
    remarks = list(TrainingBlend(declare_pairs(tmp_path, {"rows": rows}, pairs=options)).remarks())
    (unread,) = (remark for remark in remarks if "score" in remark.sentence)
    assert unread.hint
    (lost,) = (remark for remark in remarks if "pairs.allow_loss" in remark.sentence)
    assert lost.keys == ("pairs", "chat_template")
    assert_names(lost.sentence, "does not write", "1 of")
    assert list(TrainingBlend(declare_pairs(tmp_path / "good", {"rows": [make_pair(0), make_pair(1)]})).remarks()) == []


def test_a_prompt_in_two_splits_is_reported(tmp_path: Path) -> None:
    rows = [{**make_plain(n % 2), "rejected": f"No {n}."} for n in range(12)]
    with open_blend(
        declare_pairs(tmp_path / "s", {"rows": rows}, held_out={"valid": 1}), tmp_path / "artifacts"
    ) as made:
        found = read_evaluations(made.run_all())["blend.splits_disjoint"]
        assert not found.passed
        assert_names(found.description or "", "2 prompts", "valid", "train")


def test_views_and_limits_are_declared(tmp_path: Path) -> None:
    for changes, names in (
        ({"views": ["sft_rows"]}, ["sft_rows", "`stage: pairs`", "kto"]),
        ({"views": ["kto", "kto"]}, ["`kto`", "twice"]),
        ({"tokenizer": None}, ["`tokenizer`", "`stage: pairs`"]),
        ({"sft": {}}, ["`sft`", "`stage: pairs`"]),
        (
            {"blend": {"datasets": [{"name": "a", "path": "a.jsonl", "format": "alpaca"}]}},
            ["a", "`format: alpaca`", "auto, pairs, kto"],
        ),
    ):
        with pytest.raises(ValidationError) as raised:
            declare_pairs(tmp_path, {"rows": [make_plain(0)]}, **changes)
        assert_names(str(raised.value), *names)


def test_a_sensitive_blend_shows_no_text_and_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_KEY", "0" * 64)
    rows = [{**make_plain(n), "canaryfield": "x"} for n in range(12)]
    declaration = declare_pairs(tmp_path, {"rows": rows}, sensitive=True, source_key={"env": "SOURCE_KEY"})
    with open_blend(declaration, tmp_path / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        shown = "\n".join(
            [
                *made.component.summary(made.store),
                *(str(dict(e.metadata)) for e in read_evaluations(outcomes).values()),
                *(e.description or "" for e in read_evaluations(outcomes).values()),
            ]
        )
        assert "canaryfield" not in shown
        assert "wave" not in shown
        (found, *_) = trace_documents(made.component.tracer(made.store), file="rows.jsonl", row=1)
        assert found.text is None


# --- faults of a shard


@pytest.fixture
def shard(finished: Blend, tmp_path: Path) -> OpenedPairs:
    """Return a shard of pairs that a test may damage."""
    store = LocalArtifacts(Path(shutil.copytree(finished.root, tmp_path / "root")))
    return OpenedPairs.open(prepare_pairs_shards(finished.declaration, store, finished.plan, ["mixed-00000"])[0])


def find_failing_checks(shard: OpenedPairs) -> set[str]:
    """Return the failing checks of a shard whose receipt describes its current files."""
    opened = OpenedPairs(shard.artifact, shard.store, shard.planned).with_local_files()
    receipt = replace(opened.receipt, files=record_files(opened.directory))
    opened.__dict__.update(receipt=receipt)
    return {check.name for check in PAIRS_CHECKS if not check.run(opened).passed}


def edit(shard: OpenedPairs, column: str, change: Any) -> None:
    """Rewrite a column of the file; JSON is given as text."""
    path = shard.directory / PAIRS_FILE
    table = pq.read_table(path, partitioning=None)
    index, kind = table.column_names.index(column), build_schema().field(column).type
    values = table.column(index).to_pylist()
    change(values)
    storage = pa.array(values, pa.list_(pa.string()) if isinstance(kind.value_type, pa.JsonType) else kind)
    array = storage.cast(kind)
    path.unlink()
    pq.write_table(table.set_column(index, column, array).cast(build_schema()), path, write_statistics=False)


def duplicate_id(values: list[Any]) -> None:
    values[2][-3] = 7 if values[2][-3] != 7 else 8


def outside(values: list[Any]) -> None:
    values[2][-3] = 60_000


def mask_zero(values: list[Any]) -> None:
    values[2] = [0] * len(values[2])


def mask_two(values: list[Any]) -> None:
    values[2][0] = 2


def mask_all(values: list[Any]) -> None:
    values[2] = [1] * len(values[2])


def other_answer(values: list[Any]) -> None:
    message = json.loads(values[2][0])
    values[2] = [json.dumps(message | {"content": "Another answer."})]


def no_messages(values: list[Any]) -> None:
    values[2] = []


@pytest.mark.parametrize(
    ("column", "change", "wrong"),
    [
        ("prompt_ids", duplicate_id, {"prompts_shared", "rendering_matches", "round_trip"}),
        ("rejected_ids", duplicate_id, {"rendering_matches", "round_trip"}),
        ("chosen_ids", outside, {"ids_in_vocabulary", "rendering_matches", "round_trip"}),
        ("rejected", other_answer, {"rendering_matches", "round_trip"}),
        ("rejected_mask", mask_zero, {"rows_complete", "counts_match", "round_trip"}),
        ("rejected_mask", mask_two, {"rows_complete", "counts_match", "round_trip"}),
        ("rejected_mask", mask_all, {"counts_match", "round_trip"}),
        ("rejected", no_messages, {"rows_complete", "counts_match", "round_trip"}),
    ],
)
def test_a_changed_column_is_found(shard: OpenedPairs, column: str, change: Any, wrong: set[str]) -> None:
    assert find_failing_checks(shard) == set()
    edit(shard, column, change)
    assert find_failing_checks(shard) >= wrong
    assert find_failing_checks(shard) <= wrong | {"counts_match", "ids_in_vocabulary"}


def test_equal_sides_are_found(shard: OpenedPairs) -> None:
    table = pq.read_table(shard.directory / PAIRS_FILE, partitioning=None)
    for name in ("", "_ids", "_mask", "_length"):
        index = table.column_names.index(f"rejected{name}")
        table = table.set_column(index, f"rejected{name}", table.column(f"chosen{name}"))
    pq.write_table(table.cast(build_schema()), shard.directory / PAIRS_FILE)
    assert "sides_differ" in find_failing_checks(shard)


def test_wrong_numbers_and_files_are_found(shard: OpenedPairs) -> None:
    receipt = shard.directory / "receipt.json"
    edit_receipt(receipt, lambda r: r["facts"].update(pairs=r["facts"]["pairs"] + 1))
    assert "counts_match" in find_failing_checks(shard)
    edit_receipt(receipt, lambda r: r["facts"].update(pairs=r["facts"]["pairs"] - 1))
    edit_receipt(receipt, lambda r: r["ledger"].update(rows_in=r["ledger"]["rows_in"] + 1))
    assert find_failing_checks(shard) == {"ledger_balances"}
    edit_receipt(receipt, lambda r: r["ledger"].update(rows_in=r["ledger"]["rows_in"] - 1, unknown_tokens=10_000))
    assert find_failing_checks(shard) == {"losses_within_limit"}
    edit_receipt(receipt, lambda r: r["ledger"].update(unknown_tokens=0))
    edit_receipt(receipt, lambda r: r["facts"].update(max_length=3))
    assert find_failing_checks(shard) == {"rows_complete"}
    edit_receipt(receipt, lambda r: r["facts"].update(max_length=512))
    (shard.directory / "extra").touch()
    opened = OpenedPairs(shard.artifact, shard.store, shard.planned).with_local_files()
    assert not PAIRS_CHECKS[0].run(opened).passed
    (shard.directory / "extra").unlink()
    origins = np.load(shard.directory / "origins.npy")
    np.save(shard.directory / "origins.npy", origins[::-1])
    assert find_failing_checks(shard) == {"round_trip"}
    path = shard.directory / PAIRS_FILE
    path.write_bytes(path.read_bytes()[:-9])
    assert find_failing_checks(shard) == {check.name for check in PAIRS_CHECKS} - {
        "files_intact",
        "ledger_balances",
        "losses_within_limit",
        "no_retracted_document",
    }


def test_answers_of_one_length_are_reported(tmp_path: Path, texts: Blend) -> None:
    found = texts.check()["blend.lengths_balanced"]
    assert not found.passed
    assert_names(found.description or "", "train", "first", "rejected", "100.0% of", "max_chosen_longer")
    rows = build_length_rows({("train", "first"): [*(texts.run_directory / "splits" / "train").glob("*first*")]})
    assert rows[0]["pairs"] == 24
    assert rows[0]["rejected_longer"] == 1.0
    assert rows[0]["chosen_p10"] <= rows[0]["chosen_p50"] <= rows[0]["chosen_max"] < rows[0]["rejected_p10"]
    few = [{**rows[0], "pairs": 19}]
    assert find_length_bias(few, 0.8).passed
    assert find_length_bias([{**rows[0], "pairs": 20, "rejected_longer": 0.8}], 0.8).passed
    assert not find_length_bias([{**rows[0], "pairs": 20, "chosen_longer": 0.81}], 0.8).passed


# --- views


def test_every_module_of_the_folder_is_a_view() -> None:
    assert list(VIEWS) == NAMES
    assert [PreferenceView.load(name).name for name in VIEWS] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_view_are_traced_to_the_source_and_back(texts: Blend, name: str) -> None:
    tracer = texts.component.tracer(texts.store)
    facts = texts.store.require(texts.declaration.artifact(name)).facts
    assert facts["rows"] == {split: n * (2 if name == "kto" else 1) for split, n in {"train": 48, "valid": 24}.items()}
    seen = set()
    for split, count in facts["rows"].items():
        for sample in range(count):
            (found,) = trace_documents(tracer, view=name, split=split, sample=sample)
            assert trace_documents(tracer, file=found.file, row=found.row, split=found.split) == [found]
            assert sample in [p.at["sample"] for p in found.places if p.artifact.endswith(f"/{name}")]
            assert found.text is not None
            assert f"Question {found.split}" in found.text
            seen.add((found.file, found.row))
    assert len(seen) == 72
    for question, error in (
        ({"view": name, "split": "train", "sample": facts["rows"]["train"]}, NotFoundError),
        ({"view": name, "sample": 0}, ConfigError),
        ({"view": "mds", "split": "train", "sample": 0}, NotFoundError),
        ({"shard": "first-00000", "packed_row": 99}, NotFoundError),
    ):
        with raises(error, "trace"):
            trace_documents(tracer, **question)  # type: ignore[arg-type]


def test_each_trainer_gets_its_files(texts: Blend) -> None:
    lines = "\n".join(texts.component.describe_trainers(texts.store))
    assert_names(lines, "DPOTrainer", "KTOTrainer", "LLaMA-Factory", "axolotl", "NeMo-RL")
    where = texts.directory("pairs_ranked").resolve()
    for split in ("train", "validation"):
        assert_names(lines, f'{split}: {{dataset_name: PreferenceDataset, data_path: "{where}/{split}.jsonl"}}')
    ranked = (texts.directory("pairs_ranked") / "train.jsonl").read_text().splitlines()
    record = json.loads(ranked[0])
    assert [completion["rank"] for completion in record["completions"]] == [0, 1]
    assert record["context"][-1]["role"] == "user"
    info = json.loads((texts.directory("pairs_sharegpt") / "dataset_info.json").read_bytes())
    assert {entry["file_name"] for entry in info.values()} == {"train.jsonl", "validation.jsonl"}
    record = json.loads((texts.directory("pairs_sharegpt") / "train.jsonl").read_text().splitlines()[0])
    assert record["chosen"].keys() == record["rejected"].keys() == {"role", "content"}


@pytest.mark.parametrize("name", ["pairs_ranked", "pairs_sharegpt"])
def test_a_format_that_cannot_hold_all_rows_is_refused(finished: Blend, name: str) -> None:
    with raises(ConfigError, name, "30 of 70 rows", "`kto`"):
        build_view(finished.declaration, finished.store, PreferenceView.load(name))


def test_a_format_of_texts_refuses_tools(tmp_path: Path) -> None:
    with open_blend(
        declare_pairs(tmp_path / "s", {"rows": [make_pair(n) for n in range(10)]}), tmp_path / "artifacts"
    ) as made:
        build(made)
        with raises(ConfigError, "pairs_sharegpt", "2 of 10 pairs", "tools"):
            build_view(made.declaration, made.store, PreferenceView.load("pairs_sharegpt"))


def test_changed_views_are_found(texts: Blend, tmp_path: Path) -> None:
    store = LocalArtifacts(Path(shutil.copytree(texts.root, tmp_path / "root")))
    assert all(f.passed for name in NAMES for f in find_in_view(texts, store, name).values())
    ranked = store.directory(texts.declaration.artifact("pairs_ranked")) / "train.jsonl"
    lines = ranked.read_text().splitlines(keepends=True)
    swapped = json.loads(lines[0])
    swapped["completions"][0]["rank"], swapped["completions"][1]["rank"] = 1, 0
    for content, wrong in (
        ([json.dumps(swapped) + "\n", *lines[1:]], {"matches_pairs"}),
        (lines[1:], {"matches_pairs"}),
        ([*lines, lines[0]], {"matches_pairs"}),
        ([*lines[:-1], lines[-1].rstrip("\n")], {"matches_pairs", "layout_valid"}),
        ([json.dumps({**json.loads(lines[0]), "more": 1}) + "\n", *lines[1:]], {"layout_valid"}),
    ):
        ranked.write_text("".join(content))
        found = find_in_view(texts, store, "pairs_ranked")
        assert {name for name, finding in found.items() if not finding.passed} == wrong
    info = store.directory(texts.declaration.artifact("pairs_sharegpt")) / "dataset_info.json"
    info.write_text("{}")
    assert not find_in_view(texts, store, "pairs_sharegpt")["layout_valid"].passed
    kto = store.directory(texts.declaration.artifact("kto")) / "train.parquet"
    kto.write_bytes(kto.read_bytes()[:-20])
    assert {finding.passed for finding in find_in_view(texts, store, "kto").values()} == {False}


def test_a_killed_view_keeps_its_finished_files(texts: Blend, tmp_path: Path) -> None:
    store = LocalArtifacts(Path(shutil.copytree(texts.root, tmp_path / "root")))
    artifact = texts.declaration.artifact("pairs_ranked")
    whole = store.require(artifact).content
    assert store.remove(artifact)
    view, write, calls = PreferenceView.load("pairs_ranked"), PreferenceView.write_file, []

    def killed(view: PreferenceView, path: Path, *rest: Any) -> None:
        if calls:
            raise KeyboardInterrupt
        calls.append(path.name)
        write(view, path, *rest)

    def counted(view: PreferenceView, path: Path, *rest: Any) -> None:
        calls.append(path.name)
        write(view, path, *rest)

    with patch.object(PreferenceView, "write_file", killed), pytest.raises(KeyboardInterrupt):
        build_view(texts.declaration, store, view)
    calls.clear()
    with patch.object(PreferenceView, "write_file", counted):
        receipt, reused = build_view(texts.declaration, store, view)
    assert (receipt.content, reused, calls) == (whole, False, ["validation.jsonl"])


def test_a_view_of_other_pairs_is_not_traced(texts: Blend, tmp_path: Path) -> None:
    store = LocalArtifacts(Path(shutil.copytree(texts.root, tmp_path / "root")))
    artifact = texts.declaration.artifact("kto")
    edit_receipt(store.directory(artifact) / "receipt.json", lambda r: r.update(key="0" * 64))
    with raises(IntegrityError, "kto"):
        trace_documents(TrainingBlend(texts.declaration).tracer(store), view="kto", split="train", sample=0)


def test_every_check_of_pairs_has_a_fault_here() -> None:
    """Compares the checks with the names that the tests above make fail, each by a planted fault."""
    text = Path(__file__).read_text(encoding="utf-8")
    for check in (*PAIRS_CHECKS[1:], *CHECKS):
        assert f'"{check.name}"' in text
