"""Places on real servers of this machine, one of each kind, opened as users open them."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dataprep_assets.stores.connect import GcsPlace, LocalPlace, Place, S3Place
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.moto_server import moto_server
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET, swift_server

KINDS = ("folder", "moto", "swift", "gcs")


class Places:
    """Starts each server when a place on it is first asked for."""

    def __init__(self, folder: Path, stack: ExitStack, environment: pytest.MonkeyPatch) -> None:
        self._folder, self._stack, self._environment = folder, stack, environment
        self._servers: dict[str, str] = {}

    def new(self, kind: str, prefix: str = "some/prefix") -> Place:
        """An empty place of this kind."""
        if kind == "folder":
            return LocalPlace(root=self._folder / "folders" / uuid.uuid4().hex)
        server = self._server(kind)
        if kind == "gcs":
            return GcsPlace(bucket=server, prefix=f"{prefix}/{uuid.uuid4().hex}", project="project")
        return S3Place(
            bucket=new_bucket(server),
            prefix=prefix,
            endpoint_url=server,
            region="us-east-1",
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
        )

    def _server(self, kind: str) -> str:
        if kind not in self._servers:
            if kind == "moto":
                self._servers[kind] = self._stack.enter_context(moto_server())
            elif kind == "swift":
                pytest.importorskip("swift", reason="the package swift is not installed")
                self._servers[kind] = self._stack.enter_context(swift_server(self._folder / "swift")).url
            else:
                server = self._stack.enter_context(GcsServer())
                self._environment.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
                self._servers[kind] = server.bucket
        return self._servers[kind]


@contextmanager
def places(folder: Path) -> Iterator[Places]:
    """Servers that live as long as this is open."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as environment:
        yield Places(folder, stack, environment)
