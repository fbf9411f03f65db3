"""Distributes the work on a shard of token bins over workers.

`ShardJob` distributes a shard's files over the workers of one machine; those of token bins share its staging directory
(`encoded_in_pieces`). A shard of one file or of few bytes is one task (`WholeShardJob`): tasks that wait for each other
would cost more than its work. `ensure_shard` does a whole shard in one task, for workers that share no disk with the
run. The bytes and the receipts are the same.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dataprep_assets.errors import BadRecordError, CorruptSourceError, DataprepError, together
from dataprep_assets.execution.jobs import DirectoryJob, Outcome, TaskJob, TaskSubject, run_and_sweep, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.execution.run_task import FinishedTask, Pool, Task, TaskId
from dataprep_assets.integrity.artifacts import ArtifactStore, absent
from dataprep_assets.integrity.commit import staging, sweep
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.sources.readers.input_format import input_format
from dataprep_assets.stream.token_shard import TokenShard, complete_shard, encode_into, finished_part, seal
from dataprep_assets.stream.token_stream import EncodedPart, Fetch, fetch_missing, load_encoder, load_warm_encoder

SMALL_SHARD_BYTES = 16 << 10
"""Encoded in less time than handing a second task to a worker takes: 2 ms of a core."""

WARM_UP_BYTES, WARM_UP_FILES = 8 << 20, 4
"""From this many bytes of source files on, workers start with an engine warmed up on this much text."""

_OF_ONE_FILE = (CorruptSourceError, BadRecordError)
"""Errors that concern only one file of a shard."""


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A module-level function, because workers import it, and its arguments."""


