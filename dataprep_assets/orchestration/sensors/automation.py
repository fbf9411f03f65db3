"""Automation of datasets: converts `automation` in the YAML to Dagster sensors, schedules, policies and checks.

Declaring one of them enables it.
"""

import json
import os
import smtplib
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec, PollResult, SourceWatch, poll_source
from dataprep_assets.engine.card.products import find_products
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.engine.yaml.automation import Automation, Email, EnvironmentVariable, FailureNotifications
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.errors import ConfigError, DataprepError, TransferError
from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.runs.dataset_runs import builds_dataset, describe_run_in_progress
from dataprep_assets.orchestration.runs.deadline import run_with_deadline
from dataprep_assets.orchestration.sensors.freshness import build_freshness_check, build_freshness_sensor
from dataprep_assets.resources import StorageResource
from dataprep_assets.stores.files import private_files

# `automation.on_failure`: Dagster's run failure sensor of one dataset, which reports by webhook, mail or both.
#
# Dagster tracks which failures were processed, and reports each failure once. It shows delivery errors in the sensor's
# tick. Reports never contain the address of a webhook, a user or a password, because these may be secrets.
#
# For a sensitive dataset the report omits the messages of errors and checks.

UI = "DATAPREP_UI_URL"
"""Environment variable with the public address of the UI, e.g., https://dagster.example.org."""
_MAX_ERROR_LENGTH = 500
"""Maximum length of an error in characters, because the error of a batch names each failed partition."""
_RANGE_START_TAG, _RANGE_END_TAG = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_EVENT_TYPES = {
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
}


@dataclass(frozen=True, kw_only=True)
class FailedCheck:
    """A blocking check that failed; `finding` is its sentence, None for a sensitive dataset."""

    asset: str
    check: str
    finding: str | None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed run of a dataset.

    `link` is the run's page: an address below DATAPREP_UI_URL, or only the path if that is not set. `partitions` is one
    partition key or `FIRST...LAST`; None for an unpartitioned run. `will_retry` is true if Dagster will retry the run.
    """

    dataset: str
    run_id: str
    job: str
    steps: tuple[str, ...]
    partitions: str | None
    failed_checks: tuple[FailedCheck, ...]
    error: str | None
    will_retry: bool
    link: str

    @property
    def sentence(self) -> str:
        """The failure as one sentence."""
        checks = ", ".join(f"{check.check} of {check.asset}" for check in self.failed_checks)
        parts = [
            f"{self.dataset}: run {self.run_id[:8]} of {self.job} failed",
            f"in {', '.join(self.steps)}" if self.steps else "",
            f"for {self.partitions}" if self.partitions else "",
            f"(blocking checks: {checks})" if checks else "",
        ]
        text = " ".join(filter(None, parts)) + (f": {self.error}" if self.error else "")
        return text + (". The run will be retried" if self.will_retry else "")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON body for a webhook; chat services show the line `text`."""
        return {"text": self.sentence, **asdict(self)}

    @property
    def mail(self) -> tuple[str, str]:
        """Subject and text of a mail."""
        checks = [f"{c.asset}: {c.check}" + (f": {c.finding}" if c.finding else "") for c in self.failed_checks]
        lines = [self.sentence, "", *checks, "", f"Run: {self.link}"]
        return f"{self.dataset}: run {self.run_id[:8]} failed", "\n".join(lines)


def should_report_failure(instance: dg.DagsterInstance, run: dg.DagsterRun, dataset: str) -> bool:
    """Return whether a failed run concerns a dataset: the run builds only it, or one of the dataset's steps failed."""
    if not builds_dataset(run, dataset) or run.tags.get(DATASET) == dataset:
        return builds_dataset(run, dataset)
    keys = {*(run.asset_selection or ()), *(check.asset_key for check in run.asset_check_selection or ())}
    # Steps of assets and of asset checks have names that begin with the asset's key.
    own_names = tuple("__".join(key.path) for key in keys if key.path[0] == dataset)
    failed = [
        event.step_key for event in _list_events(instance, run) if event.event_type == dg.DagsterEventType.STEP_FAILURE
    ]
    steps = [step for step in failed if step is not None]
    # Without a failed step the run itself failed, which affects all of its datasets.
    return not steps or any(step.startswith(own_names) for step in steps)


