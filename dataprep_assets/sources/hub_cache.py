"""The layout of the Hugging Face cache: names, links and locks, and reading of a mirror's files.

It is the layout of ``huggingface_hub`` (``file_download.py``)::

    <cache>/datasets--<org>--<name>/
        blobs/<etag>                content; the name is the SHA-256 (LFS, Xet) or the git blob SHA-1 (small files)
        snapshots/<commit>/<path>   relative symlinks into blobs/
        refs/<revision>             the commit, 40 hex digits, no newline
        trees/<commit>.json         the list of the commit's files, as the Hub's client caches it

Entry points: :class:`HubFile`, :func:`find_cached_snapshot`, :func:`list_cached_files`, and :func:`fetch_model_file`
for repositories of models. ``huggingface_hub`` is imported inside functions because it is slow to import and reads its
environment at that moment.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import SourceError, count_of, os_error_reason
from dataprep_assets.stores.files import explain_invalid_name

COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """One file of a repository at one commit.

    ``etag`` is the name of its blob in the cache. It is the SHA-256 of an LFS or Xet file, or the git blob id (SHA-1)
    of a small file. It is empty for a cached file that is not a link (a file system without symlinks). ``sha256`` is
    None if the Hub does not know it.
    """

    relpath: str
    size: int
    sha256: str | None
    etag: str


def check_file(file: HubFile, label: str) -> HubFile:
    """Return the file. Raises SourceError if its path leaves the snapshot, or its blob's name is not a digest."""
    if not is_inside(file.relpath):
        raise SourceError(f"{label}: the path {file.relpath!r} is not a valid file name in a repository")
    if not _BLOB.fullmatch(file.etag) or file.sha256 not in (None, file.etag):
        raise SourceError(f"{label}: {file.relpath} has no usable digest (etag {file.etag!r}, sha256 {file.sha256!r})")
    if file.sha256 is None and _SHA256.fullmatch(file.etag):
        raise SourceError(f"{label}: {file.relpath} has an LFS etag, {file.etag}, but no sha256")
    return file


def is_inside(relpath: str) -> bool:
    """Return whether a path, or a name with slashes, stays below its base folder."""
    return not explain_invalid_name(relpath) and "\\" not in relpath


def check_commit(value: str, label: str) -> str:
    """Return the commit. Raises SourceError for anything except 40 hex digits."""
    if not COMMIT.fullmatch(value):
        raise SourceError(f"{label}: must be a commit of 40 hex digits, not {value!r}")
    return value


def find_default_cache_dir() -> Path:
    """Return ``HF_HUB_CACHE``, else ``HF_HOME/hub``, else the user's cache.

    ``huggingface_hub`` reads these variables when it is imported.
    """
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def name_repo_folder(repo_id: str) -> str:
    """Return the folder name of a dataset's repository in the cache, e.g., ``datasets--org--name``."""
    return "--".join(["datasets", *repo_id.split("/")])


def find_cached_snapshot(repo_dir: Path, revision: str = "main") -> tuple[str, Path]:
    """Return the commit and the snapshot folder of ``revision`` in an existing cache (``.../datasets--org--name``).

    The commit comes from ``refs/``, because a cache may have several snapshots, and the order of hashes has no meaning.
    Raises SourceError, listing available revisions, for a revision without a ref or a snapshot.
    """
    snapshots = repo_dir / "snapshots"
    if not is_inside(revision):
        raise SourceError(f"revision {revision!r} must be a branch, tag or commit")
    if COMMIT.fullmatch(revision):
        commit = revision
    else:
        ref = repo_dir / "refs" / revision
        try:
            commit = ref.read_text(encoding="utf-8").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise SourceError(
                f"{repo_dir} has no ref {revision!r} ({ref}). Available refs: {_list_names(repo_dir / 'refs')}; "
                f"snapshots: {_list_names(snapshots)}. Mirror the repository, or set one of these commits as the "
                "revision"
            ) from error
        if not COMMIT.fullmatch(commit):
            raise SourceError(
                f"{ref} must contain a commit of 40 hex digits, not {commit[:80]!r}. Mirror the repository again"
            )
    if not (snapshots / commit).is_dir():
        raise SourceError(
            f"{repo_dir} has no snapshot of commit {commit} (revision {revision!r}). Available snapshots: "
            f"{_list_names(snapshots)}. Mirror this revision first"
        )
    return commit, snapshots / commit


