"""What becomes of the processes of `dataprep ui`, however it ends. What they serve is tested in `ui/`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.servers import end, free_port, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def ui(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`dataprep ui` of a new project, ready; its output is in `log`."""
    write_project(project := tmp_path / "seen")
    port = free_port()
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dataprep_assets.cli", "ui", "--port", str(port)],
            env=environment(tmp_path),
            cwd=project,
            stdout=log,
            stderr=log,
        )

    def serves() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        try:
            return bool(urlopen(f"http://127.0.0.1:{port}/server_info", timeout=10).status == 200)
        except OSError:
            return False

    try:
        wait_until(serves, 300)
        yield process
    finally:
        end(process)


def below(pid: int) -> dict[int, str]:
    """The processes that a process started, and those started by them: id → command line."""
    found: dict[int, str] = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        found |= below(int(child))
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_it(ui: "subprocess.Popen[bytes]", by: signal.Signals) -> None:
    processes = below(ui.pid)
    for name in ("dagster code-server", "dagster api", "dataprep_assets.webserver", "dagster-daemon"):
        assert any(name in line for line in processes.values()), name
    ui.send_signal(by)
    assert ui.wait(60) == (-signal.SIGKILL if by == signal.SIGKILL else 0)
    wait_until(lambda: all(map(gone, processes)), 60)


def test_the_death_of_a_service_ends_it_with_a_sentence(ui: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    processes = below(ui.pid)
    (daemon,) = (pid for pid, line in processes.items() if "dagster-daemon" in line)
    os.kill(daemon, signal.SIGKILL)
    assert ui.wait(60) == 1
    assert "dataprep: ui: the daemon ended with exit code -9; its own words are above" in (tmp_path / "log").read_text()
    wait_until(lambda: all(map(gone, processes)), 60)
