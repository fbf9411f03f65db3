"""A pytest plugin: the order of files, and the time that a test may take.

Workers of pytest-xdist take whole files, in the order of collection. Files with a slow test that has a time limit of
its own come first, then others with slow tests: a worker that began one last would keep the others waiting.
`--shuffle-files SEED` puts them in any other order, to show that the tests do not depend on which files meet in a
process.
"""

import random

import pytest

FAST_SECONDS = 240
"""Most that a test may take which is not marked `slow`, its fixtures included: they take up to 30 s on a quiet machine.
Slow ones have the `timeout` of pyproject.toml."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="run the files in the order of this seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files; limit the tests."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    slowest = {item.path for item in slow if item.get_closest_marker("timeout")}
    seed = config.getoption("--shuffle-files")
    if seed is None:
        paths_of_slow = {item.path for item in slow}
        items.sort(key=lambda item: (item.path not in slowest, item.path not in paths_of_slow))
    else:
        paths = sorted({item.path for item in items})
        random.Random(seed).shuffle(paths)
        ranks = {path: rank for rank, path in enumerate(paths)}
        items.sort(key=lambda item: ranks[item.path])
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FAST_SECONDS))
