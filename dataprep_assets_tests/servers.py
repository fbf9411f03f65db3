"""What every server needs that a test starts as a process: a port before its start, patience, an end after the test."""

import random
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody has, and that the kernel does not hand out by itself.

    A server binds its port seconds after it was chosen. One of the kernel's own range (from 32,768 on Linux) may be
    somebody else's by then; those of Ray's workers end at 19,999.
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
    """One of `free_ports`."""
    return free_ports(1)[0]


def end(process: subprocess.Popen[bytes], seconds: float = 150) -> None:
    """Ask a server to end and wait for it; one that does not within `seconds` is killed."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], seconds: float, every: float = 1) -> None:
    """Look now and then until something holds.

    Args:
        condition: What is to hold.
        seconds: After which it fails.
        every: Seconds between two looks.
    """
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(every)
