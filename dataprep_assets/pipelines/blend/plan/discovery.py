"""Discovery of the files of each dataset of a blend: on a hub, in a bucket, or on this machine.

A plan depends on content, never on modification times. Local files are read completely to compute their SHA-256. For
hubs and buckets, the listed digests (LFS digest, git blob id, ETag) are used. A hub's revision is pinned to its commit.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from dataprep_assets.engine.artifact.spec import AssetInput
from dataprep_assets.errors import ConfigError, DataprepError, SourceError, os_error_reason
from dataprep_assets.integrity.receipt import NAME as RECEIPT
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, Unit
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, SourceAccessDeclaration
from dataprep_assets.planning.inputs import INPUTS
from dataprep_assets.planning.manifest import (
    COMPRESSION,
    ManifestEntry,
    SourceFile,
    build_include_predicate,
    file_format,
    natural_key,
    select_included_paths,
)
from dataprep_assets.sources.access import (
    LEFT_OUT,
    HubMirror,
    Listing,
    LocalTree,
    SourceAccess,
    compute_source_digest,
    read_size,
)
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.sources.upstream import open_asset
from dataprep_assets.stores.connect import format_bucket_urls, is_bucket
from dataprep_assets.stores.endpoints import check_endpoint, check_region
from dataprep_assets.stores.files import PLAIN, SourceDigests
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stream.token_stream import SourcePart

_COMPRESSED_ENDINGS = "|".join(map(re.escape, COMPRESSION))
_DATA = re.compile(rf"\.(parquet|(jsonl|json|ndjson)({_COMPRESSED_ENDINGS})?)$", re.IGNORECASE)
_ENDING = re.compile(rf"\.([a-z0-9_]+)(?:{_COMPRESSED_ENDINGS})?$", re.IGNORECASE)
_JSON_ENDING = re.compile(rf"\.json(?:{_COMPRESSED_ENDINGS})?$", re.IGNORECASE)
_NOT_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"})
"""Names of JSON files that tools write next to the data. They are data only if the declared path names them."""
_DECLARATION = "defs.yaml"
_WILDCARD = re.compile(r"[*?\[]")
_HUB = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([^/@]+))?/?")
ASSET = "asset://"
_ALL_FILES = ("**",)
_SHARD_NUMBER = re.compile(r"[-.]\d+(?:-of-\d+)?$")
RL_SPLITS = {"train": ("train",), "val": ("validation", "val", "valid", "dev"), "test": ("test",)}
"""Split of an RL dataset in the output → names for this split in file paths."""


@dataclass(frozen=True)
class SourceLocation:
    """The location of a dataset's files: the access to them, and the `globs` that match them.

    Files in formats such as text or tables are data only if the declared path has their ending, because otherwise they
    may be documentation. `ending` is this ending; None if the path does not name such a format.
    """

    access: SourceAccess
    globs: tuple[str, ...] = _ALL_FILES
    single_file: str | None = None
    ending: str | None = None

    @cached_property
    def is_taken(self) -> Callable[[str], bool]:
        """Function that returns whether a path matches the globs."""
        return build_include_predicate(self.globs)


@dataclass(frozen=True, kw_only=True)
class DiscoveredDataset:
    """A dataset of a blend with its files in natural order; `commit` is None unless the dataset is on a hub."""

    unit: Unit
    entries: tuple[ManifestEntry, ...]
    commit: str | None

    @property
    def identities(self) -> list[list[str | int | None]]:
        """The path, size and SHA-256 of each file; without a SHA-256, the ETag or blob id that its source lists."""
        return [[e.relpath, e.size_bytes, e.sha256 or e.etag] for e in self.entries]


def open_place(dataset: BlendDataset, sources: SourceAccessDeclaration, *, patient: bool = True) -> SourceLocation:
    """Return the location of a dataset's files. Raises ConfigError for an invalid path.

    Unless `patient`, requests to an unreachable hub fail after about a second, because they are retried only once.
    """
    path = dataset.path
    _check_servers(sources)
    if path.startswith("hf://"):
        match = _HUB.fullmatch(path)
        if match is None:
            raise ConfigError(f"{dataset.name}.path: {path!r} must be hf://organization/name or hf://…/name@revision")
        repo = HubRepo(
            repo_id=match[1],
            revision=match[2] or "main",
            endpoint=sources.hub_endpoint,
            cache_dir=sources.hub_cache,
            allow_http=sources.allow_http,
            retry=RetryPolicy() if patient else RetryPolicy(attempts=2),
        )
        return SourceLocation(HubMirror(repo))
    url = re.sub("^gcs://", "gs://", path)
    if is_bucket(url):
        return _open_bucket(dataset, url, sources)
    if path.startswith(ASSET):
        key = path.removeprefix(ASSET).split("/")
        return SourceLocation(open_asset(key, cache_dir=sources.object_cache, follow_links=sources.follow_links))
    if "://" in path:
        raise ConfigError(
            f"{dataset.name}.path: unsupported location {path!r}. Use hf://, {format_bucket_urls('')}, asset:// or a "
            "local path"
        )
    return _open_local(path, sources.follow_links)


def _check_servers(sources: SourceAccessDeclaration) -> None:
    """Raise ConfigError for an invalid URL or region in `sources`; the message names the key."""
    for key, url in (("hub_endpoint", sources.hub_endpoint), ("s3_endpoint", sources.s3_endpoint)):
        if url is not None:
            check_endpoint(url, f"sources.{key}", allow_http=sources.allow_http)
    check_region(sources.s3_region, "sources.s3_region")


def list_upstream_assets(blend: BlendDeclaration) -> tuple[AssetInput, ...]:
    """Return the Dagster assets whose files the blend reads; empty for an unreadable blend, which is reported later."""
    try:
        paths = dict.fromkeys(unit.dataset.path for unit in blend.load_data_blend().list_units())
    except DataprepError:
        return ()
    return tuple(AssetInput(key=tuple(p.removeprefix(ASSET).split("/"))) for p in paths if p.startswith(ASSET))


def _open_bucket(dataset: BlendDataset, url: str, sources: SourceAccessDeclaration) -> SourceLocation:
    if sources.object_cache is None:
        raise ConfigError(
            f"sources.object_cache: required, because {dataset.name} is in {dataset.path}. Set it to a download folder"
        )
    scheme, _, bucket_path = url.partition("://")
    folder, globs, single_file = _split_path(bucket_path)
    is_s3 = scheme == "s3"
    access = ObjectStorePrefix(
        url=f"{scheme}://{folder}",
        cache_dir=sources.object_cache,
        endpoint_url=sources.s3_endpoint if is_s3 else None,
        region=sources.s3_region if is_s3 else "auto",
        allow_http=sources.allow_http,
        access=sources.object_access,
    )
    return SourceLocation(access, globs, single_file, _find_named_format(dataset.path))


def _open_local(path: str, follow_links: bool) -> SourceLocation:
    if Path(path).is_dir():
        return SourceLocation(LocalTree(Path(path), follow_links))
    # Find the part of the path that exists, because a `[` in this part is not a wildcard.
    existing_paths = (str(p) for p in (Path(path), *Path(path).parents) if path.startswith(str(p)) and p.exists())
    folder, globs, single_file = _split_path(path, len(next(existing_paths, "")))
    return SourceLocation(LocalTree(Path(folder or "/"), follow_links), globs, single_file, _find_named_format(path))


def _find_named_format(path: str) -> str | None:
    """Return the ending of a path in lower case if it names a format of source files; otherwise None."""
    match = _ENDING.search(path)
    return match[0].lower() if match is not None and match[1].lower() in INPUTS else None


def _split_path(path: str, literal: int = 0) -> tuple[str, tuple[str, ...], str | None]:
    """Return the folder of a path, the globs that match files below the folder, and the file's name if it is one file.

    The first `literal` characters of the path contain no wildcards.
    """
    if wild := _WILDCARD.search(path, literal):
        folder = path[: path.rfind("/", 0, wild.start()) + 1]
        return folder.rstrip("/"), (path[len(folder) :],), None
    if _DATA.search(path) or _find_named_format(path):
        return str(PurePosixPath(path).parent), _ALL_FILES, PurePosixPath(path).name
    return path.rstrip("/"), _ALL_FILES, None


def discover_dataset(unit: Unit, sources: SourceAccessDeclaration, digests: SourceDigests = PLAIN) -> DiscoveredDataset:
    """List the files of a dataset that its split and subset select, and compute the digests of local files.

    `digests` computes the digests. Raises SourceError if no file is selected.
    """
    source = open_place(unit.dataset, sources)
    listing, files = list_dataset_files(source, unit.dataset)
    return describe_dataset(unit, source, listing, files, digests)


def discover_splits(
    unit: Unit, sources: SourceAccessDeclaration, digests: SourceDigests = PLAIN
) -> dict[str, DiscoveredDataset]:
    """Divide an RL dataset into the splits that its paths name (`train`, `val`, `test`).

    If no path names a split, the whole dataset is `train`. Raises SourceError if a path names two splits, or if only
    some of the paths name a split.
    """
    source = open_place(unit.dataset, sources)
    listing, files = list_dataset_files(source, unit.dataset)
    files_of_split = {
        split: split_files
        for split, names in RL_SPLITS.items()
        if (split_files := [f for f in files if any(has_component(f.relpath, name) for name in names)])
    }
    if claimed_files := [
        f.relpath for f in files if sum(f in split_files for split_files in files_of_split.values()) > 1
    ]:
        raise SourceError(
            f"{unit.name}: the path {claimed_files[0]} contains the names of two splits. Give each split its own list "
            "in the blend"
        )
    if remaining := [f.relpath for f in files if not any(f in split_files for split_files in files_of_split.values())]:
        if files_of_split:
            raise SourceError(
                f"{unit.name}: the path {remaining[0]} names no split, but other paths name "
                f"{', '.join(files_of_split)}. Set `split`, or give each split its own list in the blend"
            )
        # If no path names a split, use the whole dataset as training data.
        files_of_split = {"train": files}
    return {
        split: describe_dataset(
            Unit(name=f"{unit.name}__{split}", dataset=unit.dataset, split=split), source, listing, split_files, digests
        )
        for split, split_files in files_of_split.items()
    }


def list_dataset_files(place: SourceLocation, dataset: BlendDataset) -> tuple[Listing, list[SourceFile]]:
    """Return the listing of a dataset's location, and the listed files that belong to the dataset.

    No file is read. Raises SourceError if no file is left, or if the location is a dataset of the project or one of its
    artifacts.
    """
    root = place.access.root if isinstance(place.access, LocalTree) and place.single_file is None else None
    # Detect a `path` that is the name of a different dataset of the project. Such a path was resolved to a nonexistent
    # folder next to this declaration.
    if root is not None and not root.is_dir() and (root.parent.parent / root.name / _DECLARATION).is_file():
        raise _build_dataset_error(dataset)
    listing = _list_files(place, dataset)
    files = [f for f in listing.files if _belongs_to_dataset(f.relpath, place)]
    is_declaration = not files and root is not None and (root / _DECLARATION).is_file()
    if is_declaration or any(PurePosixPath(file.relpath).name == RECEIPT for file in files):
        raise _build_dataset_error(dataset)
    return listing, _narrow_files(files, dataset, place)


def _build_dataset_error(dataset: BlendDataset) -> SourceError:
    return SourceError(
        f"{dataset.name}.path: {dataset.path} is a dataset of dataprep, but a blend reads source files. To mix "
        "datasets, declare a TrainingSchedule with their names in `sources`"
    )


def list_left_out_data(place: SourceLocation, dataset: BlendDataset) -> dict[str, list[str]]:
    """Return the paths of data files that are not read, by the reason: hidden files, and files of caches."""
    if place.single_file is not None:
        return {}
    listing = _list_files(place, dataset)
    other_paths = [file.relpath for file in listing.files if not place.is_taken(file.relpath)]
    paths_of_reason = {
        "names begin with `_` or `.`. Include them in `path` if they are data": other_paths,
        LEFT_OUT: listing.left_out,
    }
    return {
        reason: data_paths
        for reason, paths in paths_of_reason.items()
        if (data_paths := [path for path in select_included_paths(paths, place.globs) if _is_data(path, place)])
    }


def _list_files(place: SourceLocation, dataset: BlendDataset) -> Listing:
    if place.single_file is not None and isinstance(place.access, LocalTree):
        # Do not list the folder, because it may have many files.
        path = place.access.root / place.single_file
        try:
            return Listing(files=(SourceFile(relpath=place.single_file, size_bytes=read_size(path)),))
        except OSError as error:
            raise SourceError(f"{dataset.name}: {dataset.path}: {os_error_reason(error)}") from error
    return place.access.list()


def _belongs_to_dataset(relpath: str, place: SourceLocation) -> bool:
    if place.single_file is not None:
        return relpath == place.single_file
    return place.is_taken(relpath) and _is_data(relpath, place)


def _is_data(relpath: str, place: SourceLocation) -> bool:
    if _DATA.search(relpath) is None:
        return place.ending is not None and relpath.lower().endswith(place.ending)
    return PurePosixPath(relpath).name not in _NOT_DATA


def has_component(relpath: str, name: str) -> bool:
    """Return whether a component of a path is `name`, or begins with `name` and a `-` or `.`."""
    return re.search(rf"(?:^|/){re.escape(name)}(?:[-/.]|$)", relpath) is not None


def has_part(relpath: str, name: str) -> bool:
    """Return whether `name` is a whole part of a path: a folder, or a file without its ending and shard number.

    For example, `train` is a part of `train/a.parquet`, `train.jsonl.zst` and `train-00000-of-00010.parquet`.
    """
    *folders, file = relpath.split("/")
    stem = _DATA.sub("", file)
    return name in folders or name in (stem, _SHARD_NUMBER.sub("", stem))


def select_paths(relpaths: Sequence[str], name: str) -> list[str]:
    """Return the paths that a `split` or `subset` selects, in their original order.

    These are the paths with `name` as a whole part (`has_part`) or, if there are none, the paths with a part that
    begins with `name` (`has_component`). For example, `High-Quality` does not match `High-Quality-Synthetic` if a
    folder or file is named `High-Quality`, and `code` matches `code-python/` if no folder or file is named `code`.
    """
    exact = [relpath for relpath in relpaths if has_part(relpath, name)]
    return exact or [relpath for relpath in relpaths if has_component(relpath, name)]


def _narrow_files(files: Sequence[SourceFile], dataset: BlendDataset, place: SourceLocation) -> list[SourceFile]:
    """Return the files that the dataset's `split` and `subset` select. Raises SourceError if there are none."""
    remaining = list(files)
    # A single file was already selected by its name, so ignore `subset` and `split`.
    for key, path_part in (("subset", dataset.subset), ("split", dataset.split)) if place.single_file is None else ():
        if path_part is None:
            continue
        selected_paths = {*select_paths([file.relpath for file in remaining], path_part)}
        matching_files = [file for file in remaining if file.relpath in selected_paths]
        if remaining and not matching_files:
            examples = ", ".join(file.relpath for file in remaining[:5])
            raise SourceError(
                f"{dataset.name}.{key}: no file in {dataset.path} has {path_part!r} in its path. Found: {examples}. "
                f"Correct `{key}`"
            )
        remaining = matching_files
    if not remaining:
        raise SourceError(
            f"{dataset.name}.path: no data files found in {dataset.path} (.parquet, .jsonl, .json; the last two also "
            f"with {', '.join(COMPRESSION)}; other formats only if the path ends with their suffix, e.g., *.csv)"
        )
    return remaining