def describe_failure(instance: dg.DagsterInstance, run: dg.DagsterRun, declaration: DatasetDeclaration) -> Failure:
    """Collect the reported facts of a failed run.

    Args:
        instance: The instance that recorded the run.
        run: The failed run.
        declaration: The dataset's declaration.
    """
    events = _list_events(instance, run)
    failures = [event for event in events if event.event_type == dg.DagsterEventType.STEP_FAILURE]
    step_failures = [e for e in failures if e.step_key is not None]
    return Failure(
        dataset=declaration.dataset,
        run_id=run.run_id,
        job=run.job_name,
        steps=tuple(dict.fromkeys(event.step_key for event in step_failures if event.step_key is not None)),
        partitions=_describe_partitions(run),
        failed_checks=tuple(_list_failed_checks(events, declaration)),
        error=None if declaration.sensitive else _find_error(failures, events),
        will_retry=run.tags.get("dagster/will_retry") == "true",
        link=f"{_read_ui_address()}/runs/{run.run_id}",
    )


def _read_ui_address() -> str:
    """Return the UI's address without a trailing slash, "" if none is set; raise ConfigError for an invalid address."""
    url = os.environ.get(UI, "").rstrip("/")
    if url and not url.startswith(("http://", "https://")):
        raise ConfigError(f"{UI}={url!r}: must begin with https:// or http://")
    return url


