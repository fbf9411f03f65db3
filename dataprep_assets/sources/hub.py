"""Mirroring of a Hugging Face Hub repository into the standard cache, and ranged reads of single files.

The Hub's own client leaves partial files after a kill and never checks a digest (huggingface_hub#3643, #1498;
`test_twenty_interrupted_runs_leave_no_leftovers_once_complete`,
`test_persistent_wrong_bytes_are_reported_as_corrupt_and_never_stored`). It is therefore used only for URLs, headers,
sessions and error types; :mod:`dataprep_assets.stores.ranged` transfers the bytes. The result has the layout of
``huggingface_hub`` (:mod:`dataprep_assets.sources.hub_cache`), so its client can load it offline.

Invariants: a blob gets its name only after its bytes were verified against that digest. A known-wrong blob is removed
before it is fetched again. ``refs/`` is written last, so a ref never names an incomplete mirror.

Entry point: :class:`HubRepo` (list, measure, mirror). ``huggingface_hub`` is imported inside functions because it is
slow to import and reads its environment at that moment.
"""

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urljoin, urlsplit

from dataprep_assets.errors import ConfigError, SourceError, TransferError, count_of, raise_detached
from dataprep_assets.sources.hub_cache import (
    COMMIT,
    HubFile,
    check_commit,
    check_file,
    find_default_cache_dir,
    find_size,
    is_inside,
    link_blob,
    lock_directory,
    name_repo_folder,
)
from dataprep_assets.stores import ranged
from dataprep_assets.stores.client_logs import keep_secrets_from_logs, strip_queries
from dataprep_assets.stores.endpoints import check_endpoint
from dataprep_assets.stores.files import check_headroom
from dataprep_assets.stores.locks import open_own_file
from dataprep_assets.stores.pool import run_all
from dataprep_assets.stores.retry import RETRY_STATUS, RetryableError, RetryPolicy, parse_retry_after

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile


# Ranged reads of one file on the Hugging Face Hub, and translation of the Hub's errors.
#
# Entry points: :class:`RemoteFile` and :func:`translate_errors`.

# Pattern of the remaining seconds of an exhausted quota in the Hub's header, `RateLimit: "api";r=0;t=55` (IETF draft
# httpapi-ratelimit).
_RATE_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")

# Status codes of an expired signed storage URL; a new HEAD request returns a new URL.
_EXPIRED_STATUS = {400, 401, 403, 410}


