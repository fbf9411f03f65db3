"""`automation.freshness`: the maximum age of a dataset's products.

The asset shows Dagster's own freshness policy, which the daemon evaluates. The check `fresh` shows the same result
among the other checks, as a warning. A sensor evaluates it without a run when its result would change, and after each
materialization, because the UI hides a check result that is older than the materialization.

A run that reuses everything also counts as a materialization, because it verified that the product is up to date.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.yaml.automation import Automation
from dataprep_assets.errors import count_of
from dataprep_assets.orchestration.checks import build_check_evaluation, build_check_result
from dataprep_assets.orchestration.partitions import asset_key

FRESH = "fresh"
"""Name of the check."""
_MAX_INTERVAL_SECONDS = 600
_MIN_INTERVAL_SECONDS = 30
# Evaluate a check 20 times per window, so that a stale product is noticed within a twentieth of its window. The two
# constants above limit the interval between evaluations.
_EVALUATIONS_PER_WINDOW = 20


@dataclass(frozen=True, kw_only=True)
class _Evaluation:
    """Last evaluation of a check.

    Attributes:
        passed: Whether the check passed.
        time_began: Start of the evaluation, in seconds since 1970.
        run: Id of the run that evaluated it; "" for a sensor.
    """

    passed: bool
    time_began: float
    run: str

    def belongs_to(self, event: dg.EventLogRecord) -> bool:
        """Return whether the UI shows this evaluation as a result for the materialization `event`."""
        return (bool(self.run) and self.run == event.run_id) or self.time_began > event.timestamp


def build_policy(automation: Automation | None) -> dg.FreshnessPolicy | None:
    """Return Dagster's policy for the declared freshness; None if no freshness is declared."""
    if automation is None or automation.window is None:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=automation.window)


def judge_freshness(timestamp: float | None, now: float, window: timedelta) -> Finding:
    """Check whether an asset is fresh: return a passed finding, or a warning.

    Args:
        timestamp: The time of the last materialization, in seconds since 1970; None if there is none.
        now: The current time, in seconds since 1970.
        window: The maximum age of the asset.
    """
    if timestamp is None:
        return Finding(
            passed=False, warning=True, summary=f"Never built; it should be built every {_format_age(window)}."
        )
    when = f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M} UTC"
    passed = now - timestamp < window.total_seconds()
    sentence = (
        f"Last built at {when}; stale after {_format_age(window)}."
        if passed
        else f"Last built at {when}, more than {_format_age(window)} ago. Launch its job, or find out why no run was "
        "launched."
    )
    return Finding(passed=passed, warning=True, summary=sentence)


def build_freshness_check(spec: ArtifactSpec, window: timedelta) -> dg.AssetChecksDefinition:
    """Return the check `fresh` of a product."""
    key = asset_key(spec)

    @dg.asset_check(
        name=FRESH,
        asset=key,
        description=f"The artifact was built or confirmed as up to date in the last {_format_age(window)}.",
    )
    def fresh(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        finding = judge_freshness(
            _read_event_time(_read_last_materializations(context.instance, [key]).get(key)), time.time(), window
        )
        return build_check_result(spec, None, FRESH, finding)

    return fresh


def build_freshness_sensor(dataset: str, specs: Sequence[ArtifactSpec], window: timedelta) -> dg.SensorDefinition:
    """Return the sensor that evaluates `fresh` of a dataset's products when they are built or become stale.

    Args:
        dataset: The dataset's name.
        specs: The dataset's products.
        window: The maximum age of the products.
    """
    by_key = {asset_key(spec): spec for spec in specs}
    keys = list(by_key)
    interval = min(
        max(int(window.total_seconds() / _EVALUATIONS_PER_WINDOW), _MIN_INTERVAL_SECONDS), _MAX_INTERVAL_SECONDS
    )

    @dg.sensor(
        name=f"{dataset}_freshness",
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Warns in the check `{FRESH}` if a final artifact of {dataset} is older than "
        f"{_format_age(window)}.",
    )
    def freshness(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        materializations, evaluations = (
            _read_last_materializations(context.instance, keys),
            _read_last_evaluations(context.instance, keys),
        )
        findings = {
            key: judge_freshness(_read_event_time(materializations.get(key)), time.time(), window) for key in keys
        }
        due_keys = [
            key
            for key in keys
            if not _is_still_valid(evaluations.get(key), materializations.get(key), findings[key].passed)
            and not was_just_materialized(_read_event_time(materializations.get(key)), time.time())
        ]
        events = [build_check_evaluation(by_key[key], None, FRESH, findings[key]) for key in due_keys]
        stale_names = [key.to_user_string() for key in keys if not findings[key].passed]
        sentence = (
            f"{len(keys) - len(stale_names)} of {count_of(len(keys), 'product is', 'products are')} fresh"
            + "".join(f"; {s} is not" for s in stale_names)
        )
        return dg.SensorResult(asset_events=events, skip_reason=sentence)

    return freshness


def _read_last_materializations(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> Mapping[dg.AssetKey, dg.EventLogRecord]:
    """Return the last materialization of each asset; omit assets without one."""
    entries = [record.asset_entry for record in instance.get_asset_records(keys)]
    records = {entry.asset_key: entry.last_materialization_record for entry in entries}
    return {key: record for key, record in records.items() if record is not None}


def _read_last_evaluations(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> Mapping[dg.AssetKey, _Evaluation]:
    """Return the last evaluation of each asset's check; omit checks that were never evaluated."""
    checks = [dg.AssetCheckKey(key, FRESH) for key in keys]
    evaluations: dict[dg.AssetKey, _Evaluation] = {}
    for check, summary in instance.event_log_storage.get_asset_check_summary_records(checks).items():
        record = summary.last_completed_check_execution_record
        if record is None or (evaluation := record.evaluation) is None:
            continue
        evaluations[check.asset_key] = _Evaluation(
            passed=evaluation.passed,
            time_began=record.create_timestamp,
            run=record.run_id,
        )
    return evaluations


def _read_event_time(event: dg.EventLogRecord | None) -> float | None:
    """Return the time of a materialization, in seconds since 1970; None if there is none."""
    return None if event is None else event.timestamp


def was_just_materialized(timestamp: float | None, now: float) -> bool:
    """Return whether the asset was materialized within the current second.

    SQLite stores the time of an evaluation in whole seconds, so an evaluation now would count as older than the
    materialization.

    Args:
        timestamp: The time of the last materialization, in seconds since 1970; None if there is none.
        now: The current time, in seconds since 1970.
    """
    return timestamp is not None and int(now) <= timestamp


def _is_still_valid(last_evaluation: _Evaluation | None, event: dg.EventLogRecord | None, passes: bool) -> bool:
    """Return whether the last evaluation belongs to the latest materialization and its result is still correct."""
    return (
        last_evaluation is not None
        and last_evaluation.passed == passes
        and (event is None or last_evaluation.belongs_to(event))
    )


def _format_age(window: timedelta) -> str:
    """Format a window for reading: `36 h`, `2 days`."""
    seconds = int(window.total_seconds())
    for unit, size in (("day", 86_400), ("h", 3600), ("min", 60)):
        # Show one day as `24 h`, so that `days` is always plural.
        if seconds % size == 0 and (unit != "day" or seconds >= 2 * size):
            return f"{seconds // size} {unit}" + ("s" if unit == "day" else "")
    return f"{seconds} s"
