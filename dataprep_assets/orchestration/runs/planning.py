"""Plans new datasets automatically, so that the buttons of the UI work on a dataset that was just declared.

The partitions of a dataset exist once the artifact that plans them (a manifest, a blend's plan) has been made: only
then does "Materialize all" know its shards. A light sensor makes these artifacts once for each declaration that has
never been planned, in one run for all that are new: a run costs its start, and those behind it in the queue wait. One
that fails is left to its owner, and holds up no other. A second sensor ends runs whose process was killed
(`end_lost_runs`). Entry point: `with_planning`.
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


def with_planning(definitions: dg.Definitions) -> dg.Definitions:
    """Definitions of datasets with the sensor that plans them, and the one that ends lost runs."""
    plans = dict(_plans(definitions))
    sensors = [_planner(plans), _end_lost] if plans else [_end_lost]
    return dg.Definitions.merge(definitions, dg.Definitions(sensors=sensors))


def _plans(definitions: dg.Definitions) -> Iterator[tuple[dg.AssetKey, tuple[str, str]]]:
    """Key of each asset that plans partitions → its dataset, and the digest of its declaration."""
    for asset in definitions.assets or ():
        if isinstance(asset, dg.AssetsDefinition):
            for spec in asset.specs:
                if PLANS in spec.metadata and spec.tags.get(SHOWN_AS) != "example":
                    yield spec.key, (str(spec.group_name), str(spec.metadata[PLANS]))


def _planner(plans: Mapping[dg.AssetKey, tuple[str, str]]) -> dg.SensorDefinition:
    @dg.sensor(
        name=PLANNER,
        asset_selection=dg.AssetSelection.assets(*plans),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Plans all new datasets in one run, which creates their partitions and builds nothing. If "
        "planning fails, launch the dataset's job or materialize the plan.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        asked = set((context.cursor or "").split())
        records = {record.asset_entry.asset_key: record for record in context.instance.get_asset_records([*plans])}
        due: dict[str, dg.AssetKey] = {}
        for key, (dataset, digest) in plans.items():
            entry = records[key].asset_entry if key in records else None
            event = entry.last_materialization if entry is not None else None
            made = event.asset_materialization if event is not None else None
            if made is not None and (of := made.metadata.get(DECLARATION)) is not None and of.value == digest:
                continue
            # include the latest event, so that a re-added declaration is planned again but a failed one is not
            since = entry.last_materialization_storage_id if entry is not None else None
            due[f"{dataset}:{digest}:{since or 0}"] = key
        new = sorted(due.keys() - asked)
        # what is due now and nothing older, so that it does not grow with every dataset that was ever planned
        context.update_cursor(" ".join(sorted(due)))
        if not new:
            return dg.SkipReason("planning was already requested for every declared dataset")
        datasets = {plans[due[one]][0] for one in new}
        return dg.RunRequest(
            # the same after a tick that ended before its cursor was kept: then Dagster launches no second run
            run_key=digest_value(new),
            asset_selection=[due[one] for one in new],
            tags={DATASET: datasets.pop()} if len(datasets) == 1 else {},
        )

    return sensor


@dg.sensor(
    name="end_lost_runs",
    minimum_interval_seconds=INTERVAL_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Ends runs whose process was lost, because they would block all other runs.",
)
def _end_lost(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    ended = end_lost_runs(context.instance)
    for run_id in ended:
        context.log.info(f"run {run_id[:8]} lost its process and was ended")
    return dg.SkipReason(
        f"{count_of(len(ended), 'lost run was', 'lost runs were')} ended" if ended else "no run was lost"
    )
