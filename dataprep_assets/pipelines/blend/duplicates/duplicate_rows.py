"""The rows of a shard that are dropped as duplicates of a kept row, and the check that the shard has none of them.

Entry points: `DuplicateRows`, `load_duplicate_rows`, `list_duplicate_checks`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dataprep_assets.curation.duplicates.removed_file import DUPLICATES, require_removed_file
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import COLUMN_DESCRIPTIONS, Columns
from dataprep_assets.engine.checks.check import REBUILD, Check, Finding, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.screening.rule_checks import QUARANTINE, LocatedShard
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine
from dataprep_assets.table import format_share

REMOVED: Columns = {"ordinal": "integer", "row": "integer", "representative": "string", "similarity": "number"}
"""The columns of a shard's file; `REMOVED_DESCRIPTIONS` describes them."""
REMOVED_DESCRIPTIONS = {**COLUMN_DESCRIPTIONS, "ordinal": "Ordinal of the source file in its dataset."}


@dataclass(frozen=True, kw_only=True)
class Partner:
    """The kept row that a duplicate is similar to, as `file:row`, and their similarity."""

    representative: str
    similarity: float

    @property
    def words(self) -> str:
        """Return the partner and the similarity in words."""
        return f"of {self.representative}, {format_share(self.similarity)} similar"


@dataclass(frozen=True, kw_only=True)
class DuplicateRows:
    """The rows of a shard that are dropped as duplicates. Instances are picklable.

    Attributes:
        store: The store of the duplicates.
        duplicates: The artifact with the shard's file.
        name: The name of the file.
        sha256: The digest of the file.
    """

    store: ArtifactStore
    duplicates: Artifact
    name: str
    sha256: str

    def key_parts(self) -> dict[str, Any]:
        """Return the value that is part of the shard's key, under one name."""
        return {"duplicates": self.sha256}

    @property
    def partners(self) -> Mapping[tuple[int, int], Partner]:
        """The ordinal of the source file and the row → the kept row."""
        return _read_partners(self.store.local(self.duplicates, [self.name]) / self.name, self.sha256)

    def find_partners(self, ordinal: int, numbers: Sequence[int]) -> list[Partner | None]:
        """Return the kept row for each row of a source file; None for rows that are no duplicates."""
        partners = self.partners
        return [partners.get((ordinal, number)) for number in numbers]


# The second argument, the digest, is part of the cache key, because the path stays the same when the duplicates are
# replaced.
@lru_cache(maxsize=2)
def _read_partners(path: Path, _: str) -> Mapping[tuple[int, int], Partner]:
    # Import the module here, because most blends have no duplicates.
    from dataprep_assets.curation.table import read_joined_tables

    partners = {}
    for piece in read_joined_tables([path]):
        for row in piece.to_pylist():
            partner = Partner(representative=row["representative"], similarity=row["similarity"])
            partners[row["ordinal"], row["row"]] = partner
    return partners


def load_duplicate_rows(blend: BlendDeclaration, store: ArtifactStore, partition: str) -> DuplicateRows | None:
    """Return the rows of a shard that are dropped as duplicates; None without `duplicates`.

    Raises the errors of `require_removed_file`.
    """
    if blend.duplicates is None:
        return None
    duplicates = blend.artifact(DUPLICATES)
    file = require_removed_file(store, duplicates, partition)
    return DuplicateRows(store=store, duplicates=duplicates, name=file.path, sha256=file.sha256)


class DeduplicatedShard(LocatedShard, Protocol):
    """A shard with rows to drop as duplicates."""

    @property
    def duplicates(self) -> DuplicateRows | None:
        """The rows to drop."""
        ...


def find_kept_duplicates(shard: DeduplicatedShard) -> Finding:
    """Check that the shard has no row that `duplicates` drops, and recorded only these rows as duplicates."""
    assert shard.duplicates is not None, "only for blends with `duplicates`"
    partners, labels = shard.duplicates.partners, {source.ordinal: source.label for source in shard.sources}
    names = {(labels.get(ordinal, ""), row): partner for (ordinal, row), partner in partners.items()}
    defects = [
        f"{shard.name}: {labels.get(ordinal, '')}: row {row} is a duplicate {partners[ordinal, row].words}"
        for ordinal, row in np.unique(shard.kept_origins[:, :2], axis=0).tolist()
        if (ordinal, row) in partners
    ]
    dropped_rows = [row for row in read_quarantine(shard.directory / QUARANTINE) if row["reason"] == DUPLICATE]
    defects += [
        f"{shard.name}: {row['file']}: row {row['row']} was dropped as a duplicate, but is none"
        for row in dropped_rows
        if (row["file"], row["row"]) not in names
    ]
    return build_verdict(
        defects,
        f"{count_of(len(dropped_rows), 'duplicate was', 'duplicates were')} dropped, and no kept row is a duplicate.",
        REBUILD,
        facts={"duplicates": len(partners), "dropped": len(dropped_rows)},
    )


DUPLICATES_DROPPED: Check[DeduplicatedShard] = Check(
    "duplicates_dropped",
    "No row of the shard is a duplicate in `duplicates`, and each row that was dropped as a duplicate is one.",
    find_kept_duplicates,
)


def list_duplicate_checks(blend: BlendDeclaration) -> tuple[Check[DeduplicatedShard], ...]:
    """Return the check of the dropped duplicates if the blend declares `duplicates`."""
    return () if blend.duplicates is None else (DUPLICATES_DROPPED,)
