"""One interface for every kind of source: list its files, fetch them, and say where they are.

`LocalTree` reads a folder in place, `HubCache` an already mirrored Hugging Face cache, `HubMirror` a repository on a
hub, whose files it first fetches into that same cache layout.
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
from typing import Protocol, Self

from dataprep_assets.errors import SourceError, count_of, together
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.hub_cache import HubFile, cached_snapshot, link_out, list_cached_files, unlisted
from dataprep_assets.stores.files import sha256_file

# Folders that `datasets` writes: which of their Arrow files are the dataset, and which are results of its
# functions.
#
# `map()` and `filter()` leave their results beside the data, as `cache-<fingerprint>.arrow`. `state.json` names the
# files that belong (`save_to_disk`); a folder of its own cache has `dataset_info.json` alone, and there names
# decide.

_STATE, _INFO = "state.json", "dataset_info.json"
_MAX_STATE = 16 << 20


def without_dataset(files: Iterable[SourceFile], read: Callable[[SourceFile], bytes] | None = None) -> frozenset[str]:
    """The paths of Arrow files that belong to no dataset.

    Args:
        files: All files of a source.
        read: Reads a file of it; None if they are not on this machine: then names decide.
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
        dataset_files = None if state is None or read is None else _named_files(state, read)
        stray_paths.update(f"{folder}/{name}".lstrip("/") for name in names if not _belongs(name, dataset_files))
    return frozenset(stray_paths)


def _belongs(name: str, named: frozenset[str] | None) -> bool:
    return not name.startswith("cache-") if named is None else name in named


def _named_files(state: SourceFile, read: Callable[[SourceFile], bytes]) -> frozenset[str] | None:
    """The files that a `state.json` names; None if it names none, as one of something else."""
    if state.size_bytes > _MAX_STATE:
        return None
    try:
        return frozenset(str(entry["filename"]) for entry in json.loads(read(state))["_data_files"]) or None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


_OF_THE_DISK = "lost+found"
"""The folder of ext4 at the top of a disk, which root alone can read and which holds no data of anybody's."""


LEFT_OUT = "caches that `datasets` keeps beside its data, or hidden names that lead to no readable file of the source"
"""What the paths in `Listing.left_out` are."""


def _begins_with_dot(path: str) -> bool:
    """Return whether a part of a path inside a source begins with `.`."""
    return path.startswith(".") or "/." in path


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a source holds: its files, the commit they are pinned to, and a prefix that makes URLs of their paths.

    `left_out` are the paths of what it holds and is no data: `LEFT_OUT`. The lock of an editor is a hidden name that
    leads nowhere.
    """

    files: tuple[SourceFile, ...]
    commit: str | None = None
    url_prefix: str = ""
    left_out: frozenset[str] = frozenset()

    @classmethod
    def from_files(
        cls,
        files: Iterable[SourceFile],
        read: Callable[[SourceFile], bytes] | None = None,
        *,
        commit: str | None = None,
        url_prefix: str = "",
        left_out: Iterable[str] = (),
    ) -> Self:
        """The listing of these files; `read` reads one of them, if they are on this machine."""
        all_files, other_paths = tuple(files), frozenset(left_out)
        if stray_paths := without_dataset(all_files, read):
            all_files = tuple(file for file in all_files if file.relpath not in stray_paths)
        return cls(files=all_files, commit=commit, url_prefix=url_prefix, left_out=stray_paths | other_paths)


class SourceAccess(Protocol):
    """The interface of every kind of source. Paths inside a source use `/`."""

    mirrored: bool
    """Whether files are fetched (True) or used where they are (False)."""

    def list(self) -> Listing:
        """All files, in any order."""
        ...

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        """Bytes that `fetch` would add to the disk."""
        ...

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        """Fetch the files unless they are present, and verify them against the source's listing."""
        ...

    def path(self, entry: ManifestEntry) -> Path:
        """The local path of a file. It may not exist before `fetch`."""
        ...

    def copies(self, relpath: str) -> Sequence[Path]:
        """The copies that a mirror keeps of a file, in whatever version; none of a source that is used in place."""
        ...

    @property
    def storage(self) -> Path:
        """A path on the disk that holds, or will hold, the files."""
        ...


def source_digest(access: SourceAccess, entry: ManifestEntry) -> str:
    """Digest of a present file of the source `access`; raises SourceError, naming the file, if it cannot be read."""
    try:
        return sha256_file(access.path(entry))
    except OSError as error:
        raise SourceError(f"{entry.relpath}: cannot be read: {error.strerror or error}") from error


