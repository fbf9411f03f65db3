"""Owns the mirror of a Hugging Face Hub repository into the standard cache, and reading that cache back.

The hub's own client has no resume across processes, leaves orphaned partials after a kill and never checks a digest
(huggingface_hub#3643, #1498), so it only builds URLs, headers, sessions and error types here, and the bytes go through
:mod:`dataprep_assets.stores.ranged`. The result is the layout of ``huggingface_hub`` itself (``file_download.py``),
which its client then loads offline::

    <cache>/datasets--<org>--<name>/
      blobs/<etag>                 content; the name is the SHA-256 (LFS, Xet) or the git blob SHA-1 (small files)
      snapshots/<commit>/<path>    relative symlinks into blobs/
      refs/<revision>              the commit, 40 hex digits, no newline
      trees/<commit>.json          the list of the commit's files, as the hub's client caches it

Invariants: a blob has its name only once its bytes have that digest; a known-wrong blob is removed before it is fetched
again; ``refs/`` is written last, so a ref never names an incomplete mirror.

Entry points: :class:`HubRepo` (list, measure, mirror), :func:`check_headroom`, :func:`cached_snapshot` and
:func:`list_cached_files`. ``huggingface_hub`` is imported inside functions because it is slow to import and reads its
environment at that moment.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urljoin, urlsplit

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.partial import discard_partial, partial_paths
from dataprep_assets.stores.pool import run_all
from dataprep_assets.stores.retry import RetryableError, RetryPolicy, parse_retry_after

__all__ = [
    "HubFile",
    "HubRepo",
    "cached_snapshot",
    "check_headroom",
    "default_cache_dir",
    "list_cached_files",
    "repo_folder",
]

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile

logger = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TREE_VERSION = 1
_REPO_TYPES = ("dataset", "model", "space")

# The hub's own way to say how long a spent quota lasts: RateLimit: "api";r=0;t=55 (an IETF draft, httpapi-ratelimit)
_RATE_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")

# 408 and 429 ask for patience, 5xx says that the server is unwell; every other 4xx is an answer.
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
# A signed storage URL that has expired answers one of these; a new HEAD gives a new URL.
_EXPIRED_STATUS = {400, 401, 403, 410}


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """One file of a repository at one commit.

    ``etag`` is the name of its blob in the cache: the SHA-256 of an LFS or Xet file, the git blob id (SHA-1) of a small
    one, and empty for a cached file that is not a link (a file system without symlinks). ``sha256`` is None when the
    hub does not know it.
    """

    relpath: str
    size: int
    sha256: str | None
    etag: str


@dataclass(frozen=True, kw_only=True)
class HubRepo:
    """One repository on the hub, at one revision (branch, tag or commit), and where its mirror lives.

    ``endpoint`` and ``cache_dir`` default to what ``huggingface_hub`` takes from its environment (``HF_ENDPOINT``;
    ``HF_HUB_CACHE``, else ``HF_HOME/hub``, else the user's cache), ``token`` to the one it has stored.
    ``timeout_seconds`` limits each connect and each wait for bytes, never a whole transfer.
    """

    repo_id: str
    repo_type: str = "dataset"
    revision: str = "main"
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    cache_dir: Path | None = None
    timeout_seconds: float = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if self.repo_type not in _REPO_TYPES:
            raise ConfigError(
                f"hub repository {self.repo_id}: repo_type {self.repo_type!r} is not one of {_REPO_TYPES}"
            )
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.repo_id) or not _is_inside(self.repo_id):
            raise ConfigError(f"hub repository {self.repo_id!r}: expected 'name' or 'organisation/name'")
        if not self.revision or not _is_inside(self.revision):
            raise ConfigError(
                f"hub repository {self.repo_id}: revision {self.revision!r} is not a branch, tag or commit"
            )

    @property
    def repo_dir(self) -> Path:
        """The repository's folder in the cache."""
        cache = self.cache_dir if self.cache_dir is not None else default_cache_dir()
        return cache / repo_folder(self.repo_id, self.repo_type)

    def snapshot_dir(self, commit: str) -> Path:
        """Where the files of ``commit`` appear under their own names."""
        return self.repo_dir / "snapshots" / _commit(commit, self.repo_id)

    def resolve_commit(self) -> str:
        """The commit (40 hex digits) that ``revision`` names now; SourceError if none, TransferError if unreachable."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint, token=self.token)
        label = f"revision {self.revision} of {self.repo_id}"

        def ask() -> str:
            with _translated(label):
                info = api.repo_info(
                    self.repo_id, repo_type=self.repo_type, revision=self.revision, timeout=self.timeout_seconds
                )
            return _commit(info.sha or "", label)

        return self.retry.run(ask, label=label)

    def list_files(self, commit: str) -> list[HubFile]:
        """Every file of ``commit``, sorted by path.

        The pages are asked for one by one rather than through ``HfApi.list_repo_tree``, which waits for each page
        without a time limit and knows only the delay-seconds form of Retry-After.
        """
        from huggingface_hub.hf_api import RepoFile
        from huggingface_hub.utils import build_hf_headers

        headers = build_hf_headers(token=self.token)
        label = f"file list of {self.repo_id}@{_commit(commit, self.repo_id)}"
        first = f"{self._endpoint()}/api/{self.repo_type}s/{self.repo_id}/tree/{commit}?recursive=true"
        url: str | None = first
        files: dict[str, HubFile] = {}
        tree: dict[str, dict[str, Any]] = {}
        while url is not None:
            entries, url = self.retry.run(partial(self._tree_page, url, headers, label), label=label)
            # The token goes along with each page, so a page elsewhere is refused.
            if url is not None and _origin(url) != _origin(first):
                raise SourceError(f"{label}: the hub continues it on another host, {urlsplit(url).netloc}")
            for entry in entries:
                if entry["type"] != "file":
                    continue
                found = RepoFile(**entry)  # type: ignore[no-untyped-call]
                sha256 = found.lfs.sha256 if found.lfs is not None else None
                size = found.lfs.size if found.lfs is not None else found.size
                file = HubFile(relpath=found.path, size=size, sha256=sha256, etag=sha256 or found.blob_id)
                files[file.relpath] = _checked(file, label)
                tree[file.relpath] = _tree_entry(found)
        self._write_tree(commit, tree)
        return [files[relpath] for relpath in sorted(files)]

    def disk_needed(self, files: Sequence[HubFile]) -> int:
        """Bytes that mirroring ``files`` will add to the disk: blobs that are absent or of the wrong size, each once.

        Blocks that an interrupted download already holds are not counted again.
        """
        blobs = self.repo_dir / "blobs"
        needed = 0
        for file in _unique(files):
            if _size_of(blobs / file.etag) == file.size:
                continue
            part, _ = partial_paths(blobs / file.etag)
            held = part.stat().st_blocks * 512 if part.is_file() else 0
            needed += max(0, file.size - held)
        return needed

    def mirror(
        self,
        commit: str,
        files: Sequence[HubFile],
        *,
        workers: int = 4,
        progress: Callable[[int], None] | None = None,
        verify_existing: bool = True,
        headroom: float = 0.2,
        part_bytes: int = ranged.PART_BYTES,
    ) -> list[Path]:
        """Bring ``files`` of ``commit`` into the cache; returns their snapshot paths in the given order.

        ``workers`` bounds the parallel requests over all files. A blob that is already there is reused once its digest
        is verified (its size only, with ``verify_existing=False``); one that is wrong is removed and fetched again.
        ``progress`` gets byte counts (see :func:`dataprep_assets.stores.ranged.download`), reused blobs included.

        Raises SourceError (no room, no such file, no access), TransferError and CorruptSourceError, each naming the
        file. What arrived stays, and the next call goes on from there.
        """
        if workers < 1:
            raise ConfigError(f"mirror of {self.repo_id}: workers={workers}, at least 1 is needed")
        for file in files:
            _checked(file, f"{self.repo_id}@{commit}")
        snapshot = self.snapshot_dir(commit)
        check_headroom(self.repo_dir, self.disk_needed(files), headroom)
        blobs = self.repo_dir / "blobs"
        for directory in (blobs, snapshot):
            directory.mkdir(parents=True, exist_ok=True)

        wanted = _unique(files)
        lock = threading.Lock()

        def report(count: int) -> None:
            if progress is not None:
                with lock:
                    progress(count)

        # Many files share the workers one each; fewer files than workers get several ranges at a time.
        at_once = max(1, min(workers, len(wanted)))
        fetch = _BlobFetcher(
            repo=self,
            commit=commit,
            blobs=blobs,
            workers=max(1, workers // at_once),
            part_bytes=part_bytes,
            verify_existing=verify_existing,
            report=report,
        )
        run_all(fetch, wanted, at_once, fetch.stop)
        paths = [_link(snapshot, file) for file in files]
        self._write_ref(commit)
        return paths

    def _endpoint(self) -> str:
        from huggingface_hub import constants

        return (self.endpoint or constants.ENDPOINT).rstrip("/")

    def _tree_page(self, url: str, headers: dict[str, str], label: str) -> tuple[list[dict[str, Any]], str | None]:
        from huggingface_hub.utils import get_session, hf_raise_for_status

        with _translated(label):
            response = get_session().get(url, headers=headers, timeout=self.timeout_seconds)
            hf_raise_for_status(response)
        try:
            entries = response.json()
        except ValueError as error:
            raise RetryableError(f"the hub's answer is not JSON: {error}") from error
        following = response.links.get("next", {}).get("url")
        return entries, urljoin(url, following) if following else None

    def _write_tree(self, commit: str, tree: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the listing where the hub's client keeps it: a commit's files never change."""
        files = {relpath: tree[relpath] for relpath in sorted(tree)}
        listing = json.dumps({"format_version": _TREE_VERSION, "files": files}, indent=1)
        self._write(self.repo_dir / "trees" / f"{commit}.json", listing, draft_name=f".tree-{commit}.new")

    def _write_ref(self, commit: str) -> None:
        if _COMMIT.fullmatch(self.revision):
            return
        # Outside refs/, where every file counts as a ref.
        draft_name = f".ref-{quote(self.revision, safe='')}.new"
        self._write(self.repo_dir / "refs" / self.revision, commit, draft_name=draft_name)

    def _write(self, path: Path, text: str, *, draft_name: str) -> None:
        """Write a file below ``repo_dir`` by one rename of a synced draft."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of a fixed name, so that the next writer of the file consumes what a kill leaves.
        draft = self.repo_dir / draft_name
        with _locked_directory(self.repo_dir):
            with draft.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)


def _tree_entry(found: "RepoFile") -> dict[str, Any]:
    """A file in `trees/<commit>.json`, as huggingface_hub's `_tree_cache` module describes it (format 1)."""
    entry: dict[str, Any] = {"size": found.size, "blob_id": found.blob_id}
    if found.lfs is not None:
        entry |= {"lfs_sha256": found.lfs.sha256, "lfs_size": found.lfs.size}
    if xet := getattr(found, "xet_hash", None):
        entry["xet_hash"] = xet
    return entry


@dataclass(kw_only=True)
class _BlobFetcher:
    """Makes sure of one blob: verified if it is there, fetched if it is not."""

    repo: HubRepo
    commit: str
    blobs: Path
    workers: int
    part_bytes: int
    verify_existing: bool
    report: Callable[[int], None]
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, file: HubFile) -> None:
        blob = self.blobs / file.etag
        label = f"{file.relpath} of {self.repo.repo_id}@{self.commit}"
        if self._usable(blob, file, label):
            # A kill right after the rename can leave the sidecar behind.
            discard_partial(blob)
            self.report(file.size)
            return
        source = _RemoteFile(repo=self.repo, commit=self.commit, file=file, label=label, part_bytes=self.part_bytes)
        self.repo.retry.run(source.locate, label=label, stopped=self.stop.is_set)
        ranged.download(
            source.read_range,
            size=file.size,
            target=blob,
            sha256=file.sha256,
            git_sha1=file.etag if file.sha256 is None else None,
            etag=file.etag,
            label=label,
            part_bytes=self.part_bytes,
            workers=self.workers,
            retry=self.repo.retry,
            progress=self.report,
            stop=self.stop,
        )

    def _usable(self, blob: Path, file: HubFile, label: str) -> bool:
        size = _size_of(blob)
        if size == file.size:
            if not self.verify_existing:
                return True
            actual = ranged.digest_file(blob, git=file.sha256 is None, stopped=self.stop.is_set)
            if actual == file.etag:
                return True
            logger.warning("%s: the cached blob %s has digest %s; fetching it again", label, blob, actual)
        elif size is not None:
            logger.warning(
                "%s: the cached blob %s has %d bytes, not %d; fetching it again", label, blob, size, file.size
            )
        if size is not None or blob.is_symlink():
            # Wrong bytes must not be readable meanwhile; nor is a dangling link into a shared store of any use. A name
            # that was absent is left alone: another process may be putting the right blob there at this moment.
            blob.unlink(missing_ok=True)
        return False


