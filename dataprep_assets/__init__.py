"""Training data for language models as proven, resumable Dagster assets.

The names in `__all__` are the library: they and their public methods stay as they are documented (docs/python.md).
Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataprep_assets.errors import ConfigError, DataprepError, RunFailedError
    from dataprep_assets.graph.rebuild import Rebuild, ToBuild
    from dataprep_assets.graph.trace import Trace, Tracer
    from dataprep_assets.integrity.artifact import Artifact
    from dataprep_assets.integrity.handle import ArtifactHandle
    from dataprep_assets.integrity.receipt import Receipt
    from dataprep_assets.integrity.verify import Verified
    from dataprep_assets.library.dataset import OpenDataset
    from dataprep_assets.library.mistakes import Mistake
    from dataprep_assets.library.project import OpenProject, open_project
    from dataprep_assets.orchestration.runs import RunResult

__version__ = "0.2.0"

_WHERE = {
    "Artifact": "integrity.artifact",
    "ArtifactHandle": "integrity.handle",
    "ConfigError": "errors",
    "DataprepError": "errors",
    "Mistake": "library.mistakes",
    "OpenDataset": "library.dataset",
    "OpenProject": "library.project",
    "Rebuild": "graph.rebuild",
    "Receipt": "integrity.receipt",
    "RunFailedError": "errors",
    "RunResult": "orchestration.runs",
    "ToBuild": "graph.rebuild",
    "Trace": "graph.trace",
    "Tracer": "graph.trace",
    "Verified": "integrity.verify",
    "open_project": "library.project",
}
__all__ = [
    "Artifact",
    "ArtifactHandle",
    "ConfigError",
    "DataprepError",
    "Mistake",
    "OpenDataset",
    "OpenProject",
    "Rebuild",
    "Receipt",
    "RunFailedError",
    "RunResult",
    "ToBuild",
    "Trace",
    "Tracer",
    "Verified",
    "open_project",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
