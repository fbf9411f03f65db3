"""The vocabulary of `defs/<dataset>/defs.yaml`: one component for each pipeline.

Each is imported when its name is first asked for, so that a run of one dataset loads one pipeline.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep_assets.pipelines.blend.component import TrainingBlend
    from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
    from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
    from dataprep_assets.pipelines.release.component import ShardRelease
    from dataprep_assets.pipelines.tasks.component import TaskMigration

__all__ = ["CombinedCohorts", "PackedCohorts", "ShardRelease", "TaskMigration", "TokenizedCorpus", "TrainingBlend"]

_PIPELINES = {
    "CombinedCohorts": "notes",
    "PackedCohorts": "notes",
    "ShardRelease": "release",
    "TaskMigration": "tasks",
    "TokenizedCorpus": "corpus",
    "TrainingBlend": "blend",
}


def __getattr__(name: str) -> Any:
    if name not in _PIPELINES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dataprep_assets.pipelines.{_PIPELINES[name]}.component"), name)


def __dir__() -> list[str]:
    return __all__
