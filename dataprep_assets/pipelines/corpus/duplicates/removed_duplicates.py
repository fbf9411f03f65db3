"""Readers of the artifact `<dataset>/duplicates`: the rows of a shard that were removed as duplicates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.curation.duplicates.candidates import Nodes
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES, name_removed_file, require_removed_file
from dataprep_assets.curation.table import COLUMN_DESCRIPTIONS, Columns, read_joined_tables
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

REMOVED: Columns = {"position": "integer", "representative": "string", "similarity": "number"}
REMOVED_DESCRIPTIONS = {**COLUMN_DESCRIPTIONS, "position": "Position of the dropped row in its shard, from 0."}


def name_kept_file(partition: str) -> str:
    """Return the name of the file with the kept rows of a shard: one bit per row, most significant bit first."""
    return f"{partition}.kept.bin"


def digest_removed_rows(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> str | None:
    """Return the digest of a shard's removed rows, an input of its selection; None if there is no deduplication.

    Raises the errors of `require_removed_file`.
    """
    if corpus.duplicates is None:
        return None
    return require_removed_file(store, corpus.artifact(DUPLICATES), partition).sha256


@dataclass(frozen=True, kw_only=True)
class RemovedRows:
    """Removed rows of a shard, by position, with the kept document that represents each row, and their similarity."""

    positions: Nodes
    representatives: Sequence[str]
    similarities: Sequence[float]

    def select_rows(self, start: int, stop: int) -> dict[int, tuple[str, float]]:
        """Return the removed rows from `start` to `stop`: position relative to `start` → representative, similarity."""
        begin, end = np.searchsorted(self.positions, [start, stop]).tolist()
        return {
            int(self.positions[index]) - start: (self.representatives[index], self.similarities[index])
            for index in range(begin, end)
        }


NONE_REMOVED = RemovedRows(positions=np.empty(0, np.int64), representatives=(), similarities=())


def load_removed_rows(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> RemovedRows:
    """Return the rows of a shard that were removed as duplicates; empty if there is no deduplication."""
    if corpus.duplicates is None:
        return NONE_REMOVED
    name = name_removed_file(partition)
    return read_removed_rows(store.local(corpus.artifact(DUPLICATES), [name]) / name)


def read_removed_rows(path: Path) -> RemovedRows:
    """Return the removed rows in a file."""
    columns: dict[str, list[Any]] = {name: [] for name in REMOVED}
    for piece in read_joined_tables([path]):
        for name, values in columns.items():
            values += piece[name].to_pylist()
    return RemovedRows(
        positions=np.array(columns["position"], np.int64),
        representatives=columns["representative"],
        similarities=columns["similarity"],
    )
