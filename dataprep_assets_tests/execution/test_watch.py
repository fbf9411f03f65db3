"""Processes beyond their limits are ended, retried once and named; and signals that a command's watcher forwards."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.bounds import MEMORY, STALL, Bounds, parse_json, return_freed_memory
from dataprep_assets.errors import BoundError, ConfigError
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets.execution.watch import CAN_WATCH, measure_process
from dataprep_assets_tests.cli.terminal import CTRL_C, CTRL_Z, Terminal
from dataprep_assets_tests.execution.hungry_tasks import hold_memory, spin
from dataprep_assets_tests.messages import assert_names, raises

pytestmark = pytest.mark.skipif(not CAN_WATCH, reason="processes are watched on Linux alone")
MIB = 1 << 20


def ends(tasks: dict[str, Callable[..., Any]], workers: int = 2) -> dict[str, FinishedTask]:
    with WorkerPool(workers) as pool:
        for name, function in tasks.items():
            pool.submit(Task(TaskId(name), function, ()))
        return {event.task.id.partition: event for event in pool.events() if isinstance(event, FinishedTask)}


def test_a_worker_beyond_its_memory_is_ended_and_its_task_named_while_others_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MEMORY, str(400 * MIB))
    found = ends(
        {"large": partial(hold_memory, 2000, 3), **{f"small-{i}": partial(hold_memory, 5, 1) for i in range(4)}}
    )
    assert {end.result for name, end in found.items() if name != "large"} == {"5 MiB, at once"}
    error = found["large"].error
    assert isinstance(error, BoundError)
    assert str(error).startswith("large: hungry.jsonl, row 3, byte 100: used ")
    assert str(error).endswith(
        "but a process may use at most 419,430,400. Remove the file, or raise DATAPREP_MEMORY_BYTES"
    )


def test_a_task_is_retried_once_with_closer_observation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MEMORY, str(400 * MIB))
    found = ends({"once": partial(take_the_first_time, tmp_path / "was here")})
    assert found["once"].result == "5 MiB, closely"


def take_the_first_time(sign: Path) -> str:
    if sign.exists():
        return hold_memory(5, 1)
    sign.touch()
    return hold_memory(2000, 1)


def test_a_stalled_worker_is_ended_and_one_with_progress_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STALL, "2")
    found = ends({"stalls": partial(spin, 60, getting_on=False), "goes on": partial(spin, 4, getting_on=True)})
    assert found["goes on"].result == "done"
    assert_names(str(found["stalls"].error), "stalls", "endless.jsonl", 7, 2, "CPU")


@pytest.mark.parametrize(("name", "value"), [(MEMORY, "1000"), (MEMORY, "4GB"), (STALL, "0"), (STALL, "-5")])
def test_an_invalid_limit_is_refused(name: str, value: str) -> None:
    with raises(ConfigError, f"{name}='{value}'"):
        Bounds.from_environment({name: value})


def test_page_cache_memory_does_not_count(tmp_path: Path) -> None:
    import mmap

    (path := tmp_path / "f").write_bytes(bytes(200 * MIB))
    before = measure_process(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view.find(b"x") == -1
        after = measure_process(os.getpid())
    assert before is not None
    assert after is not None
    assert after[0] - before[0] < 50 * MIB


_CORE = """
import resource
from dataprep_assets.cli import main
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
main(["--version"])
print(hard, resource.getrlimit(resource.RLIMIT_CORE)[0])
"""


def test_a_command_leaves_no_core_dump() -> None:
    printed = subprocess.run([sys.executable, "-c", _CORE], check=True, capture_output=True, text=True).stdout
    hard, left = printed.splitlines()[-1].split()
    assert left == "0", f"{left} of {hard}"


COMMAND = """
import signal, sys, time
from pathlib import Path
from dataprep_assets.bounds import Bounds, must_read_single_rows, report_position
from dataprep_assets.execution.watch import run_bounded
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup ignore it
def work():
    report_position("here.jsonl", 5)
    print("at work", must_read_single_rows(), flush=True)
    {work}
    return 3
