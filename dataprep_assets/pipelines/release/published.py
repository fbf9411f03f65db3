"""A release at its public location: the current files, the upload, and the code that opens it on a trainer.

The manifest defines the release: readers find no shards before it is written. An earlier manifest is deleted before a
file that it lists is replaced, so that readers never combine two releases.

Entry points: `compare_with_release`, `send_release`, `published_release`, `consumer_environment`, `consumer_code`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from dataprep_assets.errors import FormatError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.formats import npy_shards
from dataprep_assets.integrity.receipt import NAME, Verification
from dataprep_assets.serving.window.release import MANIFEST, Release, ReleaseFile, ReleaseLocation, read_release
from dataprep_assets.serving.window.shared_state import FOLDER
from dataprep_assets.stores import connect
from dataprep_assets.stores.store import ObjectInfo, Progress

CONSUMER_VARIABLES = (
    "R2_DATASET_ACCOUNT_ID",
    "DATAPREP_ENDPOINT_URL",
    "R2_DATASET_BUCKET_NAME",
    "R2_DATASET_READ_ACCESS_KEY_ID",
    "R2_DATASET_READ_SECRET_ACCESS_KEY",
    "DATASET_BINS_PATH",
)


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The files of a release in a store. `different` maps a key to a sentence; `extra` are shards not in the
    release."""

    same: tuple[ReleaseFile, ...]
    missing: tuple[ReleaseFile, ...]
    different: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every file is present and correct."""
        return not self.missing and not self.different


def compare_with_release(place: ReleaseLocation, release: Release) -> Inventory:
    """Compare a store with a release, without changing anything; also used for dry runs.

    Digests recorded by our uploads are used; objects without one are read.
    """
    objects = {info.key.removeprefix(place.base): info for info in place.store.list(place.base)}
    same_files, missing, different = [], [], {}
    for file in release.files:
        info = objects.get(file.key)
        if info is None:
            missing.append(file)
        elif reason := _find_difference(place, file, info):
            different[file.key] = reason
        else:
            same_files.append(file)
    listed_keys = {file.key for file in release.files}
    extra = tuple(sorted(key for key in objects if key not in listed_keys and npy_shards.parse_key(key) is not None))
    return Inventory(same=tuple(same_files), missing=tuple(missing), different=different, extra=extra)


def _find_difference(place: ReleaseLocation, file: ReleaseFile, info: ObjectInfo) -> str:
    """Return why an object differs from the file; "" if it does not."""
    if info.bytes != file.bytes:
        return f"{place}/{file.key}: has {count_of(info.bytes, 'byte')}, but the release lists {file.bytes}"
    key = place.key(file.key)
    # A listing lacks metadata, so request the object itself.
    digest = info.sha256
    if digest is None and (head := place.store.head(key)) is not None:
        digest = head.sha256
    if digest is None:
        digest = _read_digest(place, file)
    return (
        "" if digest == file.sha256 else f"{place}/{file.key}: has sha256 {digest}, but the release lists {file.sha256}"
    )


def releases_below(place: ReleaseLocation) -> Iterator[ReleaseLocation]:
    """Yield the locations at or below this one with a release's manifest, except copies in artifacts and caches."""
    keys = {info.key for info in place.store.list(place.base) if info.key.rpartition("/")[2] in (MANIFEST, NAME)}
    for key in sorted(keys):
        base = key.removesuffix(MANIFEST)
        if base != key and f"{base}{NAME}" not in keys and FOLDER not in base.split("/"):
            yield ReleaseLocation(place.store, base)


def release_defects(place: ReleaseLocation, release: Release, verification: Verification) -> Iterator[str]:
    """Yield the defects of a release's files at a location, one sentence each.

    `size` compares sizes and the digests recorded by our uploads; `full` reads every byte.
    """
    for file in release.files:
        info = place.store.head(place.key(file.key))
        if info is None:
            yield f"{place}/{file.key}: missing"
        elif info.bytes != file.bytes:
            yield f"{place}/{file.key}: has {count_of(info.bytes, 'byte')}, but the release lists {file.bytes}"
        else:
            digest = _read_digest(place, file) if verification == "full" else info.sha256
            if digest not in (None, file.sha256):
                yield f"{place}/{file.key}: has sha256 {digest}, but the release lists {file.sha256}"


