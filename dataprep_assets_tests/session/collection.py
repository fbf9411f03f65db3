"""A pytest plugin that speeds up the collection of thousands of tests in parallel workers.

All workers of pytest-xdist import all test modules, in the same order at the same time. In a fresh checkout, each would
compile every module with pytest's rewriting of `assert`, which takes half of the collection. Therefore one worker at a
time imports a module, and the others use the compiled file. Nothing that a collection creates is garbage, but the
collector would scan all of it twenty times, which takes a fifth of the collection. Most modules have no
slow test, so `-m slow` does not import them.
"""

import fcntl
import gc
import sys
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector during the collection, and exclude the collected objects from later runs."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore a module without a slow test if only slow tests are selected."""
    if config.option.markexpr != "slow" or not collection_path.match("test_*.py"):
        return None
    return None if b"mark.slow" in collection_path.read_bytes() else True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import a module under a lock if its compiled file can be stored."""
    if not isinstance(collector, pytest.Module) or sys.dont_write_bytecode:
        return (yield)
    with open(collector.path, "rb") as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)
