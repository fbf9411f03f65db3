"""Distribution of the work on a shard of token bins across workers.

`ShardJob` distributes a shard's files across the workers of one machine. For token bins, these workers share the
shard's staging directory (`build_job_by_files`). A shard with one file or few bytes is one task (`WholeShardJob`),
because tasks that wait for each other would cost more than its work. `ensure_shard` builds a whole shard in one task,
for workers that share no disk with the run. The bytes and the receipts are identical in all cases.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dataprep_assets.errors import BadRecordError, CorruptSourceError, DataprepError, combine_errors
from dataprep_assets.execution.jobs import DirectoryJob, Outcome, TaskJob, TaskSubject, run_and_sweep, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.execution.run_task import FinishedTask, Pool, Task, TaskId
from dataprep_assets.integrity.artifacts import ArtifactStore, find_missing_subjects
from dataprep_assets.integrity.commit import open_staging, sweep
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.sources.readers.input_format import input_format
from dataprep_assets.stream.token_shard import TokenShard, complete_shard, encode_piece, find_finished_part, seal_shard
from dataprep_assets.stream.token_stream import EncodedPart, Fetch, fetch_missing, load_encoder, load_warm_encoder

SMALL_SHARD_BYTES = 16 << 10
"""Shards of at most this size are encoded in less time than a worker needs for a second task (2 ms of a core)."""

WARM_UP_BYTES, WARM_UP_FILES = 8 << 20, 4
"""Minimum number of source bytes for which the engine is warmed up, and the number of files for the warm-up."""

_SINGLE_FILE_ERRORS = (CorruptSourceError, BadRecordError)
"""Errors that concern only one file of a shard."""


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments. The function is module-level, because workers import it."""


