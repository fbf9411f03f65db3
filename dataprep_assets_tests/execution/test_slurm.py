"""On a real Slurm of this machine: the same bytes as on processes, whatever dies, and nothing goes on afterwards."""

import json
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from dataprep_assets.execution.slurm import SlurmSettings
from dataprep_assets.execution.slurm_pool import SlurmPool

from dataprep_assets.errors import BadRecordError, ConfigError, WorkerDiedError
from dataprep_assets.execution.pool import chosen_engine, open_pool
from dataprep_assets.execution.tasks import Counts, Finished, Task, TaskId
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets_tests import forked
from dataprep_assets_tests.deploy.cluster import DEPLOY
from dataprep_assets_tests.deploy.tiny_corpus import attributes, write_corpus
from dataprep_assets_tests.execution import ray_tasks, slurm_run
from dataprep_assets_tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris
from dataprep_assets_tests.pipelines.corpus.shards import (
    build_whole_shards,
    shard_work,
    source,
    stream_plan,
    write_lines,
)
from dataprep_assets_tests.project import cloned_project, project

SHARDS = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster() as found:
        yield found


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number in range(SHARDS):
        write_lines(folder / f"{number}.jsonl.zst", [f"document {number} {row} says more" for row in range(300)])
    return folder


@pytest.fixture(scope="module")
def undisturbed(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What processes make of the same shards."""
    root = tmp_path_factory.mktemp("processes")
    with open_pool(1, {}, {}) as pool:
        assert all(outcome.error is None for outcome in build_whole_shards(shards(root, texts), pool))
    return data_files(root)


def shards(root: Path, texts: Path) -> list[TokenShard]:
    """A shard for each file."""
    works = [shard_work(root, stream_plan(), [source(path)]) for path in sorted(texts.iterdir())]
    return [replace(w, artifact=replace(w.artifact, partition=f"train-{n:05d}")) for n, w in enumerate(works)]


def settings(cluster: SlurmCluster, **changes: str) -> SlurmSettings:
    """Those of a cluster whose shared disk is a folder of the test's."""
    meet = {"DATAPREP_SLURM_FOLDER": str(cluster.folder / "meet")}
    return SlurmSettings.of(meet | {f"DATAPREP_SLURM_{k.upper()}": v for k, v in changes.items()})


def leaves_nothing(cluster: SlurmCluster) -> bool:
    """Whether no task waits, runs, or has a process."""
    return cluster.jobs() == [] and cluster.tasks() == []


class Run:
    """A run of `slurm_run` in its own process."""

    def __init__(self, cluster: SlurmCluster, root: Path, texts: Path) -> None:
        self.root, self._out = root, root.parent / "printed"
        given = root.parent / "shards"
        given.write_bytes(pickle.dumps(shards(root, texts)))
        meet = {"DATAPREP_SLURM_FOLDER": str(cluster.folder / "meet"), "DATAPREP_SLURM_ORPHAN_SECONDS": "6"}
        command = ["-m", "dataprep_assets_tests.execution.slurm_run", given]
        with open(self._out, "wb") as out:
            self.process = forked.start(command, env={**os.environ, **meet}, stdout=out.fileno(), stderr=out.fileno())

    def finish(self) -> tuple[int, list[str]]:
        """Its exit code, and what it printed."""
        code = self.process.wait(300)
        return code, self._out.read_text().splitlines()

    def committed(self) -> dict[str, int]:
        """The shards that have a receipt, and the time of its writing."""
        found = self.root.glob(f"*/token_bins/*/{NAME}")
        return {path.parent.name: path.stat().st_mtime_ns for path in found}


def test_the_settings_are_the_datasets_then_the_environments() -> None:
    assert chosen_engine({"DATAPREP_ENGINE": "slurm"}) == "slurm"
    environment = {"DATAPREP_SLURM_PARTITION": "cpu", "DATAPREP_SLURM_TIME": "1:00:00", "DATAPREP_SLURM_WIDTH": "8"}
    found = SlurmSettings.of(environment, {"time": "2:00:00", "memory": "2G", "width": 4, "options": "--qos=low -x n1"})
    assert found.words() == ["--partition=cpu", "--time=2:00:00", "--mem=2G", "--qos=low", "-x", "n1"]
    assert found.width == 4
    with pytest.raises(ConfigError, match=r"DATAPREP_SLURM_WIDTH: 'many' is not a whole number from 1"):
        SlurmSettings.of({"DATAPREP_SLURM_WIDTH": "many"})
    with pytest.raises(ConfigError, match=r"DATAPREP_SLURM_OPTIONS: \"--comment='x\": no closing quotation"):
        SlurmSettings.of({}, {"options": "--comment='x"})


def test_a_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"`slurm` needs Slurm's commands, and sbatch is not on PATH"):
        open_pool(1, {}, {}, "slurm")


