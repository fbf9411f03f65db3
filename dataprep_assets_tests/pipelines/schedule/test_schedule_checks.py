"""Every check of a schedule fails on a planted fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets.pipelines.schedule import schedule_artifact
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_artifact import build_schedule_spec
from dataprep_assets.pipelines.schedule.schedule_checks import SCHEDULE_CHECKS
from dataprep_assets.serving.sampler import sampler as sampler_module
from dataprep_assets_tests.engine.found import run_checks
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.schedule.training_project import CORPUS, RUN, TrainingProject, copy, make
from dataprep_assets_tests.tools.drill.box import reseal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainingProject:
    return make(tmp_path_factory.mktemp("finished"))


def declaration_of(project: TrainingProject) -> ScheduleDeclaration:
    yaml = project.defs / RUN / "defs.yaml"
    return validate_declaration(ScheduleDeclaration, json.loads(yaml.read_text())["attributes"], yaml)


def revise(project: TrainingProject, monkeypatch: pytest.MonkeyPatch, edit: Callable[[dict[str, Any]], None]) -> None:
    """Build the schedule from an edited file, as a bug would, because the build itself refuses such a file."""
    value = json.loads((project.artifacts / RUN / "schedule" / "schedule.json").read_bytes())
    edit(value)
    (project.defs / RUN / "revisions.json").write_text(json.dumps(value))
    monkeypatch.setattr(schedule_artifact, "_require_valid", lambda *_: None)
    schedule_artifact.build_schedule(declaration_of(project), LocalArtifacts(project.artifacts))


def lose_a_byte(project: TrainingProject, _: pytest.MonkeyPatch) -> None:
    flip_byte(next((project.artifacts / RUN / "schedule").rglob("document_ids.bin")))


def damage_a_copy(project: TrainingProject, _: pytest.MonkeyPatch) -> None:
    folder = project.artifacts / RUN / "schedule"
    flip_byte(next(folder.rglob("document_ids.bin")))
    reseal(folder)


def count_wrong(project: TrainingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(value: dict[str, Any]) -> None:
        shard = value["revisions"][0]["sources"][0]["shards"][0]
        shard |= {"tokens": shard["tokens"] + 64, "samples": shard["samples"] + 1}

    revise(project, monkeypatch, edit)


def claim_removed(project: TrainingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(value: dict[str, Any]) -> None:
        later = json.loads(json.dumps(value["revisions"][0]))
        later |= {"first_step": 10, "trained": 10, "seed": 1}
        later["sources"][0]["shards"][0]["removed"] = [[0, 64]]
        value["revisions"].append(later)

    revise(project, monkeypatch, edit)


def forget_what_was_read(_: TrainingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    located = sampler_module.SourceCursor.locate

    def shifted(turn: sampler_module.SourceCursor, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epoch, samples = located(turn, ordinals)
        return epoch, samples // 2

    monkeypatch.setattr(sampler_module.SourceCursor, "locate", shifted)


def append(project: TrainingProject, _: pytest.MonkeyPatch) -> None:
    project.write_texts("train_9.jsonl", range(500, 520))
    project("run", CORPUS)


def read_often(project: TrainingProject, _: pytest.MonkeyPatch) -> None:
    project.declare(steps=4000)
    project("schedule", RUN, "--from-step", "0")
    project("run", RUN)


FAULTS: dict[str, Callable[[TrainingProject, pytest.MonkeyPatch], None]] = {
    "files_intact": lose_a_byte,
    "documents_complete": count_wrong,
    "revisions_consistent": claim_removed,
    "samples_read_once": forget_what_was_read,
    "sources_current": append,
    "epochs_within_limit": read_often,
    "rebuild_matches": damage_a_copy,
}


def test_a_finished_schedule_passes(finished: TrainingProject) -> None:
    failed = [name for name, finding in findings(finished).items() if not finding[0]]
    assert failed == []


def findings(project: TrainingProject) -> dict[str, tuple[bool, str]]:
    found = run_checks(build_schedule_spec(declaration_of(project)), LocalArtifacts(project.artifacts))
    return {name: (one.passed, one.summary) for name, one in found.items()}


def test_shards_rebuilt_from_other_files_with_the_same_documents_match_the_schedule(
    finished: TrainingProject, tmp_path: Path
) -> None:
    project = copy(finished, tmp_path / "copy")
    texts = project.defs / CORPUS / "texts"
    for path in sorted(texts.iterdir()):
        rows = [json.loads(line) | {"unused": True} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    project("run", CORPUS)
    assert findings(project)["rebuild_matches"][0]
    project("run", RUN)
    assert findings(project)["rebuild_matches"][0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value.update(dataset="another"),
        lambda value: value.update(id_field="another"),
        lambda value: value.update(sources=None),
        lambda value: value.pop("files"),
        lambda value: value["files"][0].__setitem__(1, 7),
        lambda value: value["sources"][0].update(documents=value["sources"][0]["documents"] + 1),
        lambda value: value["sources"][0].update(tokens=value["sources"][0]["tokens"] + 1),
    ],
    ids=["dataset", "id field", "no sources", "no files", "size of a file", "a document more", "a token more"],
)
def test_a_description_that_its_shard_contradicts_is_reported(
    finished: TrainingProject, tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    project = copy(finished, tmp_path / "copy")
    folder = project.artifacts / RUN / "schedule"
    paths = {path: json.loads(path.read_bytes()) for path in sorted(folder.rglob("shard.json"))}
    path = min(paths)
    edit(paths[path])
    path.write_text(json.dumps(paths[path], sort_keys=True) + "\n")
    reseal(folder)
    passed, summary = findings(project)["rebuild_matches"]
    assert not passed
    assert path.relative_to(folder).as_posix() in summary


def test_a_shard_with_other_documents_under_its_old_name_is_reported(
    finished: TrainingProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = copy(finished, tmp_path / "copy")
    project.write_texts("train_0.jsonl", [*range(119), 777])
    project("run", CORPUS)

    def edit(value: dict[str, Any]) -> None:
        later = json.loads(json.dumps(value["revisions"][0]))
        later |= {"first_step": 10, "trained": 10, "seed": 1}
        shard = later["sources"][0]["shards"][0]
        receipt = read_receipt(project.artifacts / CORPUS / "token_bins" / shard["name"])
        assert receipt is not None
        assert receipt.ledger is not None
        assert receipt.content != shard["content"]
        tokens = receipt.ledger.tokens
        shard |= {"content": receipt.content, "tokens": tokens, "samples": -(-tokens // later["sequence_length"])}
        value["revisions"].append(later)

    revise(project, monkeypatch, edit)
    passed, summary = findings(project)["revisions_consistent"]
    assert not passed
    assert_names(summary, "0 removed ranges", "0 added ranges", "1 removed range", "1 added range")


@pytest.mark.parametrize("check", [check.name for check in SCHEDULE_CHECKS])
def test_every_check_can_fail(
    finished: TrainingProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    project = copy(finished, tmp_path / "copy")
    FAULTS[check](project, monkeypatch)
    passed, summary = findings(project)[check]
    assert not passed
    assert summary
