"""The common interface of all kinds of sources: list their files, fetch them, and return their paths.

`LocalTree` reads a folder in place, `HubCache` an already mirrored Hugging Face cache. `HubMirror` fetches the files of
a Hub repository into the same cache layout.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from errno import EACCES
from glob import escape
from pathlib import Path
from posixpath import split
from typing import TYPE_CHECKING, Protocol, Self

from dataprep_assets.errors import SourceError, combine_errors, count_of, os_error_reason
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile
from dataprep_assets.sources.hub_cache import (
    HubFile,
    build_outward_link_error,
    find_cached_snapshot,
    list_cached_files,
    raise_unlisted,
)
from dataprep_assets.stores.files import sha256_file

# Import `HubRepo` only for type checkers, because most sources are local and do not need the Hub's client.
if TYPE_CHECKING:
    from dataprep_assets.sources.hub import HubRepo

# Folders that `datasets` writes contain Arrow files of the dataset, and cached results of its functions.
#
# `map()` and `filter()` store their results next to the data, as `cache-<fingerprint>.arrow`. `state.json` names the
# files of the dataset (`save_to_disk`). A folder in the cache of `datasets` has only `dataset_info.json`, so only
# the file names distinguish the two kinds there.

_STATE, _INFO = "state.json", "dataset_info.json"
_MAX_STATE = 16 << 20


def find_files_without_dataset(
    files: Iterable[SourceFile], read_file: Callable[[SourceFile], bytes] | None = None
) -> frozenset[str]:
    """Return the paths of Arrow files that do not belong to a dataset.

    Args:
        files: All files of a source.
        read_file: Reads a file of the source; None if the files are not local, so that only names decide.
    """
    all_files = list(files)
    arrow: dict[str, list[str]] = {}
    for file in all_files:
        if file.relpath.endswith(".arrow"):
            folder, name = split(file.relpath)
            arrow.setdefault(folder, []).append(name)
    if not arrow:
        return frozenset()
    marks = {split(file.relpath): file for file in all_files if file.relpath.endswith((_STATE, _INFO))}
    stray_paths: set[str] = set()
    for folder, names in arrow.items():
        state = marks.get((folder, _STATE))
        if state is None and (folder, _INFO) not in marks:
            continue
        dataset_files = None if state is None or read_file is None else _read_named_files(state, read_file)
        stray_paths.update(f"{folder}/{name}".lstrip("/") for name in names if not _is_data_file(name, dataset_files))
    return frozenset(stray_paths)


def _is_data_file(name: str, names: frozenset[str] | None) -> bool:
    return not name.startswith("cache-") if names is None else name in names


def _read_named_files(state: SourceFile, read_file: Callable[[SourceFile], bytes]) -> frozenset[str] | None:
    """Return the files that a `state.json` names; None if it names no files, as in a file of a different tool."""
    if state.size_bytes > _MAX_STATE:
        return None
    try:
        return frozenset(str(entry["filename"]) for entry in json.loads(read_file(state))["_data_files"]) or None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


_DISK_FOLDER = "lost+found"
"""The folder of ext4 at the top of a disk, which only root can read and which contains no data of users."""


LEFT_OUT = "caches that `datasets` keeps next to its data, or hidden names without a readable file in the source"
"""Description of the paths in `Listing.left_out`."""


def _has_hidden_part(path: str) -> bool:
    """Return whether a part of a path inside a source begins with `.`."""
    return path.startswith(".") or "/." in path


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a source, the commit that pins them, and a prefix that turns their paths into URLs.

    `left_out` are paths that are not data (`LEFT_OUT`), for example an editor's lock, which is a dangling hidden link.
    """

    files: tuple[SourceFile, ...]
    commit: str | None = None
    url_prefix: str = ""
    left_out: frozenset[str] = frozenset()

    @classmethod
    def from_files(
        cls,
        files: Iterable[SourceFile],
        read_file: Callable[[SourceFile], bytes] | None = None,
        *,
        commit: str | None = None,
        url_prefix: str = "",
        left_out: Iterable[str] = (),
    ) -> Self:
        """Build the listing of these files; `read_file` reads one of them if they are local."""
        all_files, other_paths = tuple(files), frozenset(left_out)
        if stray_paths := find_files_without_dataset(all_files, read_file):
            all_files = tuple(file for file in all_files if file.relpath not in stray_paths)
        return cls(files=all_files, commit=commit, url_prefix=url_prefix, left_out=stray_paths | other_paths)


