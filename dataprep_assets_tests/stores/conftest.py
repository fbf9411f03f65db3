"""Fixtures of the tests of stores: a fake Google Cloud Storage, and its client."""

from collections.abc import Iterator
from typing import Any

import pytest

from dataprep_assets_tests.fakes.gcs_server import GcsServer


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer(page_size=10, rewrite_bytes=300_000) as running:
        yield running


@pytest.fixture
def client(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    storage = pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    return storage.Client(project="project", credentials=AnonymousCredentials())
