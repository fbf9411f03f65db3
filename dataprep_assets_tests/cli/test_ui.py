"""The processes of `dataprep ui` end with it in every case. The pages that they serve are tested in `ui/`."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.servers import end, find_descendants, free_port, wait_until

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class ServedUi:
    """A running `dataprep ui`: its process, its port, and its output so far in `folder`."""

    pid: int
    port: int
    folder: Path

    @property
    def lines(self) -> list[str]:
        """The lines of standard output."""
        return (self.folder / "out").read_text().splitlines()

    @property
    def problems(self) -> list[str]:
        """The lines of standard error."""
        return (self.folder / "err").read_text().splitlines()

    @property
    def log(self) -> Path:
        """The log of Dagster's processes."""
        return self.folder / "home" / f"ui-{self.port}.log"


@contextmanager
def start_ui(folder: Path, *shell: str, port: int | None = None, until: str = "http://") -> Iterator[ServedUi]:
    """Start `dataprep ui` in the project `seen`, through `shell` if given, and yield it once `until` is in its output.

    By default it has then printed its address, at which it serves.
    """
    if not (project := folder / "seen").exists():
        write_project(project)
    port = port or free_port()
    words = [sys.executable, "-m", "dataprep_assets.cli", "ui", "--port", str(port)]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen([*shell, *words], env=environment(folder), cwd=project, stdout=out, stderr=err)
    made = ServedUi(process.pid, port, folder)

    def is_reached() -> bool:
        assert process.poll() is None, made.problems
        return any(until in line for line in made.lines)

    try:
        wait_until(is_reached, 300, every=0.2)
        yield replace(made, pid=int(made.lines[0])) if shell else made
        assert process.wait(60) is not None
    finally:
        end(process)


@contextmanager
def serve_ui(folder: Path, *shell: str, port: int | None = None) -> Iterator[ServedUi]:
    """Start `dataprep ui` as `start_ui` does, and yield it once it serves."""
    with start_ui(folder, *shell, port=port) as ui:
        assert f"http://127.0.0.1:{ui.port}" in ui.lines[-1]
        assert urlopen(f"http://127.0.0.1:{ui.port}/server_info", timeout=30).status == 200
        yield ui


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


BACKGROUND = ("sh", "-c", 'nohup "$@" & echo $!; wait $!; echo $? >&2', "sh")
"""A script that starts a command in its background, where the shell makes it ignore SIGINT."""


def end_ui(ui: ServedUi, by: signal.Signals) -> None:
    """Send the command a signal, and wait until neither it nor any of its processes is left."""
    processes = find_descendants(ui.pid)
    for name in ("dagster code-server", "dagster api", "dataprep_assets.webserver", "dagster-daemon"):
        assert any(name in line for line in processes.values()), name
    os.kill(ui.pid, by)
    wait_until(lambda: all(map(is_gone, [ui.pid, *processes])), 60)


def test_no_process_outlives_the_command_that_a_script_interrupts(tmp_path: Path) -> None:
    with serve_ui(tmp_path, *BACKGROUND) as ui:
        end_ui(ui, signal.SIGINT)
    *killed, code = ui.problems
    assert code == "0"
    assert all(line.startswith("ui: the ") for line in killed), "nothing of Dagster's own"
    _, starting, log, address, ended = ui.lines
    assert starting.startswith("Starting")
    assert str(ui.log) in log
    assert f"http://127.0.0.1:{ui.port}" in address
    assert ended.startswith("Stopped")
    assert "dagster" in ui.log.read_text()


def test_no_process_outlives_the_command_that_a_script_terminates(tmp_path: Path) -> None:
    """SIGTERM has the handler of SIGINT, so the services need not be complete."""
    with start_ui(tmp_path, *BACKGROUND, until="log of Dagster's processes") as ui:
        wait_until(lambda: any("code-server" in line for line in find_descendants(ui.pid).values()), 60, every=0.1)
        processes = find_descendants(ui.pid)
        os.kill(ui.pid, signal.SIGTERM)
        wait_until(lambda: all(map(is_gone, [ui.pid, *processes])), 60)
    assert ui.problems == ["0"]
    assert ui.lines[-1].startswith("Stopped")


def test_a_broken_declaration_and_a_dead_service_are_reported_in_a_line_each(tmp_path: Path) -> None:
    write_project(project := tmp_path / "seen")
    broken = project / "seen" / "defs" / "broken" / "defs.yaml"
    broken.parent.mkdir()
    broken.write_text("type: dataprep_assets.components.TokenizedCorpus\nattributes: {spilts: {}}\n")
    port = free_port()
    (tmp_path / "home").mkdir()
    (earlier := tmp_path / "home" / f"ui-{port}.log").write_text("of an earlier start\n")
    earlier.chmod(0o644)
    with serve_ui(tmp_path, port=port) as ui:
        assert stat.S_IMODE(ui.log.stat().st_mode) == 0o600
        assert "earlier" not in ui.log.read_text()
        wait_until(lambda: bool(ui.problems), 30, every=0.1)
        processes = find_descendants(ui.pid)
        (daemon,) = (child for child, line in processes.items() if "dagster-daemon" in line)
        os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: all(map(is_gone, [ui.pid, *processes])), 60)
    declaration, death = ui.problems
    assert "dataprep check broken" in declaration
    assert death == f"dataprep: ui: the daemon ended with exit code -9; see {ui.log}"


def test_a_code_location_that_cannot_be_loaded_is_reported_and_no_process_outlives_a_kill(tmp_path: Path) -> None:
    write_project(project := tmp_path / "seen")
    (project / "seen" / "definitions.py").write_text("import no_such_module\n")
    with serve_ui(tmp_path) as ui:
        wait_until(lambda: bool(ui.problems), 30, every=0.1)
        end_ui(ui, signal.SIGKILL)
    (problem,) = ui.problems
    assert "no_such_module" in problem
    assert str(ui.log) in problem


def test_a_used_port_is_reported_before_anything_starts(tmp_path: Path) -> None:
    write_project(project := tmp_path / "seen")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = dataprep(tmp_path, "ui", "--port", str(port), project=project)
    assert done.returncode == 2
    assert done.stderr == (
        f"dataprep: ui: cannot listen on 127.0.0.1:{port}: Address already in use. Stop the process using it, or "
        "choose another --port\n"
    )
    assert not (tmp_path / "home").exists()
