"""The code location: everything under `defs/`, bound to its executor and the resources of the environment."""

import warnings
from functools import cache
from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.overview_page import overview_definitions
from dataprep_assets.orchestration.planning import with_planning
from resources import build_resources

PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dg.definitions
def defs() -> dg.Definitions:
    """All datasets declared in `defs/`."""
    return bound(with_planning(_declared()), PROJECT_ROOT)


def datasets() -> dg.Definitions:
    """The same without what Dagster's UI says of installed component packages, whose import takes longer than all else.

    For commands that run a dataset in their own process.
    """
    return bound(_declared(Path()), PROJECT_ROOT)


@cache
def tree() -> dg.ComponentTree:
    """What `defs/` declares; read once a process, because Dagster asks up to six times for one run (1 to 2 s each)."""
    return dg.ComponentTree.for_project(path_within_project=Path(__file__).parent / "defs")


def _declared(below: Path | None = None) -> dg.Definitions:
    """Of the tree, or of a folder of it (relative to `defs/`); kept by the tree."""
    with warnings.catch_warnings():
        for said in (dg.BetaWarning, dg.PreviewWarning):
            warnings.simplefilter("ignore", said)
        return tree().build_defs(below)


def bound(loaded: dg.Definitions, project_root: Path) -> dg.Definitions:
    """Definitions with the resources of the environment, their steps run by the run's own process.

    A process a step costs seconds of imports each, and one whose run was killed goes on by itself. What is heavy has
    worker processes of its own, which use every core and die with the run.
    """
    resources = build_resources(project_root)
    overview = overview_definitions(lambda: every.resolve_asset_graph())
    every = dg.Definitions.merge(loaded, overview, dg.Definitions(resources=resources, executor=dg.in_process_executor))
    return every