sys.exit(
    run_bounded(
        work, Bounds(300 << 20, {seconds}), lambda said: print("said:", said, flush=True), is_retry={is_retry}
    )
)
"""


def command(work: str, *, seconds: int = 60, is_retry: bool = False) -> subprocess.Popen[str]:
    text = COMMAND.format(work=work, seconds=seconds, is_retry=is_retry)
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def test_a_command_has_its_own_exit_code() -> None:
    process = command("pass")
    assert process.communicate()[0] == "at work False\n"
    assert process.returncode == 3


def test_a_command_beyond_its_memory_is_ended_retried_and_named() -> None:
    process = command("x = bytearray(2000 << 20); time.sleep(5)", is_retry=True)
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 1
    assert lines[0::2] == ["at work False", "at work True"]
    assert lines[1].startswith("said: here.jsonl, from row 5: used ")
    assert lines[1].endswith("Retrying once under closer observation")
    assert lines[3].startswith("said: here.jsonl, row 5: used ")
    assert lines[3].endswith("Finished artifacts are kept")


def test_a_command_that_hangs_in_a_library_is_ended() -> None:
    process = command("import re; re.match('(a|a)*b', 'a' * 40)", seconds=1)
    assert_names(process.communicate()[0], 1, "CPU")
    assert process.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_command_reaches_its_worker_process(number: signal.Signals) -> None:
    process = command("time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "at work False\n"
    process.send_signal(number)
    assert process.wait(20) == -number


def in_terminal(work: str) -> Terminal:
    return Terminal([sys.executable, "-c", COMMAND.format(work=work, seconds=60, is_retry=False)], os.environ)


_WITH_ANOTHER = """import subprocess
    other = subprocess.Popen([sys.executable, "-c", "import time; print('started', flush=True); time.sleep(60)"])
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        other.kill()
        return 130"""


def test_only_the_worker_process_receives_ctrl_c() -> None:
    with in_terminal(_WITH_ANOTHER) as it:
        it.see("started")
        it.press(CTRL_C)
        assert it.end() == 130
        assert "Traceback" not in it.seen


def test_a_second_ctrl_c_ends_a_worker_process_that_continues() -> None:
    hears = "signal.signal(signal.SIGINT, lambda *_: print('heard', flush=True))"
    with in_terminal(f"{hears}; print('ready', flush=True); time.sleep(60)") as it:
        it.see("ready")
        it.press(CTRL_C)
        it.see("heard")
        it.press(CTRL_C)
        assert it.end() == 130


_SHELL = """
import contextlib, os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it is in the background when it takes the terminal back
if not (pid := os.fork()):
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
with contextlib.suppress(OSError):
    os.setpgid(pid, pid)
_, status = os.waitpid(pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status), flush=True)
os.tcsetpgrp(0, pid)
os.killpg(pid, signal.SIGCONT)
print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""The actions of a shell for a job in the foreground."""


def test_ctrl_z_stops_a_command_with_its_worker_process_under_a_shell() -> None:
    text = COMMAND.format(work="time.sleep(1); print('done', flush=True)", seconds=60, is_retry=False)
    with Terminal([sys.executable, "-c", _SHELL, text], os.environ) as it:
        it.see("at work")
        it.press(CTRL_Z)
        assert it.end() == 0
        assert [word for word in ("stopped True", "done", "ended 3") if word not in it.seen] == []


def test_ctrl_z_without_a_shell_to_continue_it_stops_nothing() -> None:
    with in_terminal("time.sleep(1); print('done', flush=True)") as it:
        it.see("at work")
        it.press(CTRL_Z)
        assert it.end() == 3
        assert "done" in it.seen


def test_a_worker_process_that_reads_from_its_terminal_gets_an_error() -> None:
    with in_terminal("sys.stdin.readline()") as it:
        it.see("OSError")
        assert it.end() == 1


def test_a_worker_process_that_the_kernel_kills_is_reported_in_a_sentence() -> None:
    process = command("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    said = process.communicate()[0].splitlines()[-1]
    assert said == "said: killed, probably by the kernel because memory ran out. Finished artifacts are kept"
    assert process.returncode == 128 + signal.SIGKILL


def test_the_worker_process_ends_with_its_watcher() -> None:
    process = command("import os; print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while measure_process(pid) is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert measure_process(pid) is None


def test_a_json_text_is_parsed_within_its_limits() -> None:
    assert parse_json(b'{"a": [1, 2]}', 20) == {"a": [1, 2]}
    with raises(ValueError, 30, 20):
        parse_json(b" " * 30, 20)
    with raises(ValueError, 4_194_304):
        parse_json(b"[" + b"1," * 5_000_000 + b"1]", 1 << 30)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no function for it")
def test_freed_memory_is_returned_to_the_system() -> None:
    blocks = [bytes(1_000) for _ in range(100_000)]
    # Keep some blocks, because the library itself returns free memory at the end of the heap.
    kept_blocks = blocks[::100]
    blocks.clear()
    before = measure_process(os.getpid())
    return_freed_memory()
    after = measure_process(os.getpid())
    assert before is not None
    assert after is not None
    assert before[0] - after[0] > 50 * MIB
    assert len(kept_blocks) == 1_000
