"""Keeps patients' data out of errors.

Every step over patients' data runs inside `unquoting`. This project's own errors pass: their messages contain no data.
Any other error (a bug, the operating system, a library) may quote its input, or name a file that is named after a
patient, so only its type and the line of this project where it arose are shown.
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
    """Let DataprepError pass and replace every other error by a DataprepError that quotes nothing."""
    try:
        yield
        return
    except DataprepError as error:
        # Its cause may quote content; its own message does not.
        error.__cause__ = error.__context__ = None
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # no errors: they end the process, or a generator that reads within this block, and quote nothing
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        code = f"{type(error).__name__} {_what(error)}at {_line(error.__traceback__)}"
    raise_alone(
        DataprepError(f"{where}: {code}. Its message is withheld because it may quote patients' data", code=code)
    )


@contextmanager
def source_errors_without_names(where: str, position: Callable[[str], str | None] = lambda _: None) -> Iterator[None]:
    """Like `unquoting`, for steps whose errors name source files: the names are removed.

    Args:
        where: What the step is about: a dataset or a month.
        position: Returns the part of the data that a file (its path in the source) holds, which may be shown.
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
        # the system's words for the number; the error's own text has the file's name
        return f"({os.strerror(error.errno)}) "
    return ""


def _line(traceback: TracebackType | None) -> str:
    """The innermost line of this project, as module:line."""
    line = "an unknown place"
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            line = f"{path.relative_to(_PACKAGE).as_posix()}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line