@dataclass(kw_only=True)
class _RemoteFile:
    """One file on the hub: where its bytes are at the moment, and ranged reads of them."""

    repo: HubRepo
    commit: str
    file: HubFile
    label: str
    part_bytes: int
    # The storage URL of the last HEAD; signed, so it expires and never appears in a message.
    location: str = field(default="", repr=False)

    def locate(self) -> None:
        """Ask the hub (HEAD) where the bytes are; SourceError if the file is gone or is not the one that was listed."""
        from huggingface_hub import get_hf_file_metadata

        with _translated(self.label):
            found = get_hf_file_metadata(
                self._url(), token=self.repo.token, timeout=self.repo.timeout_seconds, endpoint=self.repo.endpoint
            )
        if found.commit_hash is not None and found.commit_hash != self.commit:
            raise SourceError(f"{self.label}: the hub answers for commit {found.commit_hash}")
        if found.etag is not None and found.etag != self.file.etag:
            raise SourceError(f"{self.label}: the hub serves object {found.etag}, the file list says {self.file.etag}")
        if found.size is not None and found.size != self.file.size:
            raise SourceError(f"{self.label}: the hub serves {found.size} bytes, the file list says {self.file.size}")
        self.location = found.location

    def read_range(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end); raises RetryableError for what may pass."""
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        location = self.location
        url = self._url()
        headers = build_hf_headers(token=self.repo.token)
        if _origin(location) != _origin(url):
            # Storage hosts take signed URLs. The token is for the hub alone; the session drops it on redirects too.
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Accept-Encoding"] = "identity"
        headers["Range"] = f"bytes={start}-{end - 1}"
        with (
            _translated(self.label),
            get_session().stream(
                "GET", location, headers=headers, timeout=self.repo.timeout_seconds, follow_redirects=True
            ) as response,
        ):
            if location != url and response.status_code in _EXPIRED_STATUS:
                self.locate()
                raise RetryableError(f"the storage URL was refused (HTTP {response.status_code}); asked for a new one")
            hf_raise_for_status(response)
            self._check_answer(response.status_code, response.headers, start, end)
            yield from response.iter_raw(1024 * 1024)

    def _check_answer(self, status: int, headers: Mapping[str, str], start: int, end: int) -> None:
        encoding = headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise RetryableError(f"the body came {encoding}-encoded although identity was asked for")
        if status == 206:
            expected = f"bytes {start}-{end - 1}/{self.file.size}"
            actual = headers.get("Content-Range", "")
            if actual != expected:
                raise RetryableError(f"asked for {expected!r}, the answer holds {actual!r}")
        elif start > 0 or end < self.file.size:
            raise SourceError(
                f"{self.label}: the server ignored the range {start}-{end - 1} (HTTP {status}); "
                "a mirror in between may not support ranges"
            )

    def _url(self) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(
            self.repo.repo_id,
            self.file.relpath,
            repo_type=self.repo.repo_type,
            revision=self.commit,
            endpoint=self.repo._endpoint(),
        )


def default_cache_dir() -> Path:
    """``HF_HUB_CACHE``, else ``HF_HOME/hub``, else the user's cache; as ``huggingface_hub`` resolved it at import."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo_id: str, repo_type: str = "dataset") -> str:
    """The folder name of a repository in the cache, e.g. ``datasets--org--name``."""
    return "--".join([f"{repo_type}s", *repo_id.split("/")])


