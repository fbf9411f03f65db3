"""What libraries raise, as errors of this project.

They raise bare exceptions, whose words may quote a text; and a panic in Rust is an exception that is no `Exception`, so
that it passes every handler, and ends a run as if it were a bug of this project.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dataprep_assets.errors import TokenizerError


class EncodingError(TokenizerError):
    """A library cannot encode a text; says why without its words."""


class PanicError(EncodingError):
    """A library panicked."""


@contextmanager
def panics_as_errors(library: str) -> Iterator[None]:
    """Raise PanicError for a panic of `library` in the block."""
    try:
        yield
    except BaseException as error:
        # each library has a class of its own, which only its name tells
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(f"{library} panics with this tokenizer") from None


@contextmanager
def encoding_errors(library: str) -> Iterator[None]:
    """Raise EncodingError for whatever `library` raises while it encodes texts; MemoryError stays."""
    try:
        with panics_as_errors(library):
            yield
    except (TokenizerError, MemoryError):
        raise
    except Exception as error:
        without = "unk" in str(error).casefold()
        why = "a part of it is not in the vocabulary, which has no unknown token" if without else f"{library} raises"
        raise EncodingError(why) from None
