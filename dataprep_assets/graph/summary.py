"""The summary of a finished dataset: printed at the end of a run, and by `dataprep show`.

The lines for the trainer among them are the component's own (`Dataset.summary`).
"""

from collections.abc import Sequence

from dataprep_assets.graph.dataset import Dataset
from dataprep_assets.graph.small_cells import cells_of
from dataprep_assets.graph.standing import NotPassed, results
from dataprep_assets.integrity.artifacts import ArtifactStore

_FILES_SHOWN = 12


def summary(dataset: Dataset, store: ArtifactStore, seconds: float | None = None) -> str:
    """Say what was made, which checks passed, and where the artifacts are.

    Raises MissingArtifactError if an artifact that the summary describes is missing.

    Args:
        dataset: The dataset.
        store: Where its artifacts are.
        seconds: How long the run took; None outside of a run.
    """
    product = dataset.product(store)
    receipt = store.receipt(product)
    cells = cells_of(dataset.declaration)
    lines = ["", *map(cells.text, dataset.summary(store)), "", _checks(dataset, store)]
    lines += [
        f"files:  {store.location(product)}",
        *(f"          {name}" for name in _shown([record.path for record in (receipt.files if receipt else ())])),
    ]
    if seconds is not None:
        lines.append(f"time:   {seconds:.1f} s")
    return "\n".join(lines)


def _checks(dataset: Dataset, store: ArtifactStore) -> str:
    told = {(spec.path, name): why for spec in dataset.specs for name, why in results(spec, store).items()}
    cells = cells_of(dataset.declaration)
    others = sorted(
        f"\n  {_words(why)}: {cells.text('/'.join(path) + f': {name}' + (': ' + why.sentence if why.sentence else ''))}"
        for (path, name), why in told.items()
        if why is not None
    )
    return f"checks: {len(told) - len(others)} of {len(told)} passed" + "".join(others)


def _words(why: NotPassed) -> str:
    if not why.sentence:
        return "not examined yet"
    return "failed, which blocks" if why.blocks else "not passed, which is a warning"


def _shown(names: Sequence[str]) -> Sequence[str]:
    if len(names) <= _FILES_SHOWN:
        return names
    return [*names[: _FILES_SHOWN - 1], f"… and {len(names) - _FILES_SHOWN + 1} more"]
