"""A download that is pinned to one version of its object, and starts again when the object is replaced meanwhile."""

from collections.abc import Callable

from dataprep_assets.errors import MissingArtifactError, TransferError
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress

_TRIES = 3


def download_pinned(
    head: Callable[[], ObjectInfo | None],
    fetch: Callable[[ObjectInfo, Progress], None],
    *,
    label: str,
    progress: Progress | None,
) -> ObjectInfo:
    """`fetch` the version that `head` finds; when it raises ConflictError, give up its bytes and look again.

    `label` names the object in messages; `progress` gets the bytes fetched, negative when they are given up.

    Raises MissingArtifactError when there is no object, TransferError when it was replaced in every one of 3 tries.
    """
    for _ in range(_TRIES):
        info = head()
        if info is None:
            raise MissingArtifactError(f"{label}: there is no such object. Build or upload it, or correct the key")
        given = _Given(progress)
        try:
            fetch(info, given)
        except ConflictError:
            given.take_back()
        else:
            return info
    raise TransferError(
        f"{label}: it was replaced during each of {_TRIES} downloads. Run again when its writer is done"
    )


class _Given:
    """Passes progress on, and can take back all that it passed on."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._bytes = 0

    def __call__(self, count: int) -> None:
        self._bytes += count
        if self._progress is not None:
            self._progress(count)

    def take_back(self) -> None:
        if self._bytes:
            self(-self._bytes)
