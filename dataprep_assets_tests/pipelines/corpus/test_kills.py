"""A run killed at any write point and started again ends as if nothing had happened."""

import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dataprep_assets.errors import WorkerDiedError
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets_tests import forked
from dataprep_assets_tests.execution.job_tasks import die, wait_the_first_time
from dataprep_assets_tests.faults.armed import Role, make_armed_environment, read_log
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import (
    data_files,
    debris,
    receipts,
    run_pipeline,
    sample_declaration,
)
from dataprep_assets_tests.samples import SAMPLE, SMALL

pytestmark = pytest.mark.slow

GUARD_SECONDS = 600
"""No run over the sample corpus takes longer, unless it hangs."""
_DEATH = r"(train|val|test)-\d{5}( \((encode \d+|seal)\))?: .*signal 9"
"""A shard of one file is one task, of no name but its partition's."""


@dataclass(frozen=True)
class Point:
    """One logged write point: who, its process, its number in that process, what, where below the root."""

    role: Role
    pid: int
    number: int
    what: str
    path: str

    @property
    def kind(self) -> tuple[str, str, str]:
        """Equal for points that differ only in which shard, file, split or view they are about."""
        path = re.sub(r"-[0-9a-f]{16}", "-KEY", re.sub(r"/\d{8}\.", "/ORDINAL.", self.path))
        path = re.sub(
            r"(nanogpt|megatron|datatrove|olmo)_bins", "VIEW", re.sub(r"(train|val|test)(-\d{5})?", "PART", path)
        )
        path = re.sub(r"-KEY/(?!final$|ORDINAL).+", "-KEY/FILE", path)
        path = re.sub(r"(manifest|engine_certificate|VIEW|(snapshot|combined_bins)/(.staging/)?PART)", "NAME", path)
        path = path.replace("sample_corpus/.staging/", "sample_corpus/")
        return self.role, self.what, path

    @property
    def encoded(self) -> str | None:
        """`shard/ordinal` when this point begins to encode a file."""
        found = re.search(r"/([a-z]+-\d{5})-[0-9a-f]{16}/(\d{8})\.tokens$", self.path)
        return f"{found[1]}/{found[2]}" if found and self.what == "open" else None

    @property
    def finished(self) -> str | None:
        """`shard/ordinal` when this point ends the encoding of a file."""
        found = re.search(r"/([a-z]+-\d{5})-[0-9a-f]{16}/(\d{8})\.json$", self.path)
        return f"{found[1]}/{found[2]}" if found and self.what == "os.rename" else None


class Run:
    """One run of the pipeline in a process of its own, watched, and killed where it is told."""

    def __init__(
        self,
        home: Path,
        root: Path,
        *,
        role: Role = "parent",
        at: int = 0,
        workers: int = 1,
        by: signal.Signals = signal.SIGKILL,
        hits: int = 1,
    ) -> None:
        environment = make_armed_environment(home, root, role, at, by, hits)
        self.home, self.root, self._errors = home, root, home / "stderr"
        command = [
            "-m",
            "dataprep_assets_tests.pipelines.corpus.pipeline",
            SMALL,
            SAMPLE / "tokenizer",
            root,
            str(workers),
        ]
        with open(self._errors, "wb") as errors:
            self.process = forked.start(command, env=environment, stderr=errors.fileno())

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(GUARD_SECONDS)

    def finish(self) -> "Run":
        """Wait for a run that should succeed."""
        assert self.wait() == 0, self.errors
        return self

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._errors.read_text(errors="replace")

    @property
    def points(self) -> list[Point]:
        """The write points so far, oldest first."""
        found = []
        for line in read_log(self.home):
            role, pid, number, what, path = line.split(" ", 4)
            found.append(
                Point(
                    "worker" if role == "worker" else "parent",
                    int(pid),
                    int(number),
                    what,
                    path.replace(f"{self.root}/", ""),
                )
            )
        return found

    def living(self) -> set[int]:
        """Processes of this run that are still there."""
        return {pid for pid in {p.pid for p in self.points} if _alive(pid)}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass(frozen=True)
