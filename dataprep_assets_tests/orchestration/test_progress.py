"""Progress of a step in the run's log, on the asset's page, and in the terminal of the command."""

import io
import json
import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from rich.console import Console

from dataprep_assets.execution.progress import Progress
from dataprep_assets.orchestration.runs import step_build
from dataprep_assets.orchestration.runs.step_build import LogSink, ObservationSink
from dataprep_assets.orchestration.runs.terminal import (
    StepLine,
    TerminalSink,
    list_progress_sinks,
    print_line,
    show_notebook_progress,
    show_progress,
    write_printed_lines,
)
from dataprep_assets.project_template import write_project
from dataprep_assets_tests import forked
from dataprep_assets_tests.engine.specs import make_spec
from dataprep_assets_tests.orchestration.notice_board import make_notice_board

REPOSITORY = Path(__file__).parents[2]
COMMAND = ["-m", "dataprep_assets_tests.orchestration.watched_run"]
OF_DAGSTER = ["LogSink", "ObservationSink"]


def run_on_terminal(*arguments: str, **variables: str) -> tuple[str, dict[str, Any]]:
    """Return the terminal output of `watched_run`, and the JSON that it printed at its end."""
    terminal, its_end = os.openpty()
    environment = {**os.environ, "TERM": "xterm", **variables}
    started = forked.start([*COMMAND, *arguments], env=environment, cwd=REPOSITORY, stdout=its_end, stderr=its_end)
    os.close(its_end)
    seen = b""
    try:
        while data := os.read(terminal, 65_536):
            seen += data
    except OSError:  # all writers have closed the terminal
        pass
    finally:
        os.close(terminal)
    assert started.wait() == 0, seen
    text = seen.decode()
    return text, json.loads(text[text.rindex('{"sinks"') :].strip())


def test_a_watched_step_draws_a_live_line_and_erases_it_at_its_end() -> None:
    seen, told = run_on_terminal("yes")
    assert told["sinks"] == [[*OF_DAGSTER, "TerminalSink"], OF_DAGSTER]
    assert told["variables"] == [], "no variable of the environment is a message"
    drawn = re.findall(r"corpus/token_bi\S+ +(?:< )?(\d+\.\d)%  ETA \S+ \w+  \d\.\d of 1\.0 MB", seen)
    assert 2 <= len(drawn) <= 4, "every 0.2 s of half a second"
    assert drawn == sorted(drawn, key=float)
    assert seen.count("\x1b[2K") == len(drawn), "each drawing wipes the one before, the end the last"
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 1, "the cursor comes back"


@pytest.mark.parametrize(("columns", "bar"), [(60, 0), (80, 0), (120, 18), (200, 24)])
def test_the_live_line_fits_the_terminal_and_has_a_bar_if_there_is_space(columns: int, bar: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=columns, color_system=None)
    half = Progress(source_bytes=200, clock=iter([0.0, *[10.0] * 9]).__next__)
    half.add({"source_bytes": 100, "tokens": 1_234_567_890})
    console.print(TerminalSink(StepLine(console), "corpus/token_bins")._build_row(half))
    (line,) = shown.getvalue().splitlines()
    assert len(line) <= columns
    assert "corpus/token_bins" in line
    assert "50.0%  ETA 10.0 s" in line
    assert line.count("━") == bar // 2, "without colors the other half is not drawn"
    assert ("1,234,567,890 of ~2,469,135,780 tokens  123.46 M tokens/s" in line) == (columns >= 120)


def test_a_terminal_without_escape_codes_gets_lines() -> None:
    seen, told = run_on_terminal("yes", TERM="dumb")
    assert told["sinks"][0][-1] == "LineSink"
    assert "\x1b" not in seen
    assert re.search(r"^    corpus/token_bins: \d+\.\d%", seen, re.M)