def _read_digest(place: ReleaseLocation, file: ReleaseFile) -> str:
    digest = sha256()
    for block in place.store.read(place.key(file.key)):
        digest.update(block)
    return digest.hexdigest()


def send_release(
    place: ReleaseLocation,
    release: Release,
    find: Callable[[ReleaseFile], Path],
    progress: Progress | None = None,
    expect: Callable[[int], None] | None = None,
) -> tuple[bool, tuple[str, ...]]:
    """Upload the files of a release to a location, then its manifest. Files that are already there are skipped.

    Args:
        place: The location where trainers download the release.
        release: Its manifest.
        find: Returns the local path of a file.
        progress: Called with the number of bytes uploaded, from several threads.
        expect: Called with the number of bytes to upload, before the first.

    Returns:
        Whether anything was uploaded, and the keys of shards at the location that the release does not list.

    Raises:
        IntegrityError: The location has another dataset's release, a local file does not match the manifest, or the
            location does not have the uploaded bytes.
    """
    published = published_release(place)
    # check this before any change, because trainers may be reading another dataset's release
    require_own(place, published, release.dataset)
    old_inventory = compare_with_release(place, release)
    missing_files = [
        file for file in release.files if file in old_inventory.missing or file.key in old_inventory.different
    ]
    if expect is not None:
        expect(sum(file.bytes for file in missing_files))
    if missing_files and published is not None:
        # From here on, readers find no release instead of files of two releases. After a kill, the next run resumes.
        place.store.delete(place.key(MANIFEST))
    for file in missing_files:
        place.store.upload(find(file), place.key(file.key), sha256=file.sha256, progress=progress)
    if missing_files:
        # Check again before writing the manifest, because a store may lose or alter uploaded files.
        new_inventory = compare_with_release(place, release)
        if not new_inventory.complete:
            defects = [
                *new_inventory.different.values(),
                *(f"{place}/{file.key}: missing" for file in new_inventory.missing),
            ]
            raise IntegrityError(
                f"{defects[0]} after the upload ({count_of(len(defects), 'file')}). Publish the release again"
            )
    if missing_files or published is None or published.digest != release.digest:
        place.store.put(place.key(MANIFEST), release.to_bytes())
        if read_release(place).digest != release.digest:
            raise IntegrityError(
                f"{place}/{MANIFEST}: changed after it was written, so another process publishes to this location. "
                "Stop that process, then publish the release again"
            )
        return True, old_inventory.extra
    return False, old_inventory.extra


def require_own(place: ReleaseLocation, published: Release | None, dataset: str) -> None:
    """Raise IntegrityError if the location has another dataset's release, which trainers may be reading."""
    if published is not None and published.dataset != dataset:
        raise IntegrityError(
            f"{place}: contains the release of {published.dataset!r}, which trainers may read. Publish {dataset!r} "
            f"to a different location, or delete {place}/{MANIFEST} if it is unused"
        )


def published_release(place: ReleaseLocation) -> Release | None:
    """Return the manifest at the location; None if it is missing or damaged."""
    try:
        return read_release(place)
    except (MissingArtifactError, FormatError):
        return None


def consumer_environment(place: connect.StoreAddress) -> list[str]:
    """Return the lines for a trainer's environment, without secrets (docs/formats/npy-shards.md#consumer-environment).

    Empty for a folder, and for GCS, whose default credentials are enough.
    """
    return [line for line in connect.list_consumer_lines(place) if line.partition("=")[0] in CONSUMER_VARIABLES]


def consumer_code(place: ReleaseLocation) -> str:
    """Return a line of Python, to paste on a training machine, that opens the release."""
    return (
        "from dataprep_assets.serving import ShardWindow; "
        f'window = ShardWindow("{place}", "shard_cache", steps_per_shard=100); shard = window.swap(0)'
    )
