"""A partition of an artifact that is lost: what an offline verification says of those that were made of it."""

import shutil
from pathlib import Path

from dataprep_assets.integrity.verify import verify_path


def told_without(root: Path, dataset: str, lost: str) -> dict[str, tuple[str, ...]]:
    """Remove `lost`, `<name>/<partition>`, of a copy's dataset; artifact → its inputs' defects by `verify_path`."""
    assert {v.name: v.defects for v in verify_path(root, "size") if v.defects} == {}, "before anything is lost"
    shutil.rmtree(root / dataset / lost)
    found = {v.name: tuple(d for d in v.defects if d.startswith("its input")) for v in verify_path(root, "size")}
    return {name: defects for name, defects in found.items() if defects}