@dataclass(kw_only=True)
class RemoteFile:
    """One file on the Hub: the current location of its bytes, and ranged reads of them.

    ``endpoint`` is the Hub's URL, ``label`` the file's name in messages. ``timeout_seconds`` limits each connect and
    each wait for bytes, never a whole transfer.
    """

    repo_id: str
    commit: str
    file: HubFile
    label: str
    endpoint: str
    token: str | None = field(repr=False)
    timeout_seconds: float
    # `location` is the storage URL of the last HEAD request. The URL is signed, so it expires and never appears in a
    # message. The workers of a file share the URL, and a worker that finds it expired replaces it for all.
    location: str = field(default="", repr=False)

    def locate(self) -> None:
        """Request the location of the bytes from the Hub (HEAD).

        Raises SourceError if the file no longer exists or differs from the file list.
        """
        from huggingface_hub import get_hf_file_metadata

        with translate_errors(self.label):
            response = get_hf_file_metadata(
                self._resolve_url(), token=self.token, timeout=self.timeout_seconds, endpoint=self.endpoint
            )
        if response.commit_hash is not None and response.commit_hash != self.commit:
            raise SourceError(
                f"{self.label}: the Hub sent commit {response.commit_hash} instead of the requested commit. Check "
                "HF_ENDPOINT and any proxy"
            )
        if response.etag is not None and response.etag != self.file.etag:
            raise SourceError(
                f"{self.label}: the Hub sent object {response.etag}, but its file list has {self.file.etag}. Check "
                "HF_ENDPOINT and any proxy"
            )
        if response.size is not None and response.size != self.file.size:
            raise SourceError(
                f"{self.label}: the Hub sent {count_of(response.size, 'byte')}, but its file list has "
                f"{self.file.size}. Check HF_ENDPOINT and any proxy"
            )
        self.location = response.location

    def read_range(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes [start, end). Raises RetryableError for errors that may be temporary."""
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        location = self.location
        url = self._resolve_url()
        headers = build_hf_headers(token=self.token)
        if parse_origin(location) != parse_origin(url):
            # Send the token only to the Hub, because storage hosts use signed URLs. The session also drops the token on
            # a redirect to a different host.
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        # Request the stored bytes, because a range of an encoded response would count encoded bytes.
        headers["Accept-Encoding"] = "identity"
        headers["Range"] = f"bytes={start}-{end - 1}"
        with (
            translate_errors(self.label),
            get_session().stream(
                "GET", location, headers=headers, timeout=self.timeout_seconds, follow_redirects=True
            ) as response,
        ):
            # Renew only storage URLs, because a response of the Hub itself with the same status is final.
            if location != url and response.status_code in _EXPIRED_STATUS:
                self.locate()
                raise RetryableError(
                    f"the storage URL was refused (HTTP {response.status_code}), so a new one is requested"
                )
            hf_raise_for_status(response)
            self._check_response(response.status_code, response.headers, start, end)
            yield from response.iter_raw(1024 * 1024)

    def _check_response(self, status: int, headers: Mapping[str, str], start: int, end: int) -> None:
        encoding = headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise RetryableError(f"the response is {encoding}-encoded, although no encoding was requested")
        if status == 206:
            expected_range = f"bytes {start}-{end - 1}/{self.file.size}"
            actual = headers.get("Content-Range", "")
            if actual != expected_range:
                raise RetryableError(f"requested {expected_range!r}, but the response contains {actual!r}")
        # Accept a response with the whole file (HTTP 200) only if the range is the whole file.
        elif start > 0 or end < self.file.size:
            raise SourceError(
                f"{self.label}: the server ignored the range {start}-{end - 1} (HTTP {status}). Check whether a proxy "
                "supports ranges"
            )

    def _resolve_url(self) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(
            self.repo_id,
            self.file.relpath,
            repo_type="dataset",
            revision=self.commit,
            endpoint=self.endpoint,
        )


keep_secrets_from_logs()


@contextmanager
def translate_errors(label: str) -> Iterator[None]:
    """Convert the Hub client's errors to this package's: RetryableError if temporary, SourceError if permanent."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # Find the HTTP library's root error as a base class of the Hub's error, because huggingface_hub's version
    # determines the library.
    transport_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise SourceError(
            f"{label}: HF_HUB_OFFLINE is set, so nothing can be downloaded. Unset it, or mirror the repository first"
        ) from error
    except HfHubHTTPError as error:
        # Do not chain the errors, because the original messages and their requests contain the signed URL.
        raise_detached(_from_status(error, label))
    except transport_error as error:
        raise_detached(RetryableError(f"{type(error).__name__}: {strip_queries(str(error))}"))


def _from_status(error: "HfHubHTTPError", label: str) -> Exception:
    status = error.response.status_code
    if status in RETRY_STATUS:
        return RetryableError(f"HTTP {status}", _retry_after(error.response.headers))
    if status == 404:
        return SourceError(
            f"{label}: not found on the Hub (HTTP 404). Check the repository, the revision and the file name"
        )
    if status in (401, 403):
        return SourceError(
            f"{label}: the Hub refused access (HTTP {status}). Set HF_TOKEN to a valid token with access to the "
            "repository, check the repository's name, and accept its terms if it has any"
        )
    return SourceError(f"{label}: the Hub answered HTTP {status}. Check the repository and HF_ENDPOINT")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    delay = parse_retry_after(headers.get("Retry-After"))
    if delay is None and (limit := _RATE_LIMIT.search(headers.get("RateLimit", ""))) is not None:
        delay = float(limit[1])
    return delay


def parse_origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL; a token is sent to only one origin."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


logger = logging.getLogger(__name__)

# Version of the format of huggingface_hub's cached file lists. The client of huggingface_hub reads the lists that this
# module writes.
_TREE_VERSION = 1
_FIRST_ATTEMPTS = 5
_MAX_PAGES = 10_000
"""Maximum number of pages of a file list. A page has a thousand files, and a repository has fewer than a million."""


def _is_repo_id(text: str) -> bool:
    """Return whether a text is a name of a repository by the rules of the Hub's client."""
    names = text.split("/")
    return (
        len(names) <= 2
        and all(re.fullmatch(r"\w([\w.-]{0,94}\w)?", name, re.ASCII) for name in names)
        and not any(part in text for part in ("--", ".."))
        and not text.endswith(".git")
    )


@dataclass(frozen=True, kw_only=True)
class HubRepo:
    """One dataset repository on the Hub at one revision (branch, tag or commit), and the location of its mirror.

    ``endpoint`` and ``cache_dir`` default to the environment of ``huggingface_hub`` (``HF_ENDPOINT``; ``HF_HUB_CACHE``,
    else ``HF_HOME/hub``, else the user's cache). ``token`` defaults to the token that it has stored.
    ``timeout_seconds`` limits each connect and each wait for bytes, never a whole transfer.
    """

    repo_id: str
    revision: str = "main"
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    cache_dir: Path | None = None
    allow_http: bool = False
    timeout_seconds: float = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if not _is_repo_id(self.repo_id):
            raise ConfigError(
                f"Hub repository {self.repo_id!r}: must be 'name' or 'organization/name'. Names have at most 96 "
                "letters, digits, `-`, `_` and `.`, begin and end with a letter, a digit or `_`, contain neither `--` "
                "nor `..`, and do not end with `.git`"
            )
        if not self.revision or not is_inside(self.revision):
            raise ConfigError(
                f"Hub repository {self.repo_id}: revision {self.revision!r} must be a branch, tag or commit"
            )

    @property
    def hub_url(self) -> str:
        """The Hub's URL, without a slash at its end.

        Raises ConfigError for a plain HTTP URL unless `allow_http` is set.
        """
        from huggingface_hub import constants

        url = (self.endpoint or constants.ENDPOINT).rstrip("/")
        return check_endpoint(url, "endpoint (or HF_ENDPOINT)", allow_http=self.allow_http)

    @property
    def repo_dir(self) -> Path:
        """The repository's folder in the cache."""
        cache = self.cache_dir if self.cache_dir is not None else find_default_cache_dir()
        return cache / name_repo_folder(self.repo_id)

    def get_snapshot_dir(self, commit: str) -> Path:
        """Return the folder in which the files of ``commit`` have their own names."""
        return self.repo_dir / "snapshots" / check_commit(commit, self.repo_id)

    def resolve_commit(self) -> str:
        """Return the commit (40 hex digits) that ``revision`` currently names.

        Raises SourceError if it does not exist, and TransferError if the Hub is unreachable.
        """
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.hub_url, token=self.token)
        label = f"revision {self.revision} of {self.repo_id}"

        def request_commit() -> str:
            with translate_errors(label):
                info = api.repo_info(
                    self.repo_id, repo_type="dataset", revision=self.revision, timeout=self.timeout_seconds
                )
            return check_commit(info.sha or "", label)

        # Make only a few attempts, because this is the first request to the Hub and should fail within seconds without
        # a network.
        soon = replace(self.retry, attempts=min(self.retry.attempts, _FIRST_ATTEMPTS))
        try:
            return soon.run(request_commit, label=label)
        except TransferError as error:
            raise TransferError(
                f"{error}. Check that {self.hub_url} can be reached. Set HF_ENDPOINT for a different Hub, or `source: "
                "{kind: hf_cache}` to read the files on this machine"
            ) from error

    def list_files(self, commit: str) -> list[HubFile]:
        """Return every file of ``commit``, sorted by path, and store the list in the cache, for `mirror`.

        Raises the errors of `read_files`.
        """
        files, tree = self._read_tree(commit)
        # Write the tree only after all pages are read, because readers assume that the tree has all files of the
        # commit.
        self._write_tree(commit, tree)
        return files

    def read_files(self, commit: str) -> list[HubFile]:
        """Return every file of ``commit``, sorted by path.

        Raises SourceError if the Hub refuses, or continues the list on a different host. Raises TransferError if the
        Hub is unreachable.
        """
        files, _ = self._read_tree(commit)
        return files

    def _read_tree(self, commit: str) -> tuple[list[HubFile], dict[str, dict[str, Any]]]:
        """Return the files of ``commit``, sorted by path, and their entries in the cache's list.

        The pages are requested one by one instead of through ``HfApi.list_repo_tree``, for three reasons. That function
        sends the token to any host that a page names (`test_a_file_list_that_continues_on_another_host_is_refused`). It
        waits for each page without a time limit. It supports only the delay-seconds form of Retry-After.
        """
        from huggingface_hub.hf_api import RepoFile
        from huggingface_hub.utils import build_hf_headers

        headers = build_hf_headers(token=self.token)
        label = f"file list of {self.repo_id}@{check_commit(commit, self.repo_id)}"
        first_url = f"{self.hub_url}/api/datasets/{self.repo_id}/tree/{commit}?recursive=true"
        url: str | None = first_url
        files: dict[str, HubFile] = {}
        tree: dict[str, dict[str, Any]] = {}
        pages = 0
        while url is not None:
            if (pages := pages + 1) > _MAX_PAGES:
                raise SourceError(
                    f"{label}: the file list has more than {_MAX_PAGES:,} pages. Check HF_ENDPOINT and any proxy"
                )
            entries, url = self.retry.run(partial(self._fetch_tree_page, url, headers, label), label=label)
            # Refuse a page on a different host, because the token is sent with each request.
            if url is not None and parse_origin(url) != parse_origin(first_url):
                raise SourceError(
                    f"{label}: the next page of the file list is on a different host, {urlsplit(url).netloc}. Check "
                    "HF_ENDPOINT"
                )
            for entry in entries:
                if entry["type"] != "file":
                    continue
                repo_file = RepoFile(**entry)  # type: ignore[no-untyped-call]
                sha256 = repo_file.lfs.sha256 if repo_file.lfs is not None else None
                size = repo_file.lfs.size if repo_file.lfs is not None else repo_file.size
                file = HubFile(relpath=repo_file.path, size=size, sha256=sha256, etag=sha256 or repo_file.blob_id)
                files[file.relpath] = check_file(file, label)
                tree[file.relpath] = _build_tree_entry(repo_file)
        return [files[relpath] for relpath in sorted(files)], tree

    def compute_disk_needed(self, files: Sequence[HubFile]) -> int:
        """Return the bytes that mirroring ``files`` will add to the disk, counting each missing or wrong blob once.

        Blocks that an interrupted download already allocated are not counted.
        """
        blobs = self.repo_dir / "blobs"
        needed = 0
        for file in _deduplicate_files(files):
            if find_size(blobs / file.etag) == file.size:
                continue
            needed += max(0, file.size - ranged.measure_partial_bytes(blobs / file.etag))
        return needed

    def mirror(
        self,
        commit: str,
        files: Sequence[HubFile],
        *,
        workers: int = 4,
        progress: Callable[[int], None] | None = None,
        part_bytes: int = ranged.PART_BYTES,
    ) -> list[Path]:
        """Fetch ``files`` of ``commit`` into the cache, and return their snapshot paths in the same order.

        ``workers`` limits the parallel requests across all files, and ``part_bytes`` the length of a range. An existing
        blob is reused if its digest is right; a wrong one is removed and fetched again. ``progress`` gets byte counts
        (see :func:`dataprep_assets.stores.ranged.download`), reused blobs included.

        Raises SourceError (no room, no such file, no access), TransferError and CorruptSourceError, each naming the
        file. Finished files are kept, and the next call fetches the others. Raises ConfigError for less than one
        worker.
        """
        if workers < 1:
            raise ConfigError(f"mirror of {self.repo_id}: workers must be at least 1, not {workers}")
        for file in files:
            check_file(file, f"{self.repo_id}@{commit}")
        snapshot = self.get_snapshot_dir(commit)
        check_headroom(self.repo_dir, self.compute_disk_needed(files))
        blobs = self.repo_dir / "blobs"
        for directory in (blobs, snapshot):
            directory.mkdir(parents=True, exist_ok=True)

        unique_files = _deduplicate_files(files)
        lock = threading.Lock()

        def report(count: int) -> None:
            if progress is not None:
                with lock:
                    progress(count)

        # Divide the workers among the files. If there are fewer files than workers, each file may get several workers,
        # which read its ranges in parallel.
        at_once = max(1, min(workers, len(unique_files)))
        fetch = _BlobFetcher(
            repo=self,
            commit=commit,
            blobs=blobs,
            workers=max(1, workers // at_once),
            part_bytes=part_bytes,
            report=report,
        )
        run_all(fetch, unique_files, at_once, fetch.stop)
        # Create links after all blobs, and the ref last, so that an interruption never leaves a ref to an incomplete
        # mirror.
        paths = [link_blob(snapshot, file) for file in files]
        self._write_ref(commit)
        return paths

    def _fetch_tree_page(
        self, url: str, headers: dict[str, str], label: str
    ) -> tuple[list[dict[str, Any]], str | None]:
        from huggingface_hub.utils import get_session, hf_raise_for_status

        with translate_errors(label):
            response = get_session().get(url, headers=headers, timeout=self.timeout_seconds)
            hf_raise_for_status(response)
        try:
            entries = response.json()
        except (ValueError, RecursionError) as error:
            raise RetryableError(f"the Hub's response is not JSON: {error}. Check HF_ENDPOINT and any proxy") from error
        next_url = response.links.get("next", {}).get("url")
        return entries, urljoin(url, next_url) if next_url else None

    def _write_tree(self, commit: str, tree: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the listing where the Hub's client stores it. It stays valid, because a commit's files never change."""
        files = {relpath: tree[relpath] for relpath in sorted(tree)}
        listing = json.dumps({"format_version": _TREE_VERSION, "files": files}, indent=1)
        self._write(self.repo_dir / "trees" / f"{commit}.json", listing, draft_name=f".tree-{commit}.new")

    def _write_ref(self, commit: str) -> None:
        if COMMIT.fullmatch(self.revision):
            return
        # Keep the draft outside of refs/, because every file in refs/ counts as a ref.
        draft_name = f".ref-{quote(self.revision, safe='')}.new"
        self._write(self.repo_dir / "refs" / self.revision, commit, draft_name=draft_name)

    def _write(self, path: Path, text: str, *, draft_name: str) -> None:
        """Write a file below ``repo_dir`` by renaming a synced draft."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Use a fixed name, so that the next writer overwrites a draft left by an interrupted one.
        draft = self.repo_dir / draft_name
        # Lock the repository, because two concurrent mirrors would write the same draft.
        with lock_directory(self.repo_dir):
            with open(draft, "w", encoding="utf-8", opener=open_own_file) as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)


def _build_tree_entry(file: "RepoFile") -> dict[str, Any]:
    """Return a file's entry in `trees/<commit>.json`, in format 1 of huggingface_hub's `_tree_cache` module."""
    entry: dict[str, Any] = {"size": file.size, "blob_id": file.blob_id}
    if file.lfs is not None:
        entry |= {"lfs_sha256": file.lfs.sha256, "lfs_size": file.lfs.size}
    if xet := getattr(file, "xet_hash", None):
        entry["xet_hash"] = xet
    return entry


@dataclass(kw_only=True)
class _BlobFetcher:
    """Fetcher of one blob: it verifies an existing blob, or downloads a missing one."""

    repo: HubRepo
    commit: str
    blobs: Path
    workers: int
    part_bytes: int
    report: Callable[[int], None]
    # `run_all` sets this event after an error or an interrupt, so that running digests and downloads stop early.
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, file: HubFile) -> None:
        blob = self.blobs / file.etag
        label = f"{file.relpath} of {self.repo.repo_id}@{self.commit}"
        if self._is_usable(blob, file, label):
            self.report(file.size)
            return
        source = RemoteFile(
            repo_id=self.repo.repo_id,
            commit=self.commit,
            file=file,
            label=label,
            endpoint=self.repo.hub_url,
            token=self.repo.token,
            timeout_seconds=self.repo.timeout_seconds,
        )
        self.repo.retry.run(source.locate, label=label, stopped=self.stop.is_set)
        ranged.download(
            source.read_range,
            size=file.size,
            target=blob,
            sha256=file.sha256,
            git_sha1=file.etag if file.sha256 is None else None,
            label=label,
            part_bytes=self.part_bytes,
            workers=self.workers,
            retry=self.repo.retry,
            progress=self.report,
            stop=self.stop,
        )

    def _is_usable(self, blob: Path, file: HubFile, label: str) -> bool:
        size = find_size(blob)
        if size == file.size:
            actual = ranged.digest_file(blob, git=file.sha256 is None, stopped=self.stop.is_set)
            if actual == file.etag:
                return True
            logger.warning(
                "%s: the cached blob %s has digest %s instead of %s; downloading it again",
                label,
                blob,
                actual,
                file.etag,
            )
        elif size is not None:
            logger.warning(
                "%s: the cached blob %s has %d bytes, not %d; downloading it again", label, blob, size, file.size
            )
        if size is not None or blob.is_symlink():
            # Remove a blob of the wrong size or content, because it must not stay readable, and a dangling link,
            # because it is useless. If there is neither, remove nothing, because another process may be creating the
            # right blob.
            blob.unlink(missing_ok=True)
        return False


def _deduplicate_files(files: Sequence[HubFile]) -> list[HubFile]:
    """Return one file per blob, in order, because repositories may have the same content under several names."""
    return list({file.etag: file for file in reversed(files)}.values())[::-1]
