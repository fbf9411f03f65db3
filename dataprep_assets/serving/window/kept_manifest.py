"""Copy of the release manifest in a cache folder, which identifies the release of the folder's shards.

A folder contains shards of only one release. A restart without a network reads the manifest from this copy.

Entry points: `read_or_restore`, `refuse_published`, `keep_manifest`.
"""

import logging
from pathlib import Path

from dataprep_assets.errors import ConfigError, FormatError, SourceError
from dataprep_assets.serving.window.release import MANIFEST, Release, ReleaseLocation, read_release
from dataprep_assets.serving.window.shared_state import FOLDER, choose_file_mode, lock_file, replace_file

logger = logging.getLogger(__name__)


def read_or_restore(place: ReleaseLocation, directory: Path) -> Release:
    """Return the release published at `place`, or the kept manifest's release if the store cannot be reached.

    Raises MissingArtifactError if the store has no manifest, and FormatError if it is damaged. Raises SourceError if
    the store cannot be reached and there is no kept manifest.
    """
    kept_path = directory / FOLDER / MANIFEST
    try:
        return read_release(place)
    # Use the copy only if the store cannot be reached, because a missing or damaged manifest is an error of the
    # release.
    except SourceError as error:
        if not kept_path.is_file():
            raise
        logger.warning("%s/%s cannot be read (%s); using the copy in the cache", place, MANIFEST, error)
        return Release.from_bytes(kept_path.read_bytes(), str(kept_path))


def refuse_published(directory: Path, release: Release) -> None:
    """Raise ConfigError if the cache folder contains a different published release, which would be overwritten."""
    path = directory / MANIFEST
    if not path.exists():
        return
    try:
        manifest = Release.from_bytes(path.read_bytes(), str(path))
    except FormatError as error:
        raise ConfigError(f"{path}: not a manifest of this release. Use a different cache folder") from error
    if manifest.digest != release.digest:
        raise ConfigError(
            f"{directory}: contains a different published release {_describe_pair(manifest, release)}. Use a different "
            "cache folder"
        )


def keep_manifest(directory: Path, release: Release) -> None:
    """Store the release's manifest in a cache folder (created by `SharedState.make_folders`).

    Raises ConfigError if the folder contains shards of a different release. A damaged copy is replaced, because shards
    of a different release would fail their digests.
    """
    path = directory / FOLDER / MANIFEST
    mode = choose_file_mode(release.sensitive)
    with lock_file(directory / FOLDER / "lock", mode):
        try:
            manifest = Release.from_bytes(path.read_bytes(), str(path))
        except (FileNotFoundError, FormatError):
            replace_file(path, release.to_bytes(), mode)
            return
    if manifest.digest != release.digest:
        raise ConfigError(
            f"{directory}: contains shards of a different release {_describe_pair(manifest, release)}. Use a "
            "different cache "
            "folder, or delete this one"
        )


def _describe_pair(stored_release: Release, release: Release) -> str:
    stored_name = f"{stored_release.dataset}, {stored_release.digest[:12]}"
    return f"({stored_name}, not {release.dataset}, {release.digest[:12]})"