class KeyedShard(TaskSubject, Protocol):
    """A shard that is current if its store contains it under its key."""

    @property
    def store(self) -> ArtifactStore: ...
    @property
    def key(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class ShardPieces:
    """Tasks that build a shard: one task per file, then one task that builds the shard from the results.

    Attributes:
        names: Names of the two steps in errors and in the progress display.
        tasks: Number of a file in the shard → the task that reads it.
        done: Number of a file → its result, for files that an earlier run finished.
        last: Returns the task that returns the shard's receipt, given all results.
    """

    names: tuple[str, str]
    tasks: Mapping[int, Call]
    done: Mapping[int, Any] = field(default_factory=dict)
    last: Callable[[dict[int, Any]], Call]


class ShardJob:
    """Job that verifies a shard, or else processes its files in parallel and builds the shard from the results.

    A damaged file does not stop the others: their results are kept, and all damaged files are reported together.
    """

    def __init__(
        self,
        shard: KeyedShard,
        verify: Call,
        begin: Callable[[ExitStack], Receipt | ShardPieces],
        locks: ExitStack | None = None,
    ) -> None:
        """Prepare a shard's work.

        Args:
            shard: The shard to build.
            verify: The task that returns the receipt of a current shard, else None.
            begin: Called in the shard's turn with a stack. The contexts that it enters on the stack are exited when no
                worker writes for the shard. Returns the receipt if another run has built the shard meanwhile.
            locks: Keeps these stacks until the pool is closed; None if nothing is entered on them.
        """
        self.partition, self.source_bytes = shard.artifact.partition or "", shard.source_bytes
        self.directory = shard.store.directory(shard.artifact)
        self._verify, self._begin, self._locks = verify, begin, locks
        # `_settled` is true once the outcome is known to be a failure or a reused shard, which may be before all tasks
        # have ended.
        self._settled = False
        # `_stack` holds the contexts that `begin` entered, such as the shard's lock.
        self._stack = ExitStack()
        self._pieces: ShardPieces | None = None
        # `_waiting` has the files that are queued or in progress. `_results` has the results of finished files, and
        # `_refused` has the errors of refused files.
        self._waiting: set[int] = set()
        self._results: dict[int, Any] = {}
        self._refused: dict[int, DataprepError] = {}

    def first_task(self) -> Task:
        return Task(TaskId(self.partition, "verify"), *self._verify)

    def handle_end(self, end: FinishedTask, pool: Pool) -> Outcome | None:
        step, piece = end.task.id.step, end.task.id.piece
        if step == "verify":
            if end.error is not None:
                return self._fail_shard(end.error)
            return self._build_reused_outcome(end.result) if end.result is not None else None
        if piece is None:
            self._stack.close()
            return Outcome(partition=self.partition, receipt=end.result, error=end.error)
        self._waiting.discard(piece)
        if end.error is None:
            self._results[piece] = end.result
        elif isinstance(end.error, _SINGLE_FILE_ERRORS):
            self._refused[piece] = end.error
        elif not self._settled:
            # Cancel the shard's queued tasks, because an error that is not specific to one file concerns the whole
            # shard. Running tasks cannot be stopped, and the lock is kept until they have ended.
            forgotten = pool.cancel(lambda other: other.partition == self.partition)
            self._waiting -= {other.piece for other in forgotten if other.piece is not None}
            return self._fail_shard(end.error)
        if self._waiting:
            return None
        if self._settled:
            self._stack.close()  # the shard's last running task has ended, so no worker writes to the shard
        elif self._refused:
            return self._fail_shard(_combine_errors(self._refused))
        else:
            self._submit_last(pool)
        return None

    def take_turn(self, pool: Pool) -> Outcome | None:
        if self._settled:
            return None
        try:
            # The stack is closed at once if another run has built the shard or `begin` fails. Otherwise, its contexts
            # move to `_stack`.
            with ExitStack() as stack:
                pieces = self._begin(stack)
                if isinstance(pieces, Receipt):
                    return self._build_reused_outcome(pieces)
                self._stack = stack.pop_all()
        except DataprepError as error:
            return self._fail_shard(error)
        if self._locks is not None:
            # `_locks` also closes the stack when the run ends early; closing it twice is harmless.
            self._locks.enter_context(self._stack)
        self._pieces, self._results, self._waiting = pieces, dict(pieces.done), {*pieces.tasks}
        for piece, task in pieces.tasks.items():
            pool.submit(Task(TaskId(self.partition, pieces.names[0], piece), *task))
        if not self._waiting:
            # No file is left to process, because an earlier run finished all files but did not complete the last task.
            self._submit_last(pool)
        return None

    def release(self) -> None:
        if not self._waiting and self._settled:
            self._stack.close()  # the outcome is known, and workers no longer write to the shard

    def _submit_last(self, pool: Pool) -> None:
        assert self._pieces is not None
        task = Task(TaskId(self.partition, self._pieces.names[1]), *self._pieces.last(self._results))
        # Put the task before other shards' files, so that a shard is committed as soon as its last file is done.
        pool.submit(task, is_first=True)

    def _fail_shard(self, error: Exception) -> Outcome:
        self._settled = True
        return Outcome(partition=self.partition, error=error)

    def _build_reused_outcome(self, receipt: Receipt) -> Outcome:
        self._settled = True
        return Outcome(partition=self.partition, receipt=receipt, reused=True)


def build_job_by_files(shard: TokenShard, verification: Verification, locks: ExitStack) -> ShardJob:
    """Return the job that builds a shard of token bins file by file.

    The run keeps the shard's lock while workers write below its directory.

    Args:
        shard: The shard to build.
        verification: How thoroughly a finished shard is verified before it is reused.
        locks: Keeps the shard's lock; closed when no worker writes below the shard's directory.
    """

    def begin(stack: ExitStack) -> Receipt | ShardPieces:
        staged = stack.enter_context(open_staging(shard.directory, shard.staging_key))
        # Look up the receipt again under the lock, because another run may have built the shard meanwhile.
        if (receipt := shard.store.find_current(shard.artifact, shard.key, verification)) is not None:
            shutil.rmtree(staged)
            return receipt
        finished_parts = {piece: find_finished_part(staged, piece) for piece in range(len(shard.files))}
        return ShardPieces(
            names=("encode", "seal"),
            tasks={
                piece: (encode_piece, (shard.plan, part, staged, piece))
                for piece, part in enumerate(shard.files)
                if finished_parts[piece] is None
            },
            done={piece: part for piece, part in finished_parts.items() if part is not None},
            last=lambda parts: (_seal_once, (shard, staged, parts, verification)),
        )

    # Verify in a worker, because verification may hash all bytes of a finished shard.
    verify: Call = (shard.store.find_current, (shard.artifact, shard.key, verification))
    return ShardJob(shard, verify, begin, locks)


def _seal_once(
    shard: TokenShard, staged: Path, parts: Mapping[int, EncodedPart], verification: Verification
) -> Receipt:
    """Seal a shard as a worker's task, unless a worker that died afterwards has already published it."""
    # The lookup needs the final key, which depends on the retracted documents in the shard's files.
    final_shard = complete_shard(shard, parts.values())
    if (receipt := final_shard.store.find_current(final_shard.artifact, final_shard.key, verification)) is not None:
        shutil.rmtree(staged)
        return receipt
    return seal_shard(shard, staged, parts)


class WholeShardJob(TaskJob):
    """Job that builds a shard in one task, whose worker takes the shard's lock."""

    def __init__(self, shard: TokenShard, verification: Verification) -> None:
        super().__init__(shard, _build_shard, verification)
        self.directory = shard.directory


def shard_job(shard: TokenShard, verification: Verification, locks: ExitStack) -> DirectoryJob:
    """Return the job of a shard for workers of this machine, with the arguments of `build_job_by_files`."""
    if len(shard.files) == 1 or shard.source_bytes <= SMALL_SHARD_BYTES:
        return WholeShardJob(shard, verification)
    return build_job_by_files(shard, verification, locks)


S = TypeVar("S", bound=KeyedShard)


def find_cheap_receipt(shard: KeyedShard, verification: Verification) -> Receipt | None:
    """Return the receipt of a current shard if reading a few bytes is enough to verify it, else None."""
    return shard.store.find_current_if_cheap(shard.artifact, shard.key, verification)


def build_whole_shard_jobs(
    shards: Iterable[S],
    make: Callable[..., tuple[Receipt, bool]],
    verification: Verification,
    fetches: Mapping[str, Fetch] | None,
    *,
    find_receipt: Callable[[S, Verification], Receipt | None] = find_cheap_receipt,
) -> list[TaskJob]:
    """Return the jobs that build each shard in one task.

    Args:
        shards: The shards to build.
        make: Builds one shard, given the shard, `verification`, and the shard's fetch or None.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → a function that fetches its sources to a worker on another machine.
        find_receipt: Returns the receipt of a shard that needs no task; used if tasks run on another machine.
    """

    def build_job(shard: S) -> TaskJob:
        fetch = (fetches or {}).get(shard.artifact.partition or "")
        return TaskJob(shard, make, verification, fetch, find_receipt=partial(find_receipt, shard, verification))

    return [build_job(shard) for shard in shards]


def ensure_shard(shard: TokenShard, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """Build a whole shard as a worker's task on any machine, then remove leftovers of killed runs next to it.

    Two runs that need the same shard on one machine or one shared disk wait for each other and build it once. On two
    machines with object storage both may build it; the results are identical, and the receipt is written once.

    Args:
        shard: The shard to build.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetch: Fetches the source files to the paths in `shard.files` if this machine's mirror does not have them.

    Returns:
        The receipt, and whether the shard was reused.
    """
    receipt, reused = _build_shard(shard, verification, fetch)
    if reused:
        sweep([shard.directory])
    return receipt, reused


def _build_shard(shard: TokenShard, verification: Verification, fetch: Fetch | None = None) -> tuple[Receipt, bool]:
    if (receipt := shard.store.find_current(shard.artifact, shard.key, verification)) is not None:
        return receipt, True
    fetch_missing(shard.files, fetch)
    with open_staging(shard.directory, shard.staging_key) as staged:
        # Look up the receipt again, because another run may have built the shard while this one waited for the lock.
        if (receipt := shard.store.find_current(shard.artifact, shard.key, verification)) is not None:
            shutil.rmtree(staged)
            return receipt, True
        parts, errors = {}, {}
        for piece, part in enumerate(shard.files):
            try:
                parts[piece] = find_finished_part(staged, piece) or encode_piece(shard.plan, part, staged, piece)
            except _SINGLE_FILE_ERRORS as error:
                # Still encode the other files, so that their parts are kept and all errors are reported together.
                errors[piece] = error
        if errors:
            raise _combine_errors(errors)
        return seal_shard(shard, staged, parts), False


def _combine_errors(refusals: Mapping[int, DataprepError]) -> DataprepError:
    # Put the errors in the order of the files, so that the message does not depend on which file failed first.
    return combine_errors([error for _, error in sorted(refusals.items())])


def build_token_bins(
    shards: Sequence[TokenShard],
    *,
    workers: int | None,
    engine: TaskEngine = ON_PROCESSES,
    verification: Verification = "full",
    fetches: Mapping[str, Fetch] | None = None,
    progress: Progress | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are not current.

    On this machine, the work is done in parallel over files; on other engines, over shards.

    Args:
        shards: The shards to build.
        workers: Number of workers; None: do the work in this process, if the engine is this machine.
        engine: Where the tasks run.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → a function that fetches its sources to a worker on another machine.
        progress: Counts and shows the work; None: nothing is shown.
        prepare: Loads what workers share, before they are forked; None: the encoder, if a shard must be built.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others.
    A shard whose workers keep dying stops the run (WorkerDiedError); finished shards stay committed.
    """
    if not engine.is_this_machine:
        reused = set()
        tasks = build_whole_shard_jobs(shards, ensure_shard, verification, fetches)
        for outcome in run_tasks(tasks, workers=workers or 1, engine=engine, progress=progress):
            if outcome.reused:
                reused.add(outcome.partition)
            yield outcome
        sweep(shard.directory for shard in shards if shard.partition in reused)
        return
    # Keep the shards' locks until workers no longer write to the shards' directories.
    with ExitStack() as locks:
        jobs = [shard_job(shard, verification, locks) for shard in shards]
        prepare = prepare or _build_encoder_loader(shards)
        yield from run_and_sweep(jobs, workers=workers, progress=progress, prepare=prepare)


def _build_encoder_loader(shards: Sequence[TokenShard]) -> Callable[[], object] | None:
    """Return the function that loads the encoder that workers need for these shards; None if all shards exist."""
    missing_shards = find_missing_subjects(shards)
    if not missing_shards:
        return None
    plan = missing_shards[0].plan
    # Warm up only on shards with the record fields of the first plan, because all files are read with these fields, and
    # the datasets of a blend may have different ones.
    same_shards = [shard for shard in missing_shards if shard.plan.fields == plan.fields]
    # Skip formats such as Parquet, which start Arrow's threads, because a process with threads must not fork workers.
    files = [file for shard in same_shards for file in shard.files if not input_format(file.format).starts_threads]
    if not files or sum(shard.source_bytes for shard in same_shards) < WARM_UP_BYTES:
        return partial(load_encoder, plan)
    return partial(load_warm_encoder, plan, [files[len(files) * k // WARM_UP_FILES] for k in range(WARM_UP_FILES)])
