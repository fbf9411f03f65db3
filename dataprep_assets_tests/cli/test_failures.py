"""`dataprep run` reports a failure once, in one sentence, without a Python traceback."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import dataprep

pytestmark = pytest.mark.slow

DATA = Path("defs", "sample_corpus", "data")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a user's project with the sample corpus and one of its views."""
    root = tmp_path_factory.mktemp("failures") / "mine"
    done = dataprep(root.parent, "init", str(root))
    assert done.returncode == 0, done.stderr
    (root / "mine" / DATA / "train" / "chunk10").rename(root / "unused")
    declared = root / "mine" / "defs" / "sample_corpus" / "defs.yaml"
    text = declared.read_text()
    declared.write_text(text.replace("[nanogpt, megatron, datatrove, olmo, mds, hf_parquet]", "[nanogpt]"))
    return root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 900 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "none", str(disk)], check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def run(project: Path, *options: str, part: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    home = {"DAGSTER_HOME": str(project / "home"), "DATAPREP_ROOT": str(project / "artifacts")}
    return dataprep(
        project, "--project", str(project), *options, "run", "sample_corpus", *part, **{**home, **variables}
    )


def test_damaged_sources_are_reported_in_one_line_and_verbose_shows_the_traceback(
    project: Path, tmp_path: Path
) -> None:
    train = project / "mine" / DATA / "train"
    good = tmp_path / "good"
    shutil.copytree(train, good)
    (train / "chunk1" / "example_train_1.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "a"}\n{bad\n'))
    (of_test,) = (project / "mine" / DATA / "test").rglob("*.zst")
    whole = of_test.read_bytes()
    of_test.write_bytes(whole[:-10])
    for cut in (train / "chunk1" / "example_train_2.jsonl.zst", train / "chunk2" / "example_train_0.jsonl.zst"):
        cut.write_bytes(cut.read_bytes()[:-10])
    try:
        first = run(project)
        assert (first.returncode, first.stdout) == (2, ""), "a first run begins with what `check` finds"
        assert first.stderr.count(": truncated") == 3
        assert run(project, part=("--split", "val")).returncode == 0
        done = run(project)
        loud = run(project, "--verbose")
    finally:
        shutil.rmtree(train)
        shutil.copytree(good, train)
        of_test.write_bytes(whole)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2, done.stderr
    of_test_split, of_train = sorted(done.stderr.splitlines())
    assert of_train.startswith("  sample_corpus/token_bins_train: 2 of 3 shards failed; the others are")
    assert f"{of_test.name}: truncated" in of_test_split, "another split, in the same run"
    for told in ("example_train_1.jsonl.zst: row 2, byte 14: bad_json", "chunk1/example_train_2.jsonl.zst: truncated"):
        assert done.stderr.count(told) == 1
    assert "chunk2/example_train_0.jsonl.zst: truncated" in done.stderr
    assert "engine_certificate" not in done.stderr
    assert loud.returncode == 1
    assert "Stack Trace" in loud.stderr


def test_a_full_disk_is_reported_with_the_needed_and_the_free_space(project: Path, small_disk: Path) -> None:
    done = run(project, DATAPREP_ROOT=str(small_disk / "artifacts"))
    assert done.returncode == 1
    assert all("the disk is full: " in line or "check disk_headroom: " in line for line in done.stderr.splitlines()), (
        done.stderr
    )
    assert f"{small_disk}/artifacts/sample_corpus/token_bins/" in done.stderr
    assert "are free. Finished artifacts are kept" in done.stderr
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    again = run(project, DATAPREP_ROOT=str(small_disk / "artifacts"))
    assert again.returncode == 0, again.stderr


def test_an_interrupt_ends_a_run_with_its_workers_and_the_next_run_completes(project: Path, tmp_path: Path) -> None:
    variables = {"DAGSTER_HOME": str(project / "home"), "DATAPREP_ROOT": str(tmp_path / "artifacts")}
    variables["DATAPREP_WORKERS"] = "2"  # otherwise the run's own process builds such a small corpus
    command = ["-m", "dataprep_assets.cli", "--project", project, "run", "sample_corpus"]
    with open(tmp_path / "told", "wb") as told:
        running = forked.start(command, env={**os.environ, **variables}, cwd=PROJECT_ROOT, stderr=told.fileno())
    manifest = tmp_path / "artifacts" / "sample_corpus" / "manifest" / "receipt.json"
    limit = time.monotonic() + 120
    while not (manifest.exists() and find_children(running.pid)) and time.monotonic() < limit:
        time.sleep(0.05)
    workers = find_children(running.pid)
    running.send_signal(signal.SIGINT)
    assert running.wait(120) == 130
    said = (tmp_path / "told").read_text().strip()
    assert said.startswith("dataprep: interrupted.")
    assert f"`dataprep --project {project} run sample_corpus`" in said
    assert workers
    # Wait for the end of the workers, because the kernel signals them only after their parent has ended.
    limit = time.monotonic() + 20
    while (left := [pid for pid in workers if Path(f"/proc/{pid}").exists()]) and time.monotonic() < limit:
        time.sleep(0.05)
    assert left == []
    assert run(project, DATAPREP_ROOT=str(tmp_path / "artifacts")).returncode == 0
    assert [path for path in (tmp_path / "artifacts").rglob(".staging/*") if path.suffix != ".lock"] == []


def test_an_interrupt_during_imports_is_reported_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    installed = (
        # This is the script that pip writes for the command.
        "import sys; from dataprep_assets.entry import main; sys.exit(main())"
    )
    places = os.pathsep.join([str(tmp_path), str(PROJECT_ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", installed, "list"],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "dataprep: interrupted before the command started"


def test_a_process_ends_with_its_exit_code_and_output_without_freeing_objects() -> None:
    script = (
        "import atexit, sys\n"
        "from dataprep_assets import cli, entry\n"
        "class Permanent:\n"
        "    def __del__(self): print('freed')\n"
        "sys.permanent = Permanent()\n"
        "cli.main = lambda: 3 if atexit.register(print, 'after the command') else 0\n"
        "sys.exit(entry.main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "after the command\n", "")


def test_a_process_without_outputs_ends_with_its_exit_code() -> None:
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        script = (
            "from dataprep_assets import cli, entry; cli.main = lambda: print('done') or 3\n"
            "raise SystemExit(entry.main())"
        )
        command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(script)} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (3, "")
        assert done.stdout == ("done\n" if closed == "2>&-" else "")


def find_children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []
