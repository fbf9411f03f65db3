"""The file with the removed rows of a shard, in an artifact of duplicates.

Entry points: `name_removed_file`, `require_removed_file`.
"""

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import FileRecord

DUPLICATES, SIGNATURES = "duplicates", "signatures"


def name_removed_file(partition: str) -> str:
    """Return the name of the file with the removed rows of a shard."""
    return f"{partition}.parquet"


def require_removed_file(store: ArtifactStore, duplicates: Artifact, partition: str) -> FileRecord:
    """Return the record of the file with the removed rows of a shard.

    Raises MissingArtifactError if the duplicates are not built, IntegrityError if they were built without this shard.
    """
    for file in store.require(duplicates).files:
        if file.path == name_removed_file(partition):
            return file
    raise IntegrityError(f"{duplicates}: built without {partition}. Rebuild `duplicates`")
