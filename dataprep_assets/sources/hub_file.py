"""Reads one file of the Hugging Face Hub by ranges, and translates the hub's errors.

Entry points: :class:`RemoteFile` and :func:`translated`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from dataprep_assets.errors import SourceError, raise_alone
from dataprep_assets.sources.hub_cache import HubFile
from dataprep_assets.stores.client_logs import keep_secrets_from_logs, without_queries
from dataprep_assets.stores.retry import RETRY_STATUS, RetryableError, parse_retry_after

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

# The hub's own way to say how long a spent quota lasts: RateLimit: "api";r=0;t=55 (an IETF draft, httpapi-ratelimit)
_RATE_LIMIT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")

# A signed storage URL that has expired answers one of these; a new HEAD gives a new URL.
_EXPIRED_STATUS = {400, 401, 403, 410}


@dataclass(kw_only=True)
class RemoteFile:
    """One file on the hub: where its bytes are at the moment, and ranged reads of them.

    ``endpoint`` is the hub's URL, ``label`` what messages call the file. ``timeout_seconds`` limits each connect and
    each wait for bytes, never a whole transfer.
    """

    repo_id: str
    commit: str
    file: HubFile
    label: str
    endpoint: str
    token: str | None = field(repr=False)
    timeout_seconds: float
    # The storage URL of the last HEAD; signed, so it expires and never appears in a message.
    # Workers of one file share it: whoever finds it expired replaces it for all.
    location: str = field(default="", repr=False)

    def locate(self) -> None:
        """Ask the hub (HEAD) where the bytes are.

        Raises SourceError if the file is gone or is not the one that was listed.
        """
        from huggingface_hub import get_hf_file_metadata

        with translated(self.label):
            found = get_hf_file_metadata(
                self._url(), token=self.token, timeout=self.timeout_seconds, endpoint=self.endpoint
            )
        if found.commit_hash is not None and found.commit_hash != self.commit:
            raise SourceError(f"{self.label}: the hub answers for commit {found.commit_hash}")
        if found.etag is not None and found.etag != self.file.etag:
            raise SourceError(f"{self.label}: the hub serves object {found.etag}, the file list says {self.file.etag}")
        if found.size is not None and found.size != self.file.size:
            raise SourceError(f"{self.label}: the hub serves {found.size} bytes, the file list says {self.file.size}")
        self.location = found.location

    def read_range(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end); raises RetryableError for errors that may be temporary."""
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        location = self.location
        url = self._url()
        headers = build_hf_headers(token=self.token)
        if origin_of(location) != origin_of(url):
            # Storage hosts use signed URLs. The token is only for the hub; the session drops it on redirects too.
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        # the range has to count the stored bytes, not those of an encoding
        headers["Accept-Encoding"] = "identity"
        headers["Range"] = f"bytes={start}-{end - 1}"
        with (
            translated(self.label),
            get_session().stream(
                "GET", location, headers=headers, timeout=self.timeout_seconds, follow_redirects=True
            ) as response,
        ):
            # Only of a storage URL: the same status of the hub itself is a refusal.
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
        # The whole file in answer to a range is right if the range is the whole file.
        elif start > 0 or end < self.file.size:
            raise SourceError(
                f"{self.label}: the server ignored the range {start}-{end - 1} (HTTP {status}); "
                "a mirror in between may not support ranges"
            )

    def _url(self) -> str:
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
def translated(label: str) -> Iterator[None]:
    """Turn the hub client's errors into this project's: RetryableError if temporary, SourceError if definite."""
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
        # Not chained: the original messages and their requests contain the signed URL.
        raise_alone(_from_status(error, label))
    except transport_error as error:
        raise_alone(RetryableError(f"{type(error).__name__}: {without_queries(str(error))}"))


def _from_status(error: "HfHubHTTPError", label: str) -> Exception:
    status = error.response.status_code
    if status in RETRY_STATUS:
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


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL: a token goes to one origin only."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
