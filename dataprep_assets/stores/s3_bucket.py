"""One bucket of an S3 store, one request per method: named, retried, and explained if it is refused.

Entry point: :class:`S3Bucket`, on which the modules beside it build uploads, downloads and copies.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from dataprep_assets.errors import DataprepError, SourceError, TransferError
from dataprep_assets.stores.keys import check_key
from dataprep_assets.stores.retry import RetryableError, RetryPolicy
from dataprep_assets.stores.s3_api import CredentialNames, RefusedError, endpoint_of, explained, translated
from dataprep_assets.stores.s3_etag import etag_of, plain_md5, recorded_sha256
from dataprep_assets.stores.store import ObjectInfo, no_object

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Larger blocks are memory that the allocator maps anew for each of them, and no longer in the cache when they are
# written: at 1 MiB a download cost three times the system time, and a quarter more of the whole (256 MiB, two cores).
_BLOCK = 256 * 1024
_EMPTY_PAGES = 1_000


class S3Bucket:
    """The requests of one bucket, below `prefix` (empty, or ending in `/`); safe to share between threads."""

    def __init__(
        self, client: Any, name: str, prefix: str, *, retry: RetryPolicy, credentials: CredentialNames
    ) -> None:
        _stop_redirecting_bucket_heads(client)
        self.name = name
        self.prefix = prefix
        self.retry = retry
        self._client = client
        self._credentials = credentials
        self._endpoint = endpoint_of(client)
        # Whether the bucket is known to be there: until then a 404 of HEAD, which has no body, may mean the bucket.
        self._seen = False

    @property
    def url(self) -> str:
        """Where the objects live, without credentials."""
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def key_of(self, key: str) -> str:
        """The key in the bucket; raises ConfigError for a key that is not valid in every store."""
        return check_key(self.prefix + check_key(key))

    def label(self, key: str) -> str:
        """What messages call an object."""
        return f"s3://{self.name}/{self.prefix}{key}"

    def attempt(self, operation: str, label: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `request` of the client's method `operation`; `label` names the object in messages.

        Raises RetryableError, RefusedError, ConfigError.
        """
        with translated(label, self._endpoint, self._credentials):
            answer: Mapping[str, Any] = getattr(self._client, operation)(Bucket=self.name, **request)
        self._seen = True
        return answer

    def tried(self, attempt: Callable[[], T], label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        """Call `attempt` within the retry policy; errors name `label`, waits end once `stopped()` is true."""
        return self.retry.run(attempt, label=label, stopped=stopped)

    def call(
        self, operation: str, label: str, *, answers: set[str] | frozenset[str] = frozenset(), **request: Any
    ) -> Mapping[str, Any]:
        """One request of the client's method `operation`, retried until it is answered; `label` names the object.

        Refusals (codes, or statuses as text) named in `answers` give {}; others raise what `explained` says.
        """
        try:
            return self.tried(partial(self.attempt, operation, label, request), label)
        except RefusedError as refused:
            # A missing bucket has the status of a missing key, and is never taken for one.
            if {refused.code, str(refused.status)} & answers and refused.code != "NoSuchBucket":
                return {}
            raise self.explained(refused, label) from None

    def explained(self, refused: RefusedError, label: str) -> DataprepError:
        """What a refusal means and what to fix."""
        if refused.code == "InvalidObjectState":
            return SourceError(
                f"{label}: the object is archived ({refused}). Restore it from the archive, then run again"
            )
        return explained(refused, label=label, bucket=self.name, endpoint=self._endpoint, names=self._credentials)

    def head(self, key: str) -> Mapping[str, Any] | None:
        """HeadObject's answer, None when there is no such object."""
        label, request = self.label(key), {"Key": self.key_of(key)}
        ask = partial(self.tried, partial(self.attempt, "head_object", label, request), label)
        try:
            return ask()
        except RefusedError as refused:
            # The answer to HEAD is only a status. A request whose answer has a body shows the cause (the key, the
            # bucket, the credentials).
            if refused.status != 404:
                self.call("list_objects_v2", label, Prefix=self.prefix, MaxKeys=1)
                try:
                    return ask()  # the cause may be gone: a clock is tried again, and HEAD does not name it
                except RefusedError:
                    raise self.explained(refused, label) from None
            if not self._seen:
                # Refused access is no reason to fail: keys may be allowed to read objects and not to list them.
                self.call("list_objects_v2", label, answers={"403"}, Prefix=self.prefix, MaxKeys=1)
                self._seen = True
        return None

    def require(self, key: str) -> Mapping[str, Any]:
        """HeadObject's answer; raises MissingArtifactError when there is no such object."""
        answer = self.head(key)
        if answer is None:
            raise no_object(self.label(key))
        return answer

    def existing(self, key: str) -> ObjectInfo:
        """The object; raises MissingArtifactError when there is none."""
        return self.info(key, self.require(key))

    def info(self, key: str, answer: Mapping[str, Any]) -> ObjectInfo:
        """The object that HeadObject's answer describes."""
        return ObjectInfo(
            key=key,
            bytes=answer["ContentLength"],
            version=etag_of(answer),
            sha256=recorded_sha256(answer),
            md5=plain_md5(answer),
        )

    def blocks(self, answer: Mapping[str, Any], label: str) -> Iterator[bytes]:
        """The body of a GET's answer. Raises RetryableError if it ends early."""
        body = answer["Body"]
        try:
            while True:
                with translated(label, self._endpoint, self._credentials):
                    block: bytes = body.read(_BLOCK)
                if not block:
                    return
                yield block
        finally:
            body.close()

    def pages(self, operation: str, field_name: str, label: str, **request: Any) -> Iterator[Mapping[str, Any]]:
        """The items of the listing `operation`, page by page.

        `field_name` is the answer's field with the items, `label` names the listing in messages. boto3's paginators
        were tried: they end at the first page that fails, and a listing with an empty body looks empty
        (`test_one_fault_anywhere_ends_in_the_right_bytes[list-list-…]`).

        Raises TransferError if the store does not say where the listing continues, or gives no items for too long.
        """
        empty = 0

        def attempt() -> Mapping[str, Any]:
            page = self.attempt(operation, label, request)
            # An empty body is parsed without an error, and would look like an empty listing.
            if "IsTruncated" not in page:
                raise RetryableError("the answer is not a listing")
            return page

        while True:
            try:
                page = self.tried(attempt, label)
            except RefusedError as refused:
                # Completed or aborted since it was listed: it has no parts any more.
                if operation == "list_parts" and refused.code == "NoSuchUpload":
                    return
                raise self.explained(refused, label) from None
            items = page.get(field_name, ())
            yield from items
            if not page["IsTruncated"]:
                return
            # A page may be empty, for example after many deletions; a broken proxy gives empty ones for ever.
            empty = 0 if items else empty + 1
            if empty > _EMPTY_PAGES:
                raise TransferError(f"{label}: the store gave {_EMPTY_PAGES:,} empty pages in a row and no end")
            before = dict(request)
            request |= _following(operation, page)
            if request == before:
                raise TransferError(f"{label}: the store says that the listing goes on, and does not say from where")

    def remove(self, key: str) -> None:
        """Remove an object; no error when there is none."""
        self.call("delete_object", self.label(key), answers={"NoSuchKey"}, Key=self.key_of(key))

    def remove_quietly(self, key: str) -> None:
        """Remove a wrong object; only warn if that fails, because the caller raises an error anyway."""
        try:
            self.remove(key)
        except DataprepError as error:
            logger.warning("%s: the wrong object remains, remove it: %s", self.label(key), error)

    # Multipart uploads, by their keys in the bucket.

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """The id of a new upload."""
        answer = self.call("create_multipart_upload", self.label(key), Key=self.key_of(key), Metadata=dict(metadata))
        return str(answer["UploadId"])

    def unfinished(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """The uploads whose keys in the bucket begin with `prefix`."""
        label = f"list of the unfinished uploads below s3://{self.name}/{prefix}"
        return self.pages("list_multipart_uploads", "Uploads", label, Prefix=prefix)

    def newest_part(self, name: str, upload: str) -> float:
        """When the last part of an upload arrived, in seconds since 1970; minus infinity if it has none."""
        return max((part["LastModified"].timestamp() for part in self._parts(name, upload)), default=-math.inf)

    def _parts(self, name: str, upload: str) -> Iterator[Mapping[str, Any]]:
        label = f"list of the parts of s3://{self.name}/{name}"
        return self.pages("list_parts", "Parts", label, Key=name, UploadId=upload)

    def abort(self, name: str, upload: str) -> None:
        """Abort an upload; no error if it is gone."""
        label = f"end of an unfinished upload of s3://{self.name}/{name}"
        self.call("abort_multipart_upload", label, answers={"404"}, Key=name, UploadId=upload)

    def abort_quietly(self, name: str, upload: str) -> None:
        """Abort an upload; only warn if that fails, because a sweep will do it."""
        try:
            self.abort(name, upload)
        except DataprepError as error:
            logger.warning("%s: an unfinished upload of %s remains until it is swept: %s", self.url, name, error)


def _stop_redirecting_bucket_heads(client: Any) -> None:
    """Keep boto3 from looking for a bucket's region forever.

    Its redirector (botocore 1.4x, `S3RegionRedirectorv2.get_bucket_region`) answers a redirect with HeadBucket, and
    would answer a redirect of that with another one, until Python's stack is full.
    """

    def mark(params: Mapping[str, Any], **_: Any) -> None:
        params["context"].setdefault("s3_redirect", {})["redirected"] = True

    # The id keeps this to one handler, however many stores share the client.
    client.meta.events.register("before-call.s3.HeadBucket", mark, unique_id="dataprep-bucket-heads")


def _following(operation: str, page: Mapping[str, Any]) -> dict[str, Any]:
    """Where a listing continues. Some stores leave out the markers of uploads; then the last item is used."""
    if operation == "list_objects_v2":
        token = page.get("NextContinuationToken")
        return {"ContinuationToken": token} if token else {}
    if operation == "list_parts":
        return {"PartNumberMarker": page.get("NextPartNumberMarker") or page["Parts"][-1]["PartNumber"]}
    last = (page.get("Uploads") or ({"Key": "", "UploadId": ""},))[-1]
    return {
        "KeyMarker": page.get("NextKeyMarker") or last["Key"],
        "UploadIdMarker": page.get("NextUploadIdMarker") or last["UploadId"],
    }
