"""Puts a file where a trainer looks for it.

The target is in the user's project, not in the artifact storage, so existing files there are not ours. A copy or link
is staged next to its target and renamed to it: a kill at any moment leaves the old file or the new one. Staged names
are fixed (`.<name>.staged`), so that the next run removes what a killed run left; callers hold a lock.
"""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.pipelines.tasks.declaration import Mode
from dataprep_assets.stores.files import PLAIN, SourceDigests, fsync_directory, sha256_file

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
        return f"{self.digests.digest_of(sha256)[:12]}…"

    @property
    def staged_path(self) -> Path:
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
            raise ConfigError(f"{target}: {what}, but must be a file. Move it away, then migrate again")
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
                f"{error.filename}: a file, but must be a folder. Move it away, then migrate again"
            ) from error
        if self.mode == "symlink":
            os.symlink(self.link_text, self.staged_path)
        else:
            self._copy()
        # The name changes from the old content to the new at once. It is durable only when the folder is, and the
        # receipt that counts on it comes later.
        os.replace(self.staged_path, self.target)
        fsync_directory(self.target.parent)

    def _copy(self) -> None:
        with open(self.source, "rb") as source, open(self.staged_path, "xb") as copy:
            shutil.copyfileobj(source, copy)
            # before the rename: under its own name it never has other permissions
            os.fchmod(copy.fileno(), self.permissions)
            copy.flush()
            os.fsync(copy.fileno())
        # the copy is read, not the source: what is compared is what the trainer will find
        if (actual := sha256_file(self.staged_path)) != self.sha256:
            self.staged_path.unlink()
            raise SourceError(
                f"{self.source}: changed while it was being copied (sha256 {self.shorten(actual)}, was "
                f"{self.shorten(self.sha256)}). Migrate again"
            )


def _digest(path: Path) -> str | None:
    """Return the SHA-256 of a regular file, links followed; None when there is none."""
    try:
        # a FIFO would be waited for, and a folder or a device has no digest
        return sha256_file(path) if path.is_file() else None
    except PermissionError as error:
        raise ConfigError(f"{path}: cannot be read. Make it readable, then migrate again") from error
