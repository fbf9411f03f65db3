"""Context managers that keep patients' data out of error messages.

Every step over patients' data runs inside `unquoting`. It passes this project's own errors, because their messages
contain no data. Any other error (a bug, the operating system, a library) may quote its input or a file name that
contains a patient's name. Such an error is replaced by its type and the line of this project that raised it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from dataprep_assets import errors
from dataprep_assets.errors import DataprepError, SourceError, raise_alone

_PACKAGE = Path(errors.__file__).parent


@contextmanager
def unquoting(where: str) -> Iterator[None]:
    """Pass DataprepError, and replace every other error by a DataprepError that quotes no data."""
    try:
        yield
        return
    except DataprepError as error:
        # the cause and the context are removed, because they may quote content; the error's own message does not
        error.__cause__ = error.__context__ = None
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # these exceptions only end the process or a generator in this block, and do not quote data
        raise
    except BaseException as error:  # BaseException, because a panic of a Rust library is not an Exception
        code = f"{type(error).__name__} {_what(error)}at {_line(error.__traceback__)}"
    raise_alone(
        DataprepError(f"{where}: {code}. Its message is withheld because it may quote patients' data", code=code)
    )


@contextmanager
def source_errors_without_names(where: str, position: Callable[[str], str | None] = lambda _: None) -> Iterator[None]:
    """Remove the names of source files from errors, in addition to `unquoting`.

    Args:
        where: Subject of the step: a dataset or a month.
        position: Returns the part of the data in a file, given its path in the source. The part may be shown.
    """
    try:
        yield
        return
    except (DataprepError, OSError) as error:
        relpath = error.relpath if isinstance(error, SourceError) else None
        part = position(relpath) if relpath is not None else None
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        where = where if part is None else f"{where}: {part}"
        sentence = f"{where}: {type(error).__name__} {_what(cause)}at {_line(error.__traceback__)}"
    message = (
        f"{sentence}. Its message is withheld because it contains the name of a source file. Check that the source "
        "exists, is readable and intact"
    )
    raise_alone(SourceError(message))


def _what(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        # strerror gives the system's text for the error number; the error's own text contains the file's name
        return f"({os.strerror(error.errno)}) "
    return ""


def _line(traceback: TracebackType | None) -> str:
    """Return the innermost line of this project in a traceback, as module:line."""
    line = "an unknown place"
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            line = f"{path.relative_to(_PACKAGE).as_posix()}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line
