"""How a task of Slurm ended is asked of a real accounting once the controller has forgotten it."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.errors import WorkerDiedError
from dataprep_assets.execution import slurm, slurm_pool
from dataprep_assets.execution.slurm import SlurmSettings
from dataprep_assets.execution.slurm_pool import SlurmPool
from dataprep_assets.execution.tasks import Finished, Task, TaskId
from dataprep_assets_tests.execution import ray_tasks, slurm_run
from dataprep_assets_tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = pytest.mark.slow
RAW = """case $SLURM_ARRAY_TASK_ID in
0) exit 0 ;;
1) exit 3 ;;
2) sleep 300 ;;
4) exec python3 -c 'kept = b"x" * (600 << 20)' ;;
3) [ "$SLURM_RESTART_COUNT" = 1 ] || { scontrol requeue "${SLURM_ARRAY_JOB_ID}_3"; sleep 300; } ;;
esac
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster(nodes=2, cpus=4, accounting=True) as found:
        yield found


def pool_of(cluster: SlurmCluster) -> SlurmPool:
    """A pool whose tasks run on the first node."""
    said = {"DATAPREP_SLURM_FOLDER": str(cluster.folder / "meet"), "DATAPREP_SLURM_OPTIONS": "-w node0 --time=10"}
    return SlurmPool(4, {}, SlurmSettings.of(said))


def pool_job(cluster: SlurmCluster) -> str:
    """The array of the pool."""
    (job,) = set(cluster.run("squeue", "--noheader", "--name=dataprep", "--format=%F").split())
    return job


def submitted(cluster: SlurmCluster, script: str, *options: str) -> str:
    """An array on the second node that belongs to no pool."""
    return cluster.run("sbatch", "--parsable", "-w", "node1", "--output=/dev/null", *options, "--wrap", script).strip()


def ended_in_every_way(cluster: SlurmCluster) -> dict[str, str]:
    """Tasks that have ended or are about to, with the states that they have to have."""

    def runs(task: str) -> None:
        cluster.wait(lambda: f"{task} RUNNING" in cluster.jobs(), 30, f"the start of {task}")

    mixed = submitted(cluster, RAW, "--array=0-4" if cluster.limits_memory else "--array=0-3", "--requeue")
    runs(f"{mixed}_2")
    cluster.run("scancel", f"{mixed}_2")

    def all_but_the_requeued_have_ended() -> bool:
        left = {task for task, state in slurm.states([mixed]).items() if state not in slurm.ENDED}
        return left == {f"{mixed}_3"} and f"{mixed}_3 PENDING" in cluster.jobs()  # for half a minute

    cluster.wait(all_but_the_requeued_have_ended, 30, "the first array")
    preempted = submitted(cluster, "sleep 300", "--array=0-0")
    runs(f"{preempted}_0")
    submitted(cluster, "sleep 1", "--partition=high", "--nodes=1", "--ntasks=4")
    cluster.wait(lambda: slurm.states([preempted])[f"{preempted}_0"] in slurm.ENDED, 30, "what is preempted")
    lost = submitted(cluster, "sleep 300", "--array=0-0", "--no-requeue")
    runs(f"{lost}_0")
    cluster.run("scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=test")
    cluster.run("scontrol", "update", "NodeName=node1", "State=RESUME")
    states = {"0": "COMPLETED", "1": "FAILED", "2": "CANCELLED", "3": "COMPLETED"}
    states |= {"4": "OUT_OF_MEMORY"} if cluster.limits_memory else {}
    expected = {f"{mixed}_{index}": state for index, state in states.items()}
    return expected | {f"{preempted}_0": "PREEMPTED", f"{lost}_0": "NODE_FAIL"}


def test_ends_that_the_controller_has_forgotten_are_asked_of_the_accounting(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """The states one by one; and a run that did not look for longer than the controller remembers."""
    (tmp_path / "deaths").mkdir()
    with pool_of(cluster) as pool:
        pool.submit(Task(TaskId("late"), slurm_run.oversleep, (tmp_path, "late", 300.0)))
        pool.submit(Task(TaskId("killed"), ray_tasks.die, (tmp_path / "deaths", 1)))
        events = pool.events()
        while not list(tmp_path.glob("late-*")) or cluster.jobs() != [f"{(job := pool_job(cluster))}_0 RUNNING"]:
            next(events)
        cluster.run("scontrol", "update", f"JobId={job}_0", "EndTime=now+1")  # sbatch counts in minutes
        expected = ended_in_every_way(cluster) | {f"{job}_0": "TIMEOUT", f"{job}_1": "FAILED"}
        jobs = {task.partition("_")[0] for task in expected}
        cluster.wait(lambda: slurm.states(jobs) == {}, 300, "that the controller forgets")
        asked = [*expected, f"{job}_7", "999999_0"]
        cluster.wait(lambda: len(slurm.accounted(asked)) >= len(expected), 30, "that the accounting knows")
        assert slurm.accounted(asked) == expected
        began = time.monotonic()
        found = {str(event.task.id): event.result for event in events if isinstance(event, Finished)}
    assert found == {"late": 2, "killed": 2}
    assert time.monotonic() - began < slurm_pool._LATE_SECONDS, "which is what an end costs that nobody knows"
    records = cluster.run("sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", "--format=JobID,State")
    assert any(line.endswith("|REQUEUED") for line in records.splitlines()), "a task has several records"
    assert any("|CANCELLED by " in line for line in records.splitlines())


def test_an_accounting_that_does_not_answer_costs_a_run_no_task(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_ACCOUNTING_SECONDS", 2.0)
    (tmp_path / "deaths").mkdir()
    slurmdbd = cluster.processes["slurmdbd"]
    with pool_of(cluster) as pool:
        pool.submit(Task(TaskId("killed"), ray_tasks.die, (tmp_path / "deaths", 1)))
        events = pool.events()
        while not list((tmp_path / "deaths").iterdir()):
            next(events)
        slurmdbd.send_signal(signal.SIGSTOP)
        try:
            found = {str(event.task.id): event.result for event in events if isinstance(event, Finished)}
            assert slurm.accounted(["1_0"]) == {}
        finally:
            slurmdbd.send_signal(signal.SIGCONT)
    assert found == {"killed": 2}


def test_a_task_with_too_little_memory_is_told_so(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cluster.limits_memory:
        pytest.skip("no limits of memory: /sys/fs/cgroup/memory cannot be written")
    monkeypatch.setattr(slurm_pool, "DEATHS", 0)
    with pool_of(cluster) as pool:
        pool.submit(Task(TaskId("train-00003"), slurm_run.hold, (600 << 20,)))
        with pytest.raises(WorkerDiedError, match=r"train-00003: .* as OUT_OF_MEMORY; give it more memory\. Finished"):
            list(pool.events())
