"""What a worker answers to a task, wherever it runs."""

import os
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dataprep_assets.errors import DataprepError, out_of_memory
from dataprep_assets.execution.tasks import Task, connect
from dataprep_assets.integrity.disk_room import refused
from dataprep_assets.stores.private import private_files

Answer = tuple[str, Any]
"""`("result", what the function returned)` or `("error", a DataprepError)`."""


def answer(task: Task, send: Callable[[dict[str, int]], None], *, private: bool = False) -> Answer:
    """Do a task in this process.

    Args:
        task: What to do.
        send: Where the task's `report` goes.
        private: Its data are sensitive: what it writes is closed to others (`stores.private`), and the message of an
            error that is not the project's own is withheld, because it may quote them.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold documents, and keys of the environment
    connect(send)
    try:
        with private_files(private):
            return "result", task.function(*task.arguments)
    except DataprepError as error:
        return "error", error
    except MemoryError:
        return "error", out_of_memory(str(task.id))
    except OSError as error:
        return "error", DataprepError(f"{task.id}: {refused(error, Path.cwd())}")
    except Exception as error:  # a bug or the operating system: whoever asked gets its name, not a dead worker
        return "error", DataprepError(f"{task.id}: {type(error).__name__}{_told(error, private)}")
    finally:
        connect(None)


@contextmanager
def without_stderr(private: bool) -> Iterator[None]:
    """Give this process no standard error while it does a `private` task.

    Ray and Slurm keep what their workers print in files that others read; a native library that panics prints a message
    that may quote what it was given.
    """
    if not private:
        yield
        return
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _told(error: Exception, private: bool) -> str:
    """What is said of an error beside its type."""
    if not private:
        return f": {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" at {Path(last.filename).name}:{last.lineno}. Its message is withheld: it may quote the data"
