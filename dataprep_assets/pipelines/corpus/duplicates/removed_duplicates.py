"""The rows of a shard that go as duplicates, in the artifact `<dataset>/duplicates`, for whoever reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.curation.duplicates.candidates import Nodes
from dataprep_assets.curation.table import Columns, side_by_side
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

DUPLICATES = "duplicates"
REMOVED: Columns = {"position": "integer", "representative": "string", "similarity": "number"}


def removed_file(partition: str) -> str:
    """The file with the rows of a shard that go."""
    return f"{partition}.parquet"


def kept_file(partition: str) -> str:
    """The file that says of each row of a shard whether it is kept, a bit a row, the first the highest of a byte."""
    return f"{partition}.kept.bin"


def duplicates_of(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> str | None:
    """Return what a shard's selection depends on: the digest of the rows that go; None if duplicates are not looked
    for.

    Raises MissingArtifactError if they were not looked for yet, IntegrityError if the shard was not there then.
    """
    if corpus.duplicates is None:
        return None
    receipt = store.require(corpus.artifact(DUPLICATES))
    for file in receipt.files:
        if file.path == removed_file(partition):
            return file.sha256
    raise IntegrityError(f"{corpus.artifact(DUPLICATES)}: built without {partition}. Materialize it again")


@dataclass(frozen=True, kw_only=True)
class RemovedRows:
    """The rows of a shard that go, by position, with the kept document that stands for each, and how alike they are."""

    positions: Nodes
    representatives: Sequence[str]
    similarities: Sequence[float]

    def among(self, start: int, stop: int) -> dict[int, tuple[str, float]]:
        """Of the rows from `start` on: position after it → representative and similarity."""
        begin, end = np.searchsorted(self.positions, [start, stop]).tolist()
        return {
            int(self.positions[index]) - start: (self.representatives[index], self.similarities[index])
            for index in range(begin, end)
        }


NONE_REMOVED = RemovedRows(positions=np.empty(0, np.int64), representatives=(), similarities=())


def removed_rows(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> RemovedRows:
    """The rows of a shard that go as duplicates; none if these are not looked for."""
    if corpus.duplicates is None:
        return NONE_REMOVED
    name = removed_file(partition)
    return read_removed(store.local(corpus.artifact(DUPLICATES), [name]) / name)


def read_removed(path: Path) -> RemovedRows:
    """The rows of a file of them."""
    columns: dict[str, list[Any]] = {name: [] for name in REMOVED}
    for piece in side_by_side([path]):
        for name, values in columns.items():
            values += piece[name].to_pylist()
    return RemovedRows(
        positions=np.array(columns["position"], np.int64),
        representatives=columns["representative"],
        similarities=columns["similarity"],
    )
