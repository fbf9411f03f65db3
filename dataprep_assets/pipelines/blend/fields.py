"""Finds datasets of a blend with nothing to train on: they are empty, or no row has the field to read.

Reported before the plan if the source is on this machine (`remarks.py`), and by the preview in any case.

Entry points: `asked_field`, `fault_of_files`.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.sources.first_rows import absent_field, first_rows


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
        return _fault_of_rows(blend, dataset, first_rows(paths), whole=whole)
    except (CorruptSourceError, OSError):
        return None


def _fault_of_rows(
    blend: BlendDeclaration, dataset: BlendDataset, rows: Iterator[dict[str, Any]], *, whole: bool
) -> str | None:
    """As `fault_of_files`, from the first of these rows."""
    asked = asked_field(blend, dataset)
    if (first := next(rows, None)) is None:
        return f"dataset {dataset.name} is empty: there is no row in {dataset.path}" if whole else None
    if asked is None:
        return None
    return absent_field(chain([first], rows), *asked, f"dataset {dataset.name}", hidden=blend.sensitive)