class SourceAccess(Protocol):
    """The interface of every kind of source. Paths inside a source use `/`."""

    mirrored: bool
    """Whether files are fetched (True) or used in place (False)."""

    def list(self) -> Listing:
        """Return all files, in any order."""
        ...

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        """Return the number of bytes that `fetch` would add to the disk."""
        ...

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        """Fetch the missing files, and verify all files against the source's listing."""
        ...

    def path(self, entry: ManifestEntry) -> Path:
        """Return the local path of a file. It may not exist before `fetch`."""
        ...

    def copies(self, relpath: str) -> Sequence[Path]:
        """Return a mirror's copies of a file, of all versions; empty for a source that is used in place."""
        ...

    @property
    def storage(self) -> Path:
        """A path on the disk that contains the files, or will contain them after `fetch`."""
        ...


def find_copies(access: SourceAccess, relpaths: Sequence[str], *, sensitive: bool) -> tuple[Path, ...]:
    """Return a mirror's copies of source files; for sensitive data only the folder, because names may be secret."""
    if sensitive:
        return (access.storage,) if access.mirrored and relpaths else ()
    return tuple(copy for relpath in relpaths for copy in access.copies(relpath))


def compute_source_digest(access: SourceAccess, entry: ManifestEntry) -> str:
    """Return the digest of an existing file of a source. Raises SourceError, naming the file, if it cannot be read."""
    try:
        return sha256_file(access.path(entry))
    except OSError as error:
        raise SourceError(f"{entry.relpath}: cannot be read: {os_error_reason(error)}") from error


