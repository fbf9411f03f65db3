"""A worker that dies, or a test without end, fails the session before the others have ended, and is named."""

from pathlib import Path

import pytest

from dataprep_assets_tests.session.subsession import run_session

WORKERS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")
CRASH = """
import os, signal

def test_before(): pass

def test_crashes():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_after(): pass
"""
# The other workers have five minutes of work left. On an idle machine, a whole session takes a few seconds.
LONG = "import time, pytest\n\n@pytest.mark.parametrize('n', range(60))\ndef test_long(n):\n    time.sleep(5)\n"
NAMED = "test_a_crash.py::test_crashes"


@pytest.mark.parametrize(
    ("others", "restarts"),
    [
        ({"test_b_short.py": "def test_short(): pass\n"}, ()),
        ({"test_b_long.py": LONG}, ("--max-worker-restart=4",)),
    ],
)
def test_a_crash_ends_the_session_long_before_the_others_end_and_names_the_test(
    tmp_path: Path, others: dict[str, str], restarts: tuple[str, ...]
) -> None:
    ended = run_session(tmp_path, {"test_a_crash.py": CRASH, **others}, *WORKERS, *restarts)
    assert ended.code == 2, ended.printed
    assert ended.seconds < 180
    assert f"a worker died in {NAMED}" in ended.printed
    assert f"FAILED {NAMED}" in ended.printed


def test_only_a_test_that_waits_forever_fails(tmp_path: Path) -> None:
    waits = "import pytest, threading\n\n@pytest.mark.timeout(3)\ndef test_waits(): threading.Event().wait()\n"
    files = {"test_it.py": f"{waits}\ndef test_next(): pass\n"}
    ended = run_session(tmp_path, files, *WORKERS, settings="timeout_method = signal\n")
    assert ended.code == 1, ended.printed
    assert ended.seconds < 180
    assert "1 failed, 1 passed" in ended.printed
    assert "FAILED test_it.py::test_waits" in ended.printed


def test_a_test_that_no_signal_interrupts_ends_its_worker_and_is_named(tmp_path: Path) -> None:
    # Blocked signals simulate native code that never checks for signals.
    stuck = "import pytest, signal, time\n\n@pytest.mark.timeout(2)\ndef test_stuck():\n"
    stuck += "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    time.sleep(100)\n"
    limits = "timeout_method = signal\nfaulthandler_timeout = 5\nfaulthandler_exit_on_timeout = true\n"
    ended = run_session(tmp_path, {"test_it.py": stuck}, *WORKERS, settings=limits)
    assert ended.code == 2, ended.printed
    assert ended.seconds < 180
    assert "a worker died in test_it.py::test_stuck" in ended.printed
