"""`dataprep verify`: check artifacts against their receipts, or somebody's copy against a lock, offline."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.cli import project
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.integrity.receipt import Verification
    from dataprep_assets.integrity.verify import Verified

__all__ = ["declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "verify", help="check artifacts against their receipts, or a copy against a lock, offline"
    )
    parser.add_argument(
        "path", nargs="?", help="artifact, dataset or storage root: a folder or a URL (default: the whole storage)"
    )
    parser.add_argument("--size-only", action="store_true", help="compare sizes, not digests")
    parser.add_argument(
        "--lock", type=Path, metavar="FILE", help="the copy has all artifacts of this lock, and no other"
    )
    parser.add_argument(
        "--select", nargs="+", default=[], metavar="GLOB", help="with --lock: only these artifacts have to be there"
    )
    parser.set_defaults(execute=_execute)


def _execute(options: argparse.Namespace) -> int:
    verification: Verification = "size" if options.size_only else "full"
    if options.lock is not None:
        return _verify_copy(options.lock, options.path, verification, options.select)
    if options.select:
        raise ConfigError("--select: goes with --lock, whose artifacts it chooses")
    return _verify(options.path, verification)


def _verdicts(path: str | None, verification: "Verification", dataset: str | None = None) -> "Iterator[Verified]":
    """Of all that is there, or where a dataset has a folder of its own, of that."""
    from dataprep_assets.integrity.verify import verify, verify_store
    from dataprep_assets.stores.connect import LocalPlace

    found = project.place(path)
    if dataset is not None:
        found = project.place_of_dataset(found, dataset)
    if not isinstance(found, LocalPlace):
        return verify_store(found(), verification)
    if not found.root.exists():
        raise ConfigError(f"{found.root}: nothing there to verify")
    return verify(found.root, verification)


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
