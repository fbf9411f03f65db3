"""A pytest plugin for the order of files and the time limits of tests.

Workers of pytest-xdist take whole files in the order of collection. The slowest files come first (`durations.json`),
because a worker that starts one last would keep the others waiting; new files also come first. `--shuffle-files SEED`
gives any other order, to show that the tests do not depend on which files run in one process.
"""

import math
import random

import pytest

from dataprep_assets_tests.tools.durations import read_durations

FAST_SECONDS = 240
"""The time limit in seconds of a test that is not marked `slow`, including its fixtures, which take up to 30 s on an
idle machine. Slow tests have the `timeout` of pyproject.toml."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="run the files in the order of this seed")


# Run last, so that pytest has already deselected tests by `-m`.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files, and set the time limits."""
    seed = config.getoption("--shuffle-files")
    if seed is None:
        seconds = _seconds(items)
        items.sort(key=lambda item: -seconds[_file(item)])
    else:
        files = sorted(set(map(_file, items)))
        random.Random(seed).shuffle(files)
        ranks = {file: rank for rank, file in enumerate(files)}
        items.sort(key=lambda item: ranks[_file(item)])
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FAST_SECONDS))


def _seconds(items: list[pytest.Item]) -> dict[str, float]:
    """Return the seconds of each file's selected tiers."""
    kept = read_durations()
    tiers = {(_file(item), "slow" if item.get_closest_marker("slow") else "fast") for item in items}
    seconds = dict.fromkeys((file for file, _ in tiers), 0.0)
    for file, tier in tiers:
        seconds[file] += kept[tier].get(file, math.inf)
    return seconds


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
