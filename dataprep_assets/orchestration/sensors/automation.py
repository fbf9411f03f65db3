"""Turns `automation` in a dataset's YAML into Dagster's sensors, schedules, policies and checks.

Each of them is switched on by being declared; what is not declared does not exist.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.products import products
from dataprep_assets.engine.yaml.automation import Automation
from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.errors import ConfigError
from dataprep_assets.orchestration.keys import DATASET
from dataprep_assets.orchestration.runs.dataset_runs import in_progress
from dataprep_assets.orchestration.sensors.failure_sensor import failure_sensor
from dataprep_assets.orchestration.sensors.freshness import fresh_check, freshness_sensor
from dataprep_assets.orchestration.sensors.source_sensor import source_schedule, source_sensor


def check_crons(automation: Automation, yaml_path: Path) -> None:
    """Raise ConfigError, naming line and key, for a cron expression that Dagster does not take, or never comes due."""
    for key, cron in automation.crons.items():
        try:
            # made only for Dagster's own parser to judge it
            dg.ScheduleDefinition(name="tried", job_name="tried", cron_schedule=cron)
            # a schedule that never comes due is only noticed by the daemon, which logs a stack each minute
            dg.TimeWindowPartitionsDefinition(
                start=datetime(2000, 1, 1), fmt="%Y-%m-%d", cron_schedule=cron, timezone=automation.timezone
            ).get_first_partition_key()
        except Exception as error:  # what Dagster raises for a date that does not exist is not public
            (document, *_) = read_documents(yaml_path)
            line = document.line_of(["automation", key])
            raise ConfigError(
                f"{yaml_path}:{line}: automation.{key}: {cron!r} is not a cron expression that ever comes due; "
                'it has minute, hour, day, month and weekday, such as "0 3 * * 1"'
            ) from error


def automation_of(specs: Sequence[ArtifactSpec], job: dg.JobDefinition) -> dg.Definitions:
    """The sensors, schedules and checks that a dataset's declaration automates.

    Args:
        specs: All its artifacts.
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
        sensors.append(source_sensor(specs, automation, job))
    if automation.look_cron is not None:
        schedules.append(source_schedule(specs, automation, job))
    if automation.schedule is not None:
        schedules.append(_build_schedule(declaration.dataset, automation.schedule, automation.timezone, job))
    if automation.on_failure is not None:
        sensors.append(failure_sensor(declaration, automation.on_failure))
    if (window := automation.window) is not None:
        made = products(specs)
        checks += [fresh_check(spec, window) for spec in made]
        sensors.append(freshness_sensor(declaration.dataset, made, window))
    return dg.Definitions(sensors=sensors, schedules=schedules, asset_checks=checks)


def _build_schedule(dataset: str, cron: str, timezone: str, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """The schedule that builds a dataset, unless it is already being built."""

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
