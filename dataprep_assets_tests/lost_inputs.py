"""Remove a partition of an artifact, and read what an offline verification reports about its downstream artifacts."""

import shutil
from pathlib import Path

from dataprep_assets.integrity.verify import verify_path


def find_input_defects(root: Path, dataset: str, lost: str) -> dict[str, tuple[str, ...]]:
    """Remove `lost`, `<name>/<partition>`, from a copy of the dataset; return artifact → input defects by
    `verify_path`.
    """
    assert {v.name: v.defects for v in verify_path(root, "size") if v.defects} == {}, "before anything is lost"
    shutil.rmtree(root / dataset / lost)
    found = {v.name: tuple(d for d in v.defects if d.startswith("its input")) for v in verify_path(root, "size")}
    return {name: defects for name, defects in found.items() if defects}
