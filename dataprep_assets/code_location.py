"""The code location of a project: its datasets, bound to the resources of the environment and to their executor.

A project's own `definitions.py` needs three lines on top of it; `dataprep init` writes them.
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

# Dagster warns about its own code, each time that a location with checks or sensors is loaded
for _parameter in ("execution_type", "owners"):
    warnings.filterwarnings("ignore", f"Parameter `{_parameter}` of ", dg.BetaWarning)


def definitions_of(root: Path) -> dg.Definitions:
    """The definitions of the project in this folder.

    They are the datasets under `defs/`, except shipped ones that are hidden (`orchestration/shipped.py`), and any other
    Dagster definitions found there.

    Raises ConfigError if the folder is not a project.
    """
    project = at(root)
    if project is None:
        raise ConfigError(f"{root}: not a project: no pyproject.toml with [tool.dg.project] is there")
    return bound(with_planning(declarations_of(project).definitions_of(_tree(project))), root)


@cache
def declarations_of(project: Project) -> Declarations:
    """The declared datasets of a project, which can be loaded file by file.

    Raises ConfigError if the module of its datasets cannot be imported.
    """
    project.importable()
    try:
        module = importlib.import_module(project.defs_module)
    except ImportError as error:
        raise ConfigError(f"{project.root}: {project.defs_module}: cannot be imported: {error}") from error
    return Declarations(module, project.root)


@cache
def _tree(project: Project) -> dg.ComponentTree:
    """The component tree of a project, read once per process: Dagster asks for it up to six times in one run."""
    return dg.ComponentTree.for_project(path_within_project=declarations_of(project).folder)


def bound(loaded: dg.Definitions, root: Path) -> dg.Definitions:
    """Definitions with the resources of the environment, whose steps run in the run's own process.

    A process for each step would cost seconds of imports, and would go on when its run is killed. Heavy steps start
    worker processes of their own, which use every core and die with the run.

    Args:
        loaded: The definitions of datasets.
        root: The folder of their project; relative storage folders are below it.
    """
    resources = build_resources(root)
    overview = overview_definitions(lambda: every.resolve_asset_graph())
    every = dg.Definitions.merge(loaded, overview, dg.Definitions(resources=resources, executor=dg.in_process_executor))
    return every
