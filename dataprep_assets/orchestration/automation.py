"""From `automation` in a dataset's YAML to Dagster's sensors, schedules, policies and checks.

All of them are switched on where they are declared; nothing exists of what is not.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import dagster as dg

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.automation import Automation
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.orchestration.dataset_job import DATASET
from dataprep_assets.orchestration.dataset_runs import in_progress
from dataprep_assets.orchestration.failure_sensor import failure_sensor
from dataprep_assets.orchestration.freshness import fresh_check, freshness_sensor, products
from dataprep_assets.orchestration.source_sensor import source_schedule, source_sensor

__all__ = ["automated", "check_crons"]


def check_crons(automation: Automation, yaml_path: Path) -> None:
    """ConfigError, naming file and key, for a cron expression that Dagster does not take."""
    for key, cron in automation.crons.items():
        try:
            dg.ScheduleDefinition(name="tried", job_name="tried", cron_schedule=cron)
        except dg.DagsterInvalidDefinitionError as error:
            raise ConfigError(
                f"{yaml_path}: automation.{key}: {cron!r} is no cron expression that ever comes; it has minute, hour, "
                'day, month and weekday, such as "0 3 * * 1"'
            ) from error


def automated(definitions: dg.Definitions, specs: Sequence[ArtifactSpec], job: dg.JobDefinition) -> dg.Definitions:
    """The definitions of a dataset with what its declaration automates.

    Args:
        definitions: Its assets, checks and job.
        specs: All its artifacts.
        job: Its job, which is what everything here launches.
    """
    declaration = specs[0].declaration
    automation = declaration.automation
    if automation is None:
        return definitions
    sensors: list[dg.SensorDefinition] = []
    schedules: list[dg.ScheduleDefinition] = []
    if automation.interval is not None:
        sensors.append(source_sensor(specs, automation, job))
    if automation.look_cron is not None:
        schedules.append(source_schedule(specs, automation, job))
    if automation.schedule is not None:
        schedules.append(_build_schedule(declaration.dataset, automation.schedule, automation.timezone, job))
    if automation.on_failure is not None:
        sensors.append(failure_sensor(declaration, automation.on_failure))
    if automation.window is not None:
        definitions = _fresh(definitions, specs, automation.window)
        sensors.append(freshness_sensor(declaration.dataset, products(specs), automation.window))
    return dg.Definitions.merge(definitions, dg.Definitions(sensors=sensors, schedules=schedules))


def _fresh(definitions: dg.Definitions, specs: Sequence[ArtifactSpec], window: timedelta) -> dg.Definitions:
    """The definitions with a freshness policy on each product, and its check."""
    made = products(specs)
    paths = {spec.path for spec in made}
    policy = dg.FreshnessPolicy.time_window(fail_window=window)
    return dg.Definitions.merge(
        definitions.map_asset_specs(
            func=lambda spec: dg.apply_freshness_policy(spec, policy) if tuple(spec.key.path) in paths else spec
        ),
        dg.Definitions(asset_checks=[fresh_check(spec, window) for spec in made]),
    )


def _build_schedule(dataset: str, cron: str, timezone: str, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """The schedule that builds a dataset, unless it is being built."""

    @dg.schedule(
        name=f"{dataset}_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone=timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Builds {dataset}; what is current is kept.",
    )
    def build(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if busy := in_progress(context.instance, dataset):
            return dg.SkipReason(f"{busy}; what it leaves is built at the next time")
        return dg.RunRequest(tags={DATASET: dataset})

    return build
