"""Tells shipped datasets from the user's own: samples, and examples that need a network.

They are in `samples/` and `examples/` of this package's `defs/`; everything else is the user's, whatever its folders
are called. Their assets have the tag `dataprep/shown_as`, and DATAPREP_SHOW says which of them the code location has.
`dataprep` commands find all by name.

Entry points: `shown_as`, `is_shown`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from dataprep_assets.errors import ConfigError

FOLDERS = {"samples": "sample", "examples": "example"}
"""Folders of `SHIPPED` → how the assets of the datasets in them are tagged."""
SHIPPED = Path(__file__).parents[1] / "defs"
TAG = "dataprep/shown_as"
VARIABLE = "DATAPREP_SHOW"


def shown_as(folder: Path) -> str | None:
    """`sample` or `example` for the folder of a shipped dataset; None for one of the user's own."""
    return FOLDERS.get(folder.parent.name) if folder.parent.parent == SHIPPED else None


def is_shown(kind: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the code location shows datasets of this kind: only samples, unless DATAPREP_SHOW says otherwise.

    Args:
        kind: The result of `shown_as`; the user's own datasets (None) are always shown.
        environment: Has DATAPREP_SHOW: `none`, or a comma-separated list of `samples` and `examples`.

    Raises ConfigError for any other value.
    """
    setting = environment.get(VARIABLE) or "samples"
    names = [] if setting == "none" else [name.strip() for name in setting.split(",")]
    if unknown := [name for name in names if name not in FOLDERS]:
        raise ConfigError(
            f"{VARIABLE}: {unknown[0]!r} is not allowed; give none, samples, examples, or the last two with a comma"
        )
    return kind is None or kind in [FOLDERS[name] for name in names]
