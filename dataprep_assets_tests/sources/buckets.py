"""Buckets of each kind for the tests of sources: filled directly, read through injected faults, with a log of reads."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.planning.manifest import ManifestEntry, build_manifest
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.connect import GcsAddress, S3Address
from dataprep_assets.stores.gcs import GcsStore
from dataprep_assets.stores.store import Store
from dataprep_assets_tests.fakes.buckets import QUICK, new_client, new_store
from dataprep_assets_tests.fakes.fault_proxy import Fault, FaultProxy
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.samples import SMALL

Trouble = Literal["503", "429", "403", "reset", "truncate", "flip"]
DATA = {p.relative_to(SMALL).as_posix(): p.read_bytes() for p in SMALL.rglob("*.zst")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickPrefix(ObjectStorePrefix):
    """A source as users have it, with retries without delays."""

    def open(self) -> Store:
        place = self.address()
        if isinstance(place, S3Address):
            assert place.endpoint_url is not None
            return new_store(place.endpoint_url, place.bucket, place.prefix)
        assert isinstance(place, GcsAddress)
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        client = storage.Client(project="project", credentials=AnonymousCredentials())
        return GcsStore(client, place.bucket, place.prefix, retry=QUICK, timeout_seconds=20.0)


@dataclasses.dataclass(kw_only=True)
class Bucket(ABC):
    """An empty bucket; `mirror` is the folder into which its sources download."""

    name: str
    mirror: Path
    scheme: str = ""

    @property
    def url(self) -> str:
        """The URL of the bucket."""
        return f"{self.scheme}://{self.name}"

    def put(self, files: Mapping[str, bytes], prefix: str = "corpus/") -> None:
        """Create objects, a few at a time."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: self.put_one(prefix + name, files[name]), files))

    def source(self, prefix: str = "/corpus", **changes: Any) -> ObjectStorePrefix:
        """Return a source over the bucket with retries without delays."""
        return QuickPrefix(**{"url": self.url + prefix, "cache_dir": self.mirror, **self.settings(), **changes})

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the declared settings of this store in addition to its URL."""

    @abstractmethod
    def put_one(self, key: str, data: bytes) -> None:
        """Create an object."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object."""

    @abstractmethod
    def version(self, key: str) -> str:
        """Return the store's version of the current content."""

    @abstractmethod
    def fail(self, *troubles: Trouble, always: bool = False) -> None:
        """Make the next reads of bytes fail, one each, or with `always` all of them from now on in one way."""

    @abstractmethod
    def heal(self) -> None:
        """Remove the faults."""

    @abstractmethod
    def unspent(self) -> int:
        """Return the number of faults that have not occurred yet."""

    @abstractmethod
    def reads(self) -> list[str]:
        """Return the keys of all reads of bytes so far, in order."""

    @abstractmethod
    def lists(self) -> int:
        """Return the number of requested listing pages so far."""


@dataclasses.dataclass(kw_only=True)
class S3(Bucket):
    """A bucket on an S3 server behind a proxy that injects faults."""

    proxy: FaultProxy
    upstream: str
    scheme: str = "s3"

    def __post_init__(self) -> None:
        self.client = new_client(self.upstream)

    def settings(self) -> dict[str, Any]:
        return {"endpoint_url": self.proxy.url, "region": "us-east-1"}

    def put_one(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def put_in_parts(self, key: str, parts: list[bytes]) -> None:
        """Create an object as other tools do."""
        where = {"Bucket": self.name, "Key": key}
        upload = self.client.create_multipart_upload(**where)["UploadId"]
        done = []
        for number, body in enumerate(parts, 1):
            answer = self.client.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
            done.append({"PartNumber": number, "ETag": answer["ETag"]})
        self.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": done})

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def version(self, key: str) -> str:
        return str(self.client.head_object(Bucket=self.name, Key=key)["ETag"].strip('"'))

    def fail(self, *troubles: Trouble, always: bool = False) -> None:
        times = 1_000_000 if always else 1
        self.proxy.faults = [Fault(trouble, "get", times, retry_after="0") for trouble in troubles]

    def heal(self) -> None:
        self.proxy.faults = []

    def unspent(self) -> int:
        return sum(fault.times for fault in self.proxy.faults)

    def reads(self) -> list[str]:
        start = len(f"/{self.name}/")
        return [seen.path.split("?")[0][start:] for seen in self.proxy.seen if seen.operation == "get"]

    def lists(self) -> int:
        return self.proxy.count("list")


@dataclasses.dataclass(kw_only=True)
class Gcs(Bucket):
    """A bucket on the tests' GCS server, which injects faults itself."""

    server: GcsServer
    scheme: str = "gs"

    def settings(self) -> dict[str, Any]:
        return {}

    def put_one(self, key: str, data: bytes) -> None:
        self.server.store(key, data)

    def remove(self, key: str) -> None:
        del self.server.objects[key]

    def version(self, key: str) -> str:
        return str(self.server.objects[key].generation)

    def fail(self, *troubles: Trouble, always: bool = False) -> None:
        for number, trouble in enumerate(troubles, 1):
            first, times = (1, None) if always else (number, 1)
            if trouble in ("reset", "truncate", "flip"):
                self.server.fail("media", trouble, first=first, times=times)
            else:
                self.server.fail("media", "status", first=first, times=times, status=int(trouble), retry_after="0")

    def heal(self) -> None:
        self.server.heal()

    def unspent(self) -> int:
        return len(self.server.unspent())

    def reads(self) -> list[str]:
        return [entry.name for entry in self.server.log if entry.operation == "media"]

    def lists(self) -> int:
        return self.server.count("list")


def entries_of(source: ObjectStorePrefix) -> list[ManifestEntry]:
    """Return the manifest entries of the source."""
    listing = source.list()
    return build_manifest(
        listing.files, include=["**/*.jsonl.zst"], splits={"all": ["**"]}, url_prefix=listing.url_prefix
    )
