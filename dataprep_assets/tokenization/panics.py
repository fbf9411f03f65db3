"""Panics of libraries in Rust, as errors.

A panic reaches Python as an exception that is no `Exception`, so that it passes every handler, and ends a run as if it
were a bug of this project.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dataprep_assets.errors import TokenizerError


class PanicError(TokenizerError):
    """A library panicked; names the library."""


@contextmanager
def panics_as_errors(library: str) -> Iterator[None]:
    """Raise PanicError for a panic of `library` in the block. Its words are left out: they may quote a text."""
    try:
        yield
    except BaseException as error:
        # each library has a class of its own, which only its name tells
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(f"{library} panics with this tokenizer") from None
