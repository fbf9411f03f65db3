"""The loop over jobs on real worker processes: outcomes, failures, turns, dead workers and counts."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dataprep_assets.errors import BadRecordError, DataprepError, SourceError, WorkerDiedError
from dataprep_assets.execution.jobs import (
    Outcome,
    SerialExecutor,
    TaskJob,
    run_and_sweep,
    run_fetches,
    run_jobs,
    run_tasks,
)
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.progress import Progress
from dataprep_assets.execution.run_task import FinishedTask, Pool, Task, TaskId
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets_tests.execution.job_tasks import NotedJob, Piece, PlacedJob, work
from dataprep_assets_tests.messages import raises


def jobs(pieces: Sequence[Piece]) -> list[TaskJob]:
    return [TaskJob(piece, work) for piece in pieces]


def test_outcomes_are_reported_as_soon_as_they_are_known() -> None:
    slow, *quick = pieces = [Piece("p-0", seconds=3.0), *(Piece(f"p-{n}") for n in range(1, 5))]
    outcomes = [outcome.partition for outcome in run_tasks(jobs(pieces), workers=2)]
    assert outcomes == [*(piece.partition for piece in quick), slow.partition]


def test_a_failed_partition_does_not_stop_others() -> None:
    pieces = [Piece("p-0", error="bad record"), Piece("p-1"), Piece("p-2", error="bug"), Piece("p-3")]
    outcomes = {outcome.partition: outcome for outcome in run_tasks(jobs(pieces), workers=2)}
    assert {name for name, outcome in outcomes.items() if outcome.receipt is not None} == {"p-1", "p-3"}
    assert isinstance(outcomes["p-0"].error, BadRecordError)
    assert str(outcomes["p-0"].error) == "p-0.jsonl: row 3, byte 12: not JSON"
    assert isinstance(outcomes["p-2"].error, DataprepError)
    assert str(outcomes["p-2"].error) == "p-2: ZeroDivisionError: by zero"


def test_jobs_get_their_turns_in_order_whichever_ends_first() -> None:
    notes: list[tuple[str, str]] = []
    jobs = [NotedJob(f"p-{n}", notes, looks=1.0 if n == 0 else 0.0, pieces=2) for n in range(4)]
    with WorkerPool(2) as pool:
        outcomes = [outcome.partition for outcome in run_jobs(pool, jobs, Progress())]
    assert sorted(outcomes) == [job.partition for job in jobs]
    assert [name for what, name in notes if what == "turn"] == [job.partition for job in jobs]
    assert notes.index(("look", "p-1")) < notes.index(("look", "p-0")) < notes.index(("turn", "p-0"))
    for job in jobs:
        assert notes.index(("look", job.partition)) < notes.index(("turn", job.partition))


def test_a_turn_waits_until_the_pool_has_room() -> None:
    notes: list[tuple[str, str]] = []
    jobs = [NotedJob(f"p-{n}", notes, pieces=6, seconds=0.05) for n in range(3)]
    with WorkerPool(2) as pool:
        assert len(list(run_jobs(pool, jobs, Progress()))) == 3
    assert all(outstanding < 2 * 2 for job in jobs for outstanding in job.max_outstanding)
    assert [len(job.max_outstanding) for job in jobs] == [1, 1, 1]


def test_a_job_without_pieces_has_its_outcome_at_its_turn() -> None:
    with WorkerPool(1) as pool:
        (outcome,) = run_jobs(pool, [NotedJob("p-0", [])], Progress())
    assert outcome.partition == "p-0"


def test_a_task_whose_workers_keep_dying_ends_the_loop_and_names_partition_and_step() -> None:
    jobs = [NotedJob("train-00000", []), NotedJob("train-00001", [], looks=0.5, pieces=1, dies=True)]
    known: list[str] = []

    def listen(pool: WorkerPool) -> None:
        known.extend(outcome.partition for outcome in run_jobs(pool, jobs, Progress()))

    with WorkerPool(1) as pool, raises(WorkerDiedError, "train-00001", "encode 0", 9):
        listen(pool)
    assert known == ["train-00000"], "what was finished before was told"


def test_a_worker_that_dies_once_loses_no_partition(tmp_path: Path) -> None:
    pieces = [Piece("p-0", seconds=0.5), Piece("p-1", error=f"killed once {tmp_path / 'mark'}"), Piece("p-2")]
    outcomes = {outcome.partition: outcome for outcome in run_tasks(jobs(pieces), workers=2)}
    assert [outcomes[piece.partition].error for piece in pieces] == [None] * 3


def test_dead_workers_of_a_single_task_name_the_partition() -> None:
    with raises(WorkerDiedError, "p-0", 9):
        list(run_tasks(jobs([Piece("p-0", error="killed")]), workers=1))


def test_progress_counts_finished_and_reused_partitions() -> None:
    pieces = [Piece("p-0"), Piece("p-1", reused=True), Piece("p-2", error="bad record")]
    progress = Progress()
    list(run_tasks(jobs(pieces), workers=2, progress=progress))
    assert progress.source_bytes == 300
    assert progress.workers == 2
    assert (progress.done["source_bytes"], progress.done["tokens"]) == (200, 40)


def test_counts_of_a_partition_do_not_exceed_its_bytes_and_reach_them_at_its_end() -> None:
    # The pieces report four times 50 bytes, four times 2 bytes and nothing.
    pieces = [Piece("p-0", reported_bytes=200), Piece("p-1", reported_bytes=8), Piece("p-2", reported_bytes=0)]
    progress = Progress()
    counts: list[int] = []
    for _ in run_tasks(jobs(pieces), workers=1, progress=progress):
        counts.append(progress.done["source_bytes"])
    assert counts[-1] == progress.source_bytes == 300
    assert counts[0] == 100


def test_leftovers_of_a_killed_run_are_removed_only_next_to_reused_artifacts(tmp_path: Path) -> None:
    pieces = [Piece("p-0"), Piece("p-1", reused=True), Piece("p-2", error="bad record")]
    left = {piece.partition: tmp_path / ".staging" / f"{piece.partition}-{'0' * 16}" for piece in pieces}
    for folder in left.values():
        folder.mkdir(parents=True)
    for _ in run_and_sweep([PlacedJob(piece, tmp_path) for piece in pieces], workers=2):
        assert all(folder.exists() for folder in left.values()), "once, when all are known"
    assert {partition for partition, folder in left.items() if folder.exists()} == {"p-0", "p-2"}


def test_a_task_job_passes_further_arguments_to_its_function() -> None:
    job = TaskJob(Piece("p-0"), work, "more")
    assert job.first_task().arguments == (Piece("p-0"), "more")
    assert (job.partition, job.source_bytes, str(job.first_task().id)) == ("p-0", 100, "p-0")


def test_fetches_run_one_at_a_time_and_a_failed_one_does_not_stop_others() -> None:
    began: list[str] = []

    def fetch(partition: str, fetched: Callable[[int], None]) -> tuple[Receipt, bool]:
        began.append(partition)
        fetched(40)
        if partition == "p-1":
            raise SourceError("p-1: the server does not have it")
        fetched(60)
        receipt, _ = work(Piece(partition))
        return receipt, False

    shown: list[str] = []
    progress = Progress(sinks=[Shown(shown)])
    outcomes: list[Outcome] = []
    for outcome in run_fetches(["p-0", "p-1", "p-2"], fetch, 300, progress):
        outcomes.append(outcome)
        assert began[-1] == outcome.partition, "the next begins when this one was taken"
    assert [outcome.partition for outcome in outcomes] == ["p-0", "p-1", "p-2"]
    assert [type(outcome.error) for outcome in outcomes] == [type(None), SourceError, type(None)]
    assert progress.done["source_bytes"] == 240
    assert shown[-1].startswith(" 80.0%")
    assert len(shown) == 5


class Shown:
    """A sink that accepts every line."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def show(self, progress: Progress) -> None:
        self._lines.append(progress.format_line())

    def close(self, progress: Progress) -> None:
        self._lines.append(progress.format_line())


