"""The places of the site's files: a folder, and buckets. Each has a record of the digests of its files.

A record is kept with the files, so that a pod, whose folders are empty, renders and writes only changed pages.

Entry points: `FolderCopy`, `BucketCopy`, `open_project_bucket`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path

import orjson

from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.storage import find_local_storage
from dataprep_assets.project import read_state, validate_json
from dataprep_assets.resources.environment import open_storage
from dataprep_assets.site.folder import BUCKET_FOLDER, CONTENT_TYPES, INDEX, STATIC_FOLDER
from dataprep_assets.stores.store import Store

_RECORD = "built.json"
"""File with the record: file → digest of the facts that it shows."""


class SiteCopy(ABC):
    """A place of the site's files. Without its record, all files are written again.

    Attributes:
        url: Its address: a path or a URL.
    """

    def __init__(self, url: str, files: Collection[str], record: Mapping[str, str]) -> None:
        """Open the place, given its present files and its record."""
        self.url = url
        self._files, self._record = files, record
        self._digests: dict[str, str] = {}

    def includes(self, path: str) -> bool:
        """Return whether the place has this file of the site."""
        return True

    def is_current(self, path: str, digest: str) -> bool:
        """Return whether the file exists and was written from the same facts."""
        return self._digests.get(path) == digest or (self._record.get(path) == digest and path in self._files)

    def keep(self, folder: str) -> None:
        """Keep the files of a folder, whose name ends with a slash."""
        self._digests |= {path: digest for path, digest in self._record.items() if path.startswith(folder)}

    def has(self, path: str) -> bool:
        """Return whether the file exists."""
        return path in self._files

    def note(self, path: str, digest: str) -> None:
        """Note the digest of a file that is current or was written."""
        self._digests[path] = digest

    def finish(self, removed_files: list[str]) -> None:
        """Remove the files that were neither noted nor kept, and write the record. Adds them to `removed_files`."""
        other_digests = {path: digest for path, digest in self._record.items() if not self.includes(path)}
        obsolete_files = [path for path in sorted(self._files) if self.includes(path) and path not in self._digests]
        for path in obsolete_files:
            if path != _RECORD:
                self.remove(path)
                removed_files.append(path)
        if (digests := other_digests | self._digests) != self._record:
            self.write(_RECORD, orjson.dumps(digests, option=orjson.OPT_INDENT_2))

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return a file. Raises OSError or DataprepError if it cannot be read."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a file."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file."""


class FolderCopy(SiteCopy):
    """The site in a folder. A file is replaced as a whole, so that a reader never sees half a page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        super().__init__(str(folder), files, read_state(folder / _RECORD, dict[str, str]) or {})

    def read(self, path: str) -> bytes:
        return (self._folder / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data, durably=False)

    def remove(self, path: str) -> None:
        target = self._folder / path
        target.unlink()
        # Remove the folders that are now empty.
        for folder in target.relative_to(self._folder).parents[:-1]:
            if not any((self._folder / folder).iterdir()):
                (self._folder / folder).rmdir()


class BucketCopy(SiteCopy):
    """The site below the prefix `.site/` of a bucket."""

    def __init__(self, store: Store, folders: Collection[str] | None = None) -> None:
        """Open the copy.

        Args:
            store: The bucket.
            folders: The folders of datasets that the copy has besides the overview, with slashes; None for all.
        """
        self._store, self._folders = store, folders
        files = {info.key.removeprefix(BUCKET_FOLDER) for info in store.list(BUCKET_FOLDER)}
        super().__init__(f"{store.url}/{BUCKET_FOLDER}".removesuffix("/"), files, self._read_record(files))

    def _read_record(self, files: Collection[str]) -> Mapping[str, str]:
        try:
            return validate_json(self.read(_RECORD), dict[str, str]) if _RECORD in files else {}
        except ValueError:  # a damaged record
            return {}

    def includes(self, path: str) -> bool:
        return self._folders is None or path == INDEX or path.startswith((STATIC_FOLDER, *self._folders))

    def read(self, path: str) -> bytes:
        return b"".join(self._store.read(f"{BUCKET_FOLDER}{path}"))

    def write(self, path: str, data: bytes) -> None:
        content_type = CONTENT_TYPES.get(Path(path).suffix, "application/json")
        self._store.put(f"{BUCKET_FOLDER}{path}", data, content_type=content_type)

    def remove(self, path: str) -> None:
        self._store.delete(f"{BUCKET_FOLDER}{path}")


def open_project_bucket(root: Path) -> Store | None:
    """Return the bucket of the project's storage; None if the storage is a folder."""
    return None if find_local_storage(root) is not None else open_storage(root).address()()
