"""Copying of a published release from one store to a different one, for self-hosting with `dataprep sync`.

First, both locations are listed and compared with the release; this is also the dry run. Then each object is downloaded
to a scratch folder, verified by SHA-256, uploaded with this digest, and compared with the uploaded object. The manifest
is uploaded last. A killed copy can resume, also in the middle of a download. Objects are not copied directly between
buckets, because stores can copy only within themselves, and the buckets may belong to different accounts.

Entry points: `plan_migration`, `migrate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dataprep_assets.errors import IntegrityError, count_of
from dataprep_assets.pipelines.release.published import Inventory, compare_with_release, send_release
from dataprep_assets.serving.window.release import Release, ReleaseFile, ReleaseLocation, locate_files, read_release
from dataprep_assets.stores.store import Progress


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """The plan of a copy. `source` and `target` are the results of comparing each location with the release."""

    release: Release
    source: Inventory
    target: Inventory

    @property
    def files_to_copy(self) -> Sequence[ReleaseFile]:
        """The files to upload, in order."""
        return [f for f in self.release.files if f in self.target.missing or f.key in self.target.different]

    @property
    def bytes(self) -> int:
        """Number of bytes to download and upload."""
        return sum(file.bytes for file in self.files_to_copy)

    @property
    def scratch_bytes(self) -> int:
        """Size in bytes of the largest file to copy, which the scratch folder must be able to hold."""
        return max((file.bytes for file in self.files_to_copy), default=0)

    @property
    def lines(self) -> tuple[str, ...]:
        """The plan as text, one sentence per line."""
        gaps = [*(f.key for f in self.source.missing), *self.source.different]
        lines = [
            (
                f"{len(self.files_to_copy)} of {count_of(len(self.release.files), 'file')} to copy "
                f"({count_of(self.bytes, 'byte')}). The scratch folder needs {count_of(self.scratch_bytes, 'byte')}."
            )
        ]
        lines += [f"The source has no {key}, although its manifest lists it." for key in gaps]
        lines += [f"The target has {key}, which the release does not list. It is kept." for key in self.target.extra]
        return tuple(lines)


def plan_migration(source: ReleaseLocation, target: ReleaseLocation) -> MigrationPlan:
    """Return the plan of a copy. Raises MissingArtifactError if the source has no manifest."""
    manifest = read_release(source)
    release = replace(manifest, location=None)  # without a location, readers look for files next to the manifest
    return MigrationPlan(
        release=release,
        source=compare_with_release(locate_files(source, manifest), release),
        target=compare_with_release(target, release),
    )


def migrate(
    plan: MigrationPlan,
    source: ReleaseLocation,
    target: ReleaseLocation,
    scratch: Path,
    progress: Progress | None = None,
) -> bool:
    """Copy a release according to a plan of `plan_migration`; return whether anything was uploaded.

    `source` and `target` must be the locations of `plan`. Files are downloaded into `scratch` one at a time, and files
    that a killed copy left there are reused. `progress` counts the uploaded bytes. Raises IntegrityError if a file of
    the release is missing in the source.
    """
    source = locate_files(source, read_release(source))
    if not plan.source.is_complete:
        # Omit the first line, because it is about the files to copy. The lines after it begin with the files that are
        # missing or different in the source.
        raise IntegrityError(
            f"{source}: the release is incomplete. {' '.join(plan.lines[1:4])} Publish the release again"
        )
    scratch.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []

    def find_path(file: ReleaseFile) -> Path:
        # Delete the previous download, because its upload has finished when `send_release` requests the next file.
        for path in paths:
            path.unlink()
        paths.clear()
        # Name the file by its digest, so that the next run can reuse the download if the copy is killed. An existing
        # file is complete, because a download gets its name only after it was verified.
        path = scratch / file.sha256
        if not path.exists():
            source.store.download(source.key(file.key), path, sha256=file.sha256)
        paths.append(path)
        return path

    is_sent, _ = send_release(target, plan.release, find_path, progress)
    for file in plan.release.files:
        # Remove all downloads, because a killed copy may have left a file that it had already uploaded.
        (scratch / file.sha256).unlink(missing_ok=True)
    return is_sent
