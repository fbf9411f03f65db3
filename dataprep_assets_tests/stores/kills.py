"""Wait for the moment at which a test kills a process."""

import subprocess
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition is true while the process runs; fail if the process ends first, or after three minutes."""
    deadline = time.monotonic() + 180
    while not condition():
        assert process.poll() is None, "the process ended before the moment at which it was to be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
