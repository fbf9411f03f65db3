"""A download that is pinned to one version of its object, and starts again when the object is replaced meanwhile."""

from collections.abc import Callable
from dataclasses import replace

from dataprep_assets.errors import TransferError
from dataprep_assets.stores.given import ReversibleProgress
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress, no_object

_TRIES = 3


def download_pinned(
    head: Callable[[], ObjectInfo | None],
    fetch: Callable[[ObjectInfo, Progress], str],
    *,
    label: str,
    progress: Progress | None,
) -> ObjectInfo:
    """`fetch` the version that `head` finds; if that raises ConflictError, discard its bytes and ask again.

    Returns the object with its SHA-256, which `fetch` returns.

    `label` names the object in messages; `progress` gets the number of bytes fetched, negative if they are discarded.

    Raises MissingArtifactError when there is no object, TransferError when it was replaced in every one of 3 tries.
    """
    for _ in range(_TRIES):
        info = head()
        if info is None:
            raise no_object(label)
        given = ReversibleProgress(progress)
        try:
            return replace(info, sha256=fetch(info, given))
        except ConflictError:
            # Of a `.part` that is left the sidecar names the old version, so the next try does not resume it.
            given.take_back()
    raise TransferError(
        f"{label}: it was replaced during each of {_TRIES} downloads. Run again when its writer is done"
    )
