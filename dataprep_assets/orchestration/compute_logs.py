"""Dagster's local compute logs, shown on the terminal by a thread.

Dagster shows what a step writes to descriptors 1 and 2 by four processes of its own for each step: a `tail` of each
file, and a Python interpreter that ends it should the step's process be killed. They cost more than a small step does.
A thread ends with its process, and it misses no last line.

Named in `dagster.yaml` as `compute_logs`. Entry point: `ThreadedComputeLogs`.
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from dagster._core.execution.compute_logs import redirect_to_file
from dagster._core.instance.ref import compute_logs_directory
from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
from dagster._core.storage.local_compute_log_manager import IO_TYPE_EXTENSION, LocalComputeLogManager
from dagster._serdes import ConfigurableClassData
from dagster._utils import ensure_file, touch_file

__all__ = ["ThreadedComputeLogs"]

_SECONDS = 0.2
"""How often what was written is shown."""
_BYTES = 1 << 16


class ThreadedComputeLogs(LocalComputeLogManager):
    """Writes the files that Dagster's own manager writes by default: below `storage` in `base_dir`, the instance's."""

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> "ThreadedComputeLogs":
        own = {**config_value, "base_dir": compute_logs_directory(config_value["base_dir"])}
        return cls(inst_data=inst_data, **own)

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Iterator[CapturedLogContext]:
        with ExitStack() as captured:
            for stream, kind in ((sys.stdout, ComputeIOType.STDOUT), (sys.stderr, ComputeIOType.STDERR)):
                path = self.get_captured_local_path(log_key, IO_TYPE_EXTENSION[kind])
                ensure_file(path)
                captured.enter_context(_shown(path, stream))
                captured.enter_context(redirect_to_file(stream, path))
            yield CapturedLogContext(log_key)
        # says that the capture is complete
        touch_file(self.complete_artifact_path(log_key))  # type: ignore[no-untyped-call]


@contextmanager
def _shown(path: str, stream: TextIO) -> Iterator[None]:
    """Show what is appended to a file on the descriptor that a stream has now."""
    try:
        descriptor = os.dup(stream.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or in memory: then nothing is redirected either
        yield
        return
    over = threading.Event()
    with open(path, "rb", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        thread = threading.Thread(target=_follow, args=(file, descriptor, over), name="compute logs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            os.close(descriptor)


def _follow(file: Any, descriptor: int, over: threading.Event) -> None:
    ending = False
    while not ending:
        ending = over.wait(_SECONDS)  # what was written before it was set is still shown
        while data := memoryview(file.read(_BYTES)):
            while data:
                try:
                    data = data[os.write(descriptor, data) :]
                except OSError:  # nobody reads it any more; the file has it all
                    return
