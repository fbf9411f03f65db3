"""`dataprep verify`: offline verification of artifacts by receipts, releases by manifests, or a copy by a lock."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, LockFile, Select, tell_wrong
from dataprep_assets.errors import ConfigError, MissingArtifactError, count_of

if TYPE_CHECKING:
    from dataprep_assets.integrity.receipt import Verification


def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PLACE",
            help="A dataset name, or the folder or URL of an artifact, release or storage root. [default: the whole "
            "storage]",
        ),
    ] = None,
    size_only: Annotated[bool, typer.Option("--size-only", help="Compare sizes, not digests.")] = False,
    lock: LockFile = None,
    select: Select = None,
    json_: AsJson = False,
) -> int:
    """Compare artifacts with receipts, releases with manifests, or with --lock a copy with a lock."""
    verification: Verification = "size" if size_only else "full"
    path = _of_dataset(path)
    if lock is not None:
        return _verify_copy(lock, path, verification, select or [], as_json=json_)
    if select:
        raise ConfigError("--select: selects artifacts of a lock. Add --lock")
    return _verify(path, verification, as_json=json_)


def _of_dataset(place: str | None) -> str | None:
    """Return the location of a dataset's artifacts if `place` is the dataset's name; otherwise return `place`."""
    # an existing folder takes precedence over a dataset of the same name
    if place is None or "/" in place or Path(place).exists() or place not in project.kinds():
        return place
    return f"{project.component(place).store(project.storage()).address}/{place}"


def _verify(path: str | None, verification: "Verification", *, as_json: bool) -> int:
    from dataprep_assets.engine.checks.check import first_of
    from dataprep_assets.integrity.verify import verify_place

    count = total = bad = outdated = 0
    for verdict in () if _is_of_the_web(path) else verify_place(project.open_store(path), verification):
        count += 1
        total += verdict.bytes
        bad += bool(verdict.defects)
        outdated += bool(verdict.changed_inputs)
        if as_json:
            fields = _fields(verdict.location, verdict.bytes, verdict.defects)
            print(json.dumps({"artifact": verdict.name, **fields, "changed_inputs": list(verdict.changed_inputs)}))
            continue
        for defect in verdict.defects:
            tell_wrong(f"DAMAGED {verdict.name}: {defect}")
        if verdict.changed_inputs:
            print(f"note: {verdict.name}: its input changed after it was built: {first_of(verdict.changed_inputs)}")
    if count and not as_json:
        outcome = f"{bad} damaged" if bad else "all match their receipts"
        older = f"; the inputs of {outdated} have changed, see `dataprep status`" if outdated else ""
        print(f"{count_of(count, 'artifact')}, {count_of(total, 'byte')}: {outcome}{older}")
    releases = 0
    for name, location, files, size, defects in _releases(path, verification):
        releases += 1
        bad += bool(defects)
        if as_json:
            print(json.dumps({"release": name, "files": files, **_fields(location, size, defects)}))
            continue
        for defect in defects:
            tell_wrong(f"DAMAGED {defect}")
        outcome = f"{len(defects)} damaged" if defects else "all match release.json"
        print(f"{location}: {name}: {count_of(files, 'file')}, {count_of(size, 'byte')}: {outcome}")
    if not count and not releases:
        raise MissingArtifactError(
            f"{path or project.open_store(None).url}: nothing to verify: no artifact (receipt.json) and no release "
            "(release.json) found"
        )
    return 1 if bad else 0


def _fields(location: str, size: int, defects: "Sequence[str]") -> dict[str, Any]:
    return {"location": location, "bytes": size, "defects": list(defects)}


def _is_of_the_web(path: str | None) -> bool:
    """Return whether a place is only readable through a manifest, because a web server does not list its files."""
    from dataprep_assets.stores.endpoints import allows_http

    schemes = ("https://", "hf://", "http://") if allows_http(os.environ) else ("https://", "hf://")
    return path is not None and path.startswith(schemes)


def _releases(path: str | None, verification: "Verification") -> "Iterator[tuple[str, str, int, int, list[str]]]":
    """Yield each release at or below a place: its name, location, number of files, bytes and defects."""
    from dataprep_assets.errors import DataprepError
    from dataprep_assets.pipelines.release.published import release_defects, releases_below
    from dataprep_assets.serving.window.release import ReleaseLocation, files_of, locate, read_release

    location = ReleaseLocation(project.open_store(None)()) if path is None else locate(path)
    for release_location in [location] if _is_of_the_web(path) else releases_below(location):
        try:
            release = read_release(release_location)
            where = files_of(release_location, release)
        except DataprepError as error:
            yield "release", str(release_location), 0, 0, [str(error)]
            continue
        name = f"release {release.digest[:12]} of {release.dataset}"
        size = sum(file.bytes for file in release.files)
        yield name, str(release_location), len(release.files), size, list(release_defects(where, release, verification))


def _verify_copy(
    file: Path, path: str | None, verification: "Verification", select: Sequence[str], *, as_json: bool
) -> int:
    from dataprep_assets.engine.lock.drift import drift_of_copy, selected
    from dataprep_assets.engine.lock.lock import read_lock
    from dataprep_assets.integrity.verify import verify_place

    lock = read_lock(file)
    artifacts = selected(lock, select)
    if not artifacts:
        raise ConfigError(f"--select {' '.join(select)}: matches no artifact of the lock")
    bad = 0
    verdicts = verify_place(project.open_store(path), verification, dataset=lock.dataset, strays=True)
    for drift in drift_of_copy(lock, verdicts, select):
        if drift.is_obsolete:
            print(f"note: {drift}", file=sys.stderr)
            continue
        bad += 1
        differs = replace(drift, reason=lock.privacy.text(drift.reason, "differs"))
        if as_json:
            print(json.dumps({"artifact": differs.name, "differs": differs.reason}))
        else:
            tell_wrong(f"DIFFERS {differs}")
    if not as_json:
        outcome = f"{bad:,} differ" if bad else "all match"
        print(f"{lock.dataset}: {count_of(len(artifacts), 'artifact')} of the lock: {outcome}")
    return 1 if bad else 0
