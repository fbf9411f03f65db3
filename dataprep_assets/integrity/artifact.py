"""Where an artifact lives: `<root>/<dataset>/<artifact>[/<partition>]`.

An artifact, its asset in the graph and its module in `pipelines/` have the same name, so that each leads to the others.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dataprep_assets.errors import ConfigError

# No dot in front: such names are areas of the project's own (`.staging`, `.aside-…`, `.fetched`), which listings skip.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One artifact of one dataset; `partition` is None for an unpartitioned one."""

    dataset: str
    name: str
    partition: str | None = None

    def __post_init__(self) -> None:
        for part in (self.dataset, self.name, self.partition):
            if part is not None and not _NAME.fullmatch(part):
                raise ConfigError(f"{part!r} cannot name an artifact: use letters, digits, '_', '-' and '.'")

    def directory(self, root: Path) -> Path:
        """The artifact's directory below the storage root."""
        return _directory(root, self)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.dataset, self.name, self.partition)))


@lru_cache(maxsize=1 << 14)  # a run asks a dozen times for each of thousands of shards
def _directory(root: Path, artifact: Artifact) -> Path:
    return root.joinpath(artifact.dataset, artifact.name, artifact.partition or "")
