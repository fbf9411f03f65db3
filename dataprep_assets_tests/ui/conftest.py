"""The browser of each module of the suite."""

from collections.abc import Iterator

import pytest

from dataprep_assets_tests.ui.browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium with a profile of its own; the test is skipped without one."""
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()
