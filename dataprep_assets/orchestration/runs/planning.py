"""Automatic planning of new datasets, so that the UI's buttons work on a dataset that was just declared.

The partitions of a dataset exist only after the artifact that plans them (a manifest or a blend's plan) was built. Only
then does "Materialize all" know its shards. A sensor therefore builds these artifacts once per declaration that was
never planned. It uses one run for all new declarations, because each run has a start-up cost and delays the runs queued
behind it.

Failed planning is not retried and does not block other datasets. A second sensor ends runs whose process was killed
(`end_lost_runs`).

Entry point: `add_planning`.
"""

from collections.abc import Iterator, Mapping

import dagster as dg

from dataprep_assets.errors import count_of
from dataprep_assets.orchestration.partitions import DATASET
from dataprep_assets.orchestration.runs.runs import DECLARATION, PLANS, end_lost_runs
from dataprep_assets.project import SHOWN_AS
from dataprep_assets.stores.files import digest_value

INTERVAL_SECONDS = 30
PLANNER = "plan_new_datasets"
"""Name of the sensor that plans new datasets; Dagster tags its runs with it."""


def add_planning(definitions: dg.Definitions) -> dg.Definitions:
    """Add the sensor that plans datasets and the sensor that ends lost runs to the definitions."""
    plans = dict(_find_plans(definitions))
    sensors = [_build_planner(plans), _end_lost_runs_sensor] if plans else [_end_lost_runs_sensor]
    return dg.Definitions.merge(definitions, dg.Definitions(sensors=sensors))


def _find_plans(definitions: dg.Definitions) -> Iterator[tuple[dg.AssetKey, tuple[str, str]]]:
    """Yield the key of each asset that plans partitions, with the dataset and the digest of its declaration."""
    for asset in definitions.assets or ():
        if isinstance(asset, dg.AssetsDefinition):
            for spec in asset.specs:
                if PLANS in spec.metadata and spec.tags.get(SHOWN_AS) != "example":
                    yield spec.key, (str(spec.group_name), str(spec.metadata[PLANS]))


def _build_planner(plans: Mapping[dg.AssetKey, tuple[str, str]]) -> dg.SensorDefinition:
    @dg.sensor(
        name=PLANNER,
        asset_selection=dg.AssetSelection.assets(*plans),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Plans all new datasets in one run, which creates their partitions and builds nothing. If "
        "planning fails, launch the dataset's job or materialize the plan.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        requested = set((context.cursor or "").split())
        records = {record.asset_entry.asset_key: record for record in context.instance.get_asset_records([*plans])}
        due_keys: dict[str, dg.AssetKey] = {}
        for key, (dataset, digest) in plans.items():
            entry = records[key].asset_entry if key in records else None
            event = entry.last_materialization if entry is not None else None
            materialization = event.asset_materialization if event is not None else None
            if (
                materialization is not None
                and (digest_entry := materialization.metadata.get(DECLARATION)) is not None
                and digest_entry.value == digest
            ):
                continue
            # Include the latest event's id, so that a declaration is planned again when it returns to an earlier state,
            # but a failed plan is not retried.
            last_id = entry.last_materialization_storage_id if entry is not None else None
            due_keys[f"{dataset}:{digest}:{last_id or 0}"] = key
        new = sorted(due_keys.keys() - requested)
        # Store only plans that are due now, so that the cursor does not grow with every planned dataset.
        context.update_cursor(" ".join(sorted(due_keys)))
        if not new:
            return dg.SkipReason("planning was already requested for every declared dataset")
        datasets = {plans[due_keys[name]][0] for name in new}
        return dg.RunRequest(
            # Derive the key from the due plans. If a tick ends before its cursor is stored, the key stays the same, and
            # Dagster launches no second run.
            run_key=digest_value(new),
            asset_selection=[due_keys[name] for name in new],
            tags={DATASET: datasets.pop()} if len(datasets) == 1 else {},
        )

    return sensor


@dg.sensor(
    name="end_lost_runs",
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs that lost their process as failed, because they would block all other runs.",
)
def _end_lost_runs_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    run_ids = end_lost_runs(context.instance)
    for run_id in run_ids:
        context.log.info(f"run {run_id[:8]} lost its process and was marked as failed")
    return dg.SkipReason(
        f"{count_of(len(run_ids), 'lost run was', 'lost runs were')} marked as failed" if run_ids else "no run was lost"
    )
