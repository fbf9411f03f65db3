"""`automation.freshness`: the products of a dataset are to be made at least so often.

Dagster's own policy is shown on the asset, and evaluated by the daemon. The check `fresh` says the same among the other
checks, in orange: a sensor evaluates it, without a run, when it would say something else than before. A run that reuses
everything is a materialization all the same: it proved that the product is what it should be.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from dataprep_assets.graph.automation import Automation
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.orchestration.checks import check_evaluation, check_result
from dataprep_assets.orchestration.keys import asset_key

__all__ = ["FRESH", "fresh_check", "freshness_sensor", "kept_fresh", "policy_of"]

FRESH = "fresh"
"""The name of the check."""
_LONGEST_INTERVAL_SECONDS = 600
_SHORTEST_INTERVAL_SECONDS = 30
_LOOKS_A_WINDOW = 20


def policy_of(automation: Automation | None) -> dg.FreshnessPolicy | None:
    """Dagster's own policy of what is declared."""
    if automation is None or automation.window is None:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=automation.window)


def kept_fresh(made: float | None, now: float, window: timedelta) -> Finding:
    """Whether an asset is fresh: a warning where it is not.

    Args:
        made: When it was last materialized, in seconds since 1970; None for never.
        now: The present moment, as `made`.
        window: How old it may be.
    """
    if made is None:
        return Finding(passed=False, warning=True, summary=f"Never made; it is to be made every {_words(window)}.")
    when = f"{datetime.fromtimestamp(made, UTC):%Y-%m-%d %H:%M} UTC"
    passed = now - made < window.total_seconds()
    sentence = (
        f"Last made at {when}; stale after {_words(window)}."
        if passed
        else f"Last made at {when}, more than {_words(window)} ago: launch its job, or look why nothing did."
    )
    return Finding(passed=passed, warning=True, summary=sentence)


def fresh_check(spec: ArtifactSpec, window: timedelta) -> dg.AssetChecksDefinition:
    """The check of a product."""
    key = asset_key(spec)

    @dg.asset_check(
        name=FRESH, asset=key, description=f"It was made in the last {_words(window)}, or found to be current then."
    )
    def fresh(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        finding = kept_fresh(_last_made(context.instance, [key])[key], time.time(), window)
        return check_result(spec, FRESH, finding)

    return fresh


def freshness_sensor(dataset: str, specs: Sequence[ArtifactSpec], window: timedelta) -> dg.SensorDefinition:
    """The sensor that evaluates the checks of a dataset's products whenever they would say something else than before.

    Args:
        dataset: Its name.
        specs: Its products.
        window: How old they may be.
    """
    by_key = {asset_key(spec): spec for spec in specs}
    keys = list(by_key)
    interval = min(
        max(int(window.total_seconds() / _LOOKS_A_WINDOW), _SHORTEST_INTERVAL_SECONDS), _LONGEST_INTERVAL_SECONDS
    )

    @dg.sensor(
        name=f"{dataset}_freshness",
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Says so when a product of {dataset} is older than {_words(window)}, in its check `{FRESH}`.",
    )
    def freshness(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        made, told = _last_made(context.instance, keys), _last_told(context.instance, keys)
        findings = {key: kept_fresh(made[key], time.time(), window) for key in keys}
        anew = [key for key in keys if findings[key].passed != told.get(key)]
        events = [check_evaluation(by_key[key], FRESH, findings[key]) for key in anew]
        stale = [key.to_user_string() for key in keys if not findings[key].passed]
        sentence = f"{len(keys) - len(stale)} of {len(keys)} products are fresh" + "".join(
            f"; {s} is not" for s in stale
        )
        return dg.SensorResult(asset_events=events, skip_reason=sentence)

    return freshness


def _last_made(instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]) -> Mapping[dg.AssetKey, float | None]:
    """When each asset was last materialized, in seconds since 1970."""
    entries = [record.asset_entry for record in instance.get_asset_records(keys)]
    last = {entry.asset_key: entry.last_materialization_record for entry in entries}
    return {key: record.timestamp if (record := last.get(key)) is not None else None for key in keys}


def _last_told(instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]) -> Mapping[dg.AssetKey, bool]:
    """What each check said last; nothing for one that never said anything."""
    checks = [dg.AssetCheckKey(key, FRESH) for key in keys]
    found: dict[dg.AssetKey, bool] = {}
    for check, summary in instance.event_log_storage.get_asset_check_summary_records(checks).items():
        record = summary.last_completed_check_execution_record
        evaluation = record.event.asset_check_evaluation if record is not None and record.event is not None else None
        if evaluation is not None:
            found[check.asset_key] = evaluation.passed
    return found


def _words(window: timedelta) -> str:
    """`36 h`, `2 days`."""
    seconds = int(window.total_seconds())
    for unit, size in (("day", 86_400), ("h", 3600), ("min", 60)):
        if seconds % size == 0 and (unit != "day" or seconds >= 2 * size):
            return f"{seconds // size} {unit}" + ("s" if unit == "day" else "")
    return f"{seconds} s"
