"""A progress bar for one download at a time, on standard error, and only on a terminal."""

import sys
import time
from typing import TextIO

# Characters of the bar; with its numbers the line stays below 100.
_WIDTH = 30


class Bar:
    """Draws `label ███ 42 %  1.2 of 2.9 GB  310 MB/s`. Does nothing unless `stream` is a terminal.

    `total` is in bytes; `stream` is standard error unless given.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty()
        self._started = time.monotonic()
        self._last = 0.0
        self.done = 0

    def add(self, count: int) -> None:
        """Count bytes that arrived, or, if negative, bytes that were discarded."""
        self.done += count
        now = time.monotonic()
        # Ten times a second: more is not visible, and a terminal over a network would slow down the download.
        if self._shown and now - self._last > 0.1:
            self._last = now
            self._draw(now)

    def close(self) -> None:
        """End the line."""
        # a bar that was never drawn has no line to end
        if self._shown and self._last:
            self._draw(time.monotonic())
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, now: float) -> None:
        share = min(1.0, self.done / self._total) if self._total else 1.0
        bar = ("█" * round(share * _WIDTH)).ljust(_WIDTH, "░")
        speed = self.done / max(now - self._started, 1e-9) / 1e6
        text = (
            f"{self._label} {bar} {share:4.0%}  {self.done / 1e9:.2f} of {self._total / 1e9:.2f} GB  {speed:.0f} MB/s"
        )
        # back to the line's beginning, and away with what a longer text left behind
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()
