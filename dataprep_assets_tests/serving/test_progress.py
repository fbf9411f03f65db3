"""The progress bar of a download."""

import io
import sys

from dataprep_assets.serving.window.shard_window import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_drawn_only_on_a_terminal() -> None:
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        bar = ProgressBar("train_000000.npy", 1000, stream)
        bar.add(420)
        bar.close()
        assert ("42%" in stream.getvalue()) == shown
    assert ProgressBar("x", 0)._stream is sys.stderr
