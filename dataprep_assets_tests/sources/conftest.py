"""Fixtures of the tests of the sources: a fake hub with one small repository."""

from collections.abc import Iterator

import pytest

from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.sources.hub_mirror import TREE


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(TREE) as server:
        yield server
