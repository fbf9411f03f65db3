"""Placement of a file in the trainer's folder.

The target is in the user's project, not in the artifact storage, so existing files there may belong to the user. A copy
or link is staged next to its target and then renamed. If the process is killed, either the old file or the new file
remains. Staged names are fixed (`.<name>.staged`), so that the next run can remove a killed run's files. Callers hold a
lock.
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
"""Permissions of a copy: readable by everyone, because any user may run the trainer."""
PRIVATE_MODE = 0o600
"""Permissions of a sensitive dataset's copy: readable only by the user who migrates and who runs the trainer."""
TargetState = Literal["absent", "done", "permissions", "same_content", "other_link", "other_file"]
"""State of a target, compared with the required file.

- `absent`: the target does not exist
- `done`: the target is as required
- `permissions`: only the permissions differ
- `same_content`: the same content, but not as the required copy or link
- `other_link`: a link to different content or to a missing file
- `other_file`: a file with different content
"""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A file required at `target`: the content of `source`, which has this SHA-256, as a copy or as a link.

    `permissions` apply to copies. `digests` computes the digests in messages.
    """

    source: Path
    target: Path
    mode: Mode
    sha256: str
    permissions: int = MODE
    digests: SourceDigests = PLAIN

    def shorten_digest(self, sha256: str) -> str:
        """Return the first characters of a file's digest for messages, given the file's SHA-256 (hex)."""
        return f"{self.digests.digest_of(sha256)[:12]}…"

    @property
    def staged_path(self) -> Path:
        """Path at which the file is prepared."""
        return self.target.with_name(f".{self.target.name}.staged")

    @property
    def link_text(self) -> str:
        """Target of a link, as text: relative if both ends share a tree, which can then be moved, else absolute."""
        source, folder = self.source.resolve(), self.target.parent.resolve()
        # Use an absolute link if only the root contains both ends, because both ends can then not be moved together.
        if os.path.commonpath([source, folder]) == os.path.sep:
            return str(source)
        return os.path.relpath(source, folder)

    def find_state(self) -> TargetState:
        """Return the state of the target; raise ConfigError for a folder or a device, which are never replaced."""
        target = self.target
        try:
            # Do not follow a link, because it is the link itself that is replaced.
            kind = target.lstat().st_mode
        except FileNotFoundError:
            return "absent"
        except NotADirectoryError as error:
            raise ConfigError(
                f"{target.parent}: must be a folder. Move it away, then migrate the task again"
            ) from error
        if stat.S_ISLNK(kind):
            if self.mode == "symlink" and os.readlink(target) == self.link_text:
                return "done"
            return "same_content" if _read_digest(target) == self.sha256 else "other_link"
        if not stat.S_ISREG(kind):
            description = "a folder" if stat.S_ISDIR(kind) else "a special file"
            raise ConfigError(f"{target}: must be a file, not {description}. Move it away, then migrate the task again")
        if _read_digest(target) != self.sha256:
            return "other_file"
        if self.mode == "symlink":
            return "same_content"
        return "done" if stat.S_IMODE(kind) == self.permissions else "permissions"

    def place(self) -> None:
        """Place the file at its target, replacing an existing file atomically; the change is durable on return.

        Raises SourceError if the source changed since it was read, ConfigError if a file is where a folder must be.
        """
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(
                f"{error.filename}: must be a folder, not a file. Move it away, then migrate the task again"
            ) from error
        if self.mode == "symlink":
            os.symlink(self.link_text, self.staged_path)
        else:
            self._copy()
        # Replace the old content atomically. Then sync the folder, because otherwise a crash could undo the rename
        # after the receipt was written.
        os.replace(self.staged_path, self.target)
        fsync_directory(self.target.parent)

    def _copy(self) -> None:
        with open(self.source, "rb") as source, open(self.staged_path, "xb") as copy:
            shutil.copyfileobj(source, copy)
            # Set the permissions before the rename, so that the target never has the wrong permissions.
            os.fchmod(copy.fileno(), self.permissions)
            copy.flush()
            os.fsync(copy.fileno())
        # Digest the copy instead of the source, because the trainer will read the copy.
        if (actual := sha256_file(self.staged_path)) != self.sha256:
            self.staged_path.unlink()
            raise SourceError(
                f"{self.source}: changed while it was being copied (sha256 {self.shorten_digest(actual)}, was "
                f"{self.shorten_digest(self.sha256)}). Migrate the task again"
            )


def _read_digest(path: Path) -> str | None:
    """Return the SHA-256 of a regular file, following links; None if the path is not a regular file."""
    try:
        # Digest only regular files, because a FIFO would block, and a folder or a device has no digest.
        return sha256_file(path) if path.is_file() else None
    except PermissionError as error:
        raise ConfigError(f"{path}: cannot be read. Make it readable, then migrate the task again") from error
