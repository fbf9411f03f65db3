"""Code location of a project: its datasets, with the environment's resources and the executor.

Dagster's component tree fails completely if one file is wrong, with a traceback of its parsers. Therefore each
`defs.yaml` is checked first (`Declarations.check`). If files are wrong, the other files are loaded without them. Each
wrong file is represented by a group with one asset that shows the error and its location (`merge_definitions`).

A project's own `definitions.py` needs only three lines to use this module; `dataprep init` writes them.
"""

import importlib
import multiprocessing
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dagster as dg

from dataprep_assets.declarations import Declarations, describe_reason, open_declarations
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.errors import ConfigError
from dataprep_assets.orchestration.runs.planning import add_planning
from dataprep_assets.project import Project, read_project
from dataprep_assets.resources import build_resources
from dataprep_assets.resources.environment import build_storage, resolve_variables
from dataprep_assets.site.asset import build_site_definitions
from dataprep_assets.site.stored import StoredDataset, link_datasets

# Ignore these warnings, because Dagster emits them about its own code for every location with checks or sensors.
for _parameter in ("execution_type", "owners"):
    warnings.filterwarnings("ignore", f"Parameter `{_parameter}` of ", dg.BetaWarning)


def definitions_of(root: Path, *, executor: dg.ExecutorDefinition | None = dg.in_process_executor) -> dg.Definitions:
    """Return the definitions of the project in this folder.

    They are the datasets under `defs/`, except shipped ones that are hidden (`project.py`), and any other Dagster
    definitions found there.

    Args:
        root: The folder of its pyproject.toml.
        executor: The executor of manually launched assets, unless a definition under `defs/` sets one. None leaves the
            choice to the definitions that these are merged with. A dataset's job has its own executor.

    Raises ConfigError if the folder is not a project, or its `.env` cannot be read.
    """
    project = read_project(root)
    if project is None:
        raise ConfigError(
            f"{root}: not a project: no pyproject.toml with [tool.dg.project] found. Run `dataprep init DIR` to "
            "create a project"
        )
    # Load the project's `.env` explicitly, because Dagster loads only the `.env` of the working directory.
    project.load_environment()
    return bind_resources(
        add_planning(merge_definitions(open_declarations(project), _load_tree(project))), root, executor
    )


def _open_datasets(loaded: dg.Definitions, root: Path) -> list[StoredDataset]:
    """Return the datasets that the code location shows, except broken ones and other packages' components."""
    project, storage = read_project(root), resolve_variables(build_storage(root))
    names = {spec.key.path[0] for spec in loaded.resolve_all_asset_specs()}
    datasets: list[StoredDataset] = []
    for name, path in open_declarations(project).files.items() if project is not None else ():
        with suppress(ConfigError):
            dataset = open_declarations(project).load(path) if name in names else None
            if isinstance(dataset, Dataset):
                datasets.append(StoredDataset(dataset, dataset.store(storage)))
    return link_datasets(datasets)


@cache
def _load_tree(project: Project) -> dg.ComponentTree:
    """Return the component tree of a project, cached because Dagster requests it up to six times per run."""
    return dg.ComponentTree.for_project(path_within_project=open_declarations(project).folder)


def bind_resources(
    loaded: dg.Definitions, root: Path, executor: dg.ExecutorDefinition | None = dg.in_process_executor
) -> dg.Definitions:
    """Add the environment's resources and an executor to the definitions.

    By default steps run in the run's own process. A process per step would take seconds to import modules, and would
    continue after its run is killed. Heavy steps start their own worker processes, which use all cores and end with the
    run.

    Args:
        loaded: The definitions of datasets.
        root: The folder of their project; relative storage folders are below it.
        executor: The executor, unless the definitions set one.
    """
    own_definitions = dg.Definitions(resources=build_resources(root), executor=None if loaded.executor else executor)
    # Pass functions, because `definitions` is assigned only after this call, but before the site is written.
    site = build_site_definitions(root, lambda: definitions, lambda: _open_datasets(definitions, root))
    definitions = dg.Definitions.merge(loaded, site, own_definitions)
    return definitions


def merge_definitions(declarations: Declarations, whole_tree: dg.ComponentTree) -> dg.Definitions:
    """Build the definitions of the code location.

    They are the whole tree or, if files are wrong, the other files and an asset per error.
    """
    wrong_files = _find_wrong_files(declarations, declarations.check)
    with warnings.catch_warnings():
        for category in (dg.BetaWarning, dg.PreviewWarning):
            warnings.simplefilter("ignore", category)
        # Load repeatedly, because each attempt may reveal further wrong files, which the next attempt leaves out.
        while True:
            try:
                right = _load_without(
                    declarations, declarations.folder, [path for path in wrong_files if _is_loaded(path)]
                )
                definitions = dg.Definitions.merge(*right) if wrong_files else _build_tree(whole_tree)
                new_errors = _find_cycles(declarations, definitions)
            except Exception:
                # Build each file separately to find the wrong ones. An error that no single file causes concerns the
                # whole tree, so it is raised again unchanged.
                mistakes = _find_wrong_files(
                    declarations, lambda path: declarations.tree(path.parent).build_defs(Path())
                )
                if not (new_errors := {path: why for path, why in mistakes.items() if path not in wrong_files}):
                    raise
            if not new_errors:
                break
            wrong_files |= new_errors
        groups = _name_groups(declarations, list(wrong_files))
        broken = [_build_broken_definitions(groups[path], why) for path, why in wrong_files.items()]
        return dg.Definitions.merge(*broken, definitions) if broken else definitions


