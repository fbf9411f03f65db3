"""The copy of the release manifest in a cache folder: it says to which release the folder's shards belong.

A folder holds shards of one release only, and a restart without a network reads the manifest from here.

Entry points: `read_or_kept`, `refuse_published`, `keep_manifest`.
"""

import logging
from pathlib import Path

from dataprep_assets.errors import ConfigError, FormatError, SourceError
from dataprep_assets.serving.window.release import MANIFEST, Release, ReleaseLocation, read_release
from dataprep_assets.serving.window.shared_state import FOLDER, file_mode, locked_file, replace_file

logger = logging.getLogger(__name__)


def read_or_kept(place: ReleaseLocation, directory: Path) -> Release:
    """The release published at `place`, or the one in the kept manifest if the store cannot be reached.

    Raises MissingArtifactError when the store has no manifest, FormatError when it is damaged, SourceError when the
    store cannot be reached and no manifest is kept.
    """
    kept_path = directory / FOLDER / MANIFEST
    try:
        return read_release(place)
    # Only where the store cannot be reached: that it has no manifest, or a damaged one, is an answer.
    except SourceError as error:
        if not kept_path.is_file():
            raise
        logger.warning("%s/%s cannot be read (%s); using the copy in the cache", place, MANIFEST, error)
        return Release.from_bytes(kept_path.read_bytes(), str(kept_path))


def refuse_published(directory: Path, release: Release) -> None:
    """Raise ConfigError if another release is published in a cache folder: its shards would be replaced."""
    path = directory / MANIFEST
    if not path.exists():
        return
    try:
        manifest = Release.from_bytes(path.read_bytes(), str(path))
    except FormatError as error:
        raise ConfigError(f"{path}: not a manifest of this release. Use a different cache folder") from error
    if manifest.digest != release.digest:
        raise ConfigError(
            f"{directory}: a different release is published there {_pair_of(manifest, release)}. Use a different cache "
            "folder"
        )


def keep_manifest(directory: Path, release: Release) -> None:
    """Keep the release's manifest in a cache folder (made by `SharedState.make_folders`).

    Raises ConfigError when the folder holds shards of another release.
    A kept manifest that is damaged is replaced: shards of another release would fail their digests.
    """
    path = directory / FOLDER / MANIFEST
    mode = file_mode(release.sensitive)
    with locked_file(directory / FOLDER / "lock", mode):
        try:
            manifest = Release.from_bytes(path.read_bytes(), str(path))
        except (FileNotFoundError, FormatError):
            replace_file(path, release.to_bytes(), mode)
            return
    if manifest.digest != release.digest:
        raise ConfigError(
            f"{directory}: contains shards of a different release {_pair_of(manifest, release)}. Use a different cache "
            "folder, or delete it"
        )


def _pair_of(there: Release, this: Release) -> str:
    return f"({there.dataset}, {there.digest[:12]}; this one is {this.dataset}, {this.digest[:12]})"