def open_source_part(blend: BlendDeclaration, dataset: BlendDataset, entry: ManifestEntry, path: Path) -> SourcePart:
    """Return a file of a dataset that exists at `path`, ready to read some of its rows; it has no digest."""
    limit = blend.bad_records.max_record_bytes
    return SourcePart.from_entry(entry, path, "", max_record_bytes=limit, reading=dataset.reading)


def describe_dataset(
    unit: Unit,
    place: SourceLocation,
    listing: Listing,
    files: Iterable[SourceFile],
    digests: SourceDigests = PLAIN,
) -> DiscoveredDataset:
    """Return the dataset with an entry per file, in natural order. Local files are read to compute their digests."""
    entries = []
    # Sort the files, because a folder may list them in any order, but the same files must give the same plan.
    for index, file in enumerate(sorted(files, key=lambda f: natural_key(f.relpath))):
        kind, compression = file_format(file.relpath)
        entry = ManifestEntry(
            ordinal=index,
            split=unit.home,
            chunk=PurePosixPath(file.relpath).parent.name,
            file_index=index,
            path=listing.url_prefix + file.relpath,
            relpath=file.relpath,
            size_bytes=file.size_bytes,
            compression=compression,
            # The ending `.json` does not show whether the file has JSON Lines or one array, so use the format `json`
            # for both.
            format="json" if _JSON_ENDING.search(file.relpath) else kind,
            sha256=file.sha256,
            etag=file.etag,
            commit=listing.commit,
        )
        # Read a local file to compute its digest, because the listing of a folder has no digests, in contrast to the
        # listing of a hub or bucket.
        if not place.access.mirrored:
            entry = entry._replace(sha256=digests.digest_of(compute_source_digest(place.access, entry)))
        entries.append(entry)
    return DiscoveredDataset(unit=unit, entries=tuple(entries), commit=listing.commit)