def read_size(path: Path | str) -> int:
    """Return the size of a source file.

    Raises SourceError if it is not a regular file, because reading a FIFO would block.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a FIFO, socket or device"
        raise SourceError(f"{path}: is {kind}, not a regular file. Remove it from the source")
    return status.st_size


def _require_present(access: SourceAccess, entries: Iterable[ManifestEntry]) -> None:
    defects = []
    for entry in entries:
        try:
            size = read_size(access.path(entry))
        except OSError as error:
            defects.append(
                f"{entry.relpath}: {error.strerror or error}, but the manifest lists it. Restore the file, or "
                "rebuild `manifest`"
            )
            continue
        if size != entry.size_bytes:
            defects.append(
                f"{entry.relpath}: has {count_of(size, 'byte')}, but the manifest lists {entry.size_bytes}. Restore "
                "the file, or rebuild `manifest` if the change was intended"
            )
    if defects:
        raise combine_errors([SourceError(message) for message in defects])


@dataclass(frozen=True)
class LocalTree:
    """A local folder, or only its file `only`. Links may lead out of the folder only with `follow_links`."""

    root: Path
    follow_links: bool = False
    only: str | None = None
    mirrored = False

    def list(self) -> Listing:
        if self.only is not None:
            return Listing(files=(SourceFile(self.only, read_size(self.root / self.only)),))
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: not a folder. Set the path of the folder that contains the data files")
        files: list[SourceFile] = []
        unusable_paths: list[str] = []
        root = self.root.resolve()
        # Follow links, because files behind a link to a folder would otherwise be omitted silently. Each link is
        # checked below.
        for folder, folders, names in os.walk(self.root, onerror=raise_unlisted, followlinks=True):
            # Use strings, because a Path per file would take longer than the rest of the listing.
            prefix = "" if Path(folder) == self.root else f"{Path(folder).relative_to(self.root).as_posix()}/"
            entries = []
            for name in folders:
                if name == _DISK_FOLDER:
                    continue
                try:
                    self._require_folder(f"{folder}/{name}", root)
                    entries.append(name)
                except SourceError:
                    if not _has_hidden_part(prefix + name):
                        raise
                    unusable_paths.append(prefix + name)
            folders[:] = entries
            for name in names:
                try:
                    files.append(
                        SourceFile(relpath=prefix + name, size_bytes=self._read_size(f"{folder}/{name}", root))
                    )
                except SourceError:
                    # Ignore errors of hidden names, because an editor's lock file may be a dangling link.
                    if not _has_hidden_part(prefix + name):
                        raise
                    unusable_paths.append(prefix + name)
        return Listing.from_files(files, lambda file: self.path(file).read_bytes(), left_out=unusable_paths)

    def _require_folder(self, path: str, root: Path) -> None:
        """Raise SourceError for a folder that cannot be listed, and for a link that must not be followed."""
        if os.path.islink(path):
            self._check_link(Path(path), root)
        if not os.access(path, os.R_OK | os.X_OK):
            raise_unlisted(PermissionError(EACCES, os.strerror(EACCES), path))

    def _read_size(self, path: str, root: Path) -> int:
        """Return the size of a file.

        Raises SourceError if it is not a file, cannot be read, or is a link out of the folder.
        """
        if os.path.islink(path):
            self._check_link(Path(path), root)
        try:
            return read_size(path)
        except OSError as error:
            raise SourceError(
                f"{path}: {error.strerror}: broken link or unreadable file. Restore or remove it",
                relpath=Path(path).relative_to(self.root).as_posix(),
            ) from error

    def _check_link(self, link: Path, root: Path) -> None:
        target = Path(os.path.realpath(link))
        if not self.follow_links and not target.is_relative_to(root):
            raise build_outward_link_error(
                link, f"the source's folder {self.root}", link.relative_to(self.root).as_posix()
            )
        if target.is_dir() and Path(os.path.realpath(link.parent)).is_relative_to(target):
            raise SourceError(
                f"{link}: is a link to one of its parent folders, which creates an endless tree. Remove the link"
            )

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        return 0

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        _require_present(self, entries)

    def path(self, entry: ManifestEntry | SourceFile) -> Path:
        return self.root / entry.relpath

    def copies(self, relpath: str) -> Sequence[Path]:
        return ()

    @property
    def storage(self) -> Path:
        return self.root


@dataclass(frozen=True)
class HubCache:
    """An already mirrored cache folder `datasets--organization--name`."""

    folder: Path
    revision: str
    follow_links: bool = False
    mirrored = False

    def list(self) -> Listing:
        commit, _ = find_cached_snapshot(self.folder, self.revision)
        files = list_cached_files(self.folder, self.revision, follow_links=self.follow_links)
        snapshot = self.folder / "snapshots" / commit
        return Listing.from_files(
            map(_to_source_file, files),
            lambda file: (snapshot / file.relpath).read_bytes(),
            commit=commit,
            url_prefix=_format_url_prefix("/".join(self.folder.name.split("--")[1:]), commit),
        )

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        return 0

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        _require_present(self, entries)

    def path(self, entry: ManifestEntry) -> Path:
        # Do not resolve the link, because the blob has neither the file's name nor its suffix.
        return self.folder / "snapshots" / (entry.commit or "") / entry.relpath

    def copies(self, relpath: str) -> Sequence[Path]:
        return ()

    @property
    def storage(self) -> Path:
        return self.folder


@dataclass(frozen=True)
class HubMirror:
    """A dataset repository on the Hugging Face Hub, mirrored on demand."""

    repo: "HubRepo"
    mirrored = True

    def list(self) -> Listing:
        commit = self.repo.resolve_commit()
        return Listing.from_files(
            map(_to_source_file, self.repo.list_files(commit)),
            commit=commit,
            url_prefix=_format_url_prefix(self.repo.repo_id, commit),
        )

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        return self.repo.compute_disk_needed([_to_hub_file(e) for e in entries])

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        if not entries:
            return
        # Take the commit from the first entry, because all entries of a manifest have the same commit.
        self.repo.mirror(_require_commit(entries[0]), [_to_hub_file(e) for e in entries], progress=progress)

    def path(self, entry: ManifestEntry) -> Path:
        return self.repo.get_snapshot_dir(_require_commit(entry)) / entry.relpath

    def copies(self, relpath: str) -> Sequence[Path]:
        return sorted(self.storage.glob(f"snapshots/*/{escape(relpath)}"))

    @property
    def storage(self) -> Path:
        return self.repo.repo_dir


def _format_url_prefix(repo: str, commit: str) -> str:
    return f"hf://datasets/{repo}@{commit}/"


def _require_commit(entry: ManifestEntry) -> str:
    if entry.commit is None:
        raise SourceError(f"{entry.relpath}: the manifest has no commit. Rebuild `manifest`")
    return entry.commit


def _to_source_file(file: HubFile) -> SourceFile:
    return SourceFile(relpath=file.relpath, size_bytes=file.size, sha256=file.sha256, etag=file.etag or None)


def _to_hub_file(entry: ManifestEntry) -> HubFile:
    return HubFile(relpath=entry.relpath, size=entry.size_bytes, sha256=entry.sha256, etag=entry.etag or "")