@pytest.mark.slow
def test_a_partition_that_is_not_there_is_refused_in_a_sentence(cluster: SlurmCluster) -> None:
    with SlurmPool(1, {}, settings(cluster, partition="gpu")) as pool:
        pool.submit(Task(TaskId("a"), ray_tasks.divide, (1,)))
        with pytest.raises(ConfigError, match=r"Slurm refuses `sbatch`: .*[Pp]artition"):
            list(pool.events())
    assert leaves_nothing(cluster)


@pytest.mark.slow
def test_answers_errors_counts_and_weather(cluster: SlurmCluster, tmp_path: Path) -> None:
    """One array: tasks that end, one that is killed twice, one that is preempted."""
    with SlurmPool(2, ray_tasks.SETTINGS, settings(cluster, time="0:10", partition="low")) as pool:
        pool.submit(Task(TaskId("refused"), ray_tasks.refuse, ()))
        pool.submit(Task(TaskId("counts"), ray_tasks.count, (4,)))
        pool.submit(Task(TaskId("setting"), ray_tasks.setting, ("DATAPREP_TEST_SETTING",)))
        (tmp_path / "deaths").mkdir()
        pool.submit(Task(TaskId("killed"), ray_tasks.die, (tmp_path / "deaths", 2)))
        pool.submit(Task(TaskId("preempted"), slurm_run.oversleep, (tmp_path, "preempted", 300.0)))
        assert pool.outstanding == 5
        preempted = False
        found, sums = dict[str, Any](), dict[str, int]()
        for event in pool.events():
            if isinstance(event, Finished):
                found[str(event.task.id)] = event.result if event.error is None else event.error
            elif isinstance(event, Counts):
                sums = {k: sums.get(k, 0) + v for k, v in event.done.items()}
            if not preempted and list(tmp_path.glob("preempted-*")) and "setting" in found:
                cluster.run("sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
                preempted = True
    assert repr(found.pop("refused")) == repr(BadRecordError("a.jsonl: row 3, byte 12: not JSON"))
    assert found == {"setting": "seen", "counts": 4, "killed": 3, "preempted": 2}
    assert sums == {"tokens": 40, "documents": 4}
    cluster.wait(lambda: leaves_nothing(cluster), 30, "the end of all tasks")
    assert list((cluster.folder / "meet").iterdir()) == []


@pytest.mark.slow
def test_shards_are_those_of_processes_though_task_controller_and_node_go(
    cluster: SlurmCluster, texts: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    run = Run(cluster, tmp_path / "root", texts)
    cluster.wait(lambda: bool(cluster.tasks()), 60, "the first task")
    os.kill(cluster.tasks()[0], signal.SIGKILL)
    cluster.wait(lambda: bool(run.committed()), 60, "the first shard")
    before = run.committed()
    cluster.stop_controller()
    time.sleep(7)  # longer than the pool's look at the queue
    cluster.start_controller()
    cluster.wait(cluster.is_ready, 60, "the controller")
    (node,) = cluster.nodes
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    time.sleep(3)
    cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    code, lines = run.finish()
    assert code == 0, lines
    assert sorted(line.split()[1] for line in lines) == [f"train-{n:05d}" for n in range(SHARDS)]
    # one that was killed between its commit and its answer finds its shard when it is tried again
    assert sum(line.startswith("reused") for line in lines) <= 1
    assert data_files(run.root) == undisturbed
    assert {name: run.committed()[name] for name in before} == before
    assert debris(run.root) == []
    cluster.wait(lambda: leaves_nothing(cluster), 30, "the end of all tasks")
    assert list((cluster.folder / "meet").iterdir()) == []


@pytest.mark.slow
def test_tasks_that_killed_runs_left_are_removed_because_they_hold_keys(tmp_path: Path) -> None:
    for name, age in {"at_work": 5.0, "killed": 300.0, "killed_long_ago": 100_000.0}.items():
        for kind in ("tasks", "answers", "logs"):
            (tmp_path / name / "0" / kind).mkdir(parents=True)
            (tmp_path / name / "0" / kind / "0").write_bytes(b"the key of a sensitive dataset")
        (tmp_path / name / "sign").write_bytes(b"7")
        os.utime(tmp_path / name / "sign", (time.time() - age,) * 2)
    with SlurmPool(1, {}, SlurmSettings.of({"DATAPREP_SLURM_FOLDER": str(tmp_path)})):
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/0/*/0")}
        assert left == {"at_work/0/tasks/0", "at_work/0/answers/0", "at_work/0/logs/0", "killed/0/logs/0"}
    assert {path.name for path in tmp_path.iterdir()} == {"at_work", "killed"}


def test_a_killed_run_leaves_no_task_and_the_next_goes_on(
    cluster: SlurmCluster, texts: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    run = Run(cluster, tmp_path / "root", texts)
    cluster.wait(lambda: bool(run.committed()), 90, "the first shard")
    run.process.kill()
    cluster.wait(lambda: leaves_nothing(cluster), 60, "the end of the array of a killed run")
    before = run.committed()
    again = Run(cluster, tmp_path / "root", texts)
    code, lines = again.finish()
    assert code == 0, lines
    assert {line.split()[1] for line in lines if line.startswith("reused")} == set(before)
    assert {name: again.committed()[name] for name in before} == before
    assert data_files(run.root) == undisturbed
    assert debris(run.root) == []
    cluster.wait(lambda: leaves_nothing(cluster), 30, "the end of all tasks")


@pytest.mark.slow
def test_what_somebody_cancels_ends_the_run_and_leaving_it_ends_the_rest(cluster: SlurmCluster, tmp_path: Path) -> None:
    with SlurmPool(2, {}, settings(cluster, width="1")) as pool:
        for name in ("one", "two"):
            pool.submit(Task(TaskId(name), slurm_run.oversleep, (tmp_path, name, 300.0)))
        events = pool.events()
        while not list(tmp_path.glob("one-*")):
            next(events)
        states = dict(line.split() for line in cluster.jobs())
        (running,) = (task for task, state in states.items() if state == "RUNNING")
        assert len(states) == 2, "the other waits, because the array is one wide"
        cluster.run("scancel", running)
        with pytest.raises(WorkerDiedError, match=r"one: its Slurm task \d+_0 was cancelled"):
            list(events)
        # what would have come next has begun by then; leaving the pool ends it
    assert leaves_nothing(cluster)


@pytest.mark.slow
def test_the_job_script_runs_a_part_on_each_node_of_an_array(cluster: SlurmCluster, tmp_path: Path) -> None:
    declared = attributes(write_corpus(tmp_path / "corpus", 4), 4, views=[])
    with project(declared, tmp_path / "made") as made:
        assert made.run([made.key("manifest"), made.key("engine_certificate")]).success
    clone = cloned_project(tmp_path / "clone")
    defs = clone / "dataprep_assets" / "defs"
    for folder in [path for path in defs.iterdir() if path.is_dir()]:
        shutil.rmtree(folder)
    (defs / "tiny").mkdir()
    of_file = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": declared}
    (defs / "tiny" / "defs.yaml").write_text(json.dumps(of_file))
    variables = {
        "DATAPREP": f"{sys.executable} -m dataprep_assets.cli",
        "DATAPREP_PROJECT": str(clone),
        "DATAPREP_ROOT": str(tmp_path / "made" / "artifacts"),
        "PYTHONPATH": str(clone),
    }
    options = ["--array=0-1", "--cpus-per-task=1", "--mem=0", f"--output={tmp_path}/%a.out", f"--chdir={clone}"]
    with mock.patch.dict(os.environ, variables):
        cluster.run("sbatch", *options, str(DEPLOY / "slurm" / "run.sbatch"), "tiny", "train")
    cluster.wait(lambda: cluster.jobs() == [], 300, "the array")
    said = [(tmp_path / f"{index}.out").read_text() for index in range(2)]
    made_by = [{f"train-{n:05d}" for n in range(4) if f"train-{n:05d}" in text} for text in said]
    bins = {path.parent.name for path in (tmp_path / "made" / "artifacts" / "tiny" / "token_bins").glob(f"*/{NAME}")}
    assert bins == {f"train-{n:05d}" for n in range(4)}, said
    assert made_by[0] & made_by[1] == set()
