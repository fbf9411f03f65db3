"""Checks of combinations pass in every mode, and find planted faults."""

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.patient_key import PatientKey
from dataprep_assets.pipelines.notes.replay.replay import (
    COMBINED_CHECKS,
    VIRTUAL_CHECKS,
    build_combined_directory_spec,
    build_replay,
)
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DIRECTORIES
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, read_provenance
from dataprep_assets.pipelines.notes.tfds.virtual_mixture import BUILDER_DIRECTORIES, GRAIN_MIXTURE
from dataprep_assets_tests.engine.found import run_checks
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.directories import NOTES, OTHER, failed, sealed
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

pytestmark = pytest.mark.usefixtures("without_tensorflow")

MODES: dict[str, dict[str, Any]] = {
    "concat": {},
    "interleave": {},
    "weighted": {"weights": (1.0, 2.0), "tolerance": 0.2},
    "virtual": {},
}


def combined(root: Path, mode: str) -> MixtureDeclaration:
    """Build both datasets and their combination below a root."""
    for notes in (NOTES, OTHER):
        assert not run_notes(notes, root).failed
    options = dict(MODES[mode])
    weights = options.pop("weights", (None, None))
    sources = [
        {"dataset": notes.dataset, **({"weight": weight} if weight else {})}
        for notes, weight in zip((NOTES, OTHER), weights, strict=True)
    ]
    replay = MixtureDeclaration.model_validate(
        {"dataset": "mix", "sources": sources, "mode": mode, "splits": ["train", "val"], **options}
    )
    build_replay(replay, LocalArtifacts(root))
    return replay


def prove(replay: MixtureDeclaration, store: LocalArtifacts) -> dict[str, Finding]:
    """Return every finding on a combination."""
    return run_checks(build_combined_directory_spec(replay), store)


@pytest.mark.parametrize("mode", MODES)
def test_every_check_passes_on_a_combination(mode: str, tmp_path: Path) -> None:
    replay = combined(tmp_path, mode)
    found = prove(replay, LocalArtifacts(tmp_path))
    assert list(found) == [check.name for check in (VIRTUAL_CHECKS if mode == "virtual" else COMBINED_CHECKS)]
    assert {name: found[name].summary for name in failed(found)} == {}


@pytest.mark.parametrize("mode", MODES)
def test_shards_with_equal_bytes_are_no_defect(mode: str, tmp_path: Path) -> None:
    for name in ("tea", "goats"):
        alike = [
            patient(f"{name}{i}", note(f"The {name} of this month are those of the last one, without change."))
            for i in range(3)
        ]
        source = written(tmp_path / name, {"2010-01": alike})
        assert not run_notes(plain(source, dataset=name, rows_per_shard=1), tmp_path / "out").failed
    options = dict(MODES[mode])
    weights = options.pop("weights", (None, None))
    sources = [
        {"dataset": name, **({"weight": weight} if weight else {})}
        for name, weight in zip(("tea", "goats"), weights, strict=True)
    ]
    replay = MixtureDeclaration.model_validate({"dataset": "mix", "sources": sources, "mode": mode, **options})
    store = LocalArtifacts(tmp_path / "out")
    build_replay(replay, store)
    entries = read_provenance(store.local(replay.artifact("tfds_directory")) / PROVENANCE)["train"]
    assert len({origin.sha256 for _, origin in entries}) == 2 < len(entries)
    found = prove(replay, store)
    assert {name: found[name].summary for name in failed(found)} == {}


def test_a_source_that_was_declared_later_is_reported(tmp_path: Path) -> None:
    both = combined(tmp_path, "concat")
    build_replay(both.model_copy(update={"sources": both.sources[:1]}), LocalArtifacts(tmp_path))
    found = prove(both, LocalArtifacts(tmp_path))["provenance_complete"]
    assert not found.passed


