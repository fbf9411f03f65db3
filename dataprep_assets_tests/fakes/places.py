"""Storage locations on real servers of this machine, one of each kind, opened as users open them."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dataprep_assets.stores.connect import GcsAddress, LocalAddress, S3Address, StoreAddress
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET

KINDS = ("folder", "moto", "swift", "gcs")


class Places:
    """Locations on servers, each of which is started when a location on it is first requested."""

    def __init__(
        self, folder: Path, s3: Callable[[str], str], stack: ExitStack, environment: pytest.MonkeyPatch
    ) -> None:
        self._folder, self._s3, self._stack, self._environment = folder, s3, stack, environment
        self._gcs: str | None = None

    def new(self, kind: str, prefix: str = "some/prefix") -> StoreAddress:
        """Create an empty location of this kind."""
        if kind == "folder":
            return LocalAddress(root=self._folder / "folders" / uuid.uuid4().hex)
        if kind == "gcs":
            return GcsAddress(bucket=self._gcs_bucket(), prefix=f"{prefix}/{uuid.uuid4().hex}", project="project")
        server = self._s3(kind)
        return S3Address(
            bucket=new_bucket(server),
            prefix=prefix,
            endpoint_url=server,
            region="us-east-1",
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
        )

    def _gcs_bucket(self) -> str:
        if self._gcs is None:
            server = self._stack.enter_context(GcsServer())
            self._environment.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
            self._gcs = server.bucket
        return self._gcs


@contextmanager
def open_places(folder: Path, s3: Callable[[str], str]) -> Iterator[Places]:
    """Yield locations in a folder, on S3 servers, and on a fake Google Cloud Storage that ends with the block.

    Args:
        folder: The parent of locations of the kind `folder`.
        s3: Returns the URL of the S3 server of a kind, `moto` or `swift`.
    """
    with ExitStack() as stack, pytest.MonkeyPatch.context() as environment:
        yield Places(folder, s3, stack, environment)