def build_outward_link_error(link: Path, source: str, relpath: str | None = None) -> SourceError:
    """Return the error for a link that leads out of a source or its cache."""
    return SourceError(
        f"{link}: is a link to a file outside {source}. Replace the link with the file. If you trust the links, set "
        "`follow_links: true` in `source` (for a blend, in `sources`)",
        relpath=relpath,
    )


def raise_unlisted(error: OSError) -> None:
    """Raise SourceError for `os.walk`, which would otherwise omit the files of an unreadable folder."""
    raise SourceError(f"{error.filename}: the folder cannot be read: {os_error_reason(error)}") from error


def list_cached_files(repo_dir: Path, revision: str = "main", *, follow_links: bool = False) -> list[HubFile]:
    """Return every file of a cached revision, sorted by path. Sizes are read from disk, digests from the blobs' names.

    Blobs may be links within the cache, or, with ``follow_links``, out of it. Raises SourceError for other links, for
    folders that cannot be read, and, naming the links, for missing blobs.
    """
    _, snapshot = find_cached_snapshot(repo_dir, revision)
    files: list[HubFile] = []
    cache = repo_dir.resolve().parent
    dangling: list[str] = []
    for directory, folders, names in os.walk(snapshot, onerror=raise_unlisted):
        # `names` has every link, because the layout has only links to files, and `os.walk` lists even a dangling link
        # as a file.
        folders.sort()
        for name in names:
            path = Path(directory, name)
            relpath = path.relative_to(snapshot).as_posix()
            size = find_size(path)
            if size is None:
                dangling.append(relpath)
                continue
            if not follow_links and path.is_symlink() and not path.resolve().is_relative_to(cache):
                raise build_outward_link_error(path, f"the cache {cache}")
            # Follow only the first link, because the blob may be a link into a store that several repositories share.
            blob = Path(os.readlink(path)).name if path.is_symlink() else ""
            etag = blob if _BLOB.fullmatch(blob) else ""
            files.append(
                HubFile(relpath=relpath, size=size, sha256=etag if _SHA256.fullmatch(etag) else None, etag=etag)
            )
    if dangling:
        sample = ", ".join(sorted(dangling)[:5]) + (", ..." if len(dangling) > 5 else "")
        raise SourceError(
            f"blobs are missing for {count_of(len(dangling), 'file')} in {snapshot}: {sample}. Mirror the revision "
            "again"
        )
    return sorted(files, key=lambda file: file.relpath)


def link_blob(snapshot: Path, file: HubFile) -> Path:
    """Create or correct the snapshot's relative link to the file's blob, and return the link's path.

    Raises SourceError if another process keeps replacing the link.
    """
    path = snapshot / file.relpath
    # The target goes two levels up, out of snapshots/<commit>, and one more level up per folder of the file's path.
    up = "../" * (2 + file.relpath.count("/"))
    target = f"{up}blobs/{file.etag}"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The second attempt replaces a link to a different blob, or a copy from a client without symlinks.
    for _ in range(2):
        try:
            path.symlink_to(target)
        except FileExistsError:
            if path.is_symlink() and os.readlink(path) == target:
                return path
            path.unlink(missing_ok=True)
        else:
            return path
    raise SourceError(
        f"{path}: another process keeps replacing the link to {target}. Stop that process, then run the command again"
    )


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a directory during a small write; has no effect if directories cannot be locked."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def find_size(path: Path) -> int | None:
    """Return the size in bytes; None if the file does not exist or its link is dangling."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _list_names(directory: Path) -> str:
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    return ", ".join(names) or "none"


def fetch_model_file(repo: str, commit: str, file: str, key: str) -> Path | None:
    """Return the path of a model repository's file at a commit, downloaded once; None if the repository lacks the file.

    Raises SourceError, naming the setting `key` that requires the file, if the download fails.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, file, revision=commit))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        # If the Hub is unreachable, the file counts as missing only if the cache has recorded that it does not exist.
        out_of_reach = isinstance(error, LocalEntryNotFoundError)
        if is_cached(repo, commit, file) if out_of_reach else isinstance(error, EntryNotFoundError):
            return None
        # Join the lines, because the messages of the Hub's client have several.
        reason = " ".join(str(error).split()).rstrip(".")
        raise SourceError(
            f"{key}: {repo}@{commit}: {file} cannot be downloaded: {reason}. Check the names and the network, or set "
            "the path of a local copy"
        ) from error


def is_cached(repo: str, commit: str, file: str) -> bool:
    """Return whether the cache has a model repository's file at a commit, or has recorded that it does not exist."""
    from huggingface_hub import try_to_load_from_cache

    return try_to_load_from_cache(repo, file, revision=commit) is not None
