"""`dataprep verify`: offline verification of artifacts by receipts, releases by manifests, or a copy by a lock."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, LockFile, Select, print_error_line
from dataprep_assets.errors import ConfigError, MissingArtifactError, count_of

if TYPE_CHECKING:
    from dataprep_assets.integrity.receipt import Verification
    from dataprep_assets.sources.hub_store import HubStore

_ManifestVerdict = tuple[str, str, str, int, int, list[str]]


def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Dataset name, or the folder or URL of an artifact, release, storage root or repository on the Hub "
            "(hf://datasets/org/name). [default: the whole storage]",
        ),
    ] = None,
    size_only: Annotated[
        bool, typer.Option("--size-only", help="Compare only sizes, without reading the files to compare digests.")
    ] = False,
    lock: LockFile = None,
    select: Select = None,
    json_: AsJson = False,
) -> int:
    """Compare artifacts with their receipts, and releases with their manifests. --lock compares a copy with a lock."""
    verification: Verification = "size" if size_only else "full"
    path = _find_dataset_location(path)
    if lock is not None:
        return _verify_copy(lock, path, verification, select or [], as_json=json_)
    if select:
        raise ConfigError("--select needs --lock. Add --lock, or remove --select")
    return _verify(path, verification, as_json=json_)


def _find_dataset_location(place: str | None) -> str | None:
    """Return the location of a dataset's artifacts if `place` is the dataset's name; otherwise return `place`."""
    # Prefer an existing file or folder to a dataset with the same name, because the dataset can also be named by its
    # location.
    if place is None or "/" in place or Path(place).exists():
        return place
    if place not in project.list_kinds():
        try:
            project.find_declaration(place)
        except ConfigError as error:
            raise ConfigError(f"{place}: not a folder, and {error}") from None
    return f"{project.use_dataset(place).store(project.open_storage()).address}/{place}"


def _verify(path: str | None, verification: "Verification", *, as_json: bool) -> int:
    """Verify the artifacts and releases at a path, and print the verdicts; return the exit code."""
    from dataprep_assets.engine.checks.check import join_first
    from dataprep_assets.integrity.verify import verify_place, verify_store

    count = total = bad_count = outdated = 0
    damaged_locations: list[str] = []
    hub = _open_hub(path)
    if hub is not None:
        verdicts = verify_store(hub, verification)
    else:
        verdicts = iter(()) if _is_on_web_server(path) else verify_place(project.open_store(path), verification)
    for verdict in verdicts:
        count += 1
        total += verdict.bytes
        bad_count += bool(verdict.defects)
        if verdict.defects:
            damaged_locations.append(verdict.location)
        outdated += bool(verdict.changed_inputs)
        if as_json:
            fields = _build_fields(verdict.location, verdict.bytes, verdict.defects)
            print(json.dumps({"artifact": verdict.name, **fields, "changed_inputs": list(verdict.changed_inputs)}))
            continue
        for defect in verdict.defects:
            print_error_line(f"DAMAGED {verdict.name}: {defect}")
        if verdict.changed_inputs:
            changed = join_first(verdict.changed_inputs)
            print(f"note: {verdict.name}: inputs changed after this artifact was built: {changed}")
    if count and not as_json:
        matches = _describe_matches(count, "its receipt", "their receipts", verification)
        outcome = f"{bad_count:,} damaged" if bad_count else matches
        older = (
            f"; the inputs of {count_of(outdated, 'artifact')} have changed. Run `dataprep status NAME` for details"
            if outdated
            else ""
        )
        print(f"{count_of(count, 'artifact')}, {count_of(total, 'byte')}: {outcome}{older}")
        for remedy in _list_remedies(damaged_locations):
            print_error_line(remedy)
    releases = 0
    for kind, name, location, files, size, defects in (
        *_find_releases(path, hub, verification),
        *(() if hub is None else _find_publications(hub, verification)),
    ):
        releases += 1
        bad_count += bool(defects)
        if as_json:
            print(json.dumps({kind: name, "files": files, **_build_fields(location, size, defects)}))
            continue
        for defect in defects:
            print_error_line(f"DAMAGED {defect}")
        matches = _describe_matches(files, f"{kind}.json", f"{kind}.json", verification)
        damage = f"{len(defects):,} damaged" if files else "not readable"
        outcome = damage if defects else matches
        print(f"{location}: {name}: {count_of(files, 'file')}, {count_of(size, 'byte')}: {outcome}")
    if not count and not releases:
        raise MissingArtifactError(
            f"{path or project.open_store(None).url}: nothing to verify: no artifact (receipt.json) and no release "
            "(release.json) found. Correct the path"
        )
    return 1 if bad_count else 0


def _describe_matches(count: int, singular: str, plural: str, verification: "Verification") -> str:
    """Return the outcome for intact artifacts or files; `singular` and `plural` name the expected state."""
    outcome = f"matches {singular}" if count == 1 else f"all match {plural}"
    return f"{outcome} (without reading the files)" if verification == "size" else outcome


def _list_remedies(locations: Sequence[str]) -> Iterator[str]:
    """Yield a line per dataset with the command that repairs its artifacts at these locations."""
    other_locations = list(locations)
    with suppress(ConfigError):  # outside a project, the locations belong to no declared dataset
        for name in project.list_kinds() if locations else ():
            if not any(f"/{name}/" in location for location in other_locations):
                continue
            dataset = project.use_dataset(name)
            folder = f"{dataset.store(project.open_storage()).address}/{name}/"
            own_locations = [location for location in other_locations if location.startswith(folder)]
            other_locations = [location for location in other_locations if location not in own_locations]
            if own_locations and dataset.declaration.verify == "size":
                # Ask the user to delete the artifacts first, because a run of this dataset compares only sizes and
                # would keep changed files of the same size.
                yield f"Delete {', '.join(own_locations)}. Then run `dataprep run {name}` to rebuild the artifacts"
            elif own_locations:
                yield f"Run `dataprep run {name}` to rebuild the damaged artifacts"
    if other_locations:
        is_one = len(other_locations) == 1
        artifacts = count_of(len(other_locations), "damaged artifact is", "damaged artifacts are")
        advice = (
            "Copy it again with `dataprep sync`, or rebuild it in the project that declares its dataset"
            if is_one
            else "Copy them again with `dataprep sync`, or rebuild them in the projects that declare their datasets"
        )
        yield f"{artifacts} not part of any dataset of this project. {advice}"


def _build_fields(location: str, size: int, defects: "Sequence[str]") -> dict[str, Any]:
    return {"location": location, "bytes": size, "defects": list(defects)}


def _is_on_web_server(path: str | None) -> bool:
    """Return whether a location can only be read through a manifest, because a web server does not list its files."""
    from dataprep_assets.stores.endpoints import allows_http

    schemes = ("https://", "hf://", "http://") if allows_http(os.environ) else ("https://", "hf://")
    return path is not None and path.startswith(schemes)


def _open_hub(path: str | None) -> "HubStore | None":
    """Return the files of a dataset repository on the Hub; None for any other location."""
    if path is None or not path.startswith("hf://datasets/"):
        return None
    from dataprep_assets.sources.hub_store import open_hub_store

    return open_hub_store(path.removesuffix("/release.json"))


def _find_publications(hub: "HubStore", verification: "Verification") -> "Iterator[_ManifestVerdict]":
    """Yield the publication in a repository: its kind, name, location, number of files, bytes and defects."""
    from dataprep_assets.engine.publishing.marker import find_marked_defects, read_marker

    if (marker := read_marker(hub)) is not None:
        size = sum(file["bytes"] for file in marker["files"].values())
        defects = list(find_marked_defects(hub, marker, verification))
        yield "publication", f"publication of {marker['dataset']}", hub.url, len(marker["files"]), size, defects


def _find_releases(
    path: str | None, hub: "HubStore | None", verification: "Verification"
) -> "Iterator[_ManifestVerdict]":
    """Yield each release at or below a location: its kind, name, location, number of files, bytes and defects."""
    from dataprep_assets.errors import DataprepError
    from dataprep_assets.pipelines.release.published import find_release_defects, find_releases_below
    from dataprep_assets.serving.window.release import ReleaseLocation, locate_files, locate_release, read_release

    if hub is not None:
        location = ReleaseLocation(hub)
    else:
        location = ReleaseLocation(project.open_store(None)()) if path is None else locate_release(path)
    is_listed = hub is not None or not _is_on_web_server(path)
    for release_location in find_releases_below(location) if is_listed else [location]:
        try:
            release = read_release(release_location)
            release_files = locate_files(release_location, release)
        except DataprepError as error:
            yield "release", "release", str(release_location), 0, 0, [str(error)]
            continue
        name = f"release {release.digest[:12]} of {release.dataset}"
        size = sum(file.bytes for file in release.files)
        yield (
            "release",
            name,
            str(release_location),
            len(release.files),
            size,
            list(find_release_defects(release_files, release, verification)),
        )


def _verify_copy(
    file: Path, path: str | None, verification: "Verification", select: Sequence[str], *, as_json: bool
) -> int:
    """Compare a copy with a lock, and print the differences; return the exit code."""
    from dataprep_assets.engine.lock.drift import find_copy_drift, select_artifacts
    from dataprep_assets.engine.lock.lock import read_lock
    from dataprep_assets.integrity.verify import verify_place

    lock = read_lock(file)
    artifacts = select_artifacts(lock, select)
    if not artifacts:
        raise ConfigError(f"--select {' '.join(select)}: matches no artifact of the lock. Correct the pattern")
    bad_count = 0
    verdicts = verify_place(project.open_store(path), verification, dataset=lock.dataset, strays=True)
    for drift in find_copy_drift(lock, verdicts, select):
        if drift.is_obsolete:
            print(f"note: {drift}", file=sys.stderr)
            continue
        bad_count += 1
        differs = replace(drift, reason=lock.privacy.public_text(drift.reason, "differs"))
        if as_json:
            print(json.dumps({"artifact": differs.name, "differs": differs.reason}))
        else:
            print_error_line(f"DIFFERS {differs}")
    if not as_json:
        matches = "matches" if len(artifacts) == 1 else "all match"
        outcome = count_of(bad_count, "differs", "differ") if bad_count else matches
        print(f"{lock.dataset}: {count_of(len(artifacts), 'artifact')} in the lock: {outcome}")
    return 1 if bad_count else 0
