"""The files of a Dagster asset as a source, at the location in its latest materialization or in a declaration.

An asset without partitions is a folder, a file or a prefix in object storage. An asset with partitions has one such
location per partition. The files of a partition are below its key (`train/part-0.parquet`), so that globs of splits
name partitions. Dagster is queried through `set_provider`, because this module does not import it. Files are then
found, digested and pinned like the files of any other source, so a new materialization with the same files changes
nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile
from dataprep_assets.sources.access import Listing, LocalTree, SourceAccess
from dataprep_assets.stores.connect import format_bucket_urls, is_bucket

PLACES = ("path", "dagster/uri", "uri")
"""Metadata keys with the location of a materialization's files, in order of preference.

Assets of this package have them.
"""
_CACHE_SECONDS = 5
"""Time for which materializations are cached, so that Dagster is not queried again for each shard."""


@dataclass(frozen=True, kw_only=True)
class Materialization:
    """The latest materialization of an asset or of one of its partitions: its text metadata, by name."""

    partition: str | None
    metadata: Mapping[str, str]


Lookup = Callable[[Sequence[str]], Sequence[Materialization]]
"""Returns the latest materializations of the asset with this key, one per materialized partition."""


Home = Callable[[], str | None]
"""Returns DAGSTER_HOME of the queried instance; None if it has no particular home."""


# This list has at most one pair, which `set_provider` sets.
_providers: list[tuple[Lookup, Home]] = []


def set_provider(lookup: Lookup, home: Home, *, by_default: bool = False) -> None:
    """Use these functions for asset queries in this process. With `by_default`, existing functions are kept."""
    if not (by_default and _providers):
        _providers[:] = [(lookup, home)]


@lru_cache(maxsize=64)
def _find_materializations(key: tuple[str, ...], _: int) -> tuple[Materialization, ...]:
    if not _providers:
        raise SourceError(
            f"{'/'.join(key)}: the location of this asset's files is known only in Dagster. Set `source.path`"
        )
    return tuple(_providers[0][0](key))


def open_asset(
    key: Sequence[str], *, place: str | None = None, cache_dir: Path | None = None, follow_links: bool = False
) -> SourceAccess:
    """Return the access to the files of an asset.

    Args:
        key: The asset's key.
        place: The declared folder or URL, in which `{partition}` is replaced by the partition's key; None to use the
            metadata.
        cache_dir: The folder of the mirror for files in object storage.
        follow_links: Whether links may lead out of a folder.

    Raises SourceError, naming the asset to materialize, if the location of the files is unknown.
    """
    name = "/".join(key)
    if place is not None and "{partition}" not in place:
        return _open_place(name, place, cache_dir, follow_links)
    # The cache key includes the number of the time slot, so that the next slot queries Dagster again.
    materializations = _find_materializations(tuple(key), int(time.monotonic()) // _CACHE_SECONDS)
    if not materializations:
        raise SourceError(
            f"{name} was never materialized, or does not exist (`dg list defs` lists all assets). Run "
            f"`{describe_launch(key)}` "
            "first, or materialize the asset in the UI"
        )
    locations = {
        materialization.partition: _locate_files(name, materialization, place) for materialization in materializations
    }
    if None in locations:
        return _open_place(name, locations[None], cache_dir, follow_links)
    if len(set(locations.values())) < len(locations):
        raise SourceError(
            f"{name}: several partitions have the same path in their metadata. Log a different path for each "
            "partition, or set `source.path`"
        )
    return UpstreamPartitions(
        {str(p): _open_place(f"{name} [{p}]", address, cache_dir, follow_links) for p, address in locations.items()}
    )


def describe_launch(key: Sequence[str]) -> str:
    """Return the command that materializes an asset.

    It sets DAGSTER_HOME, because Dagster would otherwise not record the run.
    """
    home = _providers[0][1]() if _providers else None
    return f"{f'DAGSTER_HOME={home} ' if home else ''}dg launch --assets {'/'.join(key)}"


def _locate_files(name: str, materialization: Materialization, declared_path: str | None) -> str:
    """Return the location of a materialization's files."""
    if declared_path is not None:
        if materialization.partition is None:
            raise SourceError(f"{name} has no partitions. Set `source.path` without {{partition}}")
        return declared_path.replace("{partition}", materialization.partition)
    location = next((materialization.metadata[key] for key in PLACES if materialization.metadata.get(key)), None)
    if location is None:
        raise SourceError(
            f"{name}: its latest materialization has no `path` or `uri` in its metadata. Add one in the asset "
            '(`metadata={"path": dg.MetadataValue.path(folder)}`), or set `source.path`'
        )
    return location


