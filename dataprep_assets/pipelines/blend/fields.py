"""Why a dataset of a blend gives nothing to train on: it is empty, or no row has the field that is read.

Told before the plan where the source is on this machine (`remarks.py`), and by the preview of any.

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

__all__ = ["asked_field", "fault_of_files"]

ROWS = 1000
"""How many rows are looked at."""
_SHOWN = 8
"""Fields that are named."""


def asked_field(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, str] | None:
    """The option that names the field that is read of a dataset, and its name; None for RL, whose transforms know."""
    if blend.stage == "pretrain":
        return "text_field", dataset.text_field
    if blend.stage == "sft":
        return "messages_field", dataset.messages_field or blend.sft_options.messages_field
    return None


def fault_of_files(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Iterable[Path], *, whole: bool = True
) -> str | None:
    """What is wrong with a dataset, in a sentence, from the first rows of its files; None where nothing is seen.

    What cannot be read is left to the build of the shards, which refuses it.

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
            yield from ({} for _ in block.bad)  # rows all the same


def _fault_of_rows(
    blend: BlendDeclaration, dataset: BlendDataset, rows: Iterable[dict[str, Any]], *, whole: bool
) -> str | None:
    """The same from rows in order, of which the first are looked at."""
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