def test_an_unwatched_step_draws_nothing() -> None:
    seen, told = run_on_terminal("no")
    assert told["sinks"] == [OF_DAGSTER, OF_DAGSTER]
    assert "\x1b" not in seen
    assert re.search("corpus/token_bins: .*%", told["logged"][-1]), "the last line is in the log"
    assert f'"{told["logged"][-1]}"' in seen
    assert seen.count("corpus/token_bins: ") == len(told["logged"]), "and nowhere else"


def test_a_pipe_gets_occasional_lines_without_escape_codes() -> None:
    pipes = [os.pipe(), os.pipe()]
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    writers = [writer for _, writer in pipes]
    started = forked.start([*COMMAND, "yes"], env=environment, cwd=REPOSITORY, stdout=writers[0], stderr=writers[1])
    for writer in writers:
        os.close(writer)
    texts = []
    # Read one pipe after the other, because each pipe's buffer is far larger than the output.
    for reader, _ in pipes:
        with open(reader) as stream:
            texts.append(stream.read())
    stdout, stderr = texts
    assert started.wait() == 0, stderr
    told = json.loads(stdout.splitlines()[-1])
    assert told["sinks"][0][-1] == "LineSink"
    lines = stderr.splitlines()
    assert 2 <= len(lines) <= 4, "every 0.2 s of half a second, and the last"
    for line in lines:
        assert re.fullmatch(r"    corpus/token_bins: \d+\.\d%  \d\.\d of 1\.0 MB  ETA [\d.,]+ (s|min)", line)
    assert "\x1b" not in stdout + stderr
    first, *_ = told["observed"]
    assert first.keys() == {"progress", "done", "rate", "time_left"}
    assert re.fullmatch(r"\d\.\d of 1\.0 MB", first["done"])


@pytest.mark.parametrize(("is_heard", "said"), [("yes", ["said while the step is at work"]), ("no", [])])
def test_messages_appear_at_once_although_dagster_redirects_the_output_of_a_step(
    is_heard: str, said: list[str], tmp_path: Path
) -> None:
    # Dagster uses `tail` to show the output of a step. On a busy machine, `tail` may end before it has shown anything.
    busy = tmp_path / "tail"
    busy.write_text("#!/bin/sh\nexec sleep 5\n")
    busy.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["-m", "dataprep_assets_tests.orchestration.dying_step", is_heard]
    done = forked.run(command, env=environment, cwd=REPOSITORY)
    assert done.returncode == 9, done.stderr
    assert done.stdout.splitlines() == said


def test_a_closed_pipe_stops_no_message() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, write_printed_lines(stream):
        os.close(reader)
        print_line("nobody hears it")


def test_a_closed_pipe_stops_no_step() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, show_progress(stream):
        (sink,) = list_progress_sinks("corpus/token_bins")
        os.close(reader)
        step = Progress(source_bytes=10, sinks=[sink])
        step.add({"source_bytes": 10})
        sink._written = sink._drawn = -1e9  # type: ignore[attr-defined]
        step.show()
        step.close()


