"""Copying of a published release from one store to another, for self-hosting with `dataprep sync`.

The inventory and the plan come first; they are also the dry run. Each object is downloaded to a scratch folder with
resume, verified by SHA-256, uploaded with that digest, and compared in the target. The manifest is uploaded last, and a
killed copy resumes. Buckets of the same kind are not copied directly, because stores copy only within themselves, and a
release may cross accounts.

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
    """The plan of a copy. `source` and `target` compare each location with the release."""

    release: Release
    source: Inventory
    target: Inventory

    @property
    def todo(self) -> Sequence[ReleaseFile]:
        """The files to upload, in order."""
        return [f for f in self.release.files if f in self.target.missing or f.key in self.target.different]

    @property
    def bytes(self) -> int:
        """Bytes to download and upload."""
        return sum(file.bytes for file in self.todo)

    @property
    def scratch_bytes(self) -> int:
        """Bytes that the scratch folder needs: the size of the largest file."""
        return max((file.bytes for file in self.todo), default=0)

    @property
    def lines(self) -> tuple[str, ...]:
        """The plan as text, one sentence per line."""
        gaps = [*(f.key for f in self.source.missing), *self.source.different]
        lines = [
            (
                f"{len(self.todo)} of {count_of(len(self.release.files), 'file')} to copy "
                f"({count_of(self.bytes, 'byte')}). The scratch folder needs {count_of(self.scratch_bytes, 'byte')}."
            )
        ]
        lines += [f"The source has no {key}, although its manifest lists it." for key in gaps]
        lines += [f"The target has {key}, which the release does not list. It is kept." for key in self.target.extra]
        return tuple(lines)


def plan_migration(source: ReleaseLocation, target: ReleaseLocation) -> MigrationPlan:
    """Compare both locations with the source's manifest; raise MissingArtifactError if the source has none."""
    manifest = read_release(source)
    release = replace(manifest, location=None)  # the copy's files are next to its manifest
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
    """Carry out a plan of `plan_migration`; return whether anything was uploaded.

    `source` and `target` must be the locations of `plan`. Files are downloaded into `scratch` one at a time, and a
    killed copy's files there are reused. `progress` gets the bytes that are uploaded. Raises IntegrityError if the
    source lacks a file of its release.
    """
    source = locate_files(source, read_release(source))
    if not plan.source.complete:
        # the first line counts the files to copy; the missing files follow
        raise IntegrityError(
            f"{source}: the release is incomplete. {' '.join(plan.lines[1:4])} Publish the release again"
        )
    scratch.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []

    def find_path(file: ReleaseFile) -> Path:
        # Keep only one file at a time, because the previous one has been uploaded.
        for path in paths:
            path.unlink()
        paths.clear()
        # Name the file by its digest, so that the next run finds a killed copy's download. It is complete, because
        # downloads get their name only after they are verified.
        path = scratch / file.sha256
        if not path.exists():
            source.store.download(source.key(file.key), path, sha256=file.sha256)
        paths.append(path)
        return path

    is_sent, _ = send_release(target, plan.release, find_path, progress)
    for file in plan.release.files:
        # A killed copy may have left a file that is already uploaded.
        (scratch / file.sha256).unlink(missing_ok=True)
    return is_sent
