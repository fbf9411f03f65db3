"""Puts a file where a trainer looks for it, and keeps the file that it replaces.

The target is in the user's project, not in the artifact storage, so existing files there are not ours. A copy or link
is staged next to its target and renamed to it: a kill at any moment leaves the old file or the new one. Staged names
are fixed (`.<name>.staged`), so that the next run removes what a killed run left; callers hold a lock.

Until the artifact is finished, replaced files are in a folder of their own, added one by one and durably, so that a run
killed in between loses nothing and the next one takes them over.
"""

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep_assets.errors import ConfigError, IntegrityError, SourceError
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.pipelines.tasks.declaration import Mode
from dataprep_assets.pipelines.tasks.record import NAME, REPLACED, MigrationRecord, ReplacedFile, read_record
from dataprep_assets.sources.digests import PLAIN, SourceDigests
from dataprep_assets.stores.files import fsync_directory

MODE = 0o644
"""Permissions of a copy: everyone may read it, whoever runs the trainer."""
PRIVATE_MODE = 0o600
"""Permissions of a copy of a sensitive dataset's file: whoever migrates it runs the trainer."""
TargetState = Literal["absent", "done", "permissions", "same_content", "other_link", "other_file"]
"""The state of a target: nothing; as wanted; as wanted except for permissions; a file or link with the same content; a
link to other content or to nothing; a file with other content."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A file wanted at `target`: the content of `source`, which has this SHA-256, as a copy or as a link to it.

    `permissions` are those of a copy; `digests` makes the digests that messages show.
    """

    source: Path
    target: Path
    mode: Mode
    sha256: str
    permissions: int = MODE
    digests: SourceDigests = PLAIN

    def shorten(self, sha256: str) -> str:
        """Return the first characters of a file's digest, for messages, from its SHA-256 (hex)."""
        return f"{self.digests.of(sha256)[:12]}…"

    @property
    def staged(self) -> Path:
        """The path where the file is prepared."""
        return self.target.with_name(f".{self.target.name}.staged")

    @property
    def link_text(self) -> str:
        """The target text of a link: relative if both ends share a tree, so that the tree may move; else absolute."""
        source, folder = self.source.resolve(), self.target.parent.resolve()
        # nothing but the root in common: then neither tree moves with the other
        if os.path.commonpath([source, folder]) == os.path.sep:
            return str(source)
        return os.path.relpath(source, folder)

    def state(self) -> TargetState:
        """Return the state of the target. Raises ConfigError for a folder or a device, which nothing replaces."""
        target = self.target
        try:
            # not of what a link leads to: the link itself is what is replaced
            kind = target.lstat().st_mode
        except FileNotFoundError:
            return "absent"
        except NotADirectoryError as error:
            raise ConfigError(f"{target.parent}: is not a folder. Move it away, then migrate again") from error
        if stat.S_ISLNK(kind):
            if self.mode == "symlink" and os.readlink(target) == self.link_text:
                return "done"
            return "same_content" if _digest(target) == self.sha256 else "other_link"
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
            raise ConfigError(f"{target}: is {what} where a file must be. Move it away, then migrate again")
        if _digest(target) != self.sha256:
            return "other_file"
        if self.mode == "symlink":
            return "same_content"
        return "done" if stat.S_IMODE(kind) == self.permissions else "permissions"

    def place(self) -> None:
        """Put the file at its target, replacing an existing one by one rename; durable on return.

        Raises SourceError if the source changed since it was read, ConfigError if a file is where a folder must be.
        """
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(
                f"{error.filename}: is a file where a folder must be. Move it away, then migrate again"
            ) from error
        if self.mode == "symlink":
            os.symlink(self.link_text, self.staged)
        else:
            self._copy()
        # The name changes from the old content to the new at once. It is durable only when the folder is, and the
        # receipt that counts on it comes later.
        os.replace(self.staged, self.target)
        fsync_directory(self.target.parent)

    def _copy(self) -> None:
        with open(self.source, "rb") as source, open(self.staged, "xb") as copy:
            shutil.copyfileobj(source, copy)
            # before the rename: under its own name it never has other permissions
            os.fchmod(copy.fileno(), self.permissions)
            copy.flush()
            os.fsync(copy.fileno())
        # the copy is read, not the source: what is compared is what the trainer will find
        if (actual := sha256_file(self.staged)) != self.sha256:
            self.staged.unlink()
            raise SourceError(
                f"{self.source}: changed while it was copied (sha256 {self.shorten(actual)}, was "
                f"{self.shorten(self.sha256)}). Migrate again"
            )


def _digest(path: Path) -> str | None:
    """Return the SHA-256 of a regular file, links followed; None when there is none."""
    try:
        # a FIFO would be waited for, and a folder or a device has no digest
        return sha256_file(path) if path.is_file() else None
    except PermissionError as error:
        raise ConfigError(f"{path}: cannot be read. Make it readable, then migrate again") from error