@pytest.fixture
def context() -> tuple[list[str], dg.AssetExecutionContext]:
    """Return the real context of a step with a log that a test reads."""
    lines: list[str] = []
    made = dg.build_asset_context()
    made.log.addFilter(lambda record: lines.append(record.getMessage()) or True)
    return lines, made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the clock of the sinks, so that the test can set the time."""
    now = [1_000.0]
    monkeypatch.setattr(step_build.time, "monotonic", lambda: now[0])
    return now


def test_the_log_has_a_line_every_fifteen_seconds_and_at_the_end(
    context: tuple[list[str], dg.AssetExecutionContext], clock: list[float]
) -> None:
    lines, step = context
    sink = LogSink(step, "corpus/token_bins")
    counted = Progress(source_bytes=60, clock=lambda: clock[0])
    for second in range(61):
        clock[0] = 1_000.0 + second
        counted.add({"source_bytes": int(second > 0)})
        sink.show(counted)
    shares = [line.rpartition("corpus/token_bins: ")[2].split()[0] for line in lines]
    assert shares == ["25.0%", "50.0%", "75.0%", "100.0%"]
    sink.close(counted)
    sink.close(Progress())
    assert len(lines) == 5, "the last line of a step that counted something"


def test_a_day_of_work_gives_about_sixty_observations(
    monkeypatch: pytest.MonkeyPatch, context: tuple[list[str], dg.AssetExecutionContext], clock: list[float]
) -> None:
    observed: list[tuple[float, dg.AssetObservation]] = []
    step = context[1]
    monkeypatch.setattr(type(step), "log_event", lambda _, event: observed.append((clock[0] - 1_000, event)))
    sink, counted = (
        ObservationSink(step, make_spec("corpus", "token_bins")),
        Progress(source_bytes=86_400, clock=lambda: clock[0]),
    )
    for second in range(86_401):
        clock[0] = 1_000.0 + second
        counted.add({"source_bytes": 1, "tokens": 100})
        sink.show(counted)
    sink.close(counted)
    times = [second for second, _ in observed]
    assert times[:3] == [60, 120, 180], "a short step is over before somebody looks"
    assert 40 < len(times) < 70
    assert all(later - earlier <= max(60, 0.11 * later) for earlier, later in pairwise(times))
    shown = {name: value.value for name, value in observed[0][1].metadata.items()}
    assert all(isinstance(value, str) for value in shown.values()), "a number would be a point of the asset's plots"
    assert shown["done"] == "6,100 of ~8,640,000 tokens"


def test_a_run_of_the_asset_logs_its_totals(tmp_path: Path) -> None:
    with make_notice_board(tmp_path) as board:
        outcome = board.run(board.specs[0], partitions=["n-0", "n-1"])
        logged = [entry.user_message for entry in board.instance.all_logs(outcome.run_id)]
    assert "2 notices: 2 built, 0 reused" in logged


class _Cell:
    """The output area of a cell, which replaces a kernel's display: it keeps each text unchanged without a kernel."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.texts.append(data["text/plain"])


@pytest.mark.parametrize("kernel", [True, False])
def test_in_a_notebook_one_output_of_the_cell_shows_the_bar_of_each_step(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells: list[_Cell] = []

    def display(data: dict[str, str], raw: bool, display_id: bool) -> _Cell:
        assert display_id
        cells.append(_Cell())
        cells[-1].update(data, raw)
        return cells[-1]

    shell = SimpleNamespace(kernel=None) if kernel else SimpleNamespace()
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    output = ModuleType("IPython.display")
    output.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", output)
    with show_notebook_progress():
        for name in ("first", "second"):
            step = Progress(source_bytes=10, sinks=list_progress_sinks(name))
            step.add({"source_bytes": 5})
            step.show()
            step.close()
    if not kernel:
        assert cells == []
        return
    (cell,) = cells
    drawn = [text for text in cell.texts if text]
    assert [text.split()[0] for text in drawn] == ["first", "second"]
    assert all("━" in text and "50.0%" in text and "\x1b" not in text for text in drawn)
    assert cell.texts[-1] == ""


@pytest.mark.slow
def test_a_real_kernel_shows_the_bar_of_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="a notebook's kernel is not among the tools of development")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    write_project(tmp_path / "in_a_notebook")
    spec_file = tmp_path / "kernels" / "python3" / "kernel.json"
    spec_file.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec_file.write_text(json.dumps({"argv": command, "display_name": "Python", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    for name in ("DATAPREP_PROJECT", "DATAPREP_STORAGE", "DATAPREP_ROOT", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    drawn: list[str] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, message: Any, cell: Any, index: int) -> Any:
            if message["msg_type"] in ("display_data", "update_display_data"):
                drawn.append(message["content"]["data"]["text/plain"])
            return super().process_message(message, cell, index)

    build = (
        "from dataprep_assets import open_project\n"
        f"open_project({str(tmp_path / 'in_a_notebook')!r}).dataset('sample_corpus').run()\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(build)])
    Client(notebook, timeout=300, kernel_name="python3").execute()
    assert any("sample_corpus/token_bins_train" in text and "ETA" in text for text in drawn), drawn
    shown = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert len(shown) == 1, "one output, which is drawn again"
