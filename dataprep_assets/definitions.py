"""The code location: everything under `defs/`, bound to its executor and the resources of the environment."""

import warnings
from functools import cache
from pathlib import Path

import dagster as dg

from resources import build_resources

PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dg.definitions
def defs() -> dg.Definitions:
    """All datasets declared in `defs/`, but for shipped ones that are not to be shown (`orchestration/shipped.py`)."""
    return bound(_declared(), PROJECT_ROOT)


@cache
def tree() -> dg.ComponentTree:
    """What `defs/` declares; read once a process, because Dagster asks up to six times for one run (1 to 2 s each)."""
    return dg.ComponentTree.for_project(path_within_project=Path(__file__).parent / "defs")


def _declared() -> dg.Definitions:
    """Of the whole tree, which keeps them."""
    with warnings.catch_warnings():
        for said in (dg.BetaWarning, dg.PreviewWarning):
            warnings.simplefilter("ignore", said)
        return tree().build_defs()


def bound(loaded: dg.Definitions, project_root: Path) -> dg.Definitions:
    """Definitions with the resources of the environment, their steps run by the run's own process.

    A process a step costs seconds of imports each, and one whose run was killed goes on by itself. What is heavy has
    worker processes of its own, which use every core and die with the run.
    """
    resources = build_resources(project_root)
    return dg.Definitions.merge(loaded, dg.Definitions(resources=resources, executor=dg.in_process_executor))
