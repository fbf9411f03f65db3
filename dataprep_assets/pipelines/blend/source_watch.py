"""Asks the datasets of a blend for changes: hubs for their commits, folders and buckets for their listings."""

from collections.abc import Iterable
from functools import partial

from dataprep_assets.engine.staleness.source_watch import SourceIdentity, SourceWatch, identity_of, in_words, time_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, Unit
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import SourcePlace, list_meant, open_place
from dataprep_assets.pipelines.blend.plan.plan import PlannedUnit, has_blend_plan, load_blend_plan
from dataprep_assets.planning.manifest import SourceFile
from dataprep_assets.sources.access import HubMirror, LocalTree
from dataprep_assets.sources.hub_cache import COMMIT
from dataprep_assets.sources.upstream import UpstreamPartitions


def blend_watch(blend: BlendDeclaration) -> SourceWatch:
    """How the datasets of a blend are asked for changes."""
    return SourceWatch(identity=partial(_identity, blend), changes=partial(_changes, blend))


def _identity(blend: BlendDeclaration, _: ArtifactStore) -> SourceIdentity:
    listing: list[list[str | int | None]] = []
    stamps: list[list[str | int]] = []
    for unit in blend.data_blend().units():
        place = open_place(unit.dataset, blend.sources, patient=False)
        if isinstance(place.access, HubMirror):
            listing.append([unit.name, _commit(place.access)])
            continue
        files = list_meant(place, unit.dataset)[1]
        listing += [[unit.name, file.relpath, file.size_bytes, file.etag] for file in files]
        # a folder's listing has no versions: only the time tells of an edit that keeps the size
        if isinstance(access := place.access, LocalTree | UpstreamPartitions) and not access.mirrored:
            stamps += [[unit.name, f.relpath, time_of(access.path(f), f.relpath)] for f in files]
    return identity_of(listing, stamps)


def _commit(access: HubMirror) -> str:
    """The present commit of the revision; a revision that is a commit needs no request."""
    revision = access.repo.revision
    return revision if COMMIT.fullmatch(revision) else access.repo.resolve_commit()


def _changes(blend: BlendDeclaration, store: ArtifactStore) -> str:
    """The changes since the present plan, dataset by dataset."""
    units = blend.data_blend().units()
    if not has_blend_plan(blend, store):
        return in_words([(len(units), "dataset", "not planned yet")])
    planned = load_blend_plan(blend, store).units
    declared = {_selection_json(unit.dataset) for unit in units}
    counts = {"new": 0, "gone": len({_selection_json(p.dataset) for p in planned} - declared)}
    files = {"added": 0, "removed": 0, "changed": 0}
    for unit in units:
        of_plan = [p for p in planned if _selection_json(p.dataset) == _selection_json(unit.dataset)]
        if not of_plan:
            counts["new"] += 1
        for verb, count in _of_files(blend, unit, of_plan).items() if of_plan else ():
            files[verb] += count
    return in_words(
        [
            *((count, "file", verb) for verb, count in files.items()),
            *((count, "dataset", verb) for verb, count in counts.items()),
        ]
    )


def _selection_json(dataset: BlendDataset) -> str:
    """The part of a declared dataset that selects its files."""
    return dataset.unattributed.model_dump_json(include={"name", "path", "split", "subset"})


def _of_files(blend: BlendDeclaration, unit: Unit, planned: Iterable[PlannedUnit]) -> dict[str, int]:
    """How many files of a dataset are added, removed and changed since it was planned."""
    place = open_place(unit.dataset, blend.sources, patient=False)
    planned = list(planned)
    # the same commit has the same files: no need to list them
    if isinstance(place.access, HubMirror) and _commit(place.access) == planned[0].commit:
        return {}
    # of a local file the listing knows the size alone, while the plan has a digest: only sizes can be compared
    now = {file.relpath: _version(place, file) for file in list_meant(place, unit.dataset)[1]}
    known = {
        entry.relpath: _version(
            place,
            SourceFile(relpath=entry.relpath, size_bytes=entry.size_bytes, sha256=entry.sha256, etag=entry.etag),
        )
        for one in planned
        for entry in one.entries
    }
    return {
        "added": len(now.keys() - known.keys()),
        "removed": len(known.keys() - now.keys()),
        "changed": sum(known[path] != now[path] for path in known.keys() & now.keys()),
    }


def _version(place: SourcePlace, file: SourceFile) -> tuple[int, str | None]:
    """The identity of a file's bytes in a listing: for a mirrored file more than its size."""
    return file.size_bytes, (file.sha256 or file.etag) if place.access.mirrored else None
