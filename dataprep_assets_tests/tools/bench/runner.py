"""Measure a command from outside: wall time, CPU time of its whole process tree, peak memory of its largest process.

It is its own process, so that RUSAGE_CHILDREN covers only the measured command. It adopts orphans
(PR_SET_CHILD_SUBREAPER), because the CPU time of a fork server or manager that outlives its parent would otherwise be
lost. Entry point: `measure`.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Wall and CPU seconds (user + system, all processes), and the peak resident bytes of the largest process.

    `read` counts the bytes of all `read` calls of all processes, including reads from the cache, interpreters and
    libraries, but not pages of mapped files. It is 0 if the system does not count them.
    """

    wall: float
    cpu: float
    peak_rss: int
    read: int = 0


class CommandFailedError(RuntimeError):
    """The measured command failed; the message contains the end of its output."""


def measure(command: Sequence[str], environment: dict[str, str] | None = None) -> Measurement:
    """Run a command until it ends. Raises CommandFailedError if it fails."""
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
        books, output = Path(folder, "books.json"), Path(folder, "output")
        with output.open("wb") as sink:
            code = subprocess.call(
                [sys.executable, "-S", __file__, str(books), *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        if code:
            tail = output.read_bytes()[-4000:].decode("utf-8", "replace")
            raise CommandFailedError(f"exit code {code}: {' '.join(command)}\n{tail}")
        return Measurement(**json.loads(books.read_bytes()))


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"processes of the command still live {_ORPHANS_SECONDS} s after its end")


def _bytes_read() -> int:
    """Return the bytes read by this process and by the children that it has waited for."""
    try:
        return int(Path("/proc/self/io").read_text().partition("rchar:")[2].split()[0])
    except OSError:
        return 0


def _run(books: Path, command: Sequence[str]) -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    started, before = time.monotonic(), _bytes_read()
    process = subprocess.Popen(command, start_new_session=True)
    code = process.wait()
    wall = time.monotonic() - started
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_ORPHANS_SECONDS)
    try:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    rss = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    found = {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "peak_rss": rss, "read": _bytes_read() - before}
    books.write_text(json.dumps(found))
    return code


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1]), sys.argv[2:]))
