"""The vocabulary of `defs/<dataset>/defs.yaml`: one component for each pipeline.

Each is imported when its name is first asked for, so that a run of one dataset loads one pipeline.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dataprep_assets.graph.dataset import Dataset

if TYPE_CHECKING:
    from dataprep_assets.pipelines.blend.component import TrainingBlend
    from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
    from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
    from dataprep_assets.pipelines.release.component import ShardRelease
    from dataprep_assets.pipelines.tasks.component import TaskMigration

__all__ = ["CombinedCohorts", "PackedCohorts", "ShardRelease", "TaskMigration", "TokenizedCorpus", "TrainingBlend"]

_DATASETS = {
    "CombinedCohorts": ("notes", "Replay"),
    "PackedCohorts": ("notes", "Notes"),
    "ShardRelease": ("release", "Release"),
    "TaskMigration": ("tasks", "Tasks"),
    "TokenizedCorpus": ("corpus", "Corpus"),
    "TrainingBlend": ("blend", "Blend"),
}
"""Component → its pipeline, and the class of its datasets there."""


def dataset_type(component: str) -> type[Dataset]:
    """The class of the datasets that a component declares, without its component: Dagster is not imported."""
    pipeline, name = _DATASETS[component]
    found: type[Dataset] = getattr(import_module(f"dataprep_assets.pipelines.{pipeline}.dataset"), name)
    return found


def __getattr__(name: str) -> Any:
    if name not in _DATASETS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dataprep_assets.pipelines.{_DATASETS[name][0]}.component"), name)


def __dir__() -> list[str]:
    return __all__
