"""A pytest plugin: a pytest-xdist worker that dies ends the session, which names the test that the worker ran.

Left alone, xdist replaces the worker; with `--dist loadfile` the rest of its file may then never be handed out, and the
session waits for ever at 99 %. With `--max-worker-restart=0` it ends, but only after every file that was handed out.
A crash of the interpreter is never something to run on from, so here it ends the session at once.
"""

import pytest

_dead: list[str] = []
"""What became of the first worker that died, in the controller: empty as long as all live."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object | None) -> None:
    """xdist tells of each worker's end; `error` is None for one that finished."""
    if error is not None and not _dead:
        _dead.append(f"a worker died ({error})")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """xdist tells which test a dead worker ran, just before it reports that test as failed."""
    _dead[:] = [f"a worker died in {crashitem}"]


# after the terminal has taken the report of the test, or whatever the next event of another worker is
@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """End the session."""
    _end_if_dead()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    """End the session."""
    _end_if_dead()


def _end_if_dead() -> None:
    if _dead:
        # not that of failed tests, after which `make test` runs these again: others never ran. The other workers are
        # killed ten seconds later (xdist's EXIT_TIMEOUT)
        pytest.exit(_dead[0], returncode=pytest.ExitCode.INTERRUPTED)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker that died after its last test fails the session too."""
    if _dead and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
