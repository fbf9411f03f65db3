"""Runs a function in the process of its family, from a test in another.

A module of this folder imports its libraries inside its functions and gives each function to its family:

    @in_process_of(MEGATRON)
    def documents(prefix: Path) -> list[list[int]]:
        from megatron.core.datasets.indexed_dataset import IndexedDataset
        ...

A test calls `documents(path)` as if it were here. The first call of a family starts its process, which lives as long
as the test process. Arguments and results are pickled, so a result is made of plain Python and NumPy; an error arrives
as it was raised, or as a `LibraryError` if its class is one of the library's. The processes' sessions never outlive
the test process: their connection ends with it.
"""

import atexit
import functools
import io
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from dataprep_assets_tests.readers.families import HEAVY, Family

P = ParamSpec("P")
R = TypeVar("R")
CHECKOUT = Path(__file__).parents[2]
_LOG_TAIL = 6_000
"""The number of characters of a dead process's output in its error."""


class LibraryError(Exception):
    """An error whose class a test process must not import; the message starts with the class's full name."""


class ReaderDiedError(Exception):
    """A reader process ended during a call, as by a segmentation fault."""


def in_process_of(family: Family) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that runs the function in the process of the family; skips the test if it is not installed."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if family.missing:
                pytest.skip(family.missing)
            result: R = _process(family).call(_module_of(function), function.__qualname__, args, kwargs)
            return result

        return call

    return decorate


def _module_of(function: Callable[..., Any]) -> str:
    """Return the name by which another process imports a function's module, because a command's module is `__main__`
    here.
    """
    spec = sys.modules[function.__module__].__spec__
    return function.__module__ if spec is None else spec.name


@functools.cache
def _process(family: Family) -> "ReaderProcess":
    process = ReaderProcess(family)
    atexit.register(process.close)
    return process


class ReaderProcess:
    """The process of one family, started by its first call and restarted by the first call after it died."""

    def __init__(self, family: Family) -> None:
        self.family = family
        # `_process` is None before the first call and after the process has ended.
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process may write

    def call(self, module: str, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function there.

        Args:
            module: The module to import there.
            function: The name of a function in it that `in_process_of` decorated.
            args: Its positional arguments; pickled.
            kwargs: Its named arguments; pickled.

        Returns:
            What the function returned.

        Raises:
            LibraryError: The function raised an error of the library.
            ReaderDiedError: The process ended before it answered.
            Exception: Whatever else the function raised.
        """
        request = pickle.dumps((module, function, args, kwargs))
        if self._process is None:
            self._start()
        try:
            self._connection.send_bytes(request)
            answer = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise ReaderDiedError(self._obituary(f"{module}.{function}")) from error
        except BaseException:
            # Close the process, for example after the test's time limit, because this call's answer must not be taken
            # for the next call's answer.
            self.close()
            raise
        outcome, value, trace = _PlainUnpickler(io.BytesIO(answer)).load()
        if outcome == "returned":
            return value
        error = LibraryError(value) if outcome == "raised by the library" else value
        error.add_note(f"In the process of {self.family.name}:\n{trace}")
        raise error

    def close(self) -> None:
        """End the process, even during a call."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            self._output.truncate(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dataprep_assets_tests.readers.serve", self.family.name, str(theirs.fileno())],
                # Write to a separate file, which is shown if the process dies, because pytest's own capture files
                # belong to whichever test is running then.
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                cwd=CHECKOUT,
            )
        self._connection = ours

    def _obituary(self, function: str) -> str:
        assert self._process is not None
        code = self._process.wait()
        self.close()
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")[-_LOG_TAIL:]
        test = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        return f"the process of {self.family.name} ended with code {code} in {function}, called by {test}:\n{output}"


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that does not import a heavy library into the test process."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in HEAVY:
            raise TypeError(f"a reader returned a {module}.{name}: return plain Python or NumPy objects")
        return super().find_class(module, name)
