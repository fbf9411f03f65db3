"""Filter, deduplicate, tokenize and pack training data, with a receipt for every file.

The public API consists of the names in `__all__` and their public methods, as described in docs/python.md. Each name is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Only type checkers and editors import these names, because they cannot evaluate `__getattr__`.
if TYPE_CHECKING:
    from dataprep_assets.engine.staleness.rebuild import PlannedBuild as PlannedBuild
    from dataprep_assets.engine.staleness.rebuild import Rebuild as Rebuild
    from dataprep_assets.engine.trace.document_table import DocumentRows as DocumentRows
    from dataprep_assets.engine.trace.trace import Trace as Trace
    from dataprep_assets.engine.trace.trace import TraceQuery as TraceQuery
    from dataprep_assets.engine.trace.trace import Tracer as Tracer
    from dataprep_assets.errors import ConfigError as ConfigError
    from dataprep_assets.errors import DataprepError as DataprepError
    from dataprep_assets.errors import RunFailedError as RunFailedError
    from dataprep_assets.integrity.artifacts import Artifact as Artifact
    from dataprep_assets.integrity.artifacts import ArtifactHandle as ArtifactHandle
    from dataprep_assets.integrity.receipt import Receipt as Receipt
    from dataprep_assets.integrity.verify import VerifiedArtifact as VerifiedArtifact
    from dataprep_assets.library.dataset import OpenDataset as OpenDataset
    from dataprep_assets.library.mistakes import Mistake as Mistake
    from dataprep_assets.library.project import OpenProject as OpenProject
    from dataprep_assets.library.project import open_project as open_project
    from dataprep_assets.orchestration.runs.runs import RunResult as RunResult

__version__ = "0.2.0"

_WHERE = {
    "Artifact": "integrity.artifacts",
    "ArtifactHandle": "integrity.artifacts",
    "ConfigError": "errors",
    "DataprepError": "errors",
    "DocumentRows": "engine.trace.document_table",
    "Mistake": "library.mistakes",
    "OpenDataset": "library.dataset",
    "OpenProject": "library.project",
    "TraceQuery": "engine.trace.trace",
    "Rebuild": "engine.staleness.rebuild",
    "Receipt": "integrity.receipt",
    "RunFailedError": "errors",
    "RunResult": "orchestration.runs.runs",
    "PlannedBuild": "engine.staleness.rebuild",
    "Trace": "engine.trace.trace",
    "Tracer": "engine.trace.trace",
    "VerifiedArtifact": "integrity.verify",
    "open_project": "library.project",
}
__all__ = [*_WHERE]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
