"""The summary of a finished dataset: printed at the end of a run, and by `dataprep show`.

The lines for the trainer among them are the component's own (`Dataset.summary`).
"""

from collections.abc import Sequence

from dataprep_assets.graph.dataset import Dataset
from dataprep_assets.graph.small_cells import cells_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.recorded import Recorded, latest_evaluations

__all__ = ["summary"]

_FILES_SHOWN = 12


def summary(
    dataset: Dataset,
    recorded: Recorded | None,
    store: ArtifactStore,
    seconds: float | None = None,
) -> str:
    """Say what was made, which checks passed, and where the artifacts are.

    Raises MissingArtifactError if an artifact that the summary describes is missing.

    Args:
        dataset: The dataset.
        recorded: The results of its checks; None if there is no instance yet.
        store: Where its artifacts are.
        seconds: How long the run took; None outside of a run.
    """
    product = dataset.product(store)
    receipt = store.receipt(product)
    cells = cells_of(dataset.declaration)
    lines = ["", *map(cells.text, dataset.summary(store)), "", _checks(dataset, recorded)]
    lines += [
        f"files:  {store.location(product)}",
        *(f"          {name}" for name in _shown([record.path for record in (receipt.files if receipt else ())])),
    ]
    if seconds is not None:
        lines.append(f"time:   {seconds:.1f} s")
    return "\n".join(lines)


def _checks(dataset: Dataset, recorded: Recorded | None) -> str:
    if recorded is None:
        return "checks: no Dagster instance is here that has their results"
    evaluations = latest_evaluations(dataset.specs, recorded)
    others = sorted(
        f"{'/'.join(path)}: {name}"
        for (path, name), evaluation in evaluations.items()
        if evaluation is None or not evaluation.passed
    )
    return f"checks: {len(evaluations) - len(others)} of {len(evaluations)} passed" + "".join(
        f"\n  not passed: {name}" for name in others
    )


def _shown(names: Sequence[str]) -> Sequence[str]:
    if len(names) <= _FILES_SHOWN:
        return names
    return [*names[: _FILES_SHOWN - 1], f"… and {len(names) - _FILES_SHOWN + 1} more"]
