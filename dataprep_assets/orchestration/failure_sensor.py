"""`automation.on_failure`: a sensor that reports the failed runs of one dataset, by webhook and mail.

Dagster's own run failure sensor forgets a failure once its function was called, and marks every failed run of the code
location for every such sensor. This one reads the same events, keeps undelivered reports in its cursor, retries them
for an hour, and says in each tick what was delivered and what was not.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import dagster as dg

from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.graph.automation import OnFailure
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.orchestration.failure import Failure, concerns, failure_of
from dataprep_assets.orchestration.telling import LONGEST_TRY_SECONDS, mail, post

INTERVAL_SECONDS = 30
LONGEST_TICK_SECONDS = 2 * LONGEST_TRY_SECONDS
"""What is left after this time is delivered by the next tick."""
GIVE_UP_SECONDS = 3600.0
# failures of all datasets that a tick reads; the next one goes on from the cursor
_RUNS_A_TICK = 50

Channels = Mapping[str, Callable[[Failure], None]]
"""`webhook` or `mail` → the function that delivers a failure through it."""


@dataclass
class _Cursor:
    """What the sensor remembers.

    Attributes:
        after: Id of the last failure event that was read in Dagster's event log; None at the first tick, which reports
            no past failures.
        waiting: `<run id> <channel>` of each report still to be delivered → since when, in seconds since 1970.
    """

    after: int | None = None
    waiting: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> "_Cursor":
        """Parse the sensor's cursor; a new one if it was reset."""
        return cls(**json.loads(text)) if text else cls()

    def __str__(self) -> str:
        return json.dumps({"after": self.after, "waiting": self.waiting})


def failure_sensor(declaration: DatasetDeclaration, on_failure: OnFailure) -> dg.SensorDefinition:
    """The sensor of a dataset.

    Args:
        declaration: The dataset's declaration.
        on_failure: The declared recipients.
    """
    channels = _channels(on_failure)

    @dg.sensor(
        name=f"{declaration.dataset}_on_failure",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports failed runs of {declaration.dataset} by {' and '.join(channels)}.",
    )
    def tells(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor = _Cursor.read(context.cursor)
        if cursor.after is None:
            cursor.after = _newest(context.instance)
            return dg.SensorResult(skip_reason="failures are reported from now on", cursor=str(cursor))
        _note_failures(context.instance, declaration, channels, cursor)
        said = list(_deliver(context.instance, declaration, channels, cursor))
        for sentence in said:
            context.log.info(sentence)
        return dg.SensorResult(skip_reason="; ".join(said) or "no run failed since", cursor=str(cursor))

    return tells


def _channels(on_failure: OnFailure) -> Channels:
    webhook, email = on_failure.webhook, on_failure.email
    found: dict[str, Callable[[Failure], None]] = {}
    if webhook is not None:
        found["webhook"] = lambda failure: post(webhook, failure.to_json())
    if email is not None:
        found["mail"] = lambda failure: mail(email, *failure.mail)
    return found


def _newest(instance: dg.DagsterInstance) -> int:
    records = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
    return records[0].storage_id if records else 0


def _note_failures(
    instance: dg.DagsterInstance, declaration: DatasetDeclaration, channels: Channels, cursor: _Cursor
) -> None:
    """Add the dataset's runs that failed since the last tick to the reports to deliver."""
    changes = dg.RunStatusChangeRecordsFilter(event_type=dg.DagsterEventType.RUN_FAILURE, after_storage_id=cursor.after)
    for record in instance.fetch_run_status_changes(changes, ascending=True, limit=_RUNS_A_TICK).records:
        cursor.after = record.storage_id
        run = instance.get_run_by_id(record.event_log_entry.run_id)
        if run is not None and concerns(instance, run, declaration.dataset):
            cursor.waiting |= {f"{run.run_id} {channel}": time.time() for channel in channels}


def _deliver(
    instance: dg.DagsterInstance, declaration: DatasetDeclaration, channels: Channels, cursor: _Cursor
) -> Iterator[str]:
    """Deliver the waiting reports, and yield a sentence for each; an undelivered one stays for at most an hour."""
    deadline = time.monotonic() + LONGEST_TICK_SECONDS
    for waiting, since in list(cursor.waiting.items()):
        run_id, _, channel = waiting.partition(" ")
        run = instance.get_run_by_id(run_id)
        if run is None or channel not in channels:  # deleted, or no longer declared
            del cursor.waiting[waiting]
            continue
        if time.monotonic() > deadline:
            yield f"{len(cursor.waiting)} wait for the next tick"
            return
        try:
            channels[channel](failure_of(instance, run, declaration))
        except Exception as error:  # a tick that raises keeps no cursor: it would tell the same again, and nothing else
            why = str(error) if isinstance(error, (ConfigError, TransferError)) else type(error).__name__
            if time.time() - since < GIVE_UP_SECONDS:
                yield f"run {run_id[:8]}: {why}; it will be reported again"
                continue
            yield f"run {run_id[:8]}: {why}; given up after an hour"
        else:
            yield f"run {run_id[:8]}: reported by {channel}"
        del cursor.waiting[waiting]
