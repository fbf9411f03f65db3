"""Materializes a whole dataset in this process, in a few Dagster runs, and sums it up for a person.

The runs are those that a backfill from the UI would launch. Receipts make what is finished free.
"""

import sys
from collections.abc import Iterable

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.dataset import Step

_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def materialize(definitions: dg.Definitions, steps: Iterable[Step], instance: dg.DagsterInstance) -> bool:
    """Run the steps in order; False as soon as a run fails (its error is on stderr)."""
    job = definitions.resolve_implicit_global_asset_job_def()
    for step in steps:
        print(f"  {step.title} …", flush=True)
        outcome = job.execute_in_process(
            asset_selection=list(step.keys),
            tags=dict(step.tags),
            instance=instance,
            run_config=_QUIET,
            raise_on_error=False,
        )
        failed = [e for e in outcome.get_asset_check_evaluations() if not e.passed]
        if not outcome.success:
            print("    failed")
            for event in outcome.all_events:
                if event.is_failure and event.event_specific_data is not None:
                    error = getattr(event.event_specific_data, "error", None)
                    if error is not None:
                        cause = error.cause or error
                        print(f"    {event.step_key or 'run'}: {cause.message.strip()}", file=sys.stderr)
        for evaluation in failed:
            print(f"    check {evaluation.check_name}: {evaluation.description}")
        if not outcome.success:
            return False
    return True


def blocked_by(component: DatasetComponent, instance: dg.DagsterInstance) -> list[str]:
    """Names of the blocking checks of a dataset whose latest result is a failure, or that never ran."""
    definitions = component.build_defs(None)  # type: ignore[arg-type]  # no component of ours asks its context
    specs = [spec for checks in definitions.asset_checks or () for spec in checks.check_specs if spec.blocking]
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([spec.key for spec in specs])
    good = {k for k, record in found.items() if record.status == AssetCheckExecutionRecordStatus.SUCCEEDED}
    return [spec.key.to_user_string() for spec in specs if spec.key not in good]


def check_counts(dataset: str, definitions: dg.Definitions, instance: dg.DagsterInstance) -> tuple[int, int, list[str]]:
    """Checks of a dataset that passed, that there are, and the names of those that did not pass."""
    graph = definitions.resolve_asset_graph()
    keys = [k for k in graph.asset_check_keys if k.asset_key.path[0] == dataset]
    passed, others = 0, []
    for key in sorted(keys, key=str):
        records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        if records and records[0].status == AssetCheckExecutionRecordStatus.SUCCEEDED:
            passed += 1
        else:
            others.append(f"{key.asset_key.to_user_string()}: {key.name}")
    return passed, len(keys), others


def summary(
    component: DatasetComponent,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    store: ArtifactStore,
    seconds: float,
) -> str:
    """The table that ends a run: what was made, checks, where the product is."""
    declaration = component.declaration
    passed, total, others = check_counts(declaration.dataset, definitions, instance)
    product = declaration.artifact(*component.product)
    receipt = store.receipt(product)
    lines = ["", *component.summary(store), ""]
    lines += [f"checks: {passed} of {total} passed" + "".join(f"\n  not passed: {name}" for name in others)]
    lines += [
        f"files:  {store.location(product)}",
        *(f"          {name}" for name in _shown([record.path for record in (receipt.files if receipt else ())])),
        f"time:   {seconds:.1f} s",
        "see it: make ui, then open http://127.0.0.1:3000",
    ]
    return "\n".join(lines)


def _shown(names: list[str], most: int = 12) -> list[str]:
    return names if len(names) <= most else [*names[: most - 1], f"… and {len(names) - most + 1} more"]
