"""A run over notes that is killed at a write point and started again ends as if nothing had happened."""

import re
import shutil
import signal
from pathlib import Path

import pytest

from dataprep_assets_tests import forked
from dataprep_assets_tests.faults.armed import Role, make_armed_environment, read_log
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, receipts
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLE

pytestmark = pytest.mark.slow


def run(home: Path, root: Path, *, role: Role = "parent", at: int = 0) -> tuple[int, str, list[str]]:
    """Run the pipeline in a process; its exit code, its stderr and its write points. Killed at the point `at`."""
    command = ["-m", "dataprep_assets_tests.pipelines.notes.pipeline", SAMPLE, root, "1"]
    done = forked.run(command, env=make_armed_environment(home, root, role, at), timeout=600)
    return done.returncode, done.stderr, read_log(home)


def one_of_each_kind(points: list[str], role: Role) -> list[int]:
    """Numbers of points of a process, one for each kind of call and file."""
    kinds: dict[str, int] = {}
    for line in points:
        who, _, number, what, path = line.split(" ", 4)
        if who == role:
            kind = re.sub(r"\d{4}-\d\d|[0-9a-f]{16}|\d+-of-\d+", "N", path)
            kinds.setdefault(f"{what} {kind}", int(number))
    return sorted(set(kinds.values()))


def test_killed_anywhere_and_run_again_the_bytes_are_the_same(tmp_path: Path) -> None:
    code, errors, points = run(tmp_path / "undisturbed", tmp_path / "root")
    assert code == 0, errors
    files, made = data_files(tmp_path / "root"), receipts(tmp_path / "root")
    # Test every ninth kind of point of both processes, because testing all kinds would take minutes.
    roles: tuple[Role, Role] = ("parent", "worker")
    chosen = [(role, at) for role in roles for at in one_of_each_kind(points, role)[::9]]
    assert len(chosen) >= 6
    for role, at in chosen:
        home, root = tmp_path / f"{role}{at}", tmp_path / f"root-{role}{at}"
        code, errors, _ = run(home, root, role=role, at=at)
        assert code == (-signal.SIGKILL if role == "parent" else 0), (role, at, errors)
        if role == "worker":
            assert re.search(r"20\d\d-\d\d: its worker process died .* Retrying", errors), errors
        code, errors, _ = run(tmp_path / f"{role}{at}-again", root)
        assert code == 0, (role, at, errors)
        assert data_files(root) == files, (role, at)
        assert receipts(root) == made, (role, at)
        assert debris(root) == [], (role, at)
        shutil.rmtree(root)
