"""Where the progress of a step is shown: in the run's log, and on the terminal only inside `watched`."""

import os
import pty
import re
import sys
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.orchestration import progress
from dataprep_assets.orchestration.progress import LogSink
from dataprep_assets_tests.orchestration.notice_board import notice_board

REPOSITORY = Path(__file__).parents[2]


def on_a_terminal(*arguments: str) -> str:
    """What a person sees who runs `watched_run` on a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPOSITORY)
        command = [sys.executable, "-m", "dataprep_assets_tests.orchestration.watched_run", *arguments]
        os.execv(sys.executable, command)
    seen = b""
    try:
        while data := os.read(terminal, 65_536):
            seen += data
    except OSError:  # its last writer is gone
        pass
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
    return seen.decode()


def test_a_watched_step_draws_a_line_now_and_then_and_wipes_it_at_its_end() -> None:
    seen = on_a_terminal("yes")
    assert "[['LogSink', 'TerminalSink'], ['LogSink']] []" in seen, "no variable of the environment is a message"
    drawn = re.findall(r"\r\x1b\[2K    corpus/token_bins: +[\d.]+%", seen)
    assert 2 <= len(drawn) <= 4, "every 0.2 s of half a second"
    assert seen.count("\x1b[2K") == len(drawn) + 1, "wiped at the end"


def test_a_step_that_nobody_watches_draws_nothing() -> None:
    seen = on_a_terminal("no")
    assert "[['LogSink'], ['LogSink']] []" in seen
    assert "\x1b[2K" not in seen
    assert re.search(r"\[\] 1 corpus/token_bins: .*%", seen), "the last line is in the log"


@pytest.fixture
def context() -> tuple[list[str], dg.AssetExecutionContext]:
    """A context whose log a test reads, by the real context of a step."""
    lines: list[str] = []
    made = dg.build_asset_context()
    made.log.addFilter(lambda record: lines.append(record.getMessage()) or True)
    return lines, made


def test_the_log_has_a_line_every_fifteen_seconds_and_the_last(
    context: tuple[list[str], dg.AssetExecutionContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, step = context
    clock = [1_000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    sink = LogSink(step, "corpus/token_bins")
    made: list[int] = []
    for second in range(61):
        clock[0] = 1_000.0 + second
        sink.show(lambda: made.append(1) or f"line {len(made)}")
    assert [line.rpartition("corpus/token_bins: ")[2] for line in lines] == [f"line {n}" for n in range(1, 5)]
    sink.close("the last")
    sink.close(None)
    assert len(lines) == 5
    assert lines[-1].endswith("corpus/token_bins: the last")


def test_a_run_of_the_asset_logs_its_sum(tmp_path: Path) -> None:
    with notice_board(tmp_path) as board:
        outcome = board.run(board.specs[0], partitions=["n-0", "n-1"])
        logged = [entry.user_message for entry in board.instance.all_logs(outcome.run_id)]
    assert "2 notices: 2 built, 0 reused" in logged
