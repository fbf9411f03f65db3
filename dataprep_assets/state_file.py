"""Reads the JSON files that the project keeps for itself: remembered verdicts, ages, digests.

They can be damaged by a disk, a person or an earlier release. All of them can be computed again, so a file with another
content than its writer gives it counts as absent.

Entry points: `read_state`, `validated`.
"""

import os
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

T = TypeVar("T")


def read_state(path: str | os.PathLike[str], schema: type[T]) -> T | None:
    """Return the value of a JSON file; None if there is no file, or if its content is not of the type `schema`.

    Args:
        path: The file.
        schema: A type that pydantic validates, strictly, for example `dict[str, int]` or a TypedDict.
    """
    try:
        return validated(Path(path).read_bytes(), schema)
    except (OSError, ValueError):  # pydantic's ValidationError is a ValueError
        return None


def validated(data: bytes, schema: type[T]) -> T:
    """Return the value of a JSON text; raises ValueError if it is not of the type `schema`."""
    return cast("T", _adapter(cast("Hashable", schema)).validate_json(data, strict=True))


@lru_cache(maxsize=16)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)
