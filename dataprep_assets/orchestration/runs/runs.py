"""Execution of a dataset's job in this process; the instance's records, plans and pools; detection of lost runs."""

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
from dataprep_assets.stores.locks import open_own_file, try_lock


class DagsterEvents:
    """Dagster's records of an instance (implements `staleness.status.Events`)."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def facts(
        self, spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
    ) -> Mapping[str | None, EventFacts]:
        """Return the instance's facts about each partition and, under None, about the artifact as a whole."""
        artifact_facts = EventFacts(
            materialized=spec.partitions is not None or self._is_materialized(spec),
            registered=all(self._has_registered(partitions, store) for partitions in spec.plans),
            evaluations=self.evaluations(spec),
            accept={name: why for name, why in spec.declaration.accept.items() if not spec.blocks(name)},
        )
        if spec.partitions is None:
            return {None: artifact_facts}
        materialized = self._instance.get_materialized_partitions(asset_key(spec))
        return {**{slot: EventFacts(materialized=slot in materialized) for slot in slots}, None: artifact_facts}

    def evaluations(self, spec: ArtifactSpec) -> Mapping[str, Evaluation | None]:
        """Return the latest evaluation of each check of an artifact; None for an execution without a result."""
        checks = {dg.AssetCheckKey(asset_key(spec), check.name): check.name for check in spec.checks}
        evaluations: dict[str, Evaluation | None] = dict.fromkeys(checks.values())
        if not checks:
            return evaluations
        latest = self._instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
        for key, record in latest.items():
            event = record.event.dagster_event if record.event is not None else None
            if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                evaluation = event.asset_check_evaluation_data
                reason = evaluation.metadata.get(ACCEPTED)
                evaluations[checks[key]] = Evaluation(
                    passed=evaluation.passed,
                    blocks=evaluation.severity == dg.AssetCheckSeverity.ERROR and spec.blocks(checks[key]) is True,
                    accepted=None if reason is None else str(reason.value),
                )
        return evaluations

    def _is_materialized(self, spec: ArtifactSpec) -> bool:
        """Return whether an artifact is materialized and, if it has no files, newer than its inputs."""
        own_time = self._find_build_time(spec)
        inputs = [] if spec.kept else [self._find_build_time(source) for source in spec.inputs]
        return own_time is not None and not any(
            input_time is not None and input_time > own_time for input_time in inputs
        )

    def _find_build_time(self, spec: ArtifactSpec | DatasetInput | AssetInput) -> float | None:
        event = self._instance.get_latest_materialization_event(asset_key(spec))
        return None if event is None else event.timestamp

    def _has_registered(self, partitions: Partitions, store: ArtifactStore) -> bool:
        """Return whether the instance has the planned keys of dynamic partitions in order; True for fixed partitions.

        The keys may be missing because a user can delete them in the UI.
        """
        if partitions.dynamic is None:
            return True
        try:
            keys = list(partitions.keys(store))
        except DataprepError:  # the partitions are not planned yet; the build registers their keys
            return True
        return list(self._instance.get_dynamic_partitions(partitions.dynamic)) == keys


# Detection of runs whose process was killed without Dagster noticing.
#
# Dagster's default launcher starts a run as a child of the code location's process, which reports the run's death. No
# process reports it if the code location dies as well, for example when a container stops. A run that executes in the
# requesting process (a command: `runs.execute`) has no parent. Such a run would stay "Started" forever and occupy its
# pool. With a limit of one, no other run would ever leave the queue.
#
# Therefore a run holds a file lock while it is running. The kernel releases the lock however the process ends.
# A run that is in progress while its lock is free is lost, and the next process that checks marks it as failed.
#
# The lock files are stored next to the instance's own files, so machines with separate instances do not judge each
# other's runs.
#
# Entry points: `hold_run_lock`, `hold_run_lock_until_exit`, `end_lost_runs`.

_LOST_RUN_MESSAGE = (
    "The process of this run was killed, or its machine went down. Finished work is kept. Run the command again, or "
    "launch the job of the dataset."
)
_RESEND_SECONDS = 0.1
"""Delay in seconds before a lost interruption is sent again."""
_LAUNCHER_TAG = ".dagster/grpc_info"
"""Tag that Dagster's default launcher sets on its runs: the address of the code location that starts them."""
_run_locks: dict[str, ExitStack] = {}
"""Run id → the lock that this process holds until it ends."""


def _find_locks_folder(instance: dg.DagsterInstance) -> Path:
    return Path(instance.storage_directory()) / "dataprep_runs"