@pytest.mark.parametrize(
    ("format", "file"), [("tfrecord", BUILDER_DIRECTORIES), ("array_record", GRAIN_MIXTURE)], ids=["tfds", "grain"]
)
@pytest.mark.parametrize("content", [b"[", b"[1]", b'{"sample_notes": 1, "replay": {"weight": "1"}}'])
def test_a_wrong_file_for_the_loader_is_found(format: str, file: str, content: bytes, tmp_path: Path) -> None:
    for notes in (NOTES, OTHER):
        assert not run_notes(notes.model_copy(update={"formats": (format,)}), tmp_path).failed
    sources = [{"dataset": notes.dataset} for notes in (NOTES, OTHER)]
    declared = {"dataset": "mix", "sources": sources, "mode": "virtual", "format": format, "splits": ["train", "val"]}
    replay = MixtureDeclaration.model_validate(declared)
    store = LocalArtifacts(tmp_path)
    build_replay(replay, store)
    artifact = store.directory(replay.artifact(DIRECTORIES[replay.format]))
    (artifact / file).unlink()
    (artifact / file).write_bytes(content)
    assert failed(prove(replay, store)) == {"files_intact"}
    sealed(artifact)
    assert failed(prove(replay, store)) == {"provenance_complete"}


def test_shards_that_are_not_mixed_are_reported(tmp_path: Path) -> None:
    replay = combined(tmp_path, "concat")
    as_if = replay.model_copy(update={"mode": "interleave"})
    assert "provenance_complete" in failed(prove(as_if, LocalArtifacts(tmp_path)))


def test_shares_that_differ_from_the_declared_ones_are_reported(tmp_path: Path) -> None:
    replay = combined(tmp_path, "weighted")
    strict = replay.model_copy(update={"tolerance": 1e-6})
    assert "has a share of" in prove(strict, LocalArtifacts(tmp_path))["mixture_matches_weights"].summary


def test_an_undeclared_repeated_shard_is_reported(tmp_path: Path) -> None:
    replay = combined(tmp_path, "weighted")
    as_if = replay.model_copy(update={"mode": "interleave"})
    assert "provenance_complete" in failed(prove(as_if, LocalArtifacts(tmp_path)))


def test_a_changed_or_missing_source_is_reported(tmp_path: Path) -> None:
    replay = combined(tmp_path, "virtual")
    mixture = tmp_path / "mix" / "tfds_directory" / "builder_directories.json"
    mixture.write_text(json.dumps(json.loads(mixture.read_bytes())[:1]))
    found = prove(replay, LocalArtifacts(tmp_path))
    assert failed(found) == {"files_intact"}
    (tmp_path / "replay" / "tfds_directory" / "receipt.json").unlink()
    found = prove(replay, LocalArtifacts(tmp_path))
    assert "replay/tfds_directory" in found["provenance_complete"].summary


def test_a_patient_in_train_of_one_source_and_validation_of_another_is_reported(tmp_path: Path) -> None:
    replay = combined(tmp_path, "interleave")
    packed = tmp_path / "sample_notes" / "packed_cohorts" / "2010-11"
    target = tmp_path / "replay" / "packed_cohorts" / "2010-12" / "val" / "patients.bin"
    target.write_bytes(target.read_bytes() + (packed / "train" / "patients.bin").read_bytes()[:16])
    found = prove(replay, LocalArtifacts(tmp_path))
    assert failed(found) == {"splits_disjoint"}
    assert_names(found["splits_disjoint"].summary, "1 patient", "train, val")


@pytest.mark.parametrize("splits", [["train", "val"], ["train"]])
def test_patients_under_different_keys_cannot_be_compared_between_splits(splits: list[str], tmp_path: Path) -> None:
    other = OTHER.model_copy(update={"patient_key": PatientKey(public="another key for fictional data alone")})
    for notes in (NOTES, other):
        assert not run_notes(notes, tmp_path).failed
    sources = [{"dataset": notes.dataset} for notes in (NOTES, other)]
    replay = MixtureDeclaration.model_validate({"dataset": "mix", "sources": sources, "splits": splits})
    build_replay(replay, LocalArtifacts(tmp_path))
    finding = prove(replay, LocalArtifacts(tmp_path))["splits_disjoint"]
    assert (finding.passed, finding.warning) == ((True, False) if len(splits) == 1 else (False, True))
    assert ("its sources have different patient keys" in finding.summary) == finding.warning
