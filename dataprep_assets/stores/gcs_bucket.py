"""One bucket of Google Cloud Storage below a prefix: requests that are retried, named and checked.

Entry point: :class:`GcsBucket`, on which the modules beside it build reads, uploads and compositions.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from dataprep_assets.errors import DataprepError, SourceError, TransferError
from dataprep_assets.stores.crc32c import crc32c_of
from dataprep_assets.stores.gcs_api import GcsApi, Resource
from dataprep_assets.stores.keys import UPLOADS, check_key
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ObjectInfo, no_object

__all__ = ["DIGEST", "KEY", "WRITE", "GcsBucket"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Metadata of our objects: the digest of the content, the key of a temporary, and the conditional write that made it.
DIGEST, KEY, WRITE = "sha256", "dataprep-key", "dataprep-write"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class GcsBucket:
    """The objects below `prefix` (empty, or ending in `/`); `workers` bounds the requests that run at once."""

    api: GcsApi
    prefix: str
    retry: RetryPolicy
    workers: int

    @property
    def url(self) -> str:
        """Where the objects live, without credentials."""
        return f"gs://{self.api.bucket}/{self.prefix}".rstrip("/")

    def name_of(self, key: str) -> str:
        """The name in the bucket of a key below the prefix.

        Raises ConfigError for a key that is not valid in every store.
        """
        return check_key(self.prefix + check_key(key))

    def label(self, key: str) -> str:
        """What messages call an object."""
        return f"gs://{self.api.bucket}/{self.prefix}{key}"

    def info(self, resource: Resource) -> ObjectInfo:
        """The object that a resource of the API describes."""
        sha256 = resource.metadata.get(DIGEST, "")
        return ObjectInfo(
            key=resource.name.removeprefix(self.prefix),
            bytes=resource.bytes,
            version=str(resource.generation),
            sha256=sha256 if _SHA256.fullmatch(sha256) else None,
            md5=resource.md5,
            crc32c=resource.crc32c,
        )

    def tried(self, attempt: Callable[[], T], label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        """Call `attempt` within the retry policy; errors name `label`.

        Raises StoppedError once `stopped()` is true, TransferError when all attempts failed.
        """
        try:
            return self.retry.run(attempt, label=label, stopped=stopped)
        except SourceError as error:
            # Errors that are not retried name only the bucket.
            raise error if str(error).startswith(label) else SourceError(f"{label}: {error}") from error.__cause__

    def get(self, name: str) -> Resource | None:
        """The object of this name, or None."""
        return self.tried(lambda: self.api.get(name), f"gs://{self.api.bucket}/{name}")

    def existing(self, key: str) -> Resource:
        """The object of this key; raises MissingArtifactError when it does not exist."""
        found = self.get(self.name_of(key))
        if found is None:
            raise no_object(self.label(key))
        return found

    def resources(self, prefix: str) -> Iterator[Resource]:
        """All objects whose names begin with `prefix`, page by page.

        Raises SourceError if the server repeats a page.
        """
        label = f"list of gs://{self.api.bucket}/{prefix}"
        token: str | None = None
        while True:
            page, following = self.tried(partial(self.api.page, prefix, token), label)
            yield from page
            if following is None:
                return
            if following == token:
                raise SourceError(f"{label}: the server repeats the token of the same page")
            token = following

    def insert(
        self,
        name: str,
        data: bytes,
        metadata: Mapping[str, str],
        *,
        label: str,
        if_generation: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Resource:
        """Write `data` with this `metadata` in one request, checked by the server and by its answer.

        `name` is that in the bucket, `label` what messages call the write. With `if_generation` the write is refused
        (ConflictError) unless that is the present generation; 0 stands for no object. `stopped` ends the retries early.
        """
        crc = crc32c_of(data)
        inserted = self.tried(
            lambda: self.api.insert(name, data, crc32c=crc, metadata=metadata, if_generation=if_generation),
            label,
            stopped,
        )
        return self.settled(inserted, len(data), crc, label)

    def settled(self, made: Resource, size: int, crc: int, label: str) -> Resource:
        """The new object `made`, if it has `size` bytes and the CRC32C `crc`; else it is removed.

        `label` names the write in the TransferError that says so.
        """
        if (made.bytes, made.crc32c) == (size, crc):
            return made
        # Only the answer may have been damaged on its way, not the object.
        again = self.get(made.name)
        if again is None or again.generation != made.generation:
            raise TransferError(f"{label}: it was replaced or removed right after it was written. Run again")
        if (again.bytes, again.crc32c) == (size, crc):
            return again
        self.remove(again)
        raise TransferError(
            f"{label}: the server made an object of {again.bytes} bytes with CRC32C {again.crc32c:08x}; {size} bytes "
            f"with {crc:08x} were sent. It was removed. Run again"
        )

    def remove(self, resource: Resource) -> None:
        """Remove this generation of an object; no error when it is gone."""
        self.tried(lambda: self.api.delete(resource.name, resource.generation), f"removal of {resource.name}")

    def remove_quietly(self, temporaries: Sequence[Resource]) -> None:
        """Remove temporaries; what cannot be removed is left to `sweep`, because the work itself is done."""
        try:
            map_all(self.remove, temporaries, self.workers)
        except DataprepError as error:
            logger.warning("%s: temporaries below %s remain until they are swept: %s", self.url, UPLOADS, error)