def _open_place(name: str, place: str, cache_dir: Path | None, follow_links: bool) -> SourceAccess:
    if is_bucket(place):
        if cache_dir is None:
            raise ConfigError(
                f"source.cache_dir: missing, but required because {name} is in {place}. Set a folder for the "
                "downloaded files"
            )
        from dataprep_assets.sources.object_store import ObjectStorePrefix

        return ObjectStorePrefix(url=place.rstrip("/"), cache_dir=cache_dir)
    path = Path(unquote(urlsplit(place).path) if place.startswith("file://") else place)
    if "://" in str(place) and not place.startswith("file://"):
        raise SourceError(f"{name}: {place}: unsupported location. Use a folder, {format_bucket_urls('')}")
    if not path.is_absolute():
        raise SourceError(f"{name}: {place}: must be an absolute path. Log an absolute path")
    if path.is_file():
        return LocalTree(path.parent, follow_links, only=path.name)
    if not path.is_dir():
        raise SourceError(
            f"{name}: {path}: does not exist, although the latest materialization logged it. Materialize the asset "
            "again"
        )
    return LocalTree(path, follow_links)


class UpstreamPartitions:
    """The locations of an asset's partitions as one source, with the files of each partition below its key."""

    def __init__(self, parts: Mapping[str, SourceAccess]) -> None:
        """Combine the sources of all partitions: partition key → access to its files.

        There must be at least one partition, and the sources must be either all local or all mirrored.
        """
        self._parts = parts
        kinds = {part.mirrored for part in parts.values()}
        if len(kinds) > 1:
            raise SourceError(
                "source: some partitions are on this machine and others in object storage. Store all partitions in "
                "one of them"
            )
        self.mirrored = kinds.pop()
        for key in parts:
            if (part_key := self._split_partition(key)[0]) != key:
                raise SourceError(
                    f"source: the partition {key} would be in the folder of the partition {part_key}. Rename the "
                    "partitions so that no key begins with another key and `/`"
                )

    def list(self) -> Listing:
        """Return all files of all partitions."""
        parts = {name: part.list() for name, part in self._parts.items()}
        return Listing(
            files=tuple(
                file._replace(relpath=f"{name}/{file.relpath}") for name, part in parts.items() for file in part.files
            ),
            left_out=frozenset(f"{name}/{path}" for name, part in parts.items() for path in part.left_out),
        )

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        """Return the number of bytes that `fetch` would add to the disk."""
        return sum(part.bytes_to_fetch(its) for part, its in self._group_by_partition(entries))

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        """Fetch the missing files, and verify all of them."""
        for part, part_entries in self._group_by_partition(entries):
            part.fetch(part_entries, progress)

    def path(self, entry: ManifestEntry | SourceFile) -> Path:
        """Return the local path of a file."""
        name, inner_path = self._split_partition(entry.relpath)
        part = self._parts[name]
        inner = entry._replace(relpath=inner_path)
        return part.path(inner) if isinstance(inner, ManifestEntry) else part.storage / inner_path

    def copies(self, relpath: str) -> Sequence[Path]:
        """Return a mirror's copies of a file."""
        name, inner_path = self._split_partition(relpath)
        return self._parts[name].copies(inner_path)

    @property
    def storage(self) -> Path:
        """A path on the disk of the first partition's files."""
        return next(iter(self._parts.values())).storage

    def _split_partition(self, relpath: str) -> tuple[str, str]:
        """Return the partition of a file, whose key may contain slashes, and the file's path in it."""
        # Try every leading part of the path. Only one can match, because no key is a folder of another key
        # (`__init__`).
        for name in accumulate(relpath.split("/"), "{}/{}".format):
            if name in self._parts:
                return name, relpath[len(name) + 1 :]
        raise SourceError(f"{relpath}: the asset no longer has this partition. Rebuild `manifest`")

    def _group_by_partition(
        self, entries: Sequence[ManifestEntry]
    ) -> Iterator[tuple[SourceAccess, Sequence[ManifestEntry]]]:
        groups: dict[str, list[ManifestEntry]] = {}
        for entry in entries:
            name, inner_path = self._split_partition(entry.relpath)
            groups.setdefault(name, []).append(entry._replace(relpath=inner_path))
        return ((self._parts[name], its) for name, its in groups.items())
