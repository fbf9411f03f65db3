"""A migration killed at any write point leaves the old file or the new one, and its rerun gives the same folder and
record.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.tasks.migrate_once import declaration
from dataprep_assets_tests.pipelines.tasks.trees import Project, project, snapshot

pytestmark = pytest.mark.slow

GUARD_SECONDS = 60
TRAIN, VALIDATION = "copa_train.jsonl", "copa_validation.jsonl"


def prepared(home: Path, mode: str) -> Project:
    """Return a project whose new tree contains Copa's base, copied in link mode and linked in copy mode."""
    made = project(home, ["Copa"])
    made.migrate(made.declared({"Copa": {"mode": "copy" if mode == "symlink" else "symlink"}}))
    return made


class Runner:
    """The process whose children migrate and are killed."""

    def __init__(self, mode: str) -> None:
        command = [sys.executable, "-m", "dataprep_assets_tests.pipelines.tasks.migrate_once", mode]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, home: Project, at: int = 0) -> tuple[int, list[str]]:
        """Migrate and kill at a point (0: never); return the exit code and the passed points."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        log = home.home.with_suffix(".log")
        print(json.dumps([str(home.home), str(log), at]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()), log.read_text().splitlines()

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=GUARD_SECONDS)


@dataclass(frozen=True)
class Undisturbed:
    """The files of a migration that is not killed, and its write points."""

    tree: dict[str, tuple[str, bytes | str, int]]
    record: bytes
    points: list[str]


def left(home: Project) -> tuple[dict[str, tuple[str, bytes | str, int]], bytes]:
    """Return the new tree and the record."""
    return snapshot(home.new), (home.store.root / "tasks/task_folder/Copa/migration.json").read_bytes()


def debris(home: Project) -> list[str]:
    """Return the leftover files."""
    names = [p.relative_to(home.home).as_posix() for p in home.home.rglob("*") if p.is_file() or p.is_symlink()]
    return [n for n in names if ".staged" in n or (".staging" in n and not n.endswith(".lock"))]


@pytest.fixture(params=["copy", "symlink"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runner(mode: str) -> Iterator[Runner]:
    made = Runner(mode)
    yield made
    made.close()


def test_a_kill_at_any_point_loses_nothing(tmp_path: Path, runner: Runner, mode: str) -> None:
    home = prepared(tmp_path / "undisturbed", mode)
    old = {name: snapshot(home.new)[f"Copa/{name}"] for name in (TRAIN, VALIDATION)}
    code, points = runner.run(home)
    undisturbed = Undisturbed(*left(home), points)
    assert code == 0
    assert len(points) > 20
    assert debris(home) == []
    new = {name: undisturbed.tree[f"Copa/{name}"] for name in (TRAIN, VALIDATION)}
    seen = set()
    for at in range(1, len(points) + 1):
        home = prepared(tmp_path / f"killed_{at}", mode)
        code, passed = runner.run(home, at)
        where = f"killed at {passed[-1]}"
        assert (code, len(passed)) == (-signal.SIGKILL, at), where
        between = snapshot(home.new)
        placed = frozenset(name for name in new if between[f"Copa/{name}"] == new[name])
        assert all(between[f"Copa/{name}"] == old[name] for name in new.keys() - placed), where
        home.migrate(declaration(home, mode))
        assert left(home) == (undisturbed.tree, undisturbed.record), where
        assert debris(home) == [], where
        seen.add(placed)
    assert {frozenset(), frozenset({TRAIN, VALIDATION})} <= seen
