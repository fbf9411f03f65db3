"""Assert the class, position and values of messages, so that a message can be reworded without changing a test."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from pydantic import ValidationError

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises(
    error: type[E] | tuple[type[E], ...], *values: object, **position: object
) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of exactly this class, or of one of these, whose message has all values, at this position.

    The position is compared with the keys of `DataprepError.at`, and `relpath` with the attribute of a `SourceError`.
    """
    with pytest.raises(error) as caught:
        yield caught
    kinds = error if isinstance(error, tuple) else (error,)
    assert type(caught.value) in kinds, f"{type(caught.value).__name__}: {caught.value}"
    assert_names(_message(caught.value), *values)
    found = {**getattr(caught.value, "at", {}), "relpath": getattr(caught.value, "relpath", None)}
    assert {key: found.get(key) for key in position} == position


def assert_names(message: str, *values: object) -> None:
    """Assert that each value is in the message as a whole: 4 is not in `14`, `4.5` or `pytest-4`, nor `row` in `rows`.

    Integers from 1,000 may be written with or without commas.
    """
    missing = [value for value in values if not _has(message, value)]
    assert not missing, f"without {missing}: {message}"


def _message(error: BaseException) -> str:
    """Return the message of an error.

    Pydantic's message is returned without the input, which contains the values in any case.
    """
    if isinstance(error, ValidationError):
        return "\n".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
    return str(error)


def _has(message: str, value: object) -> bool:
    if isinstance(value, int):
        return re.search(rf"(?<![\w/-])(?<!\d[.,])(?:{value}|{value:,})(?![\w/]|[.,]\d)", message) is not None
    text = str(value)
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", text) else ""
    return re.search(f"{before}{re.escape(text)}{after}", message) is not None
