"""Context managers that keep patients' data out of error messages.

Every step that reads patients' data runs inside `hide_quoted_data`. It lets this project's own errors pass, because
their messages contain no data. Any other error (a bug, the operating system, a library) may quote its input or a file
name that contains a patient's name. Such an error is replaced by its type and the line of this project that raised it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from dataprep_assets import errors
from dataprep_assets.errors import DataprepError, SourceError, raise_detached

_PACKAGE = Path(errors.__file__).parent


@contextmanager
def hide_quoted_data(location: str) -> Iterator[None]:
    """Let DataprepError pass, and replace every other error with a DataprepError that quotes no data."""
    try:
        yield
        return
    except DataprepError as error:
        # Remove the cause and the context, because they may quote data. The error's own message quotes none.
        error.__cause__ = error.__context__ = None
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # Let these exceptions pass, because they only end the process or a generator, and quote no data.
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        code = f"{type(error).__name__} {_describe_error(error)}at {_find_line(error.__traceback__)}"
    raise_detached(
        DataprepError(f"{location}: {code}. The message is withheld because it may quote patients' data", code=code)
    )


@contextmanager
def hide_source_names(location: str, position: Callable[[str], str | None] = lambda _: None) -> Iterator[None]:
    """Remove the names of source files from errors, in addition to `hide_quoted_data`.

    Args:
        location: Subject of the step: a dataset or a month.
        position: Returns a name for a file's part of the data, which may be shown, given the file's path in the source.
    """
    try:
        yield
        return
    except (DataprepError, OSError) as error:
        relpath = error.relpath if isinstance(error, SourceError) else None
        part = position(relpath) if relpath is not None else None
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        location = location if part is None else f"{location}: {part}"
        sentence = f"{location}: {type(error).__name__} {_describe_error(cause)}at {_find_line(error.__traceback__)}"
    message = (
        f"{sentence}. The message is withheld because it contains the name of a source file. Check that the source "
        "exists, is readable and is intact"
    )
    raise_detached(SourceError(message))


def _describe_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        # Use `os.strerror`, because the system's text for an error number does not contain the file's name.
        return f"({os.strerror(error.errno)}) "
    return ""


def _find_line(traceback: TracebackType | None) -> str:
    """Return the innermost line of this project in a traceback, as module:line."""
    line = "an unknown location"
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            line = f"{path.relative_to(_PACKAGE).as_posix()}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line
