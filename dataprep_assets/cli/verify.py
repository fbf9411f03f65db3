"""`dataprep verify`: check artifacts against their receipts, or somebody's copy against a lock, offline."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import LockFile, Select
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.integrity.receipt import Verification
    from dataprep_assets.integrity.verify import Verified


def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PLACE", help="Artifact, dataset or storage root: a folder or a URL; default: all of the storage."
        ),
    ] = None,
    size_only: Annotated[bool, typer.Option("--size-only", help="Compare sizes, not digests.")] = False,
    lock: LockFile = None,
    select: Select = None,
) -> int:
    """Check artifacts against their receipts, or with --lock a copy against a lock, offline."""
    verification: Verification = "size" if size_only else "full"
    if lock is not None:
        return _verify_copy(lock, path, verification, select or [])
    if select:
        raise ConfigError("--select: needs --lock, whose artifacts it chooses")
    return _verify(path, verification)


def _verdicts(path: str | None, verification: "Verification", dataset: str | None = None) -> "Iterator[Verified]":
    """The verdicts on everything at the place; on one dataset's folder if `dataset` has one, and what is too much."""
    from dataprep_assets.integrity.verify import verify, verify_store
    from dataprep_assets.stores.connect import LocalPlace

    found = project.place(path)
    if dataset is not None:
        found = project.place_of_dataset(found, dataset)
    if not isinstance(found, LocalPlace):
        return verify_store(found(), verification, strays=dataset is not None)
    if not found.root.exists():
        raise ConfigError(f"{found.root}: nothing there to verify; `dataprep run NAME` builds a dataset")
    return verify(found.root, verification, strays=dataset is not None)


def _verify(path: str | None, verification: "Verification") -> int:
    count = total = bad = 0
    for verdict in _verdicts(path, verification):
        count += 1
        total += verdict.bytes
        bad += bool(verdict.defects)
        for defect in verdict.defects:
            print(f"DAMAGED {verdict.name}: {defect}")
    print(f"{count} artifacts, {total:,} bytes: {'all match their receipts' if not bad else f'{bad} damaged'}")
    return 1 if bad or not count else 0


def _verify_copy(file: Path, path: str | None, verification: "Verification", select: Sequence[str]) -> int:
    from dataprep_assets.graph.drift import drift_of_copy, selected
    from dataprep_assets.graph.lock_file import read_lock

    lock = read_lock(file)
    wanted = selected(lock, select)
    if not wanted:
        raise ConfigError(f"--select {' '.join(select)}: chooses no artifact of the lock")
    bad = 0
    for drift in drift_of_copy(lock, _verdicts(path, verification, lock.dataset), select):
        bad += 1
        print(f"DIFFERS {drift}")
    told = f"{bad:,} differ" if bad else "all are there, and equal"
    print(f"{lock.dataset}: {len(wanted):,} artifacts of the lock: {told}")
    return 1 if bad else 0
