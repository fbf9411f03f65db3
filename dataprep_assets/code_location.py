"""The code location of a project: its datasets, bound to the resources of the environment and to their executor.

Dagster's own tree of a project's components fails as a whole when one file of it is wrong, and says so with the stack
of its parsers. So each `defs.yaml` is looked at first (`Declarations.check`), and where one is wrong the others are
loaded without it: in its place is a group of one asset that says what is wrong and where (`merge_definitions`).

A project's own `definitions.py` needs three lines on top of it; `dataprep init` writes them.
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
from dataprep_assets.orchestration.runs.planning import with_planning
from dataprep_assets.project import Project, read_project
from dataprep_assets.resources import build_resources
from dataprep_assets.resources.environment import build_storage, initialized

# Dagster warns about its own code, each time that a location with checks or sensors is loaded
for _parameter in ("execution_type", "owners"):
    warnings.filterwarnings("ignore", f"Parameter `{_parameter}` of ", dg.BetaWarning)


def definitions_of(root: Path, *, executor: dg.ExecutorDefinition | None = dg.in_process_executor) -> dg.Definitions:
    """The definitions of the project in this folder.

    They are the datasets under `defs/`, except shipped ones that are hidden (`project.py`), and
    any other Dagster definitions found there.

    Args:
        root: The folder of its pyproject.toml.
        executor: What executes assets that are started by hand, unless something under `defs/` names an executor; None
            to leave that to what this is merged with. The job of a dataset has its own.

    Raises ConfigError if the folder is not a project, or its `.env` cannot be read.
    """
    project = read_project(root)
    if project is None:
        raise ConfigError(f"{root}: not a project: found no pyproject.toml with [tool.dg.project]")
    project.load_environment()  # Dagster loads that of the working folder
    return bind_resources(with_planning(merge_definitions(declarations_of(project), _tree(project))), root, executor)


def _open_datasets(loaded: dg.Definitions, root: Path) -> Opened:
    """The datasets of the code location: what is broken, hidden or somebody else's is left out."""
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
    """The component tree of a project, read once per process: Dagster asks for it up to six times in one run."""
    return dg.ComponentTree.for_project(path_within_project=declarations_of(project).folder)


def bind_resources(
    loaded: dg.Definitions, root: Path, executor: dg.ExecutorDefinition | None = dg.in_process_executor
) -> dg.Definitions:
    """Definitions with the resources of the environment, whose steps by default run in the run's own process.

    A process for each step would cost seconds of imports, and would continue after its run is killed. Heavy steps start
    worker processes of their own, which use every core and die with the run.

    Args:
        loaded: The definitions of datasets.
        root: The folder of their project; relative storage folders are below it.
        executor: Their executor if they name none.
    """
    own = dg.Definitions(resources=build_resources(root), executor=None if loaded.executor else executor)
    # late-bound: `every` is assigned before the page is rendered
    overview = overview_definitions(lambda: every, lambda: _open_datasets(every, root))
    every = dg.Definitions.merge(loaded, overview, own)
    return every


def merge_definitions(declarations: Declarations, whole: dg.ComponentTree) -> dg.Definitions:
    """Build the definitions of the code location: the whole tree, or, if a file is wrong, the rest and an asset for the
    error."""
    wrong = _wrong(declarations, declarations.check)
    with warnings.catch_warnings():
        for category in (dg.BetaWarning, dg.PreviewWarning):
            warnings.simplefilter("ignore", category)
        while True:  # other errors show only when the remaining files are loaded
            try:
                right = _right(declarations, declarations.folder, [path for path in wrong if _is_loaded(path)])
                built = dg.Definitions.merge(*right) if wrong else whole.build_defs()
                more = _circular(declarations, built)
            except Exception:
                # each by itself: what no single file raises is of the whole, and is raised as it is
                mistakes = _wrong(declarations, lambda path: declarations.tree(path.parent).build_defs(Path()))
                if not (more := {path: why for path, why in mistakes.items() if path not in wrong}):
                    raise
            if not more:
                break
            wrong |= more
        groups = _groups(declarations, list(wrong))
        broken = [_broken(groups[path], why) for path, why in wrong.items()]
        return dg.Definitions.merge(*broken, built) if broken else built


def _wrong(declarations: Declarations, look: Callable[[Path], object]) -> dict[Path, str]:
    """Each file for which `look` raises, and why."""
    wrong = {}
    for path in declarations.paths:
        try:
            look(path)
        except Exception as error:  # including whatever a user's own component raises
            wrong[path] = reason_of(error)
    return wrong


def _circular(declarations: Declarations, loaded: dg.Definitions) -> dict[Path, str]:
    """Each file of a dataset that is made of others which are made of it, and which these are: Dagster would refuse
    every dataset for them."""
    made_of = {
        spec.key: {dep.asset_key for dep in spec.deps}
        for assets in loaded.assets or ()
        if isinstance(assets, dg.AssetsDefinition)
        for spec in assets.specs
    }
    wrong: dict[Path, str] = {}
    # without the assets of one cycle there may be another
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
                return wrong  # of assets of somebody else's, of which Dagster tells
            wrong |= {path: f"{path}: {sentence}" for path in paths}
            made_of = {key: deps for key, deps in made_of.items() if key.path[0] not in names}
        else:
            return wrong


def _is_loaded(path: Path) -> bool:
    """Whether Dagster's tree has a file; one that is misnamed may lie beside one that is right."""
    return path.name == "defs.yaml" or (path.name == "component.yaml" and not path.with_name("defs.yaml").exists())


def _right(declarations: Declarations, folder: Path, wrong: Collection[Path]) -> Iterator[dg.Definitions]:
    """The definitions of a folder without those that are wrong."""
    if not any(folder in path.parents for path in wrong):
        yield _without_tree(declarations.tree(folder).build_defs(Path()))
        return
    if any(folder == path.parent for path in wrong):
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir():
            if not inner.name.startswith(".") and _defines(inner):
                yield from _right(declarations, inner, wrong)
        elif inner.suffix == ".py" and inner.name != "__init__.py":
            module = importlib.import_module(f"{declarations.module_of(folder)}.{inner.stem}")
            whole = [found for found in vars(module).values() if isinstance(found, dg.Definitions)]
            yield from whole or [dg.load_definitions_from_module(module)]  # as Dagster's own tree does


def _defines(folder: Path) -> bool:
    """Whether anything is defined below a folder: one of data may have a name that no module has."""
    return any(path.name in ("defs.yaml", "component.yaml") or path.suffix == ".py" for path in folder.rglob("*"))


def _without_tree(loaded: dg.Definitions) -> dg.Definitions:
    """The same definitions without their component tree: Dagster cannot merge two definitions that both have one."""
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
    """A group for each file that is wrong: the name that it declares, or its folder where others have that name."""
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


def _broken(group: str, why: str) -> dg.Definitions:
    """A stand-in for a dataset that cannot be loaded: a group whose only asset says why."""

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
