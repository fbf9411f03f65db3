"""The compute logs of `dagster.yaml`: Dagster's own files, and all of them on the terminal, without a process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.project_template import TEMPLATE

_RUN = """
import os, subprocess, sys
from pathlib import Path
import dagster as dg

@dg.asset
def talkative():
    print("from python", flush=True)
    print("a complaint", file=sys.stderr)
    subprocess.run(["echo", "from a child"], check=True)
    os.write(1, b"x" * 300_000 + b"\\n")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    Path(os.environ["DAGSTER_HOME"], "children").write_text(" ".join(children))
    os.write(1, b"the last line\\n")
    print("out of a buffer")

with dg.DagsterInstance.get() as instance:
    assert dg.materialize([talkative], instance=instance).success
"""


def run(home: Path) -> "subprocess.Popen[bytes]":
    """A run in a process of its own, under the instance that a new project has."""
    home.mkdir()
    shutil.copy(TEMPLATE / "dagster.yaml", home)
    environment = {**os.environ, "DAGSTER_HOME": str(home)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", _RUN], stdout=pipe, stderr=pipe, env=environment)


def captured(home: Path, kind: str) -> bytes:
    (path,) = home.glob(f"storage/*/compute_logs/*.{kind}")
    return path.read_bytes()


def test_all_that_a_step_writes_is_in_its_files_and_shown_and_no_process_is_started_for_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    out, err = run(home).communicate(timeout=120)
    wanted = b"from python\nfrom a child\n" + b"x" * 300_000 + b"\nthe last line\nout of a buffer\n"
    assert out == wanted == captured(home, "out")
    assert b"a complaint\n" in err
    assert b"a complaint\n" in captured(home, "err")
    assert (home / "children").read_text() == ""


def test_a_step_goes_on_when_nobody_reads_what_it_writes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = run(home)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.read()
    process.wait(timeout=120)
    assert captured(home, "out").endswith(b"the last line\nout of a buffer\n")


def test_dagsters_own_manager_reads_what_was_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    assert run(home).communicate(timeout=120)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    (path,) = home.glob("storage/*/compute_logs/*.out")
    key = [path.parent.parent.name, "compute_logs", path.stem]
    for settings in ((TEMPLATE / "dagster.yaml").read_text(), "telemetry: {enabled: false}\n"):
        (home / "dagster.yaml").write_text(settings)
        with dg.DagsterInstance.from_config(str(home)) as instance:
            manager = instance.compute_log_manager
            assert manager.is_capture_complete(key)
            assert (manager.get_log_data(key).stdout or b"").startswith(b"from python\n")