def check_headroom(path: Path, needed_bytes: int, headroom: float = 0.2) -> None:
    """Raise SourceError unless the disk of ``path`` has ``needed_bytes`` free and ``headroom`` (a fraction) on top."""
    if needed_bytes <= 0:
        return
    place = path.absolute()
    while not place.exists():
        place = place.parent
    wanted = needed_bytes + int(needed_bytes * headroom)
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise SourceError(
            f"not enough room in {path}: {needed_bytes} bytes are to be fetched, {wanted} are wanted free "
            f"({headroom:.0%} headroom), {free} are. Free {wanted - free} bytes, choose a larger disk (cache_dir or "
            "HF_HUB_CACHE), or fetch fewer files. Nothing was fetched"
        )


def cached_snapshot(repo_dir: Path, revision: str = "main") -> tuple[str, Path]:
    """The commit and snapshot folder that ``revision`` names in an existing cache (``.../datasets--org--name``).

    The commit comes from ``refs/``: several snapshots can lie side by side, and no order of hashes means anything.
    """
    snapshots = repo_dir / "snapshots"
    if not _is_inside(revision):
        raise SourceError(f"revision {revision!r} is not a branch, tag or commit")
    if _COMMIT.fullmatch(revision):
        commit = revision
    else:
        ref = repo_dir / "refs" / revision
        try:
            commit = ref.read_text(encoding="utf-8").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise SourceError(
                f"{repo_dir} has no ref {revision!r} ({ref}); refs there: {_names(repo_dir / 'refs')}; snapshots "
                f"there: {_names(snapshots)}. Mirror the repository, or name one of these commits as the revision"
            ) from error
        if not _COMMIT.fullmatch(commit):
            raise SourceError(f"{ref} should hold a commit of 40 hex digits, it holds {commit[:80]!r}; mirror again")
    if not (snapshots / commit).is_dir():
        raise SourceError(
            f"{repo_dir} has no snapshot of commit {commit} (revision {revision!r}); snapshots there: "
            f"{_names(snapshots)}. Mirror that revision first"
        )
    return commit, snapshots / commit


