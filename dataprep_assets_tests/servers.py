"""Helpers for servers that tests start as processes: a port before the start, waiting, their own processes, and an end
after the test.
"""

import random
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Return unused loopback ports outside of the kernel's own range.

    A server binds its port seconds after it was chosen. A port of the kernel's range (from 32,768 on Linux) may be in
    use by then; the ports of Ray's workers end at 19,999.
    """
    found: list[int] = []
    candidates = list(range(20_000, 32_768))
    random.SystemRandom().shuffle(candidates)
    while len(found) < count:
        with socket.socket() as probe, suppress(OSError):
            port = candidates.pop()
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def free_port() -> int:
    """Return one of `free_ports`."""
    return free_ports(1)[0]


def find_descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process started, directly or indirectly: id → command line."""
    found: dict[int, str] = {}
    # Follow the lists of children, because reading all processes of the machine takes milliseconds at each poll.
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the process or its thread has ended
            for child in map(int, task.read_text().split()):
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                found[child] = command.replace(b"\0", b" ").decode(errors="replace")
                found |= find_descendants(child)
    return found


def end(process: subprocess.Popen[bytes], seconds: float = 150) -> None:
    """Terminate a server and wait; kill it if it has not ended within `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], seconds: float, every: float = 1) -> None:
    """Poll until a condition is true.

    Args:
        condition: The condition.
        seconds: The time limit, after which it fails.
        every: Seconds between two polls.
    """
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(every)
