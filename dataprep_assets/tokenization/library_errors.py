"""Conversion of library errors to errors of this project.

Libraries raise bare exceptions, whose messages may quote a text. A panic in Rust is a `BaseException` but not an
`Exception`. No handler catches it, so it would terminate a run like a bug in this project.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dataprep_assets.errors import TokenizerError


class EncodingError(TokenizerError):
    """Error for a text that a library cannot encode. The message has the reason, but does not quote the library."""


class PanicError(EncodingError):
    """Error for a panic in a library's Rust code."""


@contextmanager
def convert_panics(library: str) -> Iterator[None]:
    """Raise PanicError if `library` panics in the block."""
    try:
        yield
    except BaseException as error:
        # Compare the name, because each library has its own panic class.
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(f"{library} panics with this tokenizer") from None


@contextmanager
def convert_encoding_errors(library: str) -> Iterator[None]:
    """Raise EncodingError for any error of `library` while it encodes texts, except MemoryError."""
    try:
        with convert_panics(library):
            yield
    except (TokenizerError, MemoryError):
        raise
    except Exception as error:
        is_unknown = "unk" in str(error).casefold()
        reason = (
            "a part of the text is not in the vocabulary, which has no unknown token"
            if is_unknown
            else f"{library} raises"
        )
        raise EncodingError(reason) from None
