"""Proofs on combinations pass in every mode, and find what is planted."""

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.linked_directory import DIRECTORIES
from dataprep_assets.pipelines.notes.patient_key import PatientKey
from dataprep_assets.pipelines.notes.provenance import PROVENANCE, read_provenance
from dataprep_assets.pipelines.notes.replay import build_replay
from dataprep_assets.pipelines.notes.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.replay_proofs import COMBINED_PROOFS, VIRTUAL_PROOFS, prove_combined
from dataprep_assets.pipelines.notes.virtual_mixture import BUILDER_DIRECTORIES, GRAIN_MIXTURE
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.directories import NOTES, OTHER, failed, proven
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

pytestmark = pytest.mark.usefixtures("without_tensorflow")

MODES: dict[str, dict[str, Any]] = {
    "concat": {},
    "interleave": {},
    "weighted": {"weights": (1.0, 2.0), "tolerance": 0.2},
    "virtual": {},
}


def combined(root: Path, mode: str) -> ReplayDeclaration:
    """Both datasets and their combination below a root."""
    for notes in (NOTES, OTHER):
        assert not run_notes(notes, root).failed
    options = dict(MODES[mode])
    weights = options.pop("weights", (None, None))
    sources = [
        {"dataset": notes.dataset, **({"weight": weight} if weight else {})}
        for notes, weight in zip((NOTES, OTHER), weights, strict=True)
    ]
    replay = ReplayDeclaration.model_validate(
        {"dataset": "mix", "sources": sources, "mode": mode, "splits": ["train", "val"], **options}
    )
    build_replay(replay, LocalArtifacts(root))
    return replay


@pytest.mark.parametrize("mode", MODES)
def test_every_proof_passes_on_a_combination(mode: str, tmp_path: Path) -> None:
    replay = combined(tmp_path, mode)
    found = proven(prove_combined(replay, LocalArtifacts(tmp_path)))
    assert list(found) == [proof.name for proof in (VIRTUAL_PROOFS if mode == "virtual" else COMBINED_PROOFS)]
    assert {name: found[name].summary for name in failed(found)} == {}


@pytest.mark.parametrize("mode", MODES)
def test_shards_of_equal_bytes_are_no_defect(mode: str, tmp_path: Path) -> None:
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
    replay = ReplayDeclaration.model_validate({"dataset": "mix", "sources": sources, "mode": mode, **options})
    store = LocalArtifacts(tmp_path / "out")
    build_replay(replay, store)
    entries = read_provenance(store.local(replay.artifact("tfds_directory")) / PROVENANCE)["train"]
    assert len({origin.sha256 for _, origin in entries}) == 2 < len(entries)
    found = proven(prove_combined(replay, store))
    assert {name: found[name].summary for name in failed(found)} == {}


def test_a_source_that_was_declared_since_is_told(tmp_path: Path) -> None:
    both = combined(tmp_path, "concat")
    build_replay(both.model_copy(update={"sources": both.sources[:1]}), LocalArtifacts(tmp_path))
    found = proven(prove_combined(both, LocalArtifacts(tmp_path)))["provenance_complete"]
    assert any(f"{OTHER.dataset} was not combined" in str(row["defect"]) for row in found.table)


@pytest.mark.parametrize(
    ("format", "file", "content", "why"),
    [
        ("tfrecord", BUILDER_DIRECTORIES, b"[", "not a JSON file"),
        ("array_record", GRAIN_MIXTURE, b"{", "not a JSON file"),
        ("array_record", GRAIN_MIXTURE, b"[1]", "names none"),
        ("array_record", GRAIN_MIXTURE, b'{"sample_notes": 1, "replay": {"weight": "1"}}', "is not at its location"),
    ],
)
def test_a_damaged_file_for_the_loader_is_told(
    format: str, file: str, content: bytes, why: str, tmp_path: Path
) -> None:
    for notes in (NOTES, OTHER):
        assert not run_notes(notes.model_copy(update={"formats": (format,)}), tmp_path).failed
    sources = [{"dataset": notes.dataset} for notes in (NOTES, OTHER)]
    declared = {"dataset": "mix", "sources": sources, "mode": "virtual", "format": format, "splits": ["train", "val"]}
    replay = ReplayDeclaration.model_validate(declared)
    store = LocalArtifacts(tmp_path)
    build_replay(replay, store)
    (store.directory(replay.artifact(DIRECTORIES[replay.format])) / file).write_bytes(content)
    finding = proven(prove_combined(replay, store))["virtual_files"]
    assert not finding.passed
    assert why in finding.summary


def test_shards_that_are_not_mixed_are_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "concat")
    as_if = replay.model_copy(update={"mode": "interleave"})
    found = proven(prove_combined(as_if, LocalArtifacts(tmp_path)))
    assert "more or fewer than its share" in found["shares_achieved"].summary


def test_shares_that_are_not_the_declared_ones_are_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "weighted")
    strict = replay.model_copy(update={"tolerance": 1e-6})
    assert "has a share of" in proven(prove_combined(strict, LocalArtifacts(tmp_path)))["shares_achieved"].summary


def test_a_shard_that_nobody_asked_to_have_twice_is_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "weighted")
    as_if = replay.model_copy(update={"mode": "interleave"})
    found = proven(prove_combined(as_if, LocalArtifacts(tmp_path)))["provenance_complete"]
    assert "more often than in them" in found.summary


def test_a_source_that_changed_or_is_gone_is_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "virtual")
    mixture = tmp_path / "mix" / "tfds_directory" / "builder_directories.json"
    mixture.write_text(json.dumps(json.loads(mixture.read_bytes())[:1]))
    found = proven(prove_combined(replay, LocalArtifacts(tmp_path)))
    assert failed(found) == {"files_intact", "virtual_files"}
    (tmp_path / "replay" / "tfds_directory" / "receipt.json").unlink()
    with pytest.raises(DataprepError, match="replay/tfds_directory"):
        proven(prove_combined(replay, LocalArtifacts(tmp_path)))


def test_a_patient_who_trains_in_one_source_and_validates_in_another_is_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "interleave")
    packed = tmp_path / "sample_notes" / "packed_cohorts" / "2010-11"
    target = tmp_path / "replay" / "packed_cohorts" / "2010-12" / "val" / "patients.bin"
    target.write_bytes(target.read_bytes() + (packed / "train" / "patients.bin").read_bytes()[:16])
    found = proven(prove_combined(replay, LocalArtifacts(tmp_path)))
    assert failed(found) == {"splits_disjoint"}
    assert "1 patients are in several of the splits train, val" in found["splits_disjoint"].summary


@pytest.mark.parametrize("splits", [["train", "val"], ["train"]])
def test_patients_under_different_keys_cannot_be_compared_between_splits(splits: list[str], tmp_path: Path) -> None:
    other = OTHER.model_copy(update={"patient_key": PatientKey(public="another key for fictional data alone")})
    for notes in (NOTES, other):
        assert not run_notes(notes, tmp_path).failed
    sources = [{"dataset": notes.dataset} for notes in (NOTES, other)]
    replay = ReplayDeclaration.model_validate({"dataset": "mix", "sources": sources, "splits": splits})
    build_replay(replay, LocalArtifacts(tmp_path))
    finding = proven(prove_combined(replay, LocalArtifacts(tmp_path)))["splits_disjoint"]
    assert (finding.passed, finding.warning) == ((True, False) if len(splits) == 1 else (False, True))
    assert ("its sources have different patient keys" in finding.summary) == finding.warning
