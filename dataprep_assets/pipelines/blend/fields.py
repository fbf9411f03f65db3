"""Finds datasets of a blend with nothing to train on: they are empty, or no row has the field to read.

Reported before the plan if the source is on this machine (`remarks.py`), and by the preview in any case.

Entry points: `asked_field`, `fault_of_files`.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.rows import read_rows

ROWS = 1000
"""How many rows are examined."""
_SHOWN = 8
"""Most fields that a message names."""


def asked_field(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, str] | None:
    """The option that names the field to read from a dataset, and the field; None for RL, where transforms decide."""
    if blend.stage == "pretrain":
        return "text_field", dataset.text_field
    if blend.stage == "sft":
        return "messages_field", dataset.messages_field or blend.sft_options.messages_field
    return None


def fault_of_files(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Iterable[Path], *, whole: bool = True
) -> str | None:
    """What is wrong with a dataset, in a sentence, from the first rows of its files; None if nothing is found.

    Unreadable files are left to the build of the shards, which refuses them.

    Args:
        blend: The declaration.
        dataset: One of its datasets.
        paths: Files of it, in order.
        whole: Whether these are all its files, so that it is empty if they are.
    """
    try:
        return _fault_of_rows(blend, dataset, _rows(paths), whole=whole)
    except (CorruptSourceError, OSError):
        return None


def _rows(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        kind, compression = file_format(path.name)
        for block in read_rows(path, format=kind, compression=compression, label=path.name):
            yield from block.rows
            yield from ({} for _ in block.bad)  # bad rows are rows too


def _fault_of_rows(
    blend: BlendDeclaration, dataset: BlendDataset, rows: Iterable[dict[str, Any]], *, whole: bool
) -> str | None:
    """As `fault_of_files`, from the first of these rows."""
    asked = asked_field(blend, dataset)
    seen: dict[str, None] = {}
    count = 0
    for row in itertools.islice(rows, ROWS):
        if asked is None or asked[1] in row:
            return None
        count += 1
        seen.update(dict.fromkeys(row))
    if not count and whole:
        return f"dataset {dataset.name} is empty: there is no row in {dataset.path}"
    if asked is None or not seen:
        return None
    shown = ", ".join(f"`{name}`" for name in list(seen)[:_SHOWN]) + (", …" if len(seen) > _SHOWN else "")
    told = "" if blend.sensitive else f"; they have {shown}"
    return f"`{asked[0]}: {asked[1]}`: none of the first {count:,} rows of dataset {dataset.name} has it{told}"
