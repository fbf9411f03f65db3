"""Executes the job of a dataset in this process; the instance's records, pools, plans and lost runs."""

import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput, Partitions
from dataprep_assets.engine.checks.check import ACCEPTED
from dataprep_assets.engine.staleness.decide import Evaluation, EventFacts
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.partitions import DATASET, FAILED_CHECKS, MISCONFIGURED, TOGETHER, Context, asset_key
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stores.locks import own_file, try_lock


class Recorded:
    """The records of an instance (`staleness.status.Events`)."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def facts(
        self, spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
    ) -> Mapping[str | None, EventFacts]:
        """What it has of these partitions, and under None of the artifact as a whole."""
        whole = EventFacts(
            materialized=spec.partitions is not None or self._is_made(spec),
            registered=all(self._has_registered(planned, store) for planned in spec.plans),
            evaluations=self.evaluations(spec),
            accept={name: why for name, why in spec.declaration.accept.items() if not spec.blocks(name)},
        )
        if spec.partitions is None:
            return {None: whole}
        materialized = self._instance.get_materialized_partitions(asset_key(spec))
        return {**{slot: EventFacts(materialized=slot in materialized) for slot in slots}, None: whole}

    def evaluations(self, spec: ArtifactSpec) -> Mapping[str, Evaluation | None]:
        """The latest evaluation of each check of an artifact; None for one whose latest execution has no result."""
        checks = {dg.AssetCheckKey(asset_key(spec), proof.name): proof.name for proof in spec.checks}
        evaluations: dict[str, Evaluation | None] = dict.fromkeys(checks.values())
        if not checks:
            return evaluations
        latest = self._instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
        for key, record in latest.items():
            event = record.event.dagster_event if record.event is not None else None
            if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                evaluation = event.asset_check_evaluation_data
                accepted = evaluation.metadata.get(ACCEPTED)
                evaluations[checks[key]] = Evaluation(
                    passed=evaluation.passed,
                    blocks=evaluation.severity == dg.AssetCheckSeverity.ERROR and spec.blocks(checks[key]) is True,
                    accepted=None if accepted is None else str(accepted.value),
                )
        return evaluations

    def _is_made(self, spec: ArtifactSpec) -> bool:
        """Whether it was materialized, and not wiped since; without files also after its inputs were."""
        made = self._made_at(spec)
        inputs = [] if spec.kept else [self._made_at(source) for source in spec.inputs]
        return made is not None and not any(at is not None and at > made for at in inputs)

    def _made_at(self, spec: ArtifactSpec | DatasetInput | AssetInput) -> float | None:
        event = self._instance.get_latest_materialization_event(asset_key(spec))
        return None if event is None else event.timestamp

    def _has_registered(self, partitions: Partitions, store: ArtifactStore) -> bool:
        """Whether the instance has the planned keys of dynamic partitions in order, or `partitions` are fixed.

        Somebody may delete a key in the UI.
        """
        if partitions.dynamic is None:
            return True
        try:
            planned = list(partitions.keys(store))
        except DataprepError:  # not planned yet: building it registers them
            return True
        return list(self._instance.get_dynamic_partitions(partitions.dynamic)) == planned


# Ends runs whose process was killed without Dagster noticing.
#
# Dagster's default launcher starts a run as a child of the code location's process, which reports it if it dies;
# and nobody does if that process dies as well, as all of a container do. A run that executes in the process that
# asked for it (a command: `runs.execute`) has no parent at all. Such a run would stay "Started" forever and hold
# its pool, and with a limit of one no other run would ever leave the queue. So a run holds a file lock while it
# works. The kernel releases the lock when the process ends, however it ends: a run that is in progress while its
# lock is free is lost, and the next process that checks ends it.
#
# The lock files are beside the instance's own files, so machines that do not share those do not judge each other's
# runs.
#
# Entry points: `at_work`, `stay_at_work`, `end_lost_runs`.

_TOLD = (
    "The process of this run was killed, or its machine went down. Finished work is kept. Run the command again, or "
    "launch the job of the dataset."
)
_MOMENT = 0.1
"""Seconds until a lost interruption is repeated."""
_LAUNCHED = ".dagster/grpc_info"
"""Tag that Dagster's default launcher gives its runs: the address of the code location that starts them."""
_held: dict[str, ExitStack] = {}
"""Run → lock that this process holds until it ends."""


def _folder(instance: dg.DagsterInstance) -> Path:
    return Path(instance.storage_directory()) / "dataprep_runs"