def list_cached_files(repo_dir: Path, revision: str = "main") -> list[HubFile]:
    """Every file of a cached revision, sorted by path; sizes are read, digests come from the blobs' names.

    Raises SourceError naming the links whose blob is gone.
    """
    _, snapshot = cached_snapshot(repo_dir, revision)
    files: list[HubFile] = []
    dangling: list[str] = []
    for directory, folders, names in os.walk(snapshot):
        # os.walk lists a dangling link as a file, and a link to a folder as a folder; the layout has only the former.
        folders.sort()
        for name in names:
            path = Path(directory, name)
            relpath = path.relative_to(snapshot).as_posix()
            size = _size_of(path)
            if size is None:
                dangling.append(relpath)
                continue
            # Only the first hop: the blob may itself be a link into a store that several repositories share.
            blob = Path(os.readlink(path)).name if path.is_symlink() else ""
            etag = blob if _BLOB.fullmatch(blob) else ""
            files.append(
                HubFile(relpath=relpath, size=size, sha256=etag if _SHA256.fullmatch(etag) else None, etag=etag)
            )
    if dangling:
        shown = ", ".join(sorted(dangling)[:5]) + (", ..." if len(dangling) > 5 else "")
        raise SourceError(
            f"{len(dangling)} file(s) of {snapshot} have lost their blob: {shown}. Mirror the revision again"
        )
    return sorted(files, key=lambda file: file.relpath)


