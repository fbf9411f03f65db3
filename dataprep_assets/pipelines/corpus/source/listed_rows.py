"""Search for the rows of a shard that are on the dataset's retraction list, by the ids in its tags."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import format_ids, read_retracted_ids
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

if TYPE_CHECKING:
    import pyarrow as pa


def read_listed_ids(corpus: CorpusDeclaration) -> NDArray[np.uint64]:
    """Return the ids on a dataset's retraction list: shape `(ids,)`, uint64, sorted.

    Raises the errors of `read_retracted_ids`.
    """
    return read_retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))


def are_listed(ids: "pa.ChunkedArray", listed_hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask, `(rows,)`, of the ids in `listed_hashes`; False for rejected records, which have no id."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask: NDArray[np.bool_] = pc.is_in(ids, value_set=pa.array(format_ids(listed_hashes), pa.string())).to_numpy()
    return mask


def find_listed_ids(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> tuple[str, ...]:
    """Return the listed ids (16 hex digits) of a shard's rows, even if these rows are dropped for other reasons.

    Raises MissingArtifactError if the shard has no tags.
    """
    ids = read_listed_ids(corpus)
    if not len(ids):
        return ()
    tags = corpus.artifact(TAGS, partition)
    return _find_listed_ids(store.local(tags, [ROWS]) / ROWS, store.require(tags).content, ids.tobytes())


# The second argument, the content digest, is part of the cache key, because the path stays the same when the tags are
# rebuilt.
@lru_cache(maxsize=4096)
def _find_listed_ids(rows: Path, _: str, listed_bytes: bytes) -> tuple[str, ...]:
    """Return the listed ids in a file of rows; cached, because a run needs them several times per shard."""
    ids = np.frombuffer(listed_bytes, np.uint64)
    matches: set[str] = set()
    for piece in read_joined_tables([rows], ["id"]):
        matches.update(piece["id"].filter(are_listed(piece["id"], ids)).to_pylist())
    return tuple(sorted(matches))