@contextmanager
def _lock(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    path = _folder(instance) / run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", opener=own_file) as lock:
        # waits only while `end_lost_runs` of another process looks at the file that was made just now
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def at_work(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Hold the lock of a run, from before it is recorded until it has ended.

    After an exception the file stays: if the end could not be recorded, the next process that looks ends the run.
    """
    with ExitStack() as held:
        # if no file can be written or locked, lost runs cannot be told from working ones
        with suppress(OSError):
            held.enter_context(_lock(instance, run_id))
        yield
        with suppress(OSError):
            (_folder(instance) / run_id).unlink(missing_ok=True)


def stay_at_work(context: Context) -> None:
    """Hold the lock of the run of a step until this process ends: it is that of the run, and executes no other.

    So it is where Dagster's default launcher started it, and the in-process executor, which is the project's, executes
    it. Other launchers watch their runs; the processes of other executors end with their steps, and a run between two
    steps would look lost.
    """
    run_id, executor = context.run.run_id, context.job_def.executor_def
    if run_id not in _held and executor.name == dg.in_process_executor.name and _LAUNCHED in context.run.tags:
        _held[run_id] = ExitStack()
        with suppress(OSError):
            _held[run_id].enter_context(_lock(context.instance, run_id))


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report lost runs as failed and return their ids. Costs one directory listing if no run is at work."""
    ended = []
    with suppress(FileNotFoundError):
        for path in sorted(_folder(instance).iterdir()):
            with suppress(OSError), open(path, "a", opener=own_file) as lock:
                if not try_lock(lock):
                    continue
                run = instance.get_run_by_id(path.name)
                if run is None:  # it is about to be recorded
                    continue
                if not run.is_finished:
                    instance.report_run_failed(run, _TOLD)
                    ended.append(run.run_id)
                # of an ended run, too: a process that stayed at work to its own end has left the file
                path.unlink(missing_ok=True)
    return ended


PLANS = "dataprep/plans"
"""Metadata of an asset that plans partitions and has no partitioned input: the digest of its declaration."""
DECLARATION = "declaration"
"""Metadata of its materialization: the digest of the declaration that it was built from."""
# keys that decide no plan: who changes one need not have the dataset planned again
_SHOWN_ALONE = {"description", "owners", "card", "accept", "automation", "small_cell", "prove"}


def plan_metadata(spec: ArtifactSpec) -> Mapping[str, str]:
    """The definition metadata by which the sensor knows what to plan; empty for other artifacts."""
    return {PLANS: _digest(spec)} if spec.plans and not _of_partitions(spec) else {}


def made_of(spec: ArtifactSpec) -> Mapping[str, str]:
    """Metadata of a materialization of an artifact that plans: its declaration's digest; empty for other artifacts."""
    return {DECLARATION: _digest(spec)} if spec.plans else {}


def _digest(spec: ArtifactSpec) -> str:
    """Digest of the parts of a declaration that may affect a plan."""
    return digest_value(spec.declaration.model_dump(mode="json", exclude=_SHOWN_ALONE))[:16]


def _of_partitions(spec: ArtifactSpec) -> bool:
    # what is made of partitions cannot be planned before these are built, and planning builds nothing
    sources = [source for source in spec.inputs if isinstance(source, ArtifactSpec)]
    return any(source.partitions is not None or _of_partitions(source) for source in sources)


# Dagster's pools: how many runs at a time may use the network, and how many the cores.
#
# An instance's `concurrency.pools.default_limit` does not hold for its first runs: Dagster gives a pool this limit
# when it first sees a run of the pool in the queue, but only after it has looked up which pools are limited, so
# every run that is queued at that moment starts. `limit_pools` sets the limit before there is a run.

POOLS = {"network": "dataprep_network", "cpu": "dataprep_cpu"}
"""The pool's name in an artifact's spec → its name in Dagster."""


def limit_pools(instance: dg.DagsterInstance) -> None:
    """Give each pool without a limit the instance's default, if it has one; existing limits stay."""
    if instance.global_op_concurrency_default_limit is None:
        return
    limited = {pool.name for pool in instance.event_log_storage.get_pool_limits()}
    for pool in POOLS.values():
        if pool not in limited:
            instance.event_log_storage.initialize_concurrency_limit_to_default(pool)


# the result has each error once, without the stack. The event log has all of it.
_QUIET, _VERBOSE = ({"loggers": {"console": {"config": {"log_level": level}}}} for level in ("CRITICAL", "ERROR"))


class RunEnd(IntEnum):
    """How a run ended, as an exit code."""

    WELL = 0
    FAILED = 1
    MISCONFIGURED = 2
    """Every failed step failed because of the declaration, so the same run fails again until that is corrected."""


@dataclass(frozen=True, kw_only=True)
class FailedStep:
    """A failed step: its artifact (`dataset/artifact`), the reason, and whether the declaration is at fault."""

    where: str
    why: str
    misconfigured: bool


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended: what failed, and a sentence for each check that did not pass (`warning: ` before one that only
    warns)."""

    ended: RunEnd
    failures: tuple[FailedStep, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Those of `checks` that do not only warn."""
        return tuple(check for check in self.checks if check.startswith("check "))


def execute(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    *,
    tags: Mapping[str, str] = MappingProxyType({}),
    verbose: bool = False,
) -> RunResult:
    """Execute a job; return how it ended. Steps that need no failed one are executed all the same.

    Raises KeyboardInterrupt if the run was interrupted.

    Args:
        job: The job of a dataset (`build.job_of`), bound to its resources.
        instance: Where the run is recorded.
        tags: Tags of the run, in addition to those of the job.
        verbose: Whether Dagster's own error messages go to standard error, with their stacks.
    """
    # first of all: a lost run may hold the pool for which the steps of this one would wait
    end_lost_runs(instance)
    run_id = str(uuid.uuid4())
    with at_work(instance, run_id), interruptions():
        outcome = job.execute_in_process(
            instance=instance,
            run_id=run_id,
            run_config=_VERBOSE if verbose else _QUIET,
            # not retried by Dagster: whoever started the run sees that it failed, and starts it again
            tags={"dagster/max_retries": "0", **tags},
            raise_on_error=False,
        )
    failures = [event for event in outcome.all_events if event.is_failure]
    # the event that the run failed adds nothing
    failures = [event for event in failures if event.is_step_failure] or failures
    ended = RunEnd.FAILED
    if outcome.success:
        ended = RunEnd.WELL
    elif failures and all(map(_is_misconfigured, failures)):
        ended = RunEnd.MISCONFIGURED
    dataset = job.tags.get(DATASET, "")
    return RunResult(
        ended=ended,
        failures=tuple(
            FailedStep(where=_where(event, dataset), why=why, misconfigured=_is_misconfigured(event))
            for event in ([] if outcome.success else failures)
            if (why := _why(event)) is not None
        ),
        checks=tuple(
            f"{'' if evaluation.severity == dg.AssetCheckSeverity.ERROR else 'warning: '}check "
            f"{evaluation.check_name}: {evaluation.description}"
            for evaluation in outcome.get_asset_check_evaluations()
            if not evaluation.passed
        ),
    )


def _where(event: dg.DagsterEvent, dataset: str) -> str:
    """The artifact that a step makes, as it is named everywhere else, or `run`."""
    step = (event.step_key or "").removeprefix(f"make__{dataset}__")
    return f"{dataset}/{step.replace(TOGETHER, ' and ').replace('__', '/')}" if step else "run"


def _is_misconfigured(event: dg.DagsterEvent) -> bool:
    told = event.step_failure_data.user_failure_data if event.is_step_failure else None
    return told is not None and MISCONFIGURED in told.metadata


@contextmanager
def interruptions() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if a signal asked for one inside.

    During a run Dagster has signal handlers of its own: it turns a signal into a failed step, or, between two steps,
    drops it. Where what its handler raises reaches nobody, as in a finalizer, the signal is sent once more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, wakeup = socket.socketpair()
    with heard, wakeup:
        heard.setblocking(False)
        wakeup.setblocking(False)
        # the interpreter writes the number of each signal that Python handles to it, whatever its handler does then
        before = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        hook, sys.unraisablehook = sys.unraisablehook, _raise_later
        for pool in _POOLS:
            pool.addFilter(_is_a_failure)
        try:
            yield
        finally:
            for pool in _POOLS:
                pool.removeFilter(_is_a_failure)
            sys.unraisablehook = hook
            signal.set_wakeup_fd(before)
        with suppress(BlockingIOError):
            if {signal.SIGINT, signal.SIGTERM} & set(heard.recv(4096)):
                raise KeyboardInterrupt


_POOLS = [logging.getLogger(f"sqlalchemy.pool.impl.{kind}") for kind in ("NullPool", "QueuePool")]
"""They log, with a stack, whatever ends the closing of a connection, and raise it as well."""


def _is_a_failure(record: logging.LogRecord) -> bool:
    """Whether a record is about something other than an interruption."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, KeyboardInterrupt | dg.DagsterExecutionInterruptedError)


def _raise_later(lost: "sys.UnraisableHookArgs") -> None:
    """Interrupt this process again in a moment, if an interruption was lost; else report what was."""
    if isinstance(lost.exc_value, dg.DagsterExecutionInterruptedError):
        threading.Timer(_MOMENT, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def _why(event: dg.DagsterEvent) -> str | None:
    """Why a step or run failed: the message of a DataprepError, else that of the first cause.

    None for a step that failed only by its checks, which are reported by themselves.
    """
    if (
        event.is_step_failure
        and (failure := event.step_failure_data.user_failure_data) is not None
        and failure.description
    ):
        return None if FAILED_CHECKS in failure.metadata else failure.description
    error = getattr(event.event_specific_data, "error", None)
    return (
        None
        if error is None
        else f"{(error.cause or error).message.strip()}. This is a bug. Run with `--verbose` for the traceback"
    )
