"""Every asset check of notes and of combinations, made to fail by a planted fault; none is without a fault."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.notes_project import NotesProject, notes_attributes, notes_project
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLE
from dataprep_assets_tests.pipelines.notes.planted_faults import (
    FAULTS,
    HAS_TFDS,
    MONTH,
    edit_json,
    edit_receipt,
    edit_source,
    no_tfds,
    packed,
    unbalanced,
)

pytest.importorskip("array_record", reason="the ArrayRecord shards are checked too: install the extra tfds")
NOT_BLOCKING = (
    "losses_within_limit",
    "packing_efficient",
    "readable_by_tfds",
    "fast_engine_accepted",
    "separator_ends_documents",
)
REPLAY = {
    "dataset": "combined",
    "sensitive": False,
    "sources": [{"dataset": "notes"}, {"dataset": "replay"}],
    "splits": ["train", "val"],
}


def datasets(folder: Path) -> list[dict[str, Any]]:
    source = folder / "source"
    tokenizer = {"path": str(folder / "tokenizer"), "name": "sample"}
    return [
        notes_attributes(
            source,
            tokenizer=tokenizer,
            formats=["tfrecord", "array_record"],
            months={"first": "2010-11", "last": "2010-12"},
        ),
        notes_attributes(
            source,
            dataset="replay",
            tokenizer=tokenizer,
            months={"first": "2011-01", "last": "2011-02"},
            template={"header": "replay\n"},
        ),
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotesProject]:
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(SAMPLE, folder / "source")
    shutil.copytree(SAMPLE.parents[1] / "sample_corpus" / "tokenizer", folder / "tokenizer")
    with notes_project(folder, *datasets(folder), replay=REPLAY) as made:
        made.run_all()
        yield made


@pytest.fixture
def copied(finished: NotesProject, tmp_path: Path) -> Iterator[NotesProject]:
    for name in ("source", "tokenizer", "artifacts"):
        shutil.copytree(finished.root.parent / name, tmp_path / name)
    with notes_project(tmp_path, *datasets(tmp_path), replay=REPLAY) as made:
        yield made


def test_every_check_has_a_planted_fault(finished: NotesProject) -> None:
    notes, _, combined = finished.components
    specs = [*notes.specs, *combined.specs]
    declared = {("/".join(spec.path), proof.name) for spec in specs for proof in spec.checks}
    assert declared == set(FAULTS)


def test_all_checks_pass_on_good_data_but_what_needs_tensorflow_without_it(finished: NotesProject) -> None:
    graph = finished.definitions.resolve_asset_graph()
    found = finished.instance.event_log_storage.get_latest_asset_check_execution_by_key(list(graph.asset_check_keys))
    assert len(found) == len(graph.asset_check_keys)
    failed = {k.name for k, record in found.items() if record.status.value != "SUCCEEDED"}
    assert failed == (set() if HAS_TFDS else {"readable_by_tfds"})


@pytest.mark.parametrize(("asset", "name"), list(FAULTS), ids=lambda part: str(part))
def test_the_check_fails_on_its_fault(
    copied: NotesProject, monkeypatch: pytest.MonkeyPatch, asset: str, name: str
) -> None:
    # Make TensorFlow unavailable in all other cases, because the check that uses TensorFlow takes seconds, and is a
    # case of its own.
    if name != "readable_by_tfds":
        no_tfds(copied, monkeypatch)
    FAULTS[asset, name](copied, monkeypatch)
    evaluation = copied.check(dg.AssetKey(asset.split("/")))[name]
    assert not evaluation.passed
    assert evaluation.description
    assert evaluation.blocking == (name not in NOT_BLOCKING)


def test_a_changed_source_is_told(copied: NotesProject, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_source(copied, monkeypatch)
    found = copied.check(copied.key("packed_cohorts"))["note_counts_match"]
    assert not found.passed
    assert_names(str(found.description), MONTH)


def test_without_tensorflow_nothing_is_claimed(copied: NotesProject, monkeypatch: pytest.MonkeyPatch) -> None:
    no_tfds(copied, monkeypatch)
    found = copied.check(copied.key("tfds_directory"))["readable_by_tfds"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "Install dataprep-assets[tfds]" in str(found.description)


def test_a_damaged_receipt_fails_every_check_of_its_cohorts(copied: NotesProject) -> None:
    edit_json(packed(copied, "receipt.json"), lambda receipt: receipt.update(key="0" * 64))
    found = copied.check(copied.key("packed_cohorts"))
    assert len(found) == 15
    assert not any(evaluation.passed for evaluation in found.values())


def test_a_run_of_one_month_that_is_as_it_was_examines_nothing_again_and_speaks_of_all(
    copied: NotesProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.environ.pop("DATAPREP_WORKERS", None)
    edit_receipt(packed(copied), unbalanced)
    copied.check(copied.key("packed_cohorts"))  # this stores the verdicts of every month
    outcome = copied.run(["packed_cohorts"], ["2010-11", "2010-11"])
    (found,) = [e for e in outcome.get_asset_check_evaluations() if e.check_name == "ledger_balances"]
    assert not found.passed
    assert {name: found.metadata[f"cohorts_{name}"].value for name in ("checked", "failed", "not_checked_yet")} == {
        "checked": 0,
        "failed": 1,
        "not_checked_yet": 0,
    }
    assert MONTH in str(found.description)
