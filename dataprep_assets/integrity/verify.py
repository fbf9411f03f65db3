"""Offline verification of any artifact, dataset or storage root, from receipts alone.

Needs neither Dagster nor its database nor the sources: a receipt says which files an artifact has, with size and
digest, and its ledger must balance.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import NAME, Receipt, Verification, damage, read_receipt


@dataclass(frozen=True, kw_only=True)
class Verified:
    """One artifact's verdict: where it is, what it holds, and its defects, one sentence each."""

    directory: Path
    name: str
    bytes: int
    defects: tuple[str, ...]


def artifacts_below(path: Path) -> Iterator[Path]:
    """Directories below `path` (itself included) that hold a receipt, in name order; staging is not looked into."""
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if f != STAGING and not f.startswith(".aside-"))
        if NAME in names:
            yield Path(folder)


def verify(path: Path, verification: Verification = "full") -> Iterator[Verified]:
    """Check every artifact below a path against its receipt, and against those of its inputs that lie beside it."""
    for directory in artifacts_below(path):
        try:
            receipt = read_receipt(directory)
            assert receipt is not None
            defects = [*damage(directory, receipt, verification), *_inputs_beside(directory, receipt)]
            if receipt.ledger is not None:
                receipt.ledger.balance(str(directory))
        except IntegrityError as error:
            yield Verified(directory=directory, name=directory.name, bytes=0, defects=(str(error),))
            continue
        name = "/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition)))
        yield Verified(directory=directory, name=name, bytes=receipt.total_bytes, defects=tuple(defects))


_INPUTS = {"combined_bins": "token_bins"}


def _inputs_beside(directory: Path, receipt: Receipt) -> Iterator[str]:
    """Inputs of a combined artifact or a view that are lost or are not those it was made of.

    Only where that kind of input is kept here at all: a published dataset may have left its shards behind.
    """
    dataset = directory.parents[1] if receipt.partition else directory.parent
    kind = _INPUTS.get(receipt.artifact, "combined_bins" if "view" in receipt.facts else None)
    if kind is None or not (dataset / kind).is_dir():
        return
    for partition, content in sorted(receipt.inputs.items()):
        try:
            found = read_receipt(dataset / kind / partition)
        except IntegrityError:
            continue  # reported where it lies
        if found is None:
            yield f"its input {kind}/{partition} is missing: materialize it again"
        elif found.content != content:
            yield f"its input {kind}/{partition} has changed since: materialize this artifact again"
