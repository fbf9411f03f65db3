"""An open project: its datasets by name, its storage, its Dagster instance."""

import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.project import Project, find_project

if TYPE_CHECKING:
    import dagster as dg

    from dataprep_assets.declarations import Declarations
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.engine.staleness.step_times import StepTimes
    from dataprep_assets.integrity.storage import Storage
    from dataprep_assets.library.dataset import OpenDataset
    from dataprep_assets.library.mistakes import Mistake
    from dataprep_assets.sources.upstream import Materialization
    from dataprep_assets.stores.connect import StoreAddress


_HOME = "DAGSTER_HOME"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def open_project(folder: str | os.PathLike[str] | None = None) -> "OpenProject":
    """Open a project.

    Args:
        folder: Folder of the project. Default: DATAPREP_PROJECT, else the working folder or its nearest parent with a
            project.

    Sets the variables of the project's `.env` for this process, as Dagster's commands do.

    Raises ConfigError if there is no project, or its `.env` cannot be read.
    """
    project = find_project(None if folder is None else os.fspath(folder))
    project.load_environment()
    return OpenProject(project)


class OpenProject:
    """A project, opened by `open_project`. Each file is read only once, on first use."""

    def __init__(self, project: Project) -> None:
        self.project = project
        # Identifier of a thread → its open instance, because another thread may close its own at any time.
        self._instances: dict[int, dg.DagsterInstance] = {}

    def __repr__(self) -> str:
        return f"open_project({str(self.root)!r})"

    @property
    def root(self) -> Path:
        """Folder of the project."""
        return self.project.root

    @property
    def names(self) -> list[str]:
        """Sorted names of the datasets, including datasets whose declarations cannot be loaded."""
        return list(self.declarations.files)

    def dataset(self, name: str) -> "OpenDataset":
        """Load and return the dataset with this name.

        Raises ConfigError, with the file, line, key and allowed values, if the dataset does not exist or its
        declaration cannot be loaded. Other declarations are not loaded.
        """
        from dataprep_assets.library.dataset import OpenDataset

        return OpenDataset(self, self.load(name))

    def declare(self, name: str, component: str, **attributes: Any) -> "OpenDataset":
        """Declare a dataset: write `defs/NAME/defs.yaml` and load it.

        Args:
            name: Name of the dataset, which must be new in the project.
            component: Name such as `TokenizedCorpus`; the full dotted name if it is in a different package.
            attributes: Keys below `attributes:`. Paths are relative to `defs/NAME`.

        Raises ConfigError, and leaves no file, if the declaration cannot be loaded or the name or folder is taken.
        """
        import yaml  # type: ignore[import-untyped]

        from dataprep_assets.integrity.commit import write_atomically

        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r}: a dataset name may contain only letters, digits and '_', and must begin with a letter"
            )
        folder = self.project.defs / name
        path = folder / "defs.yaml"
        if name in self.names or path.exists():
            raise ConfigError(
                f"{name}: already declared in {self.declarations.files.get(name, path)}. Use a different name"
            )
        type_ = component if "." in component else f"dataprep_assets.components.{component}"
        text = yaml.safe_dump(
            {"type": type_, "attributes": {"dataset": name, **attributes}}, sort_keys=False, allow_unicode=True
        )
        is_existing = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
        self._forget()
        try:
            return self.dataset(name)
        # Catch BaseException, so that an interruption also leaves no files behind.
        except BaseException:
            path.unlink()
            if not is_existing:
                with suppress(OSError):  # keep a folder that is not empty
                    folder.rmdir()
            self._forget()
            raise

    def _forget(self) -> None:
        """Clear the cache, so that the next access reads the declarations again."""
        from dataprep_assets.declarations import open_declarations

        open_declarations.cache_clear()

    def check(self, names: Sequence[str] | None = None) -> "Iterator[Mistake]":
        """Yield the mistakes in declarations, and in the tokenizers and local sources that they name. Builds nothing.

        Args:
            names: Datasets; None for all datasets that the code location shows.

        Raises ConfigError if an environment variable has an invalid value.
        """
        from dataprep_assets.library.mistakes import find_file_mistakes, require_sound_environment

        require_sound_environment()
        for path in self.files(names):
            yield from find_file_mistakes(self, path)

    def files(self, names: Sequence[str] | None = None) -> list[Path]:
        """Return the `defs.yaml` of each of these datasets; None returns the files of all shown datasets.

        A name that is declared twice has two files. Raises ConfigError for an unknown name.
        """
        from dataprep_assets.project import find_shipped_kind, is_shown

        if names is None:
            return [path for path in self.declarations.paths if is_shown(find_shipped_kind(path.parent))]
        return [self.declaration_of(name) for name in names]

    @property
    def declarations(self) -> "Declarations":
        """The declarations of the datasets."""
        from dataprep_assets.declarations import open_declarations
        from dataprep_assets.sources.upstream import set_provider

        # The provider is set for the whole process, so the project that was used last provides the materializations.
        set_provider(self._read_upstream, lambda: str(self.home))
        return open_declarations(self.project)

    def _read_upstream(self, key: Sequence[str]) -> "Sequence[Materialization]":
        """Return the latest materializations of an asset in the instance."""
        from dataprep_assets.orchestration.component import read_latest_materializations

        with self.instance() as instance:
            return read_latest_materializations(instance, key)

    def declaration_of(self, name: str) -> Path:
        """Return the `defs.yaml` of a dataset. Raises ConfigError for an unknown name."""
        declarations = self.declarations
        if name in declarations.files:
            return declarations.files[name]
        folder_name = name.removeprefix("defs/").rstrip("/")
        for dataset, path in declarations.files.items():
            folder = path.parent.relative_to(declarations.folder).as_posix()
            if folder == folder_name or folder.endswith(f"/{folder_name}"):
                raise ConfigError(f"{name!r} is a folder, not a dataset. Use the name of its dataset, {dataset!r}")
        nearest_name = find_nearest(name, list(declarations.files))
        raise ConfigError(
            f"unknown dataset {name!r}; "
            + (
                f"did you mean {nearest_name!r}?"
                if nearest_name
                else f"available: {', '.join(declarations.files) or 'none'}"
            )
        )

    def load(self, name: str) -> "Dataset":
        """Load a dataset's declaration and return its component. Raises the errors of `dataset`."""
        from dataprep_assets.engine.artifact.dataset import Dataset

        dataset = self.declarations.load(self.declaration_of(name))
        if not isinstance(dataset, Dataset):
            raise ConfigError(f"{name!r} is a {type(dataset).__name__}, which `dataprep` cannot run. Use `dg launch`")
        return dataset

    def load_all(self, names: Iterable[str]) -> "list[Dataset]":
        """Return the datasets that can be loaded. Commands on the other datasets report their errors."""
        datasets = []
        for name in names:
            with suppress(DataprepError, ValueError):
                datasets.append(self.load(name))
        return datasets

    @property
    def storage(self) -> "Storage":
        """Storage that the environment configures, for datasets that declare none."""
        from dataprep_assets.integrity.storage import find_local_storage

        if (local := find_local_storage(self.root)) is not None:
            return local
        from dataprep_assets.resources.environment import open_storage

        return open_storage(self.root)

    def open_store(self, url: str | None, profile: str | None = None) -> "StoreAddress":
        """Return the store at a URL or in a folder; None returns the store of the project's storage."""
        from dataprep_assets.stores.connect import parse_place

        return self.storage.address() if url is None else parse_place(url, os.environ, profile=profile)

    @property
    def home(self) -> Path:
        """Folder of the Dagster instance: DAGSTER_HOME; default: a folder in the project.

        Raises ConfigError if DAGSTER_HOME is not an absolute path.
        """
        home = Path(os.environ.get(_HOME) or self.project.dagster_home)
        if not home.is_absolute():
            raise ConfigError(f"{_HOME}: {str(home)!r}: must be an absolute path")
        return home

    def step_times(self) -> "StepTimes":
        """Return the durations of steps in the last runs on this machine."""
        from dataprep_assets.engine.staleness.step_times import StepTimes

        return StepTimes(self.home / "step_times.json")

    @contextmanager
    def instance(self) -> "Iterator[dg.DagsterInstance]":
        """Open the Dagster instance, and create it on first use. DAGSTER_HOME is set in the block for Dagster.

        An inner block uses the instance of the outer one, because opening an instance takes a tenth of a second.

        Raises ConfigError if its folder cannot be created, or if its settings are invalid.
        """
        thread = threading.get_ident()
        if (outer_instance := self._instances.get(thread)) is not None:
            yield outer_instance
            return
        from dataprep_assets.library.instance import convert_database_errors, open_instance

        home, old_home = self.home, os.environ.get(_HOME)
        os.environ[_HOME] = str(home)
        try:
            with open_instance(home) as instance, convert_database_errors(home):
                self._instances[thread] = instance
                yield instance
        finally:
            self._instances.pop(thread, None)
            if old_home is None:
                del os.environ[_HOME]
            else:
                os.environ[_HOME] = old_home
