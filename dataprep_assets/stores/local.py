"""Store of objects in a folder; a key is the path of a file below it.

An object is written as `.uploads/<random>/<key>`, synced, and then renamed to its path (or linked, if the path must not
exist yet). So a reader sees the old object, the new object or none. The writer holds a kernel lock on its temporary
folder, and a sweep removes only folders without a living writer. Every rename happens under one lock of the store,
which makes `if_version` an atomic compare-and-swap.

The version consists of inode, size and modification time. The store sets the modification time of each file it writes,
because the kernel's clock has a resolution of milliseconds and inodes are reused immediately. Symbolic links are
followed if they stay inside the folder.

Entry point: :class:`LocalStore`.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dataprep_assets.errors import (
    ConfigError,
    DataprepError,
    FormatError,
    IntegrityError,
    MissingArtifactError,
    SourceError,
    TransferError,
    count_of,
)
from dataprep_assets.stores import files, ranged
from dataprep_assets.stores.locks import open_own_file, try_lock
from dataprep_assets.stores.store import (
    UPLOADS,
    ConflictError,
    ObjectInfo,
    Progress,
    Store,
    build_conflict_error,
    build_missing_object_error,
    check_key,
    check_range,
)

_BLOCK = 1024 * 1024
_COPY_BLOCK = 4 * 1024 * 1024

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_OBSTRUCTED_ERRNOS = {errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST}
# Error numbers of refused hard links: the file system does not support them, or the file has too many.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStore(Store):
    """Objects in the folder `root`, which is created with the first object."""

    def __init__(self, root: Path) -> None:
        self._root = Path(root).resolve()

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def path(self, key: str) -> Path:
        """Return the path of an object; raise ConfigError if a symbolic link leads out of the folder."""
        path = self._root / check_key(key)
        if not path.resolve().is_relative_to(self._root):
            raise ConfigError(f"{path}: is a symbolic link to a location outside {self._root}. Remove the link")
        return path

    def head(self, key: str) -> ObjectInfo | None:
        path = self.path(key)
        with _translate_errors(path):
            return _find_info(key, path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with _translate_errors(self._root):
            for key in self._list_keys("", prefix):
                info = _find_info(key, self._root / key)
                # Skip a file without information, because it was removed after its folder was read.
                if info is not None:
                    yield info

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        path = self.path(key)
        check_range(start, stop, str(path))
        return self._read_blocks(key, path, start, stop, version)

    def put(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_version: str | None = None,
        content_type: str | None = None,
    ) -> ObjectInfo:
        if if_absent and if_version is not None:
            raise ConfigError(f"{key}: if_absent and if_version cannot be combined. Remove one of them")

        def write(file: BinaryIO) -> None:
            file.write(data)

        return self._write(key, write, if_absent=if_absent, if_version=if_version)

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        def write(file: BinaryIO) -> None:
            digest = hashlib.sha256()
            with path.open("rb") as source:
                while block := source.read(_COPY_BLOCK):
                    digest.update(block)
                    file.write(block)
                    if progress is not None:
                        progress(len(block))
            if digest.hexdigest() != sha256.lower():
                raise IntegrityError(
                    f"{path}: does not have sha256 {sha256}, so the file changed after it was recorded. Rebuild the "
                    "artifact"
                )

        return self._write(key, write)

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        def fetch(info: ObjectInfo, report: Progress) -> str:
            return ranged.download(
                lambda start, stop: self.read(key, start, stop, version=info.version),
                size=info.bytes,
                target=target,
                sha256=sha256,
                label=str(self.path(key)),
                progress=report,
            )

        return ranged.download_pinned(lambda: self.head(key), fetch, label=str(self.path(key)), progress=progress)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        if not keys:
            raise ConfigError(f"{self.path(key)}: compose needs at least one source")
        sources = [(source, self.path(source)) for source in keys]
        infos_before = [_require_info(source, path) for source, path in sources]
        with self._create_temporary(key) as temporary:
            try:
                size = files.concatenate([path.resolve() for _, path in sources], temporary)
            except FormatError as error:
                raise ConflictError(str(error)) from error
            # Also compare the versions, because `concatenate` detects a changed length, but not a replacement of the
            # same length.
            infos_after = [_find_info(source, path) for source, path in sources]
            if infos_after != infos_before or size != sum(info.bytes for info in infos_before):
                raise ConflictError(
                    f"{self.path(key)}: one of its {count_of(len(keys), 'source')} was replaced or removed during the "
                    "operation. Run the command again"
                )
            with temporary.open("rb") as file:
                _finish(file)
            return self._publish(temporary, key, if_absent=False, if_version=None)

    def copy(self, source: str, key: str) -> ObjectInfo:
        return self.compose([source], key)

    def delete(self, key: str) -> None:
        path = self.path(key)
        with _translate_errors(path), self._lock_store():
            if _find_info(key, path) is None:
                return
            path.unlink()
            files.fsync_directory(path.parent)
            # Prune folders under the lock, so that a writer's new folder is not removed before the writer moves its
            # file there.
            self._prune(path.parent)

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        latest = time.time() - older_than_seconds
        swept = 0
        with _translate_errors(self._root), self._lock_store():
            for area in self._list_areas():
                # Skip the area of a living writer, because its files may change during the scan.
                if _is_held(area):
                    continue
                paths = [path for path in area.rglob("*") if path.is_file()]
                keys = [path.relative_to(area).as_posix() for path in paths]
                # Accept an empty area, because its writer may have been killed before it created the file, or after it
                # renamed the file.
                has_prefix = keys[0].startswith(prefix) if keys else not prefix
                if has_prefix and _find_latest_change([area, *paths]) <= latest:
                    shutil.rmtree(area, ignore_errors=True)
                    swept += bool(keys)
        return swept

    def _list_keys(self, folder: str, prefix: str) -> Iterator[str]:
        """Yield the keys below `folder` ("" or ending in a slash) that begin with `prefix`, one folder at a time."""
        names: list[tuple[bytes, str, bool]] = []
        try:
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    key = f"{folder}{entry.name}{'/' if is_folder else ''}"
                    if key != UPLOADS and (key.startswith(prefix) or (is_folder and prefix.startswith(key))):
                        names.append((os.fsencode(key), key, is_folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        # Sort a folder by its name with a slash, so that `a.txt` comes before `a/b`.
        for _, key, is_folder in sorted(names):
            if is_folder:
                yield from self._list_keys(key, prefix)
            elif self._is_object(key):
                yield key

    def _is_object(self, key: str) -> bool:
        path = self._root / check_key(key)
        return path.is_file() and (not path.is_symlink() or path.resolve().is_relative_to(self._root))

    def _read_blocks(self, key: str, path: Path, start: int, stop: int | None, version: str | None) -> Iterator[bytes]:
        with _translate_errors(path):
            _require_info(key, path)
            with path.open("rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                opened_version, size = _identify_version(status), status.st_size
                if version is not None and opened_version != version:
                    raise ConflictError(
                        f"{path}: expected version {version}, but found {opened_version}. Run the command again"
                    )
                stop = size if stop is None else stop
                if max(start, stop) > size:
                    raise IntegrityError(
                        f"{path}: has {count_of(size, 'byte')}, but bytes up to {max(start, stop)} were requested"
                    )
                while start < stop:
                    block = os.pread(file.fileno(), min(_BLOCK, stop - start), start)
                    # An open file keeps its content when its path is replaced, so a different version means that a
                    # process writes to the file in place.
                    if not block or _identify_version(os.fstat(file.fileno())) != opened_version:
                        raise ConflictError(
                            f"{path}: another process writes to this file while it is being read. Run the command "
                            "again when that process has finished"
                        )
                    start += len(block)
                    yield block

    def _write(
        self, key: str, write: Callable[[BinaryIO], None], *, if_absent: bool = False, if_version: str | None = None
    ) -> ObjectInfo:
        with self._create_temporary(key) as temporary, temporary.open("xb") as file:
            write(file)
            file.flush()
            _finish(file)
            return self._publish(temporary, key, if_absent=if_absent, if_version=if_version)

    @contextmanager
    def _create_temporary(self, key: str) -> Iterator[Path]:
        """Yield a temporary path for the object, in a folder that is removed afterwards."""
        area = self._root / UPLOADS / secrets.token_hex(16)
        temporary = area / key
        with _translate_errors(self.path(key)):
            # Hold the store's lock, so that no sweep sees the folder before the folder is locked.
            with self._lock_store():
                area.mkdir()
                descriptor = _lock_against_sweeps(area)
            try:
                temporary.parent.mkdir(parents=True, exist_ok=True)
                yield temporary
            finally:
                # Remove the folder before releasing its lock, so that no sweep finds and counts it.
                shutil.rmtree(area, ignore_errors=True)
                os.close(descriptor)

    def _publish(self, temporary: Path, key: str, *, if_absent: bool, if_version: str | None) -> ObjectInfo:
        path = self.path(key)
        with self._lock_store():
            changed_folders = self._make_folders(path.parent)
            current_info = _find_info(key, path)
            if if_absent and (current_info is not None or not _link_file(temporary, path)):
                raise ConflictError(f"{path}: expected no object, but found one")
            if if_version is not None and (current_info is None or current_info.version != if_version):
                raise build_conflict_error(str(path), if_version, current_info and current_info.version)
            # If `_link_file` has created a link, both names are one file, and this call does nothing. The temporary
            # name is removed with its folder.
            os.replace(temporary, path)
            for folder in (path.parent, *changed_folders):
                files.fsync_directory(folder)
            return _require_info(key, path)

    def _make_folders(self, folder: Path) -> Sequence[Path]:
        """Create a folder and its parents, and return the folders whose entries changed."""
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        return [parent.parent for parent in missing]

    def _prune(self, folder: Path) -> None:
        """Remove empty folders, because they would block objects of the same name and a bucket has no folders."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _list_areas(self) -> Sequence[Path]:
        try:
            return [path for path in (self._root / UPLOADS).iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []

    @contextmanager
    def _lock_store(self) -> Iterator[None]:
        area = self._root / UPLOADS
        area.mkdir(parents=True, exist_ok=True)
        # Open the file for each use, because a flock belongs to an open file, and a shared one would not exclude other
        # threads.
        with open(area / "lock", "ab", opener=open_own_file) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _identify_version(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def _find_info(key: str, path: Path) -> ObjectInfo | None:
    """Return the object, or None if its path is missing, a folder, or below a file."""
    if not path.is_file():
        return None
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ObjectInfo(key=key, bytes=status.st_size, version=_identify_version(status))


def _require_info(key: str, path: Path) -> ObjectInfo:
    info = _find_info(key, path)
    if info is None:
        raise build_missing_object_error(str(path))
    return info


def _link_file(temporary: Path, path: Path) -> bool:
    """Link the file to `path` unless `path` exists; atomic in the kernel if the file system has hard links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        # Continue without hard links, because the store's lock still excludes other writers that use this class.
        if error.errno not in _NO_LINKS:
            raise
    return True


def _find_latest_change(paths: Sequence[Path]) -> float:
    """Return the latest modification time in seconds since 1970, or 0 if none of the files exists."""
    times = [0.0]
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times)


def _finish(file: BinaryIO) -> None:
    """Sync a new file and give it a modification time that no earlier file with its inode can have."""
    # Skip a file that shares its inode with another object, because that object's version must not change.
    if os.fstat(file.fileno()).st_nlink == 1:
        os.utime(file.fileno(), ns=(time.time_ns(), time.time_ns()))
    os.fsync(file.fileno())


def _lock_against_sweeps(area: Path) -> int:
    """Lock the folder against sweeps and return the descriptor; the lock ends when it is closed or the process ends."""
    descriptor = os.open(area, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _is_held(area: Path) -> bool:
    try:
        descriptor = os.open(area, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True  # the writer has removed its folder in the meantime
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Translate OSError into this project's errors."""
    try:
        yield
    except DataprepError:
        raise
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise MissingArtifactError(
                f"{path}: {error.filename} does not exist. Another process may have removed it. Run the command again"
            ) from error
        if error.errno in _FULL:
            raise TransferError(f"{path}: the disk is full. Free space there, then run the command again") from error
        if error.errno in _REFUSED:
            raise SourceError(f"{path}: access denied ({error.strerror}). Correct its owner or permissions") from error
        if error.errno in _OBSTRUCTED_ERRNOS:
            raise SourceError(
                f"{path}: one key is a folder in another key's path ({error.strerror}). Rename one of the objects"
            ) from error
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{path}: a part of this key is too long for the file system. Shorten it") from error
        raise
