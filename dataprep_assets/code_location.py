"""The code location of a project: its datasets, bound to the resources of the environment and to their executor.

A project's own `definitions.py` is three lines over it, as `dataprep init` writes them.
"""

import importlib
import warnings
from functools import cache
from pathlib import Path

import dagster as dg

from dataprep_assets.declarations import Declarations
from dataprep_assets.errors import ConfigError
from dataprep_assets.orchestration.overview_page import overview_definitions
from dataprep_assets.orchestration.planning import with_planning
from dataprep_assets.project import Project, at
from dataprep_assets.resources import build_resources

__all__ = ["bound", "declarations_of", "definitions_of"]

# said by Dagster of its own code, for every location with checks or sensors, each time that one is loaded
for _parameter in ("execution_type", "owners"):
    warnings.filterwarnings("ignore", f"Parameter `{_parameter}` of ", dg.BetaWarning)


def definitions_of(root: Path) -> dg.Definitions:
    """All that the code location of the project in this folder has.

    Datasets under `defs/`, but for shipped ones that are not to be shown (`orchestration/shipped.py`), and whatever
    else of Dagster's is defined there.
    """
    project = at(root)
    if project is None:
        raise ConfigError(f"{root}: not a project: no pyproject.toml with [tool.dg.project] is there")
    return bound(with_planning(declarations_of(project).definitions_of(_tree(project))), root)


@cache
def declarations_of(project: Project) -> Declarations:
    """What a project declares, file by file."""
    project.importable()
    try:
        module = importlib.import_module(project.defs_module)
    except ImportError as error:
        raise ConfigError(f"{project.root}: {project.defs_module}: cannot be imported: {error}") from error
    return Declarations(module, project.root)


@cache
def _tree(project: Project) -> dg.ComponentTree:
    """What a project declares; read once a process, because Dagster asks up to six times for one run."""
    return dg.ComponentTree.for_project(path_within_project=declarations_of(project).folder)


def bound(loaded: dg.Definitions, root: Path) -> dg.Definitions:
    """Definitions with the resources of the environment, their steps run by the run's own process.

    A process a step costs seconds of imports each, and one whose run was killed goes on by itself. What is heavy has
    worker processes of its own, which use every core and die with the run.

    Args:
        loaded: The definitions of datasets.
        root: The folder of their project, to which storage in relative folders belongs.
    """
    resources = build_resources(root)
    overview = overview_definitions(lambda: every.resolve_asset_graph())
    every = dg.Definitions.merge(loaded, overview, dg.Definitions(resources=resources, executor=dg.in_process_executor))
    return every
