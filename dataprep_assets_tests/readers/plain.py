"""Functions without any library, for tests of the processes themselves."""

import os
import signal
import sys
import time
from types import ModuleType
from typing import Any

from dataprep_assets_tests.readers.families import NONE
from dataprep_assets_tests.readers.process import in_process_of


@in_process_of(NONE)
def doubled(value: Any, *, times: int = 2) -> Any:
    """Return the value this many times, after printing some unrelated output."""
    print("not a part of the answer", flush=True)
    return value * times


@in_process_of(NONE)
def pid() -> int:
    """Return the id of this process."""
    return os.getpid()


@in_process_of(NONE)
def refuse(error: Exception) -> None:
    """Raise the error."""
    raise error


@in_process_of(NONE)
def raise_of(module: str) -> None:
    """Raise an error whose class belongs to a module with that name."""
    raise type("DataLossError", (Exception,), {"__module__": module})("cut")


@in_process_of(NONE)
def crash() -> None:
    """Die as from a segmentation fault."""
    os.kill(os.getpid(), signal.SIGSEGV)


@in_process_of(NONE)
def import_as(name: str) -> None:
    """Import a module as if it were a heavy library with that name."""
    sys.modules[name] = ModuleType(name)


@in_process_of(NONE)
def sleep(seconds: float) -> None:
    """Sleep for this long."""
    time.sleep(seconds)