def _build_tree(tree: dg.ComponentTree) -> dg.Definitions:
    """Return the definitions of the whole tree; in a run's process, without the documentation of component types.

    Dagster collects that documentation for its UI from all installed packages. Importing the components of
    `dagster-gcp` takes a third of the time until a run starts.
    """
    # Only a run's process has a `parent_process`, because the code server starts runs with `multiprocessing`.
    is_run = multiprocessing.parent_process() is not None
    return tree.build_defs(Path()) if is_run else tree.build_defs()


def _find_wrong_files(declarations: Declarations, load_file: Callable[[Path], object]) -> dict[Path, str]:
    """Return the files for which `load_file` raises an error, with the reasons."""
    reasons = {}
    for path in declarations.paths:
        try:
            load_file(path)
        except Exception as error:  # users' own components may raise any error
            reasons[path] = describe_reason(error)
    return reasons


def _find_cycles(declarations: Declarations, loaded: dg.Definitions) -> dict[Path, str]:
    """Return the files of datasets that depend on each other in a cycle, with the reason.

    Because of such a cycle, Dagster would reject all datasets.
    """
    inputs_by_dataset = {
        spec.key: {dep.asset_key for dep in spec.deps}
        for assets in loaded.assets or ()
        if isinstance(assets, dg.AssetsDefinition)
        for spec in assets.specs
    }
    cycles: dict[Path, str] = {}
    # Repeat, because the remaining assets may contain another cycle.
    while True:
        try:
            TopologicalSorter(inputs_by_dataset).prepare()
        except CycleError as error:
            names = list(dict.fromkeys(key.path[0] for key in error.args[1]))
            sentence = f"circular inputs: {', '.join(names)}. Remove one of these inputs"
            paths = [declarations.files[name] for name in names if name in declarations.files]
            if not paths:
                # No declared dataset is in this cycle, so leave the cycle to Dagster, which reports it.
                return cycles
            cycles |= {path: f"{path}: {sentence}" for path in paths}
            inputs_by_dataset = {key: deps for key, deps in inputs_by_dataset.items() if key.path[0] not in names}
        else:
            return cycles


def _is_loaded(path: Path) -> bool:
    """Return whether Dagster's tree loads a file; a misnamed file may be next to a valid one."""
    return path.name == "defs.yaml" or (path.name == "component.yaml" and not path.with_name("defs.yaml").exists())


def _load_without(declarations: Declarations, folder: Path, wrong_files: Collection[Path]) -> Iterator[dg.Definitions]:
    """Yield the definitions of a folder, except the wrong files."""
    if not any(folder in path.parents for path in wrong_files):
        yield _remove_tree(declarations.tree(folder).build_defs(Path()))
        return
    if any(folder == path.parent for path in wrong_files):
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir():
            if not inner.name.startswith(".") and _has_definitions(inner):
                yield from _load_without(declarations, inner, wrong_files)
        elif inner.suffix == ".py" and inner.name != "__init__.py":
            module = importlib.import_module(f"{declarations.module_name(folder)}.{inner.stem}")
            definitions = [value for value in vars(module).values() if isinstance(value, dg.Definitions)]
            # Like Dagster's own tree, collect the loose objects of a module only if it has no `Definitions` object.
            yield from definitions or [dg.load_definitions_from_module(module)]


def _has_definitions(folder: Path) -> bool:
    """Return whether a folder contains any definitions; a data folder's name need not be a valid module name."""
    return any(path.name in ("defs.yaml", "component.yaml") or path.suffix == ".py" for path in folder.rglob("*"))


def _remove_tree(loaded: dg.Definitions) -> dg.Definitions:
    """Return the definitions without their component tree, because Dagster cannot merge two trees."""
    return dg.Definitions(
        assets=loaded.assets,
        asset_checks=loaded.asset_checks,
        schedules=loaded.schedules,
        sensors=loaded.sensors,
        jobs=loaded.jobs,
        resources=loaded.resources,
        executor=loaded.executor,
        loggers=loaded.loggers,
        metadata=loaded.metadata,
    )


def _name_groups(declarations: Declarations, wrong_files: Sequence[Path]) -> dict[Path, str]:
    """Return a unique group name per wrong file: its declared name, or its folder if other files have that name."""
    names = [declarations.read_name(path) for path in wrong_files]
    right = {declarations.read_name(path) for path in declarations.paths if path not in wrong_files}
    groups: dict[Path, str] = {}
    for path, name in zip(wrong_files, names, strict=True):
        if name in right or names.count(name) > 1:
            name = path.parent.relative_to(declarations.folder).as_posix()
        group = re.sub(r"[^A-Za-z0-9_]", "_", name)
        while group in right or group in groups.values():
            group += "_"
        groups[path] = group
    return groups


def _build_broken_definitions(group: str, reason: str) -> dg.Definitions:
    """Return definitions for a dataset that cannot be loaded: a group whose only asset shows the reason."""

    @dg.asset(
        key=[group, "cannot_be_loaded"],
        group_name=group,
        kinds={"yaml"},
        description="**Cannot be loaded.** Correct the declaration, then reload the code location.\n\n"
        f"```\n{reason}\n```",
    )
    def cannot_be_loaded() -> None:
        raise dg.Failure(description=f"{group} cannot be loaded: {reason}", allow_retries=False)

    dg.get_dagster_logger().warning(f"{group} is skipped because it cannot be loaded: {reason}")
    return dg.Definitions(assets=[cannot_be_loaded])
