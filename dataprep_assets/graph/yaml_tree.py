"""The tree of a YAML text, within bounds: a few lines can stand for billions of values, or end the process.

PyYAML parses a text step by step, and builds its tree by recursion in C, which has no bound of its own. So the steps
are looked at before the tree is built.
"""

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from dataprep_assets.errors import ConfigError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_DEPTH = 64
"""Most blocks and lists inside of each other; a declaration has ten."""
MOST_OF_ALIASES = 100_000
"""Most values that the aliases (`*name`) of a text stand for."""


def trees(path: Path, text: str) -> list[yaml.Node]:
    """The tree of each document of a file that is not empty.

    Raises yaml.MarkedYAMLError for what is no YAML; ConfigError, naming the line, for what exceeds a bound.
    """
    _require_bounded(path, text)
    return [node for node in yaml.compose_all(text, Loader=_LOADER) if node is not None]


def _require_bounded(path: Path, text: str) -> None:
    sizes: dict[str, int] = {}
    of_aliases = 0
    open_: list[tuple[str | None, int]] = []  # of each open block or list, its anchor, and how many values it holds
    for event in yaml.parse(text, Loader=_LOADER):
        size = 1
        if isinstance(event, yaml.DocumentStartEvent):
            sizes = {}
            continue
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            if len(open_) > MOST_DEPTH:
                raise _unbounded(path, event, f"more than {MOST_DEPTH} blocks or lists are inside of each other")
            continue
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_):
                raise _unbounded(path, event, f"`*{event.anchor}` stands for what it is in")
            size = sizes.get(event.anchor, 1)
            of_aliases += size
            if of_aliases > MOST_OF_ALIASES:
                raise _unbounded(path, event, f"aliases stand for more than {MOST_OF_ALIASES:,} values")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
            sizes |= {} if anchor is None else {anchor: size}
        elif isinstance(event, yaml.ScalarEvent):
            sizes |= {} if event.anchor is None else {event.anchor: 1}
        else:
            continue
        if open_:
            anchor, before = open_[-1]
            open_[-1] = anchor, before + size


def _unbounded(path: Path, event: yaml.Event, what: str) -> ConfigError:
    return ConfigError(f"{path}:{event.start_mark.line + 1}: {what}. Write the values out, or remove them")
