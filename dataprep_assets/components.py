"""Components that `defs/<dataset>/defs.yaml` can declare: the pipelines of this package and of installed packages.

Each component is imported when it is first used, so that a run of one dataset loads only one pipeline.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from dataprep_assets import pipelines
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.errors import ConfigError
from dataprep_assets.extensions import Extensions


def _iterate_components() -> Iterator[tuple[str, str]]:
    """Yield each component of this package's pipelines, with the location of its dataset class."""
    for pipeline in pkgutil.iter_modules(pipelines.__path__, f"{pipelines.__name__}."):
        for component, dataset in import_module(pipeline.name).DATASETS.items():
            yield component, f"{pipeline.name}.dataset:{dataset}"


PIPELINES = Extensions("pipeline", "dataprep_assets.pipelines", own_modules=dict(_iterate_components()))
"""Component name → its dataset class. The component itself is in `component.py` next to it."""
__all__ = list(PIPELINES)


def find_dataset_class(component: str) -> type[Dataset]:
    """Return the dataset class of a component without importing Dagster.

    Raises ConfigError if several packages have a component of this name, or if it cannot be imported.
    """
    extension = PIPELINES[component]
    dataset_class = extension.load()
    if not (isinstance(dataset_class, type) and issubclass(dataset_class, Dataset)):
        raise extension.build_unfit_error("is not a Dataset")
    if dataset_class.component != component:
        raise extension.build_unfit_error(f"has the component name {dataset_class.component!r}")
    return dataset_class


def __getattr__(name: str) -> Any:
    if name not in PIPELINES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load_component(name)


def _load_component(name: str) -> Any:
    return PIPELINES[name].get_sibling("component", name).load()


def _can_load(name: str) -> bool:
    try:
        _load_component(name)
    except ConfigError:
        return False
    return True


def __dir__() -> list[str]:
    """Return the names of the components that can be imported.

    Dagster imports all listed names, so a broken component would make the others unusable. The error of a broken
    component is reported where it is declared.
    """
    return [name for name in __all__ if _can_load(name)]