def _link(snapshot: Path, file: HubFile) -> Path:
    """The snapshot's relative link to the file's blob, made or made right."""
    path = snapshot / file.relpath
    up = "../" * (2 + file.relpath.count("/"))
    wanted = f"{up}blobs/{file.etag}"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The second round is for a link to another blob, or a copy that a client without symlinks put there.
    for _ in range(2):
        try:
            path.symlink_to(wanted)
        except FileExistsError:
            if path.is_symlink() and os.readlink(path) == wanted:
                return path
            path.unlink(missing_ok=True)
        else:
            return path
    raise SourceError(f"{path}: another process keeps putting something else there than a link to {wanted}")


@contextmanager
def _locked_directory(directory: Path) -> Iterator[None]:
    """One process at a time, for the moment of a small write; without effect where directories cannot be locked."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _translated(label: str) -> Iterator[None]:
    """Turn the hub client's errors into this project's: RetryableError for what may pass, SourceError for an answer."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # The hub's errors derive from the root error of its HTTP library, and which one that is depends on its version.
    transport_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise SourceError(
            f"{label}: HF_HUB_OFFLINE is set, so nothing can be fetched; unset it, or mirror first"
        ) from error
    except HfHubHTTPError as error:
        raise _from_status(error, label) from error
    except transport_error as error:
        raise RetryableError(f"{type(error).__name__}: {error}") from error