class Undisturbed:
    """What the pipeline leaves when nothing happens; `prepared` holds its manifest, snapshots and certificate only."""

    files: dict[str, bytes]
    receipts: dict[str, dict]
    points: list[Point]
    prepared: Path
    prepared_points: list[Point]

    def differences(self, root: Path) -> list[str]:
        """How a root differs from it; empty when it does not, and nothing lies about."""
        files, found = data_files(root), receipts(root)
        return [
            *(f"{name}: missing or extra" for name in files.keys() ^ self.files.keys()),
            *(f"{name}: other bytes" for name in files.keys() & self.files.keys() if files[name] != self.files[name]),
            *(f"{name}: other receipt" for name in self.receipts if found.get(name) != self.receipts[name]),
            *(f"{name}: debris" for name in debris(root)),
        ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    root = folder / "root"
    run = Run(folder / "first", root).finish()
    prepared = folder / "prepared"
    for name in ("manifest", "snapshot", "engine_certificate"):
        shutil.copytree(root / "sample_corpus" / name, prepared / "sample_corpus" / name)
    second = Run(folder / "second", Path(shutil.copytree(prepared, folder / "again"))).finish()
    assert debris(root) == []
    return Undisturbed(data_files(root), receipts(root), run.points, prepared, second.points)


def one_of_each_kind(points: Iterable[Point]) -> list[Point]:
    """The middle point of every kind: not always the first shard's.

    None of an fsync: it changes nothing that a killed process leaves, so that this is what the next point finds.
    """
    by_kind: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        if point.what == "fsync":
            continue
        by_kind.setdefault(point.kind, []).append(point)
    return [members[len(members) // 2] for members in by_kind.values()]


def every_other(points: Iterable[Point]) -> list[Point]:
    """Every second kind: one commit writes all artifacts, so a kind left out has its like in another artifact."""
    return one_of_each_kind(points)[::2]


def killed_and_run_again(
    undisturbed: Undisturbed, folder: Path, point: Point, start: Path | None, workers: int = 1
) -> list[str]:
    """Defects after a run killed at a point and an ordinary run; none is right. `start` is the root to begin with.

    A run whose worker is killed goes on: nothing is left for the ordinary one.
    """
    root = folder / "root"
    if start is not None:
        shutil.copytree(start, root)
    killed = Run(folder / "killed", root, role=point.role, at=point.number, workers=workers)
    code = killed.wait()
    defects = []
    if point.role != "worker" and code != -signal.SIGKILL:
        defects.append(f"the run was not killed: exit code {code}: {killed.errors}")
    if point.role == "worker":
        if code:
            defects.append(f"the worker's death ended the run: exit code {code}: {killed.errors}")
        if not re.search(_DEATH, killed.errors):
            defects.append(f"no message names the shard: {killed.errors}")
        defects += undisturbed.differences(root)
    deadline = time.monotonic() + 120
    while killed.living() and time.monotonic() < deadline:
        time.sleep(0.02)
    defects += [f"process {pid} outlived the run" for pid in killed.living()]
    if point.role == "worker":
        again_points = []
        defects += [f"{name}: left to the next run" for name in run_pipeline(sample_declaration(), root).built]
    else:
        again_points = Run(folder / "again", root, workers=workers).finish().points
    begun = Counter(p.encoded for p in killed.points if p.encoded)
    # Ignore the last point of each process, because this point was logged, but perhaps not executed.
    last = {p.pid: p for p in killed.points}.values()
    done = {p.finished for p in killed.points if p not in last} - {None}
    redone = {p.encoded for p in again_points} & begun.keys()
    if len(redone) > (0 if point.role == "worker" else workers) or redone & done:
        defects.append(f"files encoded by both runs: {redone}, of which finished {redone & done}")
    if begun.total() - len(begun) > (1 if point.role == "worker" else 0):
        defects.append(f"files encoded twice by the first run: {[name for name, times in begun.items() if times > 1]}")
    defects += undisturbed.differences(root)
    shutil.rmtree(root)
    return [f"killed at {point.number} {point.kind}: {defect}" for defect in defects]


def defects_of(
    undisturbed: Undisturbed, folder: Path, points: Sequence[Point], start: Path | None, workers: int = 1
) -> list[str]:
    """All defects of a matrix of points, two at a time."""

    def defects(numbered: tuple[int, Point]) -> list[str]:
        number, point = numbered
        return killed_and_run_again(undisturbed, folder / f"{number:03d}", point, start, workers)

    with ThreadPoolExecutor(2) as threads:
        return [defect for found in threads.map(defects, enumerate(points)) for defect in found]


def is_preparation(point: Point) -> bool:
    return any(
        f"sample_corpus/{name}" in point.path.replace(".staging/", "") for name in ("manifest", "snapshot", "engine")
    )


def test_a_parent_killed_before_the_token_bins_leaves_a_run_that_ends_the_same(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    points = every_other(p for p in undisturbed.points if p.role == "parent" and is_preparation(p))
    assert len(points) > 3
    assert defects_of(undisturbed, tmp_path, points, None) == []


def test_a_parent_killed_at_any_later_write_point_leaves_a_run_that_ends_the_same(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    points = every_other(p for p in undisturbed.prepared_points if p.role == "parent" and not is_preparation(p))
    assert len(points) > 6
    assert defects_of(undisturbed, tmp_path, points, undisturbed.prepared) == []


def test_a_worker_killed_at_any_write_point_is_named_and_costs_its_run_one_file(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    points = every_other(p for p in undisturbed.prepared_points if p.role == "worker")
    assert len(points) > 7
    assert defects_of(undisturbed, tmp_path, points, undisturbed.prepared) == []


def test_a_run_killed_at_a_write_point_of_its_worker_leaves_a_run_that_ends_the_same(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    points = every_other(p for p in undisturbed.prepared_points if p.role == "worker")[::2]
    assert len(points) > 3
    assert defects_of(undisturbed, tmp_path, [replace(p, role="run") for p in points], undisturbed.prepared) == []


def test_a_run_killed_while_it_replaces_older_artifacts_leaves_a_run_that_ends_the_same(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(undisturbed.prepared, older)
    document = {"separator": "<|endoftext|>", "bos": "<|endoftext|>"}
    run_pipeline(sample_declaration(document=document), older)
    replacing = Run(tmp_path / "replacing", Path(shutil.copytree(older, tmp_path / "replaced"))).finish()
    assert undisturbed.differences(replacing.root) == []
    fresh = {p.kind for p in undisturbed.points}
    points = every_other(p for p in replacing.points if p.kind not in fresh)
    assert {p.role for p in points} == {"parent", "worker"}
    assert defects_of(undisturbed, tmp_path, points, older) == []


@pytest.mark.parametrize("at", [5, 40])
def test_with_two_workers_a_killed_one_costs_no_file_of_the_other(
    undisturbed: Undisturbed, tmp_path: Path, at: int
) -> None:
    point = Point("worker", 0, at, "", "")
    assert killed_and_run_again(undisturbed, tmp_path, point, undisturbed.prepared, workers=2) == []


def test_workers_that_keep_dying_end_the_run_which_names_their_shard(undisturbed: Undisturbed, tmp_path: Path) -> None:
    root = Path(shutil.copytree(undisturbed.prepared, tmp_path / "root"))
    run = Run(tmp_path / "killed", root, role="worker", at=1, hits=3)
    assert run.wait() == 1
    assert re.search(rf"WorkerDiedError: {_DEATH}.*, as did 2 before it\. .* Run the dataset again", run.errors), (
        run.errors
    )
    Run(tmp_path / "again", root).finish()
    assert undisturbed.differences(root) == []


def test_eight_interruptions_leave_no_debris_and_the_same_bytes(undisturbed: Undisturbed, tmp_path: Path) -> None:
    root = Path(shutil.copytree(undisturbed.prepared, tmp_path / "root"))
    for number in range(8):
        # Interrupt the first four runs at the first write, before any file is finished. Interrupt the others at
        # increasingly late points of the remaining work.
        at = max(1, 7 * (number - 3))
        run = Run(tmp_path / f"{number:02d}", root, workers=2, at=at, by=signal.SIGINT)
        assert run.wait() != 0, f"run {number} was not interrupted"
        assert "KeyboardInterrupt" in run.errors
        while run.living():
            time.sleep(0.01)
    Run(tmp_path / "last", root, workers=2).finish()
    assert undisturbed.differences(root) == []


def test_a_task_goes_on_within_seconds_in_another_worker(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        for piece in (7, 8):
            pool.submit(Task(TaskId("train-00000", "encode", piece), wait_the_first_time, (tmp_path / str(piece), 5.0)))
        pids = pool.pids
        assert len(pids) == 2
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        started = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        found = {end.task.id.piece: end.result for end in pool.events() if isinstance(end, FinishedTask)}
        assert time.monotonic() - started < GUARD_SECONDS / 2
    (other,) = set(found.values()) - set(pids)
    assert set(found.values()) == {pids[1], other}


@pytest.mark.parametrize("code", [None, 3])
def test_the_third_death_of_a_task_ends_the_run_and_says_how(code: int | None) -> None:
    function, arguments = (die, ()) if code is None else (os._exit, (code,))
    with WorkerPool(1) as pool:
        pool.submit(Task(TaskId("val-00000", "encode", 0), function, arguments))
        how = "signal 9" if code is None else "exit code 3"
        with raises(WorkerDiedError, "val-00000", "encode 0", how, 2):
            list(pool.events())
