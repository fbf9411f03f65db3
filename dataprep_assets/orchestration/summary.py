"""The summary of a finished dataset: printed at the end of a run, and by `dataprep show`.

The lines for the trainer among them are the component's own (`DatasetComponent.summary`).
"""

from collections.abc import Sequence

import dagster as dg

from dataprep_assets.graph.small_cells import cells_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.runs import latest_evaluations

__all__ = ["summary"]

_FILES_SHOWN = 12


def summary(
    component: DatasetComponent,
    instance: dg.DagsterInstance | None,
    store: ArtifactStore,
    seconds: float | None = None,
) -> str:
    """Say what was made, which checks passed, and where the artifacts are.

    Raises MissingArtifactError if an artifact that the summary describes is missing.

    Args:
        component: The dataset.
        instance: Where its checks were recorded; None if there is no instance yet.
        store: Where its artifacts are.
        seconds: How long the run took; None outside of a run.
    """
    product = component.product(store)
    receipt = store.receipt(product)
    cells = cells_of(component.declaration)
    lines = ["", *map(cells.text, component.summary(store)), "", _checks(component, instance)]
    lines += [
        f"files:  {store.location(product)}",
        *(f"          {name}" for name in _shown([record.path for record in (receipt.files if receipt else ())])),
    ]
    if seconds is not None:
        lines.append(f"time:   {seconds:.1f} s")
    return "\n".join(lines)


def _checks(component: DatasetComponent, instance: dg.DagsterInstance | None) -> str:
    if instance is None:
        return "checks: no Dagster instance is here that has their results"
    evaluations = latest_evaluations(component.specs, instance)
    others = sorted(
        f"{key.asset_key.to_user_string()}: {key.name}"
        for key, evaluation in evaluations.items()
        if evaluation is None or not evaluation.passed
    )
    return f"checks: {len(evaluations) - len(others)} of {len(evaluations)} passed" + "".join(
        f"\n  not passed: {name}" for name in others
    )


def _shown(names: Sequence[str]) -> Sequence[str]:
    if len(names) <= _FILES_SHOWN:
        return names
    return [*names[: _FILES_SHOWN - 1], f"… and {len(names) - _FILES_SHOWN + 1} more"]
