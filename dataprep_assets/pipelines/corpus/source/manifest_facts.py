"""The facts of a manifest's receipt, and the files of the source that it does not list."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dataprep_assets.engine.artifact.facts import Facts
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.checks.finding import SHOWN
from dataprep_assets.integrity.receipt import Receipt


class ManifestFacts(Facts):
    """Facts of the manifest's receipt; `shards` are counts by split, `commit` the hub's.

    `no_split` counts the included files of the source that match no split, `first_of_no_split` names some of them.
    `files_left_out` counts included files that are no data (`sources/readers/saved_datasets.py`).
    """

    commit: str | None
    files: int
    shards: dict[str, int]
    source_bytes: int
    no_split: int = 0
    first_of_no_split: tuple[str, ...] = ()
    files_left_out: int = 0


def facts_of_no_split(files: Sequence[str]) -> dict[str, Any]:
    """The facts of files that match no split; none where there are none, so that such receipts stay as they were."""
    return {"no_split": len(files), "first_of_no_split": tuple(files[:SHOWN])} if files else {}


def left_out_files(receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """The included files of the source that a manifest left out: they match no split, or are no data."""
    for receipt in receipts:
        facts = ManifestFacts.of(receipt)
        split = Loss(
            action="left out",
            reason="no_split",
            count=facts.no_split,
            of=facts.files + facts.no_split + facts.files_left_out,
            unit="file",
            files=dict.fromkeys(facts.first_of_no_split, 1),
        )
        yield from (split, replace(split, reason="no_data", count=facts.files_left_out, files={}))
