"""The files of duplicates that corpora and blends have in common, and the facts of their receipts.

- `pairs.bin`, uint64 `(pairs, 4)`: the compared pairs (`kept_set.ComparedPairs`)
- `clusters.parquet`: the largest clusters; `across.parquet`: pairs of kept documents of different splits

Entry points: `DuplicatesFacts`, `NodeNames`, `write_common_files`, `read_pairs`, `read_clusters`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from dataprep_assets.curation.duplicates.candidates import Nodes
from dataprep_assets.curation.duplicates.kept_set import ComparedPairs, DuplicateDecisions
from dataprep_assets.curation.duplicates.signatures import SignatureSettings
from dataprep_assets.curation.table import Columns, ParquetRowWriter, read_joined_tables
from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.errors import DataprepError, FormatError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore

PAIRS, CLUSTERS, ACROSS = "pairs.bin", "clusters.parquet", "across.parquet"
_CLUSTERS: Columns = {"representative": "string", "removed": "integer", "least_similar": "number", "example": "string"}
_ACROSS: Columns = {
    "split": "string",
    "row": "string",
    "other": "string",
    "other_row": "string",
    "similarity": "number",
}
_MAX_CLUSTERS = 1000
"""Maximum number of clusters in `clusters.parquet`."""
_MAX_SHOWN_CLUSTERS = 10
"""Maximum number of clusters in the table."""


class DuplicatesFacts(Facts):
    """Facts of duplicates.

    Attributes:
        documents: Compared documents, i.e., all documents that no rule drops.
        removed: Removed documents, per split.
        equal: Removed documents that are equal to the kept document.
        candidates: Pairs that share a band.
        compared: Pairs whose shingles were compared.
        across: Pairs of similar kept documents in different splits.
        against: Documents removed because another dataset keeps a similar document, per dataset; only if `against` is
            declared.
    """

    documents: int
    removed: dict[str, int]
    equal: int
    candidates: int
    compared: int
    across: int
    against: dict[str, int] = Field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, ShownValue]:
        """The counts as metadata for the UI."""
        return {
            "documents": self.documents,
            "removed": sum(self.removed.values()),
            **{f"removed_{split}": count for split, count in self.removed.items()},
            "equal_documents": self.equal,
            "candidate_pairs": self.candidates,
            "compared_pairs": self.compared,
            "pairs_across_splits": self.across,
            **{f"duplicates_of_{name}": count for name, count in self.against.items()},
        }


@dataclass(frozen=True, kw_only=True)
class NodeNames:
    """Names of documents: `nodes` are their numbers, ascending, and `names` their names."""

    nodes: Nodes
    names: Sequence[str]

    def get_names(self, nodes: Nodes) -> list[str]:
        """Return the names of some of the documents."""
        return [self.names[position] for position in np.searchsorted(self.nodes, nodes).tolist()]


def find_named_nodes(kept_set: DuplicateDecisions) -> Nodes:
    """Return the documents that the written files name, by increasing number."""
    return np.unique(np.concatenate([kept_set.removed, kept_set.representatives, kept_set.across.ravel()]))


def write_common_files(
    staged: Path, kept_set: DuplicateDecisions, names: NodeNames, across_splits: Sequence[tuple[str, str]]
) -> None:
    """Write the compared pairs, the largest clusters, and the pairs of kept documents of different splits.

    Args:
        staged: The folder.
        kept_set: The decisions.
        names: The names of the documents in `find_named_nodes`.
        across_splits: The splits of each pair in `kept_set.across`.
    """
    _write_clusters(staged / CLUSTERS, kept_set, names)
    with ParquetRowWriter(staged / ACROSS, _ACROSS) as rows:
        rows.add(
            {
                "split": [split for split, _ in across_splits],
                "row": names.get_names(kept_set.across[:, 0]),
                "other": [split for _, split in across_splits],
                "other_row": names.get_names(kept_set.across[:, 1]),
                "similarity": kept_set.across_similarities.tolist(),
            }
        )
    (staged / PAIRS).write_bytes(kept_set.compared.pairs.astype("<u8").tobytes())


def _write_clusters(path: Path, kept_set: DuplicateDecisions, names: NodeNames) -> None:
    """Write the largest clusters: the kept document, the number of removed documents, and the least similar of them."""
    # Sort by cluster, then by similarity, so that each cluster begins with its least similar document.
    order = np.lexsort((kept_set.removed, kept_set.similarities, kept_set.representatives))
    representatives = kept_set.representatives[order]
    starts = (
        np.flatnonzero(np.append(True, representatives[1:] != representatives[:-1]))
        if len(representatives)
        else np.empty(0, np.int64)
    )
    sizes = np.diff(np.append(starts, len(representatives)))
    largest = np.lexsort((starts, -sizes))[:_MAX_CLUSTERS]
    examples = order[starts[largest]]
    with ParquetRowWriter(path, _CLUSTERS) as rows:
        rows.add(
            {
                "representative": names.get_names(kept_set.representatives[examples]),
                "removed": sizes[largest].tolist(),
                "least_similar": kept_set.similarities[examples].tolist(),
                "example": names.get_names(kept_set.removed[examples]),
            }
        )


def read_clusters(store: ArtifactStore, artifact: Artifact) -> list[dict[str, Any]]:
    """Return a row for each of the largest clusters.

    A row has the kept document, the number of removed documents, and the least similar removed document.
    """
    # Read only the first piece, because it contains all clusters (at most `_MAX_CLUSTERS`). There is no piece if no
    # document was removed.
    clusters = next(read_joined_tables([store.local(artifact, [CLUSTERS]) / CLUSTERS]), None)
    return [] if clusters is None else clusters.slice(0, _MAX_SHOWN_CLUSTERS).to_pylist()


def read_known_pairs(store: ArtifactStore, artifact: Artifact, signing: SignatureSettings) -> ComparedPairs:
    """Return the pairs that the current duplicates compared by the same shingles, at any threshold."""
    try:
        # Do not reuse pairs of an artifact that is marked for a rebuild, because they may be wrong.
        if store.must_rebuild(artifact) or (receipt := store.receipt(artifact)) is None:
            return ComparedPairs()
        now, stored_settings = signing.key_parts, receipt.recipe["settings"]
        # Ignore the settings of the MinHash signatures, because they determine which pairs are compared, but not the
        # similarity of a pair.
        if any(
            now.get(name) != stored_settings.get(name)
            for name in ("kind", "normalization", "unicode", "words", "shingle", "key")
        ):
            return ComparedPairs()
        # Verify every byte, because the stored results are used without comparing the shingles again.
        if store.damage(artifact, receipt, "full"):
            return ComparedPairs()
        return read_pairs(store.local(artifact, [PAIRS]))
    except (DataprepError, OSError, KeyError):  # unreadable pairs are compared again
        return ComparedPairs()


def read_pairs(directory: Path) -> ComparedPairs:
    """Return the compared pairs in a directory of duplicates; raise FormatError if the file is truncated."""
    data = (directory / PAIRS).read_bytes()
    if len(data) % 32:
        raise FormatError(
            f"{directory / PAIRS}: its size, {count_of(len(data), 'byte')}, is not a multiple of 32, so the file is "
            "truncated. Rebuild `duplicates`"
        )
    return ComparedPairs(np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, 4))
