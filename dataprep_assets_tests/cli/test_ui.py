"""What becomes of the processes of `dataprep ui`, however it ends. What they serve is tested in `ui/`."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.servers import end, free_port, wait_until

pytestmark = pytest.mark.slow


@contextmanager
def served(folder: Path, *shell: str) -> Iterator[int]:
    """`dataprep ui` of a new project, ready: its process. Its output is in `log`; `shell` is what starts it, if any."""
    write_project(project := folder / "seen")
    port = free_port()
    words = [sys.executable, "-m", "dataprep_assets.cli", "ui", "--port", str(port)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*shell, *words], env=environment(folder), cwd=project, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    pid = int(process.stdout.readline()) if shell else process.pid

    def serves() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        try:
            return bool(urlopen(f"http://127.0.0.1:{port}/server_info", timeout=10).status == 200)
        except OSError:
            return False

    try:
        wait_until(serves, 300)
        yield pid
        assert process.wait(60) is not None
    finally:
        end(process)
        process.stdout.close()


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


BACKGROUND = ("sh", "-c", 'nohup "$@" & echo $!; wait $!; echo $? >&2', "sh")
"""A script that starts a command in its background, where the shell has it ignore SIGINT."""


@pytest.mark.parametrize(
    ("by", "shell"),
    [(signal.SIGKILL, ()), (signal.SIGINT, BACKGROUND), (signal.SIGTERM, BACKGROUND)],
    ids=["killed", "SIGINT in a script", "SIGTERM in a script"],
)
def test_no_process_outlives_it(by: signal.Signals, shell: tuple[str, ...], tmp_path: Path) -> None:
    with served(tmp_path, *shell) as pid:
        processes = below(pid)
        for name in ("dagster code-server", "dagster api", "dataprep_assets.webserver", "dagster-daemon"):
            assert any(name in line for line in processes.values()), name
        os.kill(pid, by)
        wait_until(lambda: all(map(gone, [pid, *processes])), 60)
    if shell:
        assert (tmp_path / "log").read_text().splitlines()[-1] == "0"


def test_the_death_of_a_service_ends_it_with_a_sentence(tmp_path: Path) -> None:
    with served(tmp_path) as pid:
        processes = below(pid)
        (daemon,) = (child for child, line in processes.items() if "dagster-daemon" in line)
        os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: all(map(gone, [pid, *processes])), 60)
    assert "dataprep: ui: the daemon ended with exit code -9; its own words are above" in (tmp_path / "log").read_text()


def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    write_project(project := tmp_path / "seen")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = dataprep(tmp_path, "ui", "--port", str(port), project=project)
    assert done.returncode == 2
    assert done.stderr == (
        f"dataprep: ui: 127.0.0.1:{port} cannot be listened on: Address already in use; end what is there, or choose "
        "another --port\n"
    )
    assert not (tmp_path / "home").exists()
