"""A release at its public location: its existing files, its upload, and the code that opens it on a trainer.

The manifest defines the release, so readers find no shards before the manifest is written. An earlier manifest is
deleted before any file that it lists is replaced, so that readers never combine two releases.

Entry points: `compare_with_release`, `send_release`, `load_published_release`, `list_consumer_environment`,
`format_consumer_code`.
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
    """The result of comparing a store with a release.

    `different` maps the key of a file to a sentence about the difference. `extra` are the keys of shards that are not
    in the release.
    """

    same: tuple[ReleaseFile, ...]
    missing: tuple[ReleaseFile, ...]
    different: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every file of the release exists and has the right content."""
        return not self.missing and not self.different


def compare_with_release(place: ReleaseLocation, release: Release) -> Inventory:
    """Return the differences between a store and a release. The store is not changed.

    An object is read only if no digest was recorded at its upload.
    """
    objects = {info.key.removeprefix(place.base): info for info in place.store.list(place.base)}
    same_files, missing_files, differences = [], [], {}
    for file in release.files:
        info = objects.get(file.key)
        if info is None:
            missing_files.append(file)
        elif reason := _find_difference(place, file, info):
            differences[file.key] = reason
        else:
            same_files.append(file)
    listed_keys = {file.key for file in release.files}
    extra_keys = tuple(
        sorted(key for key in objects if key not in listed_keys and npy_shards.parse_key(key) is not None)
    )
    return Inventory(same=tuple(same_files), missing=tuple(missing_files), different=differences, extra=extra_keys)


def _find_difference(place: ReleaseLocation, file: ReleaseFile, info: ObjectInfo) -> str:
    """Return a sentence about the difference between an object and its file; an empty string if they are equal."""
    if info.bytes != file.bytes:
        return f"{place}/{file.key}: has {count_of(info.bytes, 'byte')}, but the release lists {file.bytes:,}"
    key = place.key(file.key)
    # Request the object's metadata if the listing has no digest, because the metadata may have one.
    digest = info.sha256
    if digest is None and (head := place.store.head(key)) is not None:
        digest = head.sha256
    if digest is None:
        digest = _read_digest(place, file)
    return (
        "" if digest == file.sha256 else f"{place}/{file.key}: has sha256 {digest}, but the release lists {file.sha256}"
    )


def find_releases_below(place: ReleaseLocation) -> Iterator[ReleaseLocation]:
    """Yield the locations at or below `place` that have a release's manifest, except copies in artifacts and caches."""
    keys = {info.key for info in place.store.list(place.base) if info.key.rpartition("/")[2] in (MANIFEST, NAME)}
    for key in sorted(keys):
        base = key.removesuffix(MANIFEST)
        if base != key and f"{base}{NAME}" not in keys and FOLDER not in base.split("/"):
            yield ReleaseLocation(place.store, base)


def find_release_defects(place: ReleaseLocation, release: Release, verification: Verification) -> Iterator[str]:
    """Yield a sentence for each defect of a release's files at a location.

    With the verification `size`, only the sizes and the digests recorded at the uploads are compared. With `full`, all
    files are read.
    """
    for file in release.files:
        info = place.store.head(place.key(file.key))
        if info is None:
            yield f"{place}/{file.key}: missing"
        elif info.bytes != file.bytes:
            yield f"{place}/{file.key}: has {count_of(info.bytes, 'byte')}, but the release lists {file.bytes:,}"
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
    """Upload the files of a release to a location, then its manifest. Files that the location already has are skipped.

    Args:
        place: The location from which trainers download the release.
        release: The release's manifest.
        find: Returns the local path of a file.
        progress: Called from several threads with the number of bytes that were uploaded.
        expect: Called once before the uploads with the number of bytes to upload.

    Returns:
        Whether anything was uploaded, and the keys of shards at the location that the release does not list.

    Raises:
        IntegrityError: The location has the release of a different dataset, a local file does not match the manifest,
            or the location does not have the uploaded bytes.
    """
    published = load_published_release(place)
    # Refuse to replace the release of a different dataset before any change, because trainers may be reading that
    # release.
    require_own(place, published, release.dataset)
    old_inventory = compare_with_release(place, release)
    missing_files = [
        file for file in release.files if file in old_inventory.missing or file.key in old_inventory.different
    ]
    if expect is not None:
        expect(sum(file.bytes for file in missing_files))
    if missing_files and published is not None:
        # Delete the manifest first, so that readers find no release instead of the files of two releases. If this run
        # is killed, the next run resumes the upload.
        place.store.delete(place.key(MANIFEST))
    for file in missing_files:
        place.store.upload(find(file), place.key(file.key), sha256=file.sha256, progress=progress)
    if missing_files:
        # Compare again before writing the manifest, because a store may lose or alter uploaded files.
        new_inventory = compare_with_release(place, release)
        if not new_inventory.is_complete:
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
    """Raise IntegrityError if the location has the release of a different dataset, which trainers may be reading."""
    if published is not None and published.dataset != dataset:
        raise IntegrityError(
            f"{place}: contains the release of {published.dataset!r}, which trainers may read. Publish {dataset!r} "
            f"to a different location, or delete {place}/{MANIFEST} if it is unused"
        )


def load_published_release(place: ReleaseLocation) -> Release | None:
    """Return the manifest at the location; None if it is missing or damaged."""
    try:
        return read_release(place)
    except (MissingArtifactError, FormatError):
        return None


def list_consumer_environment(place: connect.StoreAddress) -> list[str]:
    """Return the lines for a trainer's environment, without secrets (docs/formats/npy-shards.md#consumer-environment).

    The list is empty for a folder, and for GCS, where the default credentials are enough.
    """
    return [line for line in connect.list_consumer_lines(place) if line.partition("=")[0] in CONSUMER_VARIABLES]


def format_consumer_code(place: ReleaseLocation) -> str:
    """Return a line of Python that opens the release on a training machine."""
    return (
        "from dataprep_assets.serving import ShardWindow; "
        f'window = ShardWindow("{place}", "shard_cache", steps_per_shard=100); shard = window.swap(0)'
    )
