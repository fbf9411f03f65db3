"""Obsolete artifacts of a blend that contain, or may contain, removed rows.

Entry point: `find_retracted_blend_artifacts`.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retracted_leftovers import find_unplanned_retracted
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_snapshot import BLEND_SNAPSHOT
from dataprep_assets.pipelines.blend.row_ids import load_blend_ids, open_index
from dataprep_assets.pipelines.blend.stage_shards import SHARDS
from dataprep_assets.tokenization.document_ids import DocumentIds


def find_retracted_blend_artifacts(
    blend: BlendDeclaration, store: ArtifactStore, unplanned: Iterable[Artifact]
) -> list[Artifact]:
    """Return the unplanned artifacts that contain, or may contain, a removed row.

    Raises the errors of `find_unplanned_retracted`.
    """
    shards = SHARDS[blend.stage].name

    def contains(artifact: Artifact, receipt: Receipt, ids: DocumentIds, hashes: NDArray[np.uint64]) -> bool:
        index = open_index(store, artifact, receipt, ids)
        return index is None or bool(np.any(index.are_kept[index.find_lines(hashes)]))

    return find_unplanned_retracted(
        store,
        unplanned,
        retractions=blend.retractions,
        load_ids=lambda: load_blend_ids(blend),
        snapshots=BLEND_SNAPSHOT,
        shards=shards,
        source=lambda partition: blend.artifact(shards, partition),
        contains=contains,
    )
