"""Fixtures of the tests of integrity: a folder and servers in which artifacts are kept."""

from collections.abc import Iterator

import pytest

from dataprep_assets_tests.fakes.places import Places, places


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("servers")) as found:
        yield found
