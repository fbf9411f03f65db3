"""Several files of one artifact, read as they belong together, though another run may replace it meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt

T = TypeVar("T")

TRIES = 5
"""A try is lost only if another run publishes the artifact in the milliseconds that it takes."""


def read_whole(store: ArtifactStore, artifact: Artifact, read: Callable[[Path, Receipt], T]) -> T:
    """What `read` makes of an artifact's directory and receipt; asked again if they were not of one build.

    Raises MissingArtifactError when it is not there, what `read` raises, and IntegrityError if others replace it again
    and again.
    """
    for _ in range(TRIES):
        receipt, error = store.require(artifact), None
        try:
            found = read(store.local(artifact), receipt)
        except (DataprepError, OSError) as caught:
            error = caught
        # The directory is exchanged as a whole: with the same receipt before and after, all that was read is of it.
        if store.require(artifact).content == receipt.content:
            if error is not None:
                raise error
            return found
    raise replaced(store, artifact)


def replaced(store: ArtifactStore, artifact: Artifact) -> IntegrityError:
    """The error of an artifact that others replace again and again."""
    return IntegrityError(f"{store.location(artifact)}: other runs replace it again and again. Run again after them")
