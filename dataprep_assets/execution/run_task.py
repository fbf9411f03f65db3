"""Does a task in this process, and answers as a worker does."""

import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import told_to
from dataprep_assets.errors import DataprepError, out_of_memory
from dataprep_assets.execution.tasks import Task, connect
from dataprep_assets.integrity.disk_room import refusal_error
from dataprep_assets.stores.private import private_files

Answer = tuple[str, Any]
"""`("result", what the function returned)` or `("error", a DataprepError)`."""


def without_core() -> None:
    """Let this process leave no core dump: it would contain documents and secret keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_task(
    task: Task,
    send: Callable[[dict[str, int]], None],
    tell: Callable[[str], None] | None = None,
    *,
    private: bool = False,
) -> Answer:
    """Run a task in this process and return its answer.

    Args:
        task: What to do.
        send: Gets the counts that the task reports.
        tell: Gets what the task says of where it is (`bounds.at`), if this is a process of its own.
        private: Whether its data are sensitive: only the owner can read the files that it writes (`stores.private`),
            and the message of an error that is not the project's own is withheld, because it may quote the data.
    """
    without_core()
    connect(send)
    try:
        with private_files(private), nullcontext() if tell is None else told_to(tell, closely=task.closely):
            return "result", task.function(*task.arguments)
    except DataprepError as error:
        # its words are the project's own, and quote no data
        return "error", error
    except MemoryError:
        return "error", out_of_memory(str(task.id))
    except OSError as error:
        if private:  # its words and its file may name a patient
            error = OSError(error.errno, os.strerror(error.errno)) if error.errno else OSError(type(error).__name__)
        return "error", DataprepError(f"{task.id}: {refusal_error(error, Path.cwd())}")
    except Exception as error:  # a bug, or an error of the operating system: report it instead of dying
        last = traceback.extract_tb(error.__traceback__)[-1]
        code = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
        told = f"{type(error).__name__}: {error}"
        if private:
            told = f"{code}. Its message is withheld: it may quote the data"
        return "error", DataprepError(f"{task.id}: {told}", code=code)
    finally:
        connect(None)


@contextmanager
def without_output(private: bool) -> Iterator[None]:
    """Give this process no standard output and error while it does a `private` task.

    Ray keeps what its workers print in files that others read. A tagger of the user's may print what it is
    given, and a native library that panics prints a message that may quote it.
    """
    if not private:
        yield
        return
    # by descriptor, because native libraries do not know Python's streams
    kept, nowhere = {stream: os.dup(stream) for stream in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in kept:
            os.dup2(nowhere, stream)
        yield
    finally:
        # what Python still buffers goes nowhere as well: flushed after the streams are back, it would be shown
        for buffered in (sys.stdout, sys.stderr):
            buffered.flush()
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)