def _from_status(error: "HfHubHTTPError", label: str) -> Exception:
    status = error.response.status_code
    if status in _RETRY_STATUS:
        return RetryableError(f"HTTP {status}", _retry_after(error.response.headers))
    if status == 404:
        return SourceError(f"{label}: not found on the hub (HTTP 404)")
    if status in (401, 403):
        return SourceError(
            f"{label}: the hub refuses access (HTTP {status}); check the token, the repository's name, and whether its "
            "terms were accepted"
        )
    return SourceError(f"{label}: the hub answered HTTP {status}")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    after = parse_retry_after(headers.get("Retry-After"))
    if after is None and (limit := _RATE_LIMIT.search(headers.get("RateLimit", ""))) is not None:
        after = float(limit[1])
    return after


def _checked(file: HubFile, label: str) -> HubFile:
    """The file, if its path stays inside the snapshot and its blob's name is a digest."""
    if not _is_inside(file.relpath):
        raise SourceError(f"{label}: the path {file.relpath!r} leaves the repository")
    if not _BLOB.fullmatch(file.etag) or file.sha256 not in (None, file.etag):
        raise SourceError(f"{label}: {file.relpath} has no usable digest (etag {file.etag!r}, sha256 {file.sha256!r})")
    if file.sha256 is None and _SHA256.fullmatch(file.etag):
        raise SourceError(f"{label}: {file.relpath} has the etag of an LFS file, {file.etag}, and no sha256")
    return file


def _is_inside(relpath: str) -> bool:
    parts = relpath.split("/")
    return not any(part in ("", ".", "..") for part in parts) and "\\" not in relpath and "\0" not in relpath


def _unique(files: Sequence[HubFile]) -> list[HubFile]:
    """One file per blob, in order: repositories hold the same content under several names."""
    return list({file.etag: file for file in reversed(files)}.values())[::-1]


def _commit(value: str, label: str) -> str:
    if not _COMMIT.fullmatch(value):
        raise SourceError(f"{label}: {value!r} is not a commit of 40 hex digits")
    return value


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _names(directory: Path) -> str:
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    return ", ".join(names) or "none"