class KeyedShard(TaskSubject, Protocol):
    """A shard that is current when its store has it under its key."""

    @property
    def store(self) -> ArtifactStore: ...
    @property
    def key(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class ShardPieces:
    """The work on a shard that has to be made: its files, each a task, then one task that makes the shard of them.

    Attributes:
        names: What the two steps are called in errors and in the progress.
        tasks: Number of a file in the shard → the task that reads it.
        done: Number of a file → its result, of those that an earlier run finished.
        last: From all results the task that returns the shard's receipt.
    """

    names: tuple[str, str]
    tasks: Mapping[int, Call]
    done: Mapping[int, Any] = field(default_factory=dict)
    last: Callable[[dict[int, Any]], Call]


class ShardJob:
    """The work on a shard: verify it, or else do its files in parallel, and then what makes the shard of them.

    A damaged file does not stop the others: what they give is kept, and all damaged files are named at once.
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
            shard: The shard to make.
            verify: The task that returns the receipt of a shard that is current, else None.
            begin: Called in the shard's turn. What it enters on the stack it is given is left when no worker writes for
                the shard any more. Returns the receipt if another run has made the shard meanwhile.
            locks: Holds these stacks until the pool is closed; None if nothing is entered on them.
        """
        self.partition, self.source_bytes = shard.artifact.partition or "", shard.source_bytes
        self.directory = shard.store.directory(shard.artifact)
        self._verify, self._begin, self._locks = verify, begin, locks
        # whether the outcome is known (failed, or reused), which may be before all tasks have ended
        self._settled = False
        # what `begin` entered, such as the shard's lock; left when no worker writes below the shard any more
        self._stack = ExitStack()
        self._pieces: ShardPieces | None = None
        # files that are queued or at work; those that ended are below
        self._waiting: set[int] = set()
        self._results: dict[int, Any] = {}
        self._refused: dict[int, DataprepError] = {}

    def first(self) -> Task:
        return Task(TaskId(self.partition, "verify"), *self._verify)

    def handle_end(self, end: FinishedTask, pool: Pool) -> Outcome | None:
        step, piece = end.task.id.step, end.task.id.piece
        if step == "verify":
            if end.error is not None:
                return self._fail(end.error)
            return self._reused(end.result) if end.result is not None else None
        if piece is None:
            self._stack.close()
            return Outcome(partition=self.partition, receipt=end.result, error=end.error)
        self._waiting.discard(piece)
        if end.error is None:
            self._results[piece] = end.result
        elif isinstance(end.error, _OF_ONE_FILE):
            self._refused[piece] = end.error
        elif not self._settled:
            # Any other error is one of the whole shard: what is queued is forgotten. What is at work cannot be stopped,
            # and the lock stays until it has ended.
            forgotten = pool.cancel(lambda other: other.partition == self.partition)
            self._waiting -= {other.piece for other in forgotten if other.piece is not None}
            return self._fail(end.error)
        if self._waiting:
            return None
        if self._settled:
            self._stack.close()  # only now: other files of the shard were still at work
        elif self._refused:
            return self._fail(_all_of(self._refused))
        else:
            self._submit_last(pool)
        return None

    def turn(self, pool: Pool) -> Outcome | None:
        if self._settled:
            return None
        try:
            # left at once if another run has made the shard, or `begin` fails; else kept in `_stack`
            with ExitStack() as stack:
                pieces = self._begin(stack)
                if isinstance(pieces, Receipt):
                    return self._reused(pieces)
                self._stack = stack.pop_all()
        except DataprepError as error:
            return self._fail(error)
        if self._locks is not None:
            # also closed when the run ends early; closing twice is harmless
            self._locks.enter_context(self._stack)
        self._pieces, self._results, self._waiting = pieces, dict(pieces.done), {*pieces.tasks}
        for piece, task in pieces.tasks.items():
            pool.submit(Task(TaskId(self.partition, pieces.names[0], piece), *task))
        if not self._waiting:
            # an earlier run finished every file, and was killed before the last task
            self._submit_last(pool)
        return None

    def release(self) -> None:
        if not self._waiting and self._settled:
            self._stack.close()  # a failed shard to which no worker writes any more

    def _submit_last(self, pool: Pool) -> None:
        assert self._pieces is not None
        task = Task(TaskId(self.partition, self._pieces.names[1]), *self._pieces.last(self._results))
        # before the files of other shards: a shard is committed as soon as its last file is done
        pool.submit(task, first=True)

    def _fail(self, error: Exception) -> Outcome:
        self._settled = True
        return Outcome(partition=self.partition, error=error)

    def _reused(self, receipt: Receipt) -> Outcome:
        self._settled = True
        return Outcome(partition=self.partition, receipt=receipt, reused=True)


def encoded_in_pieces(shard: TokenShard, verification: Verification, locks: ExitStack) -> ShardJob:
    """The work on a shard of token bins by its files; the run holds the shard's lock while workers write below it.

    Args:
        shard: The shard to make.
        verification: How thoroughly a finished shard is verified before it is reused.
        locks: Holds the shard's lock; closed when no worker writes below the shard's directory any more.
    """

    def begin(stack: ExitStack) -> Receipt | ShardPieces:
        staged = stack.enter_context(staging(shard.directory, shard.staging_key))
        # asked again under the lock: another run may have made it while this one waited
        if (receipt := shard.store.current(shard.artifact, shard.key, verification)) is not None:
            shutil.rmtree(staged)
            return receipt
        finished_parts = {piece: finished_part(staged, piece) for piece in range(len(shard.files))}
        return ShardPieces(
            names=("encode", "seal"),
            tasks={
                piece: (encode_into, (shard.plan, part, staged, piece))
                for piece, part in enumerate(shard.files)
                if finished_parts[piece] is None
            },
            done={piece: part for piece, part in finished_parts.items() if part is not None},
            last=lambda parts: (_seal_once, (shard, staged, parts, verification)),
        )

    # by a worker: all bytes of a finished shard may have to be digested
    verify: Call = (shard.store.current, (shard.artifact, shard.key, verification))
    return ShardJob(shard, verify, begin, locks)


def _seal_once(
    shard: TokenShard, staged: Path, parts: Mapping[int, EncodedPart], verification: Verification
) -> Receipt:
    """A worker's task: seal a shard, unless a worker that died since had published it already."""
    # under its final key, which depends on the retracted documents that its files had
    final_shard = complete_shard(shard, parts.values())
    if (receipt := final_shard.store.current(final_shard.artifact, final_shard.key, verification)) is not None:
        shutil.rmtree(staged)
        return receipt
    return seal(shard, staged, parts)


class WholeShardJob(TaskJob):
    """The work of a shard in one task; the worker that does it holds the shard's lock."""

    def __init__(self, shard: TokenShard, verification: Verification) -> None:
        super().__init__(shard, _whole_shard, verification)
        self.directory = shard.directory


def shard_job(shard: TokenShard, verification: Verification, locks: ExitStack) -> DirectoryJob:
    """The work of a shard for workers of this machine, by its planned files; as `encoded_in_pieces`."""
    if len(shard.files) == 1 or shard.source_bytes <= SMALL_SHARD_BYTES:
        return WholeShardJob(shard, verification)
    return encoded_in_pieces(shard, verification, locks)


S = TypeVar("S", bound=KeyedShard)


def found_quickly(shard: KeyedShard, verification: Verification) -> Receipt | None:
    """The receipt of a shard that is current, if few bytes have to be read to know it."""
    return shard.store.quickly_current(shard.artifact, shard.key, verification)


def whole_shard_jobs(
    shards: Iterable[S],
    make: Callable[..., tuple[Receipt, bool]],
    verification: Verification,
    fetches: Mapping[str, Fetch] | None,
    *,
    found: Callable[[S, Verification], Receipt | None] = found_quickly,
) -> list[TaskJob]:
    """The jobs of shards that are one task each.

    Args:
        shards: The shards to make.
        make: Makes one of them; it gets the shard, `verification`, and the shard's fetch or None.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → a function that fetches its sources to a worker on another machine.
        found: The receipt of a shard that needs no task, if its tasks would be on another machine.
    """

    def job(shard: S) -> TaskJob:
        fetch = (fetches or {}).get(shard.artifact.partition or "")
        return TaskJob(shard, make, verification, fetch, found=partial(found, shard, verification))

    return [job(shard) for shard in shards]


def ensure_shard(shard: TokenShard, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """A worker's task: a whole shard, on whichever machine it runs; then what killed runs left beside it is removed.

    Two runs that need the same shard on one machine or one shared disk wait for each other and make it once; on two
    machines with a bucket both may make it, identically, and the receipt is written once.

    Args:
        shard: The shard to make.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetch: Fetches the source files to the paths in `shard.files` if this machine's mirror does not have them.

    Returns:
        The receipt, and whether the shard was reused.
    """
    receipt, reused = _whole_shard(shard, verification, fetch)
    if reused:
        sweep([shard.directory])
    return receipt, reused


def _whole_shard(shard: TokenShard, verification: Verification, fetch: Fetch | None = None) -> tuple[Receipt, bool]:
    if (receipt := shard.store.current(shard.artifact, shard.key, verification)) is not None:
        return receipt, True
    fetch_missing(shard.files, fetch)
    with staging(shard.directory, shard.staging_key) as staged:
        # another run may have made it while this one waited for the lock
        if (receipt := shard.store.current(shard.artifact, shard.key, verification)) is not None:
            shutil.rmtree(staged)
            return receipt, True
        parts, errors = {}, {}
        for piece, part in enumerate(shard.files):
            try:
                parts[piece] = finished_part(staged, piece) or encode_into(shard.plan, part, staged, piece)
            except _OF_ONE_FILE as error:
                # the other files are encoded nevertheless: their parts are kept, and all that are damaged named at once
                errors[piece] = error
        if errors:
            raise _all_of(errors)
        return seal(shard, staged, parts), False


def _all_of(refused: Mapping[int, DataprepError]) -> DataprepError:
    # in the order of the files, whichever failed first
    return together([error for _, error in sorted(refused.items())])


def build_token_bins(
    shards: Sequence[TokenShard],
    *,
    workers: int | None,
    engine: TaskEngine = ON_PROCESSES,
    verification: Verification = "full",
    fetches: Mapping[str, Fetch] | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are not current, on processes of this machine in parallel over files, else over shards.

    Args:
        shards: The shards to build.
        workers: Number of workers; None does the work in this process, if the engine is this machine.
        engine: Who does the work.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → a function that fetches its sources to a worker on another machine.
        progress: Counts and shows the work; None: nothing is shown.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying does (WorkerDiedError); finished shards stay committed.
    """
    if not engine.is_this_machine:
        reused = set()
        tasks = whole_shard_jobs(shards, ensure_shard, verification, fetches)
        for outcome in run_tasks(tasks, workers=workers or 1, engine=engine, progress=progress):
            if outcome.reused:
                reused.add(outcome.partition)
            yield outcome
        sweep(shard.directory for shard in shards if shard.partition in reused)
        return
    # the locks of shards are released when no worker writes below them any more
    with ExitStack() as locks:
        jobs = [shard_job(shard, verification, locks) for shard in shards]
        yield from run_and_sweep(jobs, workers=workers, progress=progress, prepare=_loading(shards))


def _loading(shards: Sequence[TokenShard]) -> Callable[[], object] | None:
    """What loads the encoder that workers need to make these shards; None if all are there."""
    missing_shards = absent(shards)
    if not missing_shards:
        return None
    plan = missing_shards[0].plan
    # the datasets of a blend can have different fields
    alike = [shard for shard in missing_shards if shard.plan.fields == plan.fields]
    # a process that has read Parquet, say, has threads of Arrow, beside which workers cannot be forked
    files = [file for shard in alike for file in shard.files if not input_format(file.format).starts_threads]
    if not files or sum(shard.source_bytes for shard in alike) < WARM_UP_BYTES:
        return partial(load_encoder, plan)
    return partial(load_warm_encoder, plan, [files[len(files) * k // WARM_UP_FILES] for k in range(WARM_UP_FILES)])
