"""Code location of a project: its datasets, with the environment's resources and the executor.

Dagster's component tree fails completely if one file is wrong, with a traceback of its parsers. Therefore each
`defs.yaml` is checked first (`Declarations.check`). If files are wrong, the other files are loaded without them. Each
wrong file is represented by a group with one asset that shows the error and its location (`merge_definitions`).

A project's own `definitions.py` needs only three lines to use this module; `dataprep init` writes them.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dagster as dg

from dataprep_assets.declarations import Declarations, declarations_of, reason_of
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.overview import Opened, overview_definitions
from dataprep_assets.orchestration.runs.planning import add_planning
from dataprep_assets.project import Project, read_project
from dataprep_assets.resources import build_resources
from dataprep_assets.resources.environment import build_storage, initialized

# Dagster warns about its own code whenever a location with checks or sensors is loaded
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
        raise ConfigError(f"{root}: not a project: found no pyproject.toml with [tool.dg.project]")
    project.load_environment()  # explicitly, because Dagster loads only the `.env` of the working directory
    return bind_resources(add_planning(merge_definitions(declarations_of(project), _tree(project))), root, executor)


def _open_datasets(loaded: dg.Definitions, root: Path) -> Opened:
    """Return the datasets that the code location shows, except broken ones and other packages' components."""
    project, storage = read_project(root), initialized(build_storage(root))
    names = {spec.key.path[0] for spec in loaded.resolve_all_asset_specs()}
    datasets: dict[str, tuple[Sequence[ArtifactSpec], ArtifactStore]] = {}
    for name, path in declarations_of(project).files.items() if project is not None else ():
        with suppress(ConfigError):
            dataset = declarations_of(project).load(path) if name in names else None
            if isinstance(dataset, Dataset):
                datasets[name] = dataset.specs, dataset.store(storage)
    return datasets


@cache
def _tree(project: Project) -> dg.ComponentTree:
    """Return the component tree of a project, cached because Dagster requests it up to six times per run."""
    return dg.ComponentTree.for_project(path_within_project=declarations_of(project).folder)


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
    own = dg.Definitions(resources=build_resources(root), executor=None if loaded.executor else executor)
    # late-bound: `definitions` is assigned before the page is built
    overview = overview_definitions(lambda: definitions, lambda: _open_datasets(definitions, root))
    definitions = dg.Definitions.merge(loaded, overview, own)
    return definitions


def merge_definitions(declarations: Declarations, whole: dg.ComponentTree) -> dg.Definitions:
    """Build the definitions of the code location.

    They are the whole tree or, if files are wrong, the other files and an asset per error.
    """
    wrong = _find_wrong_files(declarations, declarations.check)
    with warnings.catch_warnings():
        for category in (dg.BetaWarning, dg.PreviewWarning):
            warnings.simplefilter("ignore", category)
        while True:  # some errors occur only once the remaining files are loaded
            try:
                right = _load_without(declarations, declarations.folder, [path for path in wrong if _is_loaded(path)])
                definitions = dg.Definitions.merge(*right) if wrong else whole.build_defs()
                new_errors = _find_cycles(declarations, definitions)
            except Exception:
                # Build each file separately. An error that no single file causes concerns the whole tree, and is
                # reraised unchanged.
                mistakes = _find_wrong_files(
                    declarations, lambda path: declarations.tree(path.parent).build_defs(Path())
                )
                if not (new_errors := {path: why for path, why in mistakes.items() if path not in wrong}):
                    raise
            if not new_errors:
                break
            wrong |= new_errors
        groups = _groups(declarations, list(wrong))
        broken = [_broken_definitions(groups[path], why) for path, why in wrong.items()]
        return dg.Definitions.merge(*broken, definitions) if broken else definitions


def _find_wrong_files(declarations: Declarations, look: Callable[[Path], object]) -> dict[Path, str]:
    """Return the files for which `look` raises an error, with the reasons."""
    wrong = {}
    for path in declarations.paths:
        try:
            look(path)
        except Exception as error:  # including errors of users' own components
            wrong[path] = reason_of(error)
    return wrong


