"""A pytest plugin that ends the session when a pytest-xdist worker dies, and names the test that the worker ran.

By default xdist replaces the worker; with `--dist loadfile` the rest of its file may then never be assigned, and the
session waits forever at 99 %. With `--max-worker-restart=0` it ends, but only after every assigned file. After a crash
of the interpreter nothing should continue, so this plugin ends the session at once.
"""

import pytest

_dead: list[str] = []
"""The cause of the first worker's death, in the controller; empty while all workers live."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object | None) -> None:
    """Record the end of a worker; `error` is None if it finished normally."""
    if error is not None and not _dead:
        _dead.append(f"a worker died ({error})")


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """Record the test that a dead worker ran, just before xdist reports it as failed."""
    _dead[:] = [f"a worker died in {crashitem}"]


# Run last, so that the terminal has already received the report of the dead worker's test. If the worker ran no test,
# the next report of another worker ends the session.
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
        # Do not use the exit code for failed tests, because `make test` would then rerun only the failed tests,
        # although other tests never ran. The other workers are killed ten seconds later (xdist's EXIT_TIMEOUT).
        pytest.exit(_dead[0], returncode=pytest.ExitCode.INTERRUPTED)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session also if a worker died after its last test."""
    if _dead and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