def test_in_this_process_outcomes_errors_and_counts_equal_those_of_workers() -> None:
    pieces = [Piece("p-0", error="bad record"), Piece("p-1"), Piece("p-2", error="bug"), Piece("p-3", reused=True)]

    def told(pool: Pool) -> tuple[list[tuple[str, str, bool]], dict[str, int]]:
        progress = Progress()
        with pool:
            outcomes = list(run_jobs(pool, [TaskJob(piece, work) for piece in pieces], progress))
        return sorted((o.partition, str(o.error), o.reused) for o in outcomes), dict(progress.done)

    assert told(SerialExecutor()) == told(WorkerPool(1))


def test_in_this_process_turns_and_pieces_follow_the_order_of_the_jobs() -> None:
    notes: list[tuple[str, str]] = []
    jobs = [NotedJob(f"p-{n}", notes, pieces=2) for n in range(3)]
    with SerialExecutor() as pool:
        assert [outcome.partition for outcome in run_jobs(pool, jobs, Progress())] == [job.partition for job in jobs]
    assert [name for what, name in notes if what == "turn"] == [job.partition for job in jobs]


def test_cancelled_work_is_not_done_in_this_process() -> None:
    with SerialExecutor() as pool:
        for name in ("p-0", "p-1"):
            pool.submit(Task(TaskId(name), work, (Piece(name, error="killed" if name == "p-0" else ""),)))
        assert [str(one) for one in pool.cancel(lambda one: one.partition == "p-0")] == ["p-0"]
        *_, end = pool.events()
    assert isinstance(end, FinishedTask)
    assert end.task.id.partition == "p-1"
    assert pool.outstanding == 0
