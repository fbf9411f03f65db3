"""Servers that the tests of stores share."""

from collections.abc import Iterator

import pytest

from dataprep_assets_tests.fakes.moto_server import moto_server
from dataprep_assets_tests.fakes.swift_server import SwiftServer, swift_server


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwiftServer]:
    """A running OpenStack Swift; its buckets are `buckets.new_bucket`'s."""
    pytest.importorskip("swift", reason="no OpenStack Swift: pip install swift setuptools")
    with swift_server(tmp_path_factory.mktemp("swift")) as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of a running moto server, for what Swift lacks."""
    with moto_server() as url:
        yield url