@contextmanager
def _lock_run(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    path = _find_locks_folder(instance) / run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", opener=open_own_file) as lock:
        # The call waits only briefly, while `end_lost_runs` of another process checks the new file.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def hold_run_lock(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Hold the lock of a run, from before it is recorded until it has ended.

    After an exception the file is kept: if the end could not be recorded, the next process that checks ends the run.
    """
    with ExitStack() as locks:
        # Continue even if the file cannot be written or locked. Then only the detection of a lost run does not work.
        with suppress(OSError):
            locks.enter_context(_lock_run(instance, run_id))
        yield
        with suppress(OSError):
            (_find_locks_folder(instance) / run_id).unlink(missing_ok=True)


def hold_run_lock_until_exit(context: Context) -> None:
    """Hold the lock of a step's run until this process ends, if this process executes only that run.

    This is the case if Dagster's default launcher started the process and the in-process executor, which this project
    uses, executes the run. Other launchers monitor their runs. Processes of other executors end with their steps, so a
    run between two steps would look lost.
    """
    run_id, executor = context.run.run_id, context.job_def.executor_def
    if run_id not in _run_locks and executor.name == dg.in_process_executor.name and _LAUNCHER_TAG in context.run.tags:
        _run_locks[run_id] = ExitStack()
        with suppress(OSError):
            _run_locks[run_id].enter_context(_lock_run(context.instance, run_id))


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report lost runs as failed and return their ids. This costs one directory listing if no run is in progress."""
    run_ids = []
    with suppress(FileNotFoundError):
        for path in sorted(_find_locks_folder(instance).iterdir()):
            with suppress(OSError), open(path, "a", opener=open_own_file) as lock:
                if not try_lock(lock):
                    continue
                run = instance.get_run_by_id(path.name)
                if run is None:  # the run is not recorded yet, or was deleted
                    continue
                if not run.is_finished:
                    instance.report_run_failed(run, _LOST_RUN_MESSAGE)
                    run_ids.append(run.run_id)
                # Also remove the file of an ended run, because a process that holds the lock until its exit leaves the
                # file behind.
                path.unlink(missing_ok=True)
    return run_ids


PLANS = "dataprep/plans"
"""Metadata of an asset that plans partitions and has no partitioned input: the digest of its declaration."""
DECLARATION = "declaration"
"""Metadata of a plan's materialization: the digest of the declaration from which the plan was built."""
# A change of these keys requires no new plan, because the keys do not affect plans.
_IRRELEVANT_KEYS = {
    "description",
    "owners",
    "card",
    "accept",
    "automation",
    "small_cell",
    "prove",
    "lineage",
    "publish",
}


def build_plan_metadata(spec: ArtifactSpec) -> Mapping[str, str]:
    """Return the metadata by which the sensor finds the plans that it builds; empty for other artifacts."""
    return {PLANS: _digest_declaration(spec)} if spec.plans and not _is_built_from_partitions(spec) else {}


def build_plan_materialization_metadata(spec: ArtifactSpec) -> Mapping[str, str]:
    """Return the metadata of a plan's materialization (its declaration's digest); empty for other artifacts."""
    return {DECLARATION: _digest_declaration(spec)} if spec.plans else {}


def _digest_declaration(spec: ArtifactSpec) -> str:
    """Return a digest of the parts of a declaration that may affect a plan."""
    return digest_value(spec.declaration.model_dump(mode="json", exclude=_IRRELEVANT_KEYS))[:16]


def _is_built_from_partitions(spec: ArtifactSpec) -> bool:
    # Exclude artifacts with partitioned inputs, because such artifacts need built partitions, but the planning run
    # builds none.
    sources = [source for source in spec.inputs if isinstance(source, ArtifactSpec)]
    return any(source.partitions is not None or _is_built_from_partitions(source) for source in sources)


# Dagster's pools: the maximum number of concurrent runs that use the network or the CPU.
#
# An instance's `concurrency.pools.default_limit` does not apply to its first runs. Dagster gives a pool this limit when
# it first sees a run of the pool in the queue, but only after it has looked up which pools are limited. Therefore every
# run that is queued at that moment starts. `limit_pools` sets the limit before the first run.

POOLS = {"network": "dataprep_network", "cpu": "dataprep_cpu"}
"""The pool's name in an artifact's spec → its name in Dagster."""


def limit_pools(instance: dg.DagsterInstance) -> None:
    """Set the instance's default limit, if it has one, on each pool without a limit; keep existing limits."""
    if instance.global_op_concurrency_default_limit is None:
        return
    limited = {pool.name for pool in instance.event_log_storage.get_pool_limits()}
    for pool in POOLS.values():
        if pool not in limited:
            instance.event_log_storage.initialize_concurrency_limit_to_default(pool)


# Log levels of the console. Few messages are enough, because the result lists each error once without its traceback,
# and the event log has all messages.
_QUIET, _VERBOSE = ({"loggers": {"console": {"config": {"log_level": level}}}} for level in ("CRITICAL", "ERROR"))


class RunEnd(IntEnum):
    """Outcome of a run, as an exit code."""

    WELL = 0
    FAILED = 1
    MISCONFIGURED = 2
    """Every failed step failed because of the declaration, so a retry would also fail."""


@dataclass(frozen=True, kw_only=True)
class FailedStep:
    """A failed step: its artifact (`dataset/artifact`), the reason, and whether the declaration is at fault."""

    where: str
    why: str
    misconfigured: bool


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run: failed steps, and a sentence per check that did not pass (warnings begin with `warning: `)."""

    ended: RunEnd
    failures: tuple[FailedStep, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Sentences in `checks` that report failures, not warnings."""
        return tuple(check for check in self.checks if check.startswith("check "))


def execute_job(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    *,
    tags: Mapping[str, str] = MappingProxyType({}),
    verbose: bool = False,
) -> RunResult:
    """Execute a job and return its result. Steps that do not depend on a failed step are executed nevertheless.

    Raises KeyboardInterrupt if the run was interrupted.

    Args:
        job: The job of a dataset (`build.build_job`), bound to its resources.
        instance: The instance that records the run.
        tags: Tags of the run, in addition to the job's tags.
        verbose: Whether Dagster writes its own error messages with their tracebacks to standard error.
    """
    # End lost runs first, because a lost run may occupy the pool that this run's steps need.
    end_lost_runs(instance)
    run_id = str(uuid.uuid4())
    with hold_run_lock(instance, run_id), raise_interruptions():
        outcome = job.execute_in_process(
            instance=instance,
            run_id=run_id,
            run_config=_VERBOSE if verbose else _QUIET,
            # Disable Dagster's retries, because the user sees that the run failed and can start it again.
            tags={"dagster/max_retries": "0", **tags},
            raise_on_error=False,
        )
    failures = [event for event in outcome.all_events if event.is_failure]
    # Omit the failed run's own event, because it only repeats the failed steps.
    failures = [event for event in failures if event.is_step_failure] or failures
    end = RunEnd.FAILED
    if outcome.success:
        end = RunEnd.WELL
    elif failures and all(map(_is_misconfigured, failures)):
        end = RunEnd.MISCONFIGURED
    dataset = job.tags.get(DATASET, "")
    return RunResult(
        ended=end,
        failures=tuple(
            FailedStep(where=_find_step_artifact(event, dataset), why=reason, misconfigured=_is_misconfigured(event))
            for event in ([] if outcome.success else failures)
            if (reason := _explain_failure(event)) is not None
        ),
        checks=tuple(
            f"{'' if evaluation.severity == dg.AssetCheckSeverity.ERROR else 'warning: '}check "
            f"{evaluation.check_name}: {evaluation.description}"
            for evaluation in outcome.get_asset_check_evaluations()
            if not evaluation.passed
        ),
    )


def _find_step_artifact(event: dg.DagsterEvent, dataset: str) -> str:
    """Return the name of the artifact that a step builds (`dataset/artifact`), or `run` for an event of the run."""
    step = (event.step_key or "").removeprefix(f"make__{dataset}__")
    return f"{dataset}/{step.replace(TOGETHER, ' and ').replace('__', '/')}" if step else "run"


def _is_misconfigured(event: dg.DagsterEvent) -> bool:
    failure_data = event.step_failure_data.user_failure_data if event.is_step_failure else None
    return failure_data is not None and MISCONFIGURED in failure_data.metadata


@contextmanager
def raise_interruptions() -> Iterator[None]:
    """Raise KeyboardInterrupt when this context ends, if a signal requested an interruption inside it.

    During a run Dagster sets its own signal handlers, which turn a signal into a failed step, or drop it between two
    steps. If an exception of such a handler is lost, as in a finalizer, the signal is sent again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        # The interpreter writes the number of each signal to this socket, regardless of what the signal's handler does.
        old_descriptor = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        hook, sys.unraisablehook = sys.unraisablehook, _resend_interruption
        for pool in _POOLS:
            pool.addFilter(_is_not_interruption)
        try:
            yield
        finally:
            for pool in _POOLS:
                pool.removeFilter(_is_not_interruption)
            sys.unraisablehook = hook
            signal.set_wakeup_fd(old_descriptor)
        with suppress(BlockingIOError):
            if {signal.SIGINT, signal.SIGTERM} & set(receiver.recv(4096)):
                raise KeyboardInterrupt


_POOLS = [logging.getLogger(f"sqlalchemy.pool.impl.{kind}") for kind in ("NullPool", "QueuePool")]
"""Loggers of SQLAlchemy's pools, which log each error in closing a connection with a traceback, and also raise it."""


def _is_not_interruption(record: logging.LogRecord) -> bool:
    """Return whether a log record is about anything other than an interruption."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, KeyboardInterrupt | dg.DagsterExecutionInterruptedError)


def _resend_interruption(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send the signal again if the lost exception is an interruption; otherwise report the exception."""
    if isinstance(unraisable.exc_value, dg.DagsterExecutionInterruptedError):
        threading.Timer(_RESEND_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _explain_failure(event: dg.DagsterEvent) -> str | None:
    """Return why a step or run failed: the message of a DataprepError, else the message of the first cause.

    Return None for a step that failed only because of its checks, which are reported separately.
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
        else f"{(error.cause or error).message.strip()}. This is a bug. Run the command with `--verbose` to see "
        "the traceback"
    )