@dataclass(frozen=True, kw_only=True)
class ReplacedFiles:
    """The replaced files of the finished artifact in `directory`, with its `record`, and those since, in `holding`.

    In `holding` each file or link has the name `<number>.<name>`: numbers go on from those of the record, so that a
    kill between publishing and clearing enters nothing twice.
    """

    directory: Path
    holding: Path
    record: MigrationRecord | None

    @classmethod
    def open(cls, directory: Path, holding: Path) -> "ReplacedFiles":
        """Open the replaced files of the artifact in `directory` and the folder `holding`.

        Raises IntegrityError if the artifact has replaced files and no record of them.
        """
        record = read_record(directory)
        if record is None and (directory / REPLACED).exists():
            raise IntegrityError(
                f"{directory / NAME}: is lost, and {REPLACED}/ beside it holds replaced files. Save that folder if you "
                f"need it, then delete {directory} and migrate again"
            )
        return cls(directory=directory, holding=holding, record=record)

    def has_placed(self, placement: Placement, version: str) -> bool:
        """Return whether a target is a copy that the migration of this version made and nobody has changed."""
        made = self.record.file(placement.target.name) if self.record and self.record.version == version else None
        if made is None or made.how != "copied":
            return False
        return made.sha256 == placement.digests.of(sha256_file(placement.target))

    def keep(self, target: Path) -> None:
        """Keep the file or link at a target, which is about to be replaced."""
        pending = self._pending()
        if any(path.name.partition(".")[2] == target.name and _is_equal(path, target) for path in pending.values()):
            return  # a run that was killed before it replaced anything has kept it
        path = self.holding / f"{max((0, *self._earlier, *pending)) + 1:06d}.{target.name}"
        self.holding.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            os.symlink(os.readlink(target), path)
        else:
            write_atomically(path, target.read_bytes())
        fsync_directory(self.holding)
        # the folder may be new: what is durable in it is of no use if its own name is not
        fsync_directory(self.holding.parent)

    def history(self, folder: Path) -> tuple[ReplacedFile, ...]:
        """Return every replaced file, oldest first, without those that are still in place in `folder`."""
        # a kept file that was damaged since is reported as lost, and stops no migration
        earlier = [e.model_copy(update={"kept": e.kept and bool(self._source(e))}) for e in self._earlier.values()]
        entries = [
            _entry(number, path)
            for number, path in self._pending().items()
            if not _is_equal(path, folder / path.name.partition(".")[2])
        ]
        return (*earlier, *entries)

    def copy_into(self, staged: Path, history: Sequence[ReplacedFile]) -> None:
        """Put the replaced files of a history into a new artifact."""
        for entry in history:
            source = self._source(entry)
            if entry.kept and source is not None:
                (staged / REPLACED).mkdir(exist_ok=True)
                shutil.copyfile(source, staged / REPLACED / str(entry.sha256))

    def close(self) -> None:
        """Remove files from the holding folder that the finished artifact has now."""
        if self.holding.exists():
            shutil.rmtree(self.holding)

    @property
    def _earlier(self) -> dict[int, ReplacedFile]:
        return {entry.number: entry for entry in self.record.history} if self.record else {}

    def _pending(self) -> dict[int, Path]:
        """Return the files in no artifact yet, by number."""
        paths = {int(path.name.partition(".")[0]): path for path in sorted(self.holding.glob("[0-9]*"))}
        return {number: path for number, path in paths.items() if number not in self._earlier}

    def _source(self, entry: ReplacedFile) -> Path | None:
        """Return the path of a kept, complete file; None if it is lost."""
        # looked at in both places: a kill after publishing leaves it in both, before it in the second only
        paths = (self.directory / REPLACED / str(entry.sha256), self.holding / f"{entry.number:06d}.{entry.name}")
        return next((p for p in paths if p.is_file() and sha256_file(p) == entry.sha256), None)


def _entry(number: int, path: Path) -> ReplacedFile:
    is_link = path.is_symlink()
    return ReplacedFile(
        number=number,
        name=path.name.partition(".")[2],
        kind="link" if is_link else "file",
        bytes=None if is_link else path.stat().st_size,
        sha256=None if is_link else sha256_file(path),
        link=os.readlink(path) if is_link else None,
        kept=not is_link,
    )


def _is_equal(path: Path, target: Path) -> bool:
    """Return whether two files have the same bytes, or two links the same text."""
    if path.is_symlink() or target.is_symlink():
        return path.is_symlink() and target.is_symlink() and os.readlink(path) == os.readlink(target)
    return target.is_file() and sha256_file(path) == sha256_file(target)
