"""The asset `datasets`, which writes the site of all datasets, and the sensor that updates it.

A run writes the site, because examining large datasets takes longer than a sensor may run. `dataprep site` writes the
same files.

Entry point: `build_site_definitions`.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.stores.files import digest_value

if TYPE_CHECKING:
    from dataprep_assets.site.build import SiteReport

DATASETS = dg.AssetKey(["datasets"])
SECONDS_BETWEEN_PAGES = 60
ADDRESS = "/site/index.html"
"""Address of the site below the address of Dagster's UI, where `dataprep ui` serves it."""
_ENDED_STATUSES = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def build_site_definitions(
    root: Path, load_definitions: Callable[[], dg.Definitions], open_datasets: Callable[[], Sequence[StoredDataset]]
) -> dg.Definitions:
    """Return the asset `datasets` and its sensor.

    Args:
        root: The folder of the project.
        load_definitions: Returns the definitions of the code location; called when the site is written, like
                `open_datasets`.
        open_datasets: Returns the datasets of the code location.
    """

    @dg.asset(
        key=DATASETS,
        group_name="overview",
        kinds={"html"},
        description="Pages with the state, history and contents of all datasets. `dataprep ui` serves them at "
        f"[{ADDRESS}]({ADDRESS}). Out-of-date artifacts and failed checks match `dataprep status`, except that only "
        "file sizes are compared. A sensor updates the pages when runs end, and once a day. Materialize the asset to "
        "update them now.",
    )
    def datasets(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        # Import the pages only here, because every run loads this module.
        from dataprep_assets.site.build import write_site

        broken = _find_broken_declarations(load_definitions())
        report = write_site(root, open_datasets(), context.instance, broken=broken, needs_folder=False)
        for name, reason in report.errors.items():
            context.log.error(f"{name}: its pages could not be made: {reason}")
        return dg.MaterializeResult(metadata=_build_metadata(report, broken_count=len(broken)))

    @dg.sensor(
        asset_selection=[DATASETS],
        minimum_interval_seconds=SECONDS_BETWEEN_PAGES,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Updates the pages of `datasets` when a run has ended or a dataset was declared.",
    )
    def datasets_sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        change = _digest_changes(load_definitions(), context.instance)
        if change == context.cursor:
            return dg.SkipReason("No run has ended since the pages were written.")
        context.update_cursor(change)
        return dg.RunRequest(run_key=change, asset_selection=[DATASETS])

    return dg.Definitions(assets=[datasets], sensors=[datasets_sensor])


def _build_metadata(report: "SiteReport", *, broken_count: int) -> dict[str, dg.MetadataValue]:
    """Return the counts over all datasets, and the address of the site."""
    counts = {
        "datasets": len(report.states),
        "cannot be loaded": broken_count,
        "to build": sum(state.to_build for state in report.states),
        "checks failed": sum(len(state.failed_checks) for state in report.states),
        "checks warned": sum(len(state.warned) for state in report.states),
        "pages not made": len(report.errors),
    }
    return {
        "site": dg.MetadataValue.md(f"[{ADDRESS}]({ADDRESS})"),
        "path": dg.MetadataValue.path(report.index),
        **{name: dg.MetadataValue.int(count) for name, count in counts.items()},
    }


def _find_broken_declarations(definitions: dg.Definitions) -> dict[str, str]:
    """Return the name of each declaration that cannot be loaded (`code_location`), with the reason."""
    specs = [spec for spec in definitions.resolve_all_asset_specs() if spec.key.path[1:] == ["cannot_be_loaded"]]
    return {
        spec.key.path[0]: (spec.description or "").partition("```")[2].rpartition("```")[0].strip() for spec in specs
    }


def _digest_changes(definitions: dg.Definitions, instance: dg.DagsterInstance) -> str:
    """Return a digest that changes daily, and when a run ends or a declaration, load error or freshness changes."""
    ended_runs = instance.get_run_records(
        dg.RunsFilter(statuses=_ENDED_STATUSES), limit=10, order_by="update_timestamp"
    )
    # Ignore runs that write the site, because each of them would otherwise cause another.
    other_runs = [run for run in ended_runs if run.dagster_run.asset_selection != {DATASETS}]
    specs = sorted(definitions.resolve_all_asset_specs(), key=lambda spec: spec.key)
    return digest_value(
        [
            [spec.key.to_user_string() for spec in specs],
            [[run.dagster_run.run_id, run.update_timestamp.isoformat()] for run in other_runs[:1]],
            [[key, state] for key, state in sorted(_read_freshness(specs, instance).items())],
            [[name, reason] for name, reason in sorted(_find_broken_declarations(definitions).items())],
            # Include the date, so that the site is written daily even if no run ends.
            f"{datetime.now(UTC):%Y-%m-%d}",
        ]
    )


def _read_freshness(specs: Sequence[dg.AssetSpec], instance: dg.DagsterInstance) -> dict[str, str]:
    keys = [spec.key for spec in specs if spec.freshness_policy is not None]
    records = instance.get_freshness_state_records(keys) if keys else {}
    return {key.to_user_string(): records[key].freshness_state.value if key in records else "UNKNOWN" for key in keys}
