"""Progress of a transfer that may have to be taken back, because its bytes are discarded."""

import threading

from dataprep_assets.stores.store import Progress


class ReversibleProgress:
    """Passes progress on, from any thread, and can take back all that it passed on."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        # The sum of all that was passed on: taking it back passes on its negative, which sets it to 0.
        self._bytes = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._progress is not None and count:
                self._progress(count)

    def take_back(self) -> None:
        """Take back everything that was passed on."""
        self(-self._bytes)
