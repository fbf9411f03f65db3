"""A pytest plugin that fails a test, or the import of a test module, that loads a heavy library into the test process.

Which files run in one process depends on chance and on the number of workers, and some libraries crash each other (see
`readers.families`). Each module is reported once, for the test that imported it first.
"""

import sys
from collections.abc import Generator

import pytest

from dataprep_assets_tests.readers.families import HEAVY

_reported: set[str] = set()


class HeavyLibraryError(AssertionError):
    """A test process imported a library that belongs in a reader process."""


def _new() -> str:
    """Return the names of heavy modules imported since the last call, joined; empty if there are none."""
    found = sorted(HEAVY & sys.modules.keys() - _reported)
    _reported.update(found)
    return ", ".join(found)


def _remedy(who: str, modules: str) -> str:
    return (
        f"{who} imported {modules} into the test process. Call it through a function of "
        "dataprep_assets_tests/readers, which runs in a process of its own."
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail the collection of a module that imports a heavy library."""
    report = yield
    if isinstance(collector, pytest.Module) and (modules := _new()):
        report.outcome = "failed"
        report.longrepr = _remedy(collector.nodeid, modules)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that imported a heavy library, in its fixtures or in its body."""
    yield
    if modules := _new():
        raise HeavyLibraryError(_remedy(item.nodeid, modules))
