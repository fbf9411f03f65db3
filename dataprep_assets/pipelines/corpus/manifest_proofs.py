"""Proofs on a manifest: it equals the present listing, its files exist, and the shard plan covers it.

Entry points: `count_matches`, `entries_resolve`, `plan_covers`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding, first_of, judged, verdict
from dataprep_assets.planning.globs import glob_pattern, taken_by
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile
from dataprep_assets.planning.shard_plan import split_of
from dataprep_assets.plural import count_of

_AGAIN = "Materialize `manifest` again if the source was meant to change"


@judged
def count_matches(
    entries: Sequence[ManifestEntry],
    listed: Sequence[SourceFile],
    include: Sequence[str],
    splits: Mapping[str, Sequence[str]],
) -> Finding:
    """The manifest holds exactly the files that a fresh listing has for its globs, with their sizes and digests."""
    wanted = taken_by(include, naming=[glob for globs in splits.values() for glob in globs])
    patterns = {name: [glob_pattern(g) for g in globs] for name, globs in splits.items()}
    fresh: dict[str, tuple[SourceFile, str]] = {}
    for file in listed:
        homes = [name for name, globs in patterns.items() if any(p.fullmatch(file.relpath) for p in globs)]
        if homes and wanted(file.relpath):
            fresh[file.relpath] = file, homes[0]
    known = {e.relpath: e for e in entries}
    missing = [path for path in known if path not in fresh]
    extra = [path for path in fresh if path not in known]
    repeated = [path for path, count in Counter(e.relpath for e in entries).items() if count > 1]
    changed = list(_changed(known, fresh))
    defects = []
    for paths, what in (
        (missing, "of the manifest not in the source"),
        (extra, "of the source not in the manifest"),
        (repeated, "in the manifest more than once"),
    ):
        if paths:
            defects.append(f"{count_of(len(paths), 'file')} {what}: {first_of(paths)}")
    return verdict(
        defects + changed,
        f"The manifest lists what the source has: {count_of(len(entries), 'file')}, with its sizes and digests.",
        _AGAIN,
        facts={
            "files": len(entries),
            "files_in_source": len(fresh),
            "missing": len(missing),
            "extra": len(extra),
            "changed": len(changed),
            "bytes": sum(e.size_bytes for e in entries),
        },
    )


def _changed(known: Mapping[str, ManifestEntry], fresh: Mapping[str, tuple[SourceFile, str]]) -> Iterator[str]:
    for path, entry in known.items():
        if path not in fresh:
            continue
        file, split = fresh[path]
        if entry.size_bytes != file.size_bytes:
            yield f"{path}: the manifest says {entry.size_bytes} bytes, the source {file.size_bytes}"
        elif entry.sha256 and file.sha256 and entry.sha256 != file.sha256:
            yield f"{path}: the manifest says sha256 {entry.sha256}, the source {file.sha256}"
        # compared only without a digest: a source with digests may change its etags
        elif not (entry.sha256 and file.sha256) and entry.etag and file.etag and entry.etag != file.etag:
            yield f"{path}: the manifest says etag {entry.etag}, the source {file.etag}"
        elif entry.split != split:
            yield f"{path}: the manifest has it in split {entry.split}, the globs put it in {split}"


@judged
def entries_resolve(
    entries: Sequence[ManifestEntry], resolve: Callable[[ManifestEntry], Path], *, seed: int, samples: int = 32
) -> Finding:
    """Randomly drawn entries are files of the manifest's size at the path that `resolve` returns."""
    rng = np.random.default_rng(seed)
    drawn = sorted(rng.choice(len(entries), min(samples, len(entries)), replace=False).tolist()) if entries else []
    defects = []
    for entry in (entries[i] for i in drawn):
        try:
            path = resolve(entry)
            size = path.stat().st_size
            if not path.is_file():
                defects.append(f"{entry.relpath}: {path} is not a file")
            elif size != entry.size_bytes:
                defects.append(f"{entry.relpath}: {path} has {size} bytes, the manifest says {entry.size_bytes}")
        except OSError as error:
            defects.append(f"{entry.relpath}: {error.filename}: {error.strerror or error}")
        except DataprepError as error:
            defects.append(f"{entry.relpath}: {error}")
    return verdict(
        defects,
        f"{len(drawn):,} of {count_of(len(entries), 'file')}, drawn at random: there, with their sizes.",
        "Materialize `snapshot` again, or restore the files",
        facts={"sampled": len(drawn), "files": len(entries)},
    )


@judged
def plan_covers(entries: Sequence[ManifestEntry], plan: Mapping[str, range], others: Iterable[str] = ()) -> Finding:
    """The shards hold every ordinal of the manifest exactly once, in order, and each shard only files of its split.

    `others` are defects found elsewhere.
    """
    return verdict(
        [*_uncovered(entries, plan), *others],
        f"{count_of(len(entries), 'file')} of the manifest, in {count_of(len(plan), 'shard')}: each once, in order.",
        "Materialize `manifest` again: it freezes a new plan",
        facts={"shards": len(plan), "files": len(entries)},
    )


def _uncovered(entries: Sequence[ManifestEntry], plan: Mapping[str, range]) -> Iterator[str]:
    for position, entry in enumerate(entries):
        if entry.ordinal != position:
            yield f"{entry.relpath}: is line {position + 1} of the manifest, but has ordinal {entry.ordinal}"
            # the first is told: what follows it is shifted, too
            break
    expected = 0
    for key, ordinals in plan.items():
        if not len(ordinals) or ordinals.step != 1:
            yield f"shard {key}: {ordinals} does not hold consecutive files"
            continue
        if ordinals.start > expected:
            skipped = first_of(e.relpath for e in entries[expected : ordinals.start])
            yield f"shard {key}: ordinals {expected} to {ordinals.start - 1} before it are in no shard: {skipped}"
        elif ordinals.start < expected:
            yield f"shard {key}: ordinals {ordinals.start} to {expected - 1} are in an earlier shard already"
        foreign = [e.relpath for e in entries[ordinals.start : ordinals.stop] if e.split != split_of(key)]
        if foreign:
            yield f"shard {key}: {len(foreign)} files are of another split: {first_of(foreign)}"
        # after an overlap the furthest end counts: what is covered already is no gap
        expected = max(expected, ordinals.stop)
    if expected != len(entries):
        yield f"the plan ends at ordinal {expected}, the manifest has {len(entries)} files"
