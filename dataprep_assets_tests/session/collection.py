"""A pytest plugin: what the collection of thousands of tests costs, in each of some workers at once.

All workers of pytest-xdist import all test modules, in the same order at the same time. Where the modules are new, as
in a fresh checkout, each would compile each of them, with pytest's rewriting of `assert`, which is half of the
collection: so one worker at a time imports a module, and the others find what it has compiled. And nothing that a
collection makes is garbage: the collector would go through all of it twenty times, a fifth of the collection.
"""

import fcntl
import gc
import sys
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector rest meanwhile, and never look at what was collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import a module alone, where what is compiled is kept."""
    if not isinstance(collector, pytest.Module) or sys.dont_write_bytecode:
        return (yield)
    with open(collector.path, "rb") as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)