def size_of(path: Path | str) -> int:
    """Bytes of a source file; raises SourceError for what is no file, such as a FIFO, which would be waited for."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a FIFO, socket or device"
        raise SourceError(f"{path}: is {what}, not a regular file. Remove it from the source")
    return status.st_size


def _require_present(access: SourceAccess, entries: Iterable[ManifestEntry]) -> None:
    wrong = []
    for entry in entries:
        try:
            size = size_of(access.path(entry))
        except OSError as error:
            wrong.append(
                f"{entry.relpath}: {error.strerror or error}, but the manifest lists it. Restore the file, or "
                "materialize `manifest` again"
            )
            continue
        if size != entry.size_bytes:
            wrong.append(
                f"{entry.relpath}: has {count_of(size, 'byte')}, but the manifest lists {entry.size_bytes}. If the "
                "source was meant to change, materialize `manifest` again"
            )
    if wrong:
        raise together([SourceError(message) for message in wrong])


@dataclass(frozen=True)
class LocalTree:
    """A folder on a local file system, or the file `only` of it; links may lead out only with `follow_links`."""

    root: Path
    follow_links: bool = False
    only: str | None = None
    mirrored = False

    def list(self) -> Listing:
        if self.only is not None:
            return Listing(files=(SourceFile(self.only, size_of(self.root / self.only)),))
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: not a folder. Set the folder that contains the data files")
        files: list[SourceFile] = []
        unusable_paths: list[str] = []
        root = self.root.resolve()
        # followlinks, or files behind a link to a folder would be left out without a word; each link is checked below
        for folder, folders, names in os.walk(self.root, onerror=unlisted, followlinks=True):
            # a Path for each file would take longer than everything else done with a listing
            below = "" if Path(folder) == self.root else f"{Path(folder).relative_to(self.root).as_posix()}/"
            inside = []
            for name in folders:
                if name == _OF_THE_DISK:
                    continue
                try:
                    self._require_folder(f"{folder}/{name}", root)
                    inside.append(name)
                except SourceError:
                    if not _begins_with_dot(below + name):
                        raise
                    unusable_paths.append(below + name)
            folders[:] = inside
            for name in names:
                try:
                    files.append(SourceFile(relpath=below + name, size_bytes=self._size(f"{folder}/{name}", root)))
                except SourceError:
                    # the lock of an editor is a link to nothing: what is hidden is nobody's mistake
                    if not _begins_with_dot(below + name):
                        raise
                    unusable_paths.append(below + name)
        return Listing.from_files(files, lambda file: self.path(file).read_bytes(), left_out=unusable_paths)

    def _require_folder(self, path: str, root: Path) -> None:
        """Raise SourceError for a folder that cannot be listed, and for a link that must not be followed."""
        if os.path.islink(path):
            self._check_link(Path(path), root)
        if not os.access(path, os.R_OK | os.X_OK):
            unlisted(PermissionError(EACCES, os.strerror(EACCES), path))

    def _size(self, path: str, root: Path) -> int:
        """Bytes of a file; raises SourceError for what is none, cannot be read, or is a link that leads out."""
        if os.path.islink(path):
            self._check_link(Path(path), root)
        try:
            return size_of(path)
        except OSError as error:
            raise SourceError(
                f"{path}: {error.strerror}: broken link or unreadable file. Restore or remove it",
                relpath=Path(path).relative_to(self.root).as_posix(),
            ) from error

    def _check_link(self, link: Path, root: Path) -> None:
        target = Path(os.path.realpath(link))
        if not self.follow_links and not target.is_relative_to(root):
            raise link_out(link, f"the source's folder {self.root}", link.relative_to(self.root).as_posix())
        if target.is_dir() and Path(os.path.realpath(link.parent)).is_relative_to(target):
            raise SourceError(
                f"{link}: a link to one of its parent folders, which would make an endless tree. Remove the link"
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
        commit, _ = cached_snapshot(self.folder, self.revision)
        files = list_cached_files(self.folder, self.revision, follow_links=self.follow_links)
        snapshot = self.folder / "snapshots" / commit
        return Listing.from_files(
            map(_as_source_file, files),
            lambda file: (snapshot / file.relpath).read_bytes(),
            commit=commit,
            url_prefix=_url_prefix("/".join(self.folder.name.split("--")[1:]), commit),
        )

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        return 0

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        _require_present(self, entries)

    def path(self, entry: ManifestEntry) -> Path:
        # not resolved: the blob behind the link has neither the file's name nor its suffix
        return self.folder / "snapshots" / (entry.commit or "") / entry.relpath

    def copies(self, relpath: str) -> Sequence[Path]:
        return ()

    @property
    def storage(self) -> Path:
        return self.folder


@dataclass(frozen=True)
class HubMirror:
    """A dataset repository on a hub, mirrored on demand."""

    repo: HubRepo
    mirrored = True

    def list(self) -> Listing:
        commit = self.repo.resolve_commit()
        return Listing.from_files(
            map(_as_source_file, self.repo.list_files(commit)),
            commit=commit,
            url_prefix=_url_prefix(self.repo.repo_id, commit),
        )

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        return self.repo.disk_needed([_as_hub_file(e) for e in entries])

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        if not entries:
            return
        # A manifest is of one commit, so that of the first entry is that of all.
        self.repo.mirror(_commit(entries[0]), [_as_hub_file(e) for e in entries], progress=progress)

    def path(self, entry: ManifestEntry) -> Path:
        return self.repo.snapshot_dir(_commit(entry)) / entry.relpath

    def copies(self, relpath: str) -> Sequence[Path]:
        return sorted(self.storage.glob(f"snapshots/*/{escape(relpath)}"))

    @property
    def storage(self) -> Path:
        return self.repo.repo_dir


def _url_prefix(repo: str, commit: str) -> str:
    return f"hf://datasets/{repo}@{commit}/"


def _commit(entry: ManifestEntry) -> str:
    if entry.commit is None:
        raise SourceError(f"{entry.relpath}: the manifest has no commit. Materialize `manifest` again")
    return entry.commit


def _as_source_file(file: HubFile) -> SourceFile:
    return SourceFile(relpath=file.relpath, size_bytes=file.size, sha256=file.sha256, etag=file.etag or None)


def _as_hub_file(entry: ManifestEntry) -> HubFile:
    return HubFile(relpath=entry.relpath, size=entry.size_bytes, sha256=entry.sha256, etag=entry.etag or "")
