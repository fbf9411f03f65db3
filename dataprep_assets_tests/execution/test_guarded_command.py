"""A command ends with all its child processes: when it finishes, after its time limit, and when its caller is
killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep_assets.execution.guarded_command import CommandResult, run_guarded

# The command starts one helper in the session of the command. It starts another helper, whose parent process has ended,
# in a new session.
HELPERS = """
sleep 301 & echo $! > one
(setsid sleep 302 & echo $! > two)
while ! { [ -s one ] && [ -s two ]; }; do sleep 0.01; done
"""
STUBBORN = "trap '' TERM; "


def run(folder: Path, script: str, seconds: float = 60, *, quoted: bool = True) -> CommandResult:
    (folder / "scratch").mkdir(exist_ok=True)
    return run_guarded(["bash", "-c", script], folder, seconds=seconds, scratch=folder / "scratch", quoted=quoted)


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(folder: Path) -> list[str]:
    return [(folder / name).read_text().strip() for name in ("one", "two")]


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    return condition()


def test_the_exit_of_a_command_is_reported_with_the_end_of_its_standard_error(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 0") == CommandResult(code=0)
    assert run(tmp_path, "pwd; echo why >&2; exit 3") == CommandResult(code=3, errors="why\n")
    assert run(tmp_path, "echo why >&2; exit 3", quoted=False) == CommandResult(code=3)
    assert run(tmp_path, "kill -9 $$").code == -signal.SIGKILL
    # The output on each stream exceeds a pipe's capacity. The command does not block, and only the end of the errors is
    # kept.
    loud = run(tmp_path, "head -c 3000000 /dev/zero | tee /dev/stderr; echo last >&2")
    assert loud.code == 0
    assert loud.errors.endswith("last\n")
    assert len(loud.errors) < 10_000
    nothing = run_guarded(["no-such-program"], tmp_path, seconds=1, scratch=tmp_path / "scratch", quoted=True)
    assert nothing == CommandResult(refused="No such file or directory")
    assert (tmp_path / "scratch").is_dir()


def test_child_processes_of_a_command_end_with_it_and_block_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, HELPERS + "echo done >&2") == CommandResult(code=0, errors="done\n")
    assert not any(map(lives, started(tmp_path)))


def test_a_command_is_ended_after_its_time_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    assert run(tmp_path, STUBBORN + HELPERS + "sleep 300", seconds=0.5).code is None
    assert time.monotonic() - began < 60
    assert not any(map(lives, started(tmp_path)))


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_command_and_its_texts_end_with_the_calling_process(by: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "texts").write_text("x")
    script = (
        "import sys; from pathlib import Path\n"
        "from dataprep_assets.execution.guarded_command import run_guarded\n"
        "folder = Path(sys.argv[1])\n"
        "run_guarded(['bash', '-c', sys.argv[2]], folder, seconds=600, scratch=folder / 'scratch', quoted=True)\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path), HELPERS + "echo $$ > four; sleep 300"]
    asking = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        assert until((tmp_path / "four").is_file)
        assert all(map(lives, started(tmp_path)))
        os.kill(asking.pid, by)
        asking.wait(30)
        assert until(lambda: not any(map(lives, [*started(tmp_path), (tmp_path / "four").read_text().strip()])))
        assert until(lambda: not (tmp_path / "scratch").exists())
    finally:
        asking.kill()
        asking.wait()
