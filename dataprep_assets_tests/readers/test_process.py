"""Functions of a reader module run in the single process of their family, and its death is reported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.families import HEAVY, Family
from dataprep_assets_tests.readers.plain import crash, doubled, import_as, pid, raise_of, refuse
from dataprep_assets_tests.readers.process import CHECKOUT, LibraryError, ReaderDiedError, in_process_of


def test_arguments_and_results_are_transferred() -> None:
    assert doubled("ab") == "abab"
    assert np.array_equal(doubled(np.arange(3), times=5), np.arange(3) * 5)


def test_calls_share_one_process_that_is_not_this_one() -> None:
    assert pid() == pid() != os.getpid()


def test_an_error_arrives_unchanged_with_the_remote_traceback() -> None:
    with raises(FormatError, "row 3") as caught:
        refuse(FormatError("row 3"))
    assert "readers/plain.py" in "".join(caught.value.__notes__)


def test_an_error_of_a_library_arrives_with_its_class_name() -> None:
    with raises(LibraryError, "tensorflow.errors.DataLossError", "cut"):
        raise_of("tensorflow.errors")
    assert not HEAVY & sys.modules.keys()


def test_an_error_that_cannot_be_pickled_is_described() -> None:
    with raises(LibraryError, "nowhere.DataLossError", "cut"):
        raise_of("nowhere")


def test_a_crash_names_the_function_and_the_test_and_the_next_call_has_a_new_process(
    request: pytest.FixtureRequest,
) -> None:
    before = pid()
    with raises(ReaderDiedError, "none", "code -11", "plain.crash") as caught:
        crash()
    assert request.node.nodeid in str(caught.value)
    assert "Segmentation fault" in str(caught.value)
    assert pid() != before


def test_a_process_refuses_the_libraries_of_another_family() -> None:
    with raises(RuntimeError, "triton", "none"):
        import_as("triton")
    with pytest.raises(ReaderDiedError):
        crash()  # end the process, because it has imported a fake triton


def test_a_function_of_a_missing_family_skips_the_test() -> None:
    absent = Family(name="absent", needs=("no_such_module",), install="nowhere", modules=frozenset())
    with raises(pytest.skip.Exception, "no_such_module", "nowhere"):
        in_process_of(absent)(pid)()


_KILLED = """
import os, signal, sys
from dataprep_assets_tests.readers.plain import pid
print(pid(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_ends_with_the_test_process_in_every_case(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], cwd=CHECKOUT, capture_output=True, text=True, timeout=200)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while _lives(int(done.stdout)):
        assert time.monotonic() < deadline, "it outlived the test process by a minute"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