def _find_cycles(declarations: Declarations, loaded: dg.Definitions) -> dict[Path, str]:
    """Return the files of datasets that depend on each other in a cycle, with the reason.

    Dagster would reject all datasets because of them.
    """
    made_of = {
        spec.key: {dep.asset_key for dep in spec.deps}
        for assets in loaded.assets or ()
        if isinstance(assets, dg.AssetsDefinition)
        for spec in assets.specs
    }
    wrong: dict[Path, str] = {}
    # the remaining assets may contain another cycle
    while True:
        try:
            TopologicalSorter(made_of).prepare()
        except CycleError as error:
            names = list(dict.fromkeys(key.path[0] for key in error.args[1]))
            sentence = (
                f"{', '.join(names)} are built from each other, so none can be built first. Remove one of these inputs"
            )
            paths = [declarations.files[name] for name in names if name in declarations.files]
            if not paths:
                return wrong  # other packages' assets, whose cycles Dagster reports
            wrong |= {path: f"{path}: {sentence}" for path in paths}
            made_of = {key: deps for key, deps in made_of.items() if key.path[0] not in names}
        else:
            return wrong


def _is_loaded(path: Path) -> bool:
    """Return whether Dagster's tree loads a file; a misnamed file may be next to a valid one."""
    return path.name == "defs.yaml" or (path.name == "component.yaml" and not path.with_name("defs.yaml").exists())


def _load_without(declarations: Declarations, folder: Path, wrong: Collection[Path]) -> Iterator[dg.Definitions]:
    """Yield the definitions of a folder, except the wrong files."""
    if not any(folder in path.parents for path in wrong):
        yield _without_tree(declarations.tree(folder).build_defs(Path()))
        return
    if any(folder == path.parent for path in wrong):
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir():
            if not inner.name.startswith(".") and _defines(inner):
                yield from _load_without(declarations, inner, wrong)
        elif inner.suffix == ".py" and inner.name != "__init__.py":
            module = importlib.import_module(f"{declarations.module_of(folder)}.{inner.stem}")
            definitions = [value for value in vars(module).values() if isinstance(value, dg.Definitions)]
            yield from definitions or [dg.load_definitions_from_module(module)]  # like Dagster's own tree


def _defines(folder: Path) -> bool:
    """Return whether a folder contains any definitions; a data folder's name may be no valid module name."""
    return any(path.name in ("defs.yaml", "component.yaml") or path.suffix == ".py" for path in folder.rglob("*"))


def _without_tree(loaded: dg.Definitions) -> dg.Definitions:
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


def _groups(declarations: Declarations, wrong: Sequence[Path]) -> dict[Path, str]:
    """Return a unique group name per wrong file: its declared name, or its folder if other files have that name."""
    names = [declarations.name_of(path) for path in wrong]
    right = {declarations.name_of(path) for path in declarations.paths if path not in wrong}
    groups: dict[Path, str] = {}
    for path, name in zip(wrong, names, strict=True):
        if name in right or names.count(name) > 1:
            name = path.parent.relative_to(declarations.folder).as_posix()
        group = re.sub(r"[^A-Za-z0-9_]", "_", name)
        while group in right or group in groups.values():
            group += "_"
        groups[path] = group
    return groups


def _broken_definitions(group: str, why: str) -> dg.Definitions:
    """Return definitions for a dataset that cannot be loaded: a group whose only asset shows the reason."""

    @dg.asset(
        key=[group, "cannot_be_loaded"],
        group_name=group,
        kinds={"yaml"},
        description=f"**Cannot be loaded.** Correct the declaration, then reload the code location.\n\n```\n{why}\n```",
    )
    def cannot_be_loaded() -> None:
        raise dg.Failure(description=f"{group} cannot be loaded: {why}", allow_retries=False)

    dg.get_dagster_logger().warning(f"{group} is skipped because it cannot be loaded: {why}")
    return dg.Definitions(assets=[cannot_be_loaded])
