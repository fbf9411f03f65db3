"""Declared sources: access to one, its entry in a data card, and the list of its files in a snapshot."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.engine.artifact.spec import AssetInput
from dataprep_assets.engine.card.contents import CardSource, add_attribution
from dataprep_assets.engine.checks.check import Finding, build_verdict, fail_on_errors
from dataprep_assets.errors import ConfigError, FormatError, count_of, os_error_reason
from dataprep_assets.sources.access import HubCache, HubMirror, LocalTree, SourceAccess
from dataprep_assets.sources.upstream import open_asset
from dataprep_assets.stores.files import PLAIN, SourceDigests, canonical_json, sha256_file
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stream.declaration import (
    AssetSource,
    HubCacheSource,
    HubSource,
    LocalSource,
    ObjectStoreSource,
    Source,
)
from dataprep_assets.table import format_share

# `files.jsonl` lists the path, size and SHA-256 of each source file of a snapshot. Checks verify that the files still
# have these digests, and that the disk has room for the downstream artifacts.

FILES = "files.jsonl"


def encode_snapshot(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of the snapshot file with these lines, for a corpus or a blend."""
    return b"".join(canonical_json(line) + b"\n" for line in lines)


def read_snapshot(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of a snapshot of a corpus or a blend; raises FormatError, naming the line, if it is invalid."""
    path = directory / FILES
    lines: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            for text in file:
                line = load_untrusted_json(text)
                lines.append({**line, "relpath": str(line["relpath"]), "sha256": str(line["sha256"])})
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        location = f"{path}: line {len(lines) + 1}"
        raise FormatError(f"{location}: invalid line of a snapshot: {error}. Rebuild `snapshot`") from error
    return lines


@fail_on_errors
def digests_match(
    expected_digests: Mapping[str, str],
    paths: Mapping[str, Path],
    other_datasets: Iterable[str] = (),
    digests: SourceDigests = PLAIN,
) -> Finding:
    """Check that every file has the expected SHA-256. Each file is read once.

    Args:
        expected_digests: Label → expected digest.
        paths: Label → file.
        other_datasets: Defects found elsewhere.
        digests: Kind of the digests: plain SHA-256 or keyed.
    """
    present_files = [path for label, path in paths.items() if label in expected_digests and path.is_file()]
    return build_verdict(
        [*other_datasets, *_find_differing(expected_digests, paths, digests)],
        f"{count_of(len(expected_digests), 'file has', 'files have')} the listed SHA-256.",
        "Rebuild `snapshot` of their shard to download these files again",
        facts={"files": len(expected_digests), "bytes": sum(path.stat().st_size for path in present_files)},
    )


def _find_differing(
    expected_digests: Mapping[str, str], paths: Mapping[str, Path], digests: SourceDigests
) -> Iterator[str]:
    for label, expected_digest in expected_digests.items():
        if label not in paths:
            yield f"{label}: is listed in the snapshot, but missing"
            continue
        try:
            actual = digests.digest_of(sha256_file(paths[label]))
        except OSError as error:
            yield f"{label}: {paths[label]}: {os_error_reason(error)}"
            continue
        if actual != expected_digest:
            yield f"{label}: expected sha256 {expected_digest}, but found {actual}"
    for label in sorted(paths.keys() - expected_digests.keys()):
        yield f"{label}: exists, but is not listed in the snapshot"


@fail_on_errors
def disk_headroom(path: Path, expected_more_bytes: int, headroom: float = 0.2) -> Finding:
    """Check that the disk of `path` has room for `expected_more_bytes` and an additional fraction `headroom` of it.

    `path` need not exist yet: its nearest existing parent is checked.
    """
    directory = path.absolute()
    while not directory.exists():
        directory = directory.parent
    usage = shutil.disk_usage(directory)
    needed = expected_more_bytes + int(expected_more_bytes * headroom)
    short = needed - usage.free
    return build_verdict(
        [
            f"{path}: {count_of(needed, 'byte is', 'bytes are')} needed (with {format_share(headroom)} headroom), but "
            f"only {usage.free:,} are free"
        ]
        if short > 0
        else [],
        f"{count_of(usage.free, 'byte is', 'bytes are')} free, {needed} needed.",
        f"Free {count_of(short, 'byte')}, choose a larger disk, or build fewer shards",
        facts={
            "used_bytes": usage.used,
            "free_bytes": usage.free,
            "needed_bytes": needed,
            # Use a string, because Dagster plots numbers over time, and a plot of a constant is useless.
            "total_bytes": str(usage.total),
            "used_share": round(usage.used / usage.total, 4),
        },
    )


_HUB_FOLDER = "datasets--"


def open_source(source: Source, *, patient: bool = True) -> SourceAccess:
    """Return the access to a declared source; unless `patient`, an unreachable Hub fails after a second.

    Raises SourceError if the source is an asset that was never materialized.
    """
    if isinstance(source, AssetSource):
        access = open_asset(source.key, place=source.path, cache_dir=source.cache_dir, follow_links=source.follow_links)
        if source.mirrored and not access.mirrored:
            raise ConfigError("source.cache_dir: not used for assets, whose files are already local. Remove the key")
        return access
    if isinstance(source, LocalSource):
        return LocalTree(source.path, source.follow_links)
    if isinstance(source, HubCacheSource):
        return HubCache(source.path, source.revision, source.follow_links)
    if isinstance(source, ObjectStoreSource):
        from dataprep_assets.sources.object_store import ObjectStorePrefix

        return ObjectStorePrefix(
            url=source.url,
            cache_dir=source.cache_dir,
            endpoint_url=source.endpoint_url,
            region=source.region,
            allow_http=source.allow_http,
            access=source.access,
        )
    from dataprep_assets.sources.hub import HubRepo

    return HubMirror(
        HubRepo(
            repo_id=source.repo,
            revision=source.revision,
            endpoint=source.endpoint,
            cache_dir=source.cache_dir,
            allow_http=source.allow_http,
            retry=RetryPolicy() if patient else RetryPolicy(attempts=2),
        )
    )


def is_mirrored(source: Source) -> bool:
    """Return whether the files of a declared source are downloaded; the source is not contacted."""
    return source.mirrored if isinstance(source, AssetSource) else not isinstance(source, LocalSource | HubCacheSource)


def list_upstream_assets(source: Source) -> tuple[AssetInput, ...]:
    """Return the assets that provide a declared source's files: upstream assets of the artifact that reads them."""
    return (AssetInput(key=source.key),) if isinstance(source, AssetSource) else ()


def describe_card_source(source: Source) -> CardSource:
    """Return a declared source as a data card describes it, with its public name and never a local path."""
    if isinstance(source, AssetSource):
        card = CardSource(name="/".join(source.key), kind="asset")
    elif isinstance(source, HubSource):
        card = CardSource(name=source.repo, kind="hub", place=f"hf://datasets/{source.repo}")
    elif isinstance(source, ObjectStoreSource):
        card = CardSource(name=source.url, kind="object_store", place=source.url)
    elif isinstance(source, HubCacheSource) and source.path.name.startswith(_HUB_FOLDER):
        # The cache replaces the slash in a repository's name with `--`.
        repo = source.path.name.removeprefix(_HUB_FOLDER).replace("--", "/", 1)
        card = CardSource(name=repo, kind="hub", place=f"hf://datasets/{repo}")
    else:
        card = CardSource(name="local files", kind=source.kind)
    return add_attribution(card, source)