def _list_events(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[dg.DagsterEvent]:
    records = instance.get_records_for_run(run.run_id, of_type=_EVENT_TYPES).records
    return [e for record in records if (e := record.event_log_entry.dagster_event) is not None]


def _describe_partitions(run: dg.DagsterRun) -> str | None:
    if key := run.tags.get("dagster/partition"):
        return key
    first_key, last_key = run.tags.get(_RANGE_START_TAG), run.tags.get(_RANGE_END_TAG)
    if first_key is None or last_key is None:
        return None
    return first_key if first_key == last_key else f"{first_key}...{last_key}"


def _list_failed_checks(events: Iterable[dg.DagsterEvent], declaration: DatasetDeclaration) -> Iterable[FailedCheck]:
    for event in events:
        if event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            continue
        evaluation = event.asset_check_evaluation_data
        if evaluation.blocking and not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR:
            yield FailedCheck(
                asset=evaluation.asset_key.to_user_string(),
                check=evaluation.check_name,
                finding=None if declaration.sensitive else evaluation.description,
            )


def _find_error(failures: Sequence[dg.DagsterEvent], events: Sequence[dg.DagsterEvent]) -> str | None:
    """Return the message of the first failed step, else Dagster's message about the run."""
    for event in failures:
        data = event.step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            return _join_lines(data.user_failure_data.description)
        if data.error is not None:
            return _join_lines((data.error.cause or data.error).message)
    messages = [e.message for e in events if e.event_type == dg.DagsterEventType.RUN_FAILURE and e.message]
    return _join_lines(messages[-1]) if messages else None


def _join_lines(text: str) -> str:
    line = " ".join(text.split())
    # Drop the class name in `package.module.SourceError: message`, because it does not help the reader.
    kind, colon, words = line.partition(": ")
    if colon and kind.rpartition(".")[2].endswith("Error") and " " not in kind:
        line = words
    return line if len(line) <= _MAX_ERROR_LENGTH else f"{line[:_MAX_ERROR_LENGTH]}…"


INTERVAL_SECONDS = 30
DELIVERY_TIMEOUT_SECONDS = 5.0
_PACKET_SECONDS = 4.0
"""Timeout for one packet, in seconds."""


def build_failure_sensor(declaration: DatasetDeclaration, on_failure: FailureNotifications) -> dg.SensorDefinition:
    """Return the sensor that reports failed runs of a dataset.

    Args:
        declaration: The dataset's declaration.
        on_failure: The declared recipients.
    """
    channels = dict(_list_channels(on_failure))

    @dg.run_failure_sensor(
        name=f"{declaration.dataset}_on_failure",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports failed runs of {declaration.dataset} by {' and '.join(channels)}.",
    )
    def report_failed_run(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        if not should_report_failure(context.instance, run, declaration.dataset):
            return dg.SkipReason(f"run {run.run_id[:8]} failed, but not in {declaration.dataset}")
        failure = describe_failure(context.instance, run, declaration)
        undelivered = []
        for channel, send in channels.items():
            try:
                run_with_deadline(DELIVERY_TIMEOUT_SECONDS, lambda send=send: send(failure))  # type: ignore[misc]
            # Continue with the other channels after any error. Hide the messages of other libraries, which may contain
            # a secret.
            except Exception as error:
                is_safe_to_show = isinstance(error, ConfigError | TransferError)
                timeout_text = f"no response within {DELIVERY_TIMEOUT_SECONDS:.0f} s"
                reason = (
                    str(error)
                    if is_safe_to_show
                    else timeout_text
                    if isinstance(error, TimeoutError)
                    else type(error).__name__
                )
                undelivered.append(f"not reported by {channel}: {reason}")
        if undelivered:
            raise TransferError(f"run {run.run_id[:8]}: {'; '.join(undelivered)}") from None
        return None

    return report_failed_run


def _list_channels(on_failure: FailureNotifications) -> Iterator[tuple[str, Callable[[Failure], None]]]:
    webhook, email = on_failure.webhook, on_failure.email
    if webhook is not None:
        yield "webhook", lambda failure: _post(webhook, failure)
    if email is not None:
        yield "mail", lambda failure: _send_mail(email, failure)


def _post(webhook: str | EnvironmentVariable, failure: Failure) -> None:
    """POST a failure as JSON. Raise TransferError if the webhook rejects it, ConfigError if the variable is not set."""
    import httpx

    url = webhook if isinstance(webhook, str) else webhook.read("automation.on_failure.webhook")
    webhook_name = (
        f"the webhook of {webhook.env}" if isinstance(webhook, EnvironmentVariable) else f"{urlsplit(url).hostname}"
    )
    # Encode the failure as ASCII, because a file name in it may not be valid Unicode.
    body, kind = json.dumps(failure.to_json()), {"Content-Type": "application/json"}
    try:
        response = httpx.post(url, content=body, headers=kind, timeout=_PACKET_SECONDS)
    except httpx.ConnectError:
        raise TransferError(f"{webhook_name} cannot be reached. Check the URL") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise TransferError(f"{webhook_name}: {type(error).__name__}. Check the URL") from None
    if not response.is_success:
        raise TransferError(f"{webhook_name} answered with HTTP status {response.status_code}. Check the URL")


def _send_mail(email: Email, failure: Failure) -> None:
    """Send a mail. Raise TransferError if the server rejects it, ConfigError if a variable is not set."""
    message = EmailMessage()
    message["From"], message["To"] = email.sender, ", ".join(email.to)
    message["Subject"], text = failure.mail
    # Escape lone surrogates, which a file name may contain but UTF-8 cannot encode.
    message.set_content(text.encode(errors="backslashreplace").decode())
    login = None
    if email.user is not None and email.password is not None:
        setting = "automation.on_failure.email"
        login = email.user.read(f"{setting}.user"), email.password.read(f"{setting}.password")
    try:
        with _connect_to_server(email) as server:
            if login is not None:
                server.login(*login)
            server.send_message(message)
    # Omit the messages of these errors, because they may quote the mail. All errors of SMTP and TLS are subclasses of
    # the two classes.
    except (OSError, ValueError) as error:
        server_name, code = f"the mail server {email.host}:{email.port}", getattr(error, "smtp_code", "")
        reason = f"{type(error).__name__} {code}".strip()
        raise TransferError(
            f"{server_name} did not accept the mail ({reason}). Check `host`, `port`, `tls` and `user`"
        ) from None


@contextmanager
def _connect_to_server(email: Email) -> Iterator[smtplib.SMTP]:
    tls = ssl.create_default_context()
    if email.tls == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(email.host, email.port, timeout=_PACKET_SECONDS, context=tls)
    else:
        server = smtplib.SMTP(email.host, email.port, timeout=_PACKET_SECONDS)
    with server:
        if email.tls == "starttls":
            server.starttls(context=tls)
        yield server


# `automation.on_new_files`: a sensor, or with a cron expression a schedule, that polls a dataset's source for changes.
#
# Each change launches the dataset's job once. If the source cannot be reached, the tick shows one sentence, and the
# next tick polls again. A tick fetches and writes no data. `poll_source` defines how a source is polled.

SOURCE = "dataprep/source"
"""Run tag: identity of the source for which the run was launched."""
CHANGE = "dataprep/change"
"""Run tag: description of the source's changes."""
POLL_TIMEOUT_SECONDS = 40.0
"""Time limit of a poll, below the 60 s after which Dagster ends an evaluation with a traceback."""


@dataclass(frozen=True, kw_only=True)
class _TickResult:
    """Result of a tick: the `sentence` that is shown, and the `poll`, which is None if polling failed."""

    sentence: str
    poll: PollResult | None = None


def find_source_watch(specs: Sequence[ArtifactSpec]) -> SourceWatch:
    """Return how to poll the dataset's source; exactly one artifact of each dataset reads it."""
    return next(spec.watch for spec in specs if spec.watch is not None)


def build_source_sensor(
    specs: Sequence[ArtifactSpec], automation: Automation, job: dg.JobDefinition
) -> dg.SensorDefinition:
    """Return the sensor of a dataset that declares a polling interval.

    Args:
        specs: All artifacts of the dataset.
        automation: The declared automation.
        job: The job that a change launches.
    """
    declaration, watch = specs[0].declaration, find_source_watch(specs)
    dataset = declaration.dataset

    @dg.sensor(
        name=f"{dataset}_on_new_files",
        job=job,
        minimum_interval_seconds=automation.interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Polls the source of {dataset} for changes, and builds the affected artifacts.",
    )
    def on_new_files(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult:
        # The cursor has the identity at the last successful poll and the number of launches. With this number, the run
        # key differs if a source returns to an earlier state, and stays the same after an interrupted tick.
        last_identity, _, count = (context.cursor or "").partition(" ")
        launches = int(count or 0)
        tick = _poll_source(declaration, watch, storage, last_identity or None)
        if tick.poll is None:
            # Keep the cursor, so that the next poll finds changes made during the outage.
            return dg.SensorResult(skip_reason=tick.sentence, cursor=context.cursor)
        identity = tick.poll.identity
        if not tick.poll.change:
            return dg.SensorResult(skip_reason=tick.sentence, cursor=f"{identity} {launches}")
        # Query the run database only after a change, because most polls find none.
        if busy := describe_run_in_progress(context.instance, dataset):
            # Keep the cursor, because the change must be built after the current run.
            return dg.SensorResult(skip_reason=_explain_postponement(tick, busy), cursor=context.cursor)
        context.log.info(tick.sentence)
        request = dg.RunRequest(run_key=f"{identity} {launches}", tags=_build_tags(dataset, tick.poll))
        return dg.SensorResult(run_requests=[request], cursor=f"{identity} {launches + 1}")

    return on_new_files


def build_source_schedule(
    specs: Sequence[ArtifactSpec], automation: Automation, job: dg.JobDefinition
) -> dg.ScheduleDefinition:
    """Return the schedule of a dataset that declares a cron expression.

    A schedule has no cursor, so the identity of the source is stored in the tags of the last run that it launched.

    Args:
        specs: All artifacts of the dataset.
        automation: The declared automation.
        job: The job that a change launches.
    """
    declaration, watch = specs[0].declaration, find_source_watch(specs)
    dataset = declaration.dataset
    name = f"{dataset}_on_new_files"

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=automation.poll_cron or "",
        execution_timezone=automation.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Polls the source of {dataset} for changes, and builds the affected artifacts.",
    )
    def on_new_files(context: dg.ScheduleEvaluationContext, storage: StorageResource) -> dg.RunRequest | dg.SkipReason:
        schedule_filter = dg.RunsFilter(tags={DATASET: dataset, "dagster/schedule_name": name})
        last_run = next(iter(context.instance.get_runs(schedule_filter, limit=1)), None)
        tick = _poll_source(declaration, watch, storage, last_run.tags.get(SOURCE) if last_run is not None else None)
        if tick.poll is None or not tick.poll.change:
            return dg.SkipReason(tick.sentence)
        if busy := describe_run_in_progress(context.instance, dataset):
            return dg.SkipReason(_explain_postponement(tick, busy))
        context.log.info(tick.sentence)
        return dg.RunRequest(tags=_build_tags(dataset, tick.poll))

    return on_new_files


def _build_tags(dataset: str, result: PollResult) -> dict[str, str]:
    return {DATASET: dataset, SOURCE: result.identity, CHANGE: result.change}


def _explain_postponement(result: _TickResult, busy: str) -> str:
    return f"{result.sentence}; {busy}, so the source will be polled again when it has ended"


def _poll_source(
    declaration: DatasetDeclaration, watch: SourceWatch, storage: StorageResource, last_identity: str | None
) -> _TickResult:
    """Poll the source; return its result and a sentence, also if polling failed.

    Args:
        declaration: The dataset's declaration.
        watch: How to poll the source.
        storage: The storage of the dataset's plan.
        last_identity: Identity of the source at the last successful poll.
    """
    privacy = load_privacy(declaration, declaration.store(storage))
    try:
        with private_files(declaration.sensitive):
            poll = run_with_deadline(
                POLL_TIMEOUT_SECONDS, lambda: poll_source(watch, declaration.store(storage), last_identity)
            )
    except TimeoutError:
        return _TickResult(
            sentence=f"the source was not listed within {POLL_TIMEOUT_SECONDS:.0f} s and will be polled again. If "
            "listing it always takes longer, use `automation.schedule`"
        )
    except Exception as error:
        # Raise only unexpected errors, and only for a dataset that is not sensitive, because Dagster records their
        # tracebacks, which may contain the name of a source file.
        if not (declaration.sensitive or isinstance(error, DataprepError)):
            raise
        reason = privacy.public_error(error, "the source cannot be polled").rstrip(".")
        return _TickResult(sentence=f"the source cannot be polled: {reason}. It will be polled again")
    if poll.change:
        poll = replace(poll, change=privacy.public_text(poll.change, "the source changed"))
        return _TickResult(sentence=poll.change, poll=poll)
    sentence = (
        "nothing changed since the last poll" if poll.identity == last_identity else "the source matches the plan"
    )
    return _TickResult(sentence=sentence, poll=poll)


def check_crons(automation: Automation, yaml_path: Path) -> None:
    """Raise ConfigError, with line and key, for a cron expression that Dagster rejects or that never matches."""
    for key, cron in automation.crons.items():
        try:
            # Build a schedule only to validate the expression with Dagster's own parser.
            dg.ScheduleDefinition(name="tried", job_name="tried", cron_schedule=cron)
            # Only this call detects a schedule that never comes due, for which the daemon would log a traceback every
            # minute.
            dg.TimeWindowPartitionsDefinition(
                start=datetime(2000, 1, 1), fmt="%Y-%m-%d", cron_schedule=cron, timezone=automation.timezone
            ).get_first_partition_key()
        except Exception as error:  # Dagster raises a private error class for a date that does not exist
            (document, *_) = read_documents(yaml_path)
            line = document.find_line(["automation", key])
            raise ConfigError(
                f"{yaml_path}:{line}: automation.{key}: {cron!r} is not a valid cron expression, or never matches. "
                'Use minute, hour, day, month and weekday, such as "0 3 * * 1"'
            ) from error


def build_automation(specs: Sequence[ArtifactSpec], job: dg.JobDefinition) -> dg.Definitions:
    """Return the sensors, schedules and checks that a dataset declares in `automation`.

    Args:
        specs: All artifacts of the dataset.
        job: The dataset's job, which every sensor and schedule launches.
    """
    declaration = specs[0].declaration
    automation = declaration.automation
    if automation is None:
        return dg.Definitions()
    sensors: list[dg.SensorDefinition] = []
    schedules: list[dg.ScheduleDefinition] = []
    checks: list[dg.AssetChecksDefinition] = []
    if automation.interval is not None:
        sensors.append(build_source_sensor(specs, automation, job))
    if automation.poll_cron is not None:
        schedules.append(build_source_schedule(specs, automation, job))
    if automation.schedule is not None:
        schedules.append(_build_schedule(declaration.dataset, automation.schedule, automation.timezone, job))
    if automation.on_failure is not None:
        sensors.append(build_failure_sensor(declaration, automation.on_failure))
    if (window := automation.window) is not None:
        product_specs = find_products(specs)
        checks += [build_freshness_check(spec, window) for spec in product_specs]
        sensors.append(build_freshness_sensor(declaration.dataset, product_specs, window))
    return dg.Definitions(sensors=sensors, schedules=schedules, asset_checks=checks)


def _build_schedule(dataset: str, cron: str, timezone: str, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Return the schedule that builds a dataset, unless it is already being built."""

    @dg.schedule(
        name=f"{dataset}_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone=timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Builds {dataset}. Artifacts that are up to date are kept.",
    )
    def build(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if busy := describe_run_in_progress(context.instance, dataset):
            return dg.SkipReason(f"{busy}; the rest is built at the next scheduled time")
        return dg.RunRequest(tags={DATASET: dataset})

    return build
