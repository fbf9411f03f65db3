"""`dataprep verify`: check artifacts against their receipts, releases against their manifests, or somebody's copy
against a lock, offline.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import LockFile, Select
from dataprep_assets.errors import ConfigError, MissingArtifactError

if TYPE_CHECKING:
    from dataprep_assets.integrity.receipt import Verification
    from dataprep_assets.integrity.verify import Verified


def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PLACE",
            help="Artifact, dataset, release or storage root: a folder or a URL; default: all of the storage.",
        ),
    ] = None,
    size_only: Annotated[bool, typer.Option("--size-only", help="Compare sizes, not digests.")] = False,
    lock: LockFile = None,
    select: Select = None,
) -> int:
    """Check artifacts against receipts and releases against manifests, or with --lock a copy against a lock."""
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
    for verdict in () if _is_of_the_web(path) else _verdicts(path, verification):
        count += 1
        total += verdict.bytes
        bad += bool(verdict.defects)
        for defect in verdict.defects:
            print(f"DAMAGED {verdict.name}: {defect}")
    if count:
        print(f"{count} artifacts, {total:,} bytes: {'all match their receipts' if not bad else f'{bad} damaged'}")
    releases = 0
    for name, files, size, defects in _releases(path, verification):
        releases += 1
        bad += bool(defects)
        for defect in defects:
            print(f"DAMAGED {defect}")
        told = f"{len(defects)} damaged" if defects else "all match its release.json"
        print(f"{name}: {files} files, {size:,} bytes: {told}")
    if not count and not releases:
        raise MissingArtifactError(
            f"{path or project.place(None).url}: nothing there to verify: no artifact (receipt.json), no release "
            "(release.json)"
        )
    return 1 if bad else 0


def _is_of_the_web(path: str | None) -> bool:
    """Whether a place is read through a manifest alone: a web server does not list its files."""
    from dataprep_assets.stores.endpoints import allows_http

    schemes = ("https://", "hf://", "http://") if allows_http(os.environ) else ("https://", "hf://")
    return path is not None and path.startswith(schemes)


def _releases(path: str | None, verification: "Verification") -> "Iterator[tuple[str, int, int, list[str]]]":
    """Each release at or below a place: its name, the number and the bytes of its files, and its defects."""
    from dataprep_assets.errors import DataprepError
    from dataprep_assets.pipelines.release.published import release_defects, releases_below
    from dataprep_assets.serving.release import Place, files_of, locate, read_release

    there = Place(project.place(None)()) if path is None else locate(path)
    for place in [there] if _is_of_the_web(path) else releases_below(there):
        try:
            release = read_release(place)
            where = files_of(place, release)
        except DataprepError as error:
            yield str(place), 0, 0, [str(error)]
            continue
        name = f"{place}: release {release.digest[:12]} of {release.dataset}"
        size = sum(file.bytes for file in release.files)
        yield name, len(release.files), size, list(release_defects(where, release, verification))


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
