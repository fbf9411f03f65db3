"""Count the files that this process opens and the folders that it lists, by the interpreter's audit events."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

_EVENTS = ("open", "os.scandir", "os.listdir")
_counting: list[tuple[str, Counter[str]]] = []


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if _counting and event in _EVENTS and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.fsdecode(arguments[0])
        for root, counts in _counting:
            if path.startswith(root):
                counts[path.removeprefix(root)] += 1


@cache
def _listen() -> None:
    # Add the hook only once (`cache`), because audit hooks cannot be removed.
    sys.addaudithook(_heard)


@contextmanager
def count_opens(root: Path) -> Iterator[Counter[str]]:
    """Yield how often each path below a folder is opened or listed in the block."""
    _listen()
    counts: Counter[str] = Counter()
    _counting.append((f"{root}/", counts))
    try:
        yield counts
    finally:
        _counting.pop()
