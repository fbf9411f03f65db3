"""A check that rebuilds an artifact for comparison uses a private folder of the dataset, which the next run removes."""

import stat
from pathlib import Path

from dataprep_assets.engine.checks.scratch_rebuild import rebuild_artifact
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts


def test_an_artifact_is_rebuilt_in_a_private_folder_of_its_dataset(tmp_path: Path) -> None:
    artifact = Artifact(dataset="notes", name="packed", partition="2024-01")

    def build(store: ArtifactStore) -> None:
        store.directory(artifact).mkdir(parents=True)
        (store.directory(artifact) / "patients.bin").write_bytes(b"x")

    with rebuild_artifact(artifact, LocalArtifacts(tmp_path), build) as folder:
        assert (folder / "patients.bin").is_file()
        area = tmp_path / "notes" / ".staging" / "scratch"
        (scratch,) = (path for path in area.iterdir() if path.is_dir())
        assert folder.is_relative_to(scratch)
        assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    assert not scratch.exists()
