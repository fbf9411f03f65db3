"""The code location: everything under `defs/`, bound to its executor and the resources of the environment."""

import warnings
from functools import cache
from pathlib import Path

import dagster as dg

from dataprep_assets import defs as declared_here
from dataprep_assets.declarations import Declarations
from dataprep_assets.orchestration.overview_page import overview_definitions
from dataprep_assets.orchestration.planning import with_planning
from resources import build_resources

PROJECT_ROOT = Path(__file__).resolve().parent.parent

# said by Dagster of its own code, for every location with checks, each time that one is loaded
warnings.filterwarnings("ignore", "Parameter `execution_type` of function", dg.BetaWarning)


@dg.definitions
def defs() -> dg.Definitions:
    """All datasets declared in `defs/`, but for shipped ones that are not to be shown (`orchestration/shipped.py`)."""
    return bound(with_planning(declarations().definitions_of(_tree())), PROJECT_ROOT)


@cache
def declarations() -> Declarations:
    """What `defs/` declares, file by file."""
    return Declarations(declared_here, PROJECT_ROOT)


@cache
def _tree() -> dg.ComponentTree:
    """What `defs/` declares; read once a process, because Dagster asks up to six times for one run (1 to 2 s each)."""
    return dg.ComponentTree.for_project(path_within_project=declarations().folder)


def bound(loaded: dg.Definitions, project_root: Path) -> dg.Definitions:
    """Definitions with the resources of the environment, their steps run by the run's own process.

    A process a step costs seconds of imports each, and one whose run was killed goes on by itself. What is heavy has
    worker processes of its own, which use every core and die with the run.
    """
    resources = build_resources(project_root)
    overview = overview_definitions(lambda: every.resolve_asset_graph())
    every = dg.Definitions.merge(loaded, overview, dg.Definitions(resources=resources, executor=dg.in_process_executor))
    return every
