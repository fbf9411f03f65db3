"""Build samples of a checkout and write their locks: `python -m … FOLDER DATASET…`, for tests."""

import sys
from pathlib import Path

from dataprep_assets.cli.support import project
from dataprep_assets.engine.lock.lock import encode_lock, lock_dataset
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets_tests.engine.building import build_all


def main(folder: Path, names: list[str]) -> None:
    """Write the artifacts to the folder and each lock next to them."""
    store = LocalArtifacts(folder / "artifacts")
    for name in names:
        specs = project.use_dataset(name).specs
        build_all(specs, store)
        (folder / f"{name}.lock").write_bytes(encode_lock(lock_dataset(specs, store)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
