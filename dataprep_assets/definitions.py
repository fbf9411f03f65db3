"""The code location: everything under `defs/`, bound to resources from the environment. Nothing else."""

from pathlib import Path

import dagster as dg
from dagster.components import load_from_defs_folder

from resources import build_resources

PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dg.definitions
def defs() -> dg.Definitions:
    """All datasets declared in `defs/`."""
    loaded = load_from_defs_folder(path_within_project=Path(__file__).parent / "defs")
    return dg.Definitions.merge(loaded, dg.Definitions(resources=build_resources(PROJECT_ROOT)))
