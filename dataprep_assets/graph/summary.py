"""The summary of a finished dataset: printed at the end of a run, and by `dataprep show`.

The lines for the trainer among them are the dataset's own (`Dataset.summary`).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.card_contents import SplitCounts
from dataprep_assets.graph.dataset import Counted, Dataset
from dataprep_assets.graph.losses import LINES, LossTable, losses_of
from dataprep_assets.graph.small_cells import SmallCells, cells_of
from dataprep_assets.graph.standing import NotPassed, results
from dataprep_assets.integrity.artifacts import ArtifactStore

_FILES_SHOWN = 12


def summary(dataset: Dataset, store: ArtifactStore, *, losses: Sequence[str], seconds: float | None = None) -> str:
    """Return the text that describes what was built, its losses, its checks and where the artifacts are.

    Raises MissingArtifactError if an artifact that the summary describes is missing.

    Args:
        dataset: The dataset.
        store: Where its artifacts are.
        losses: The lines on its losses, and on what a run changed.
        seconds: How long the run took; None outside of a run.
    """
    product = dataset.product(store)
    receipt = store.receipt(product)
    cells = cells_of(dataset.declaration)
    lines = ["", *map(cells.text, dataset.summary(store)), "", *losses, "", _checks(dataset, store)]
    lines += [
        f"files:  {store.location(product)}",
        *(f"          {name}" for name in _shown([record.path for record in (receipt.files if receipt else ())])),
    ]
    if seconds is not None:
        lines.append(f"time:   {seconds:.1f} s")
    return "\n".join(lines)


def loss_table(dataset: Dataset, store: ArtifactStore) -> LossTable:
    """The losses of a dataset, with the counts that may be shown."""
    return LossTable(losses_of(dataset.specs, store), cells_of(dataset.declaration))


def end_of_run(dataset: Dataset, store: ArtifactStore, before: Counted | None) -> list[str]:
    """The lines at the end of a run: the losses, and what changed since the state with the counts `before`."""
    more = f"dataprep show {dataset.declaration.dataset}"
    return [*loss_table(dataset, store).lines(LINES, more), *_changed(dataset, store, before)]


def present_counts(dataset: Dataset, store: ArtifactStore) -> Counted | None:
    """The counts of the last run that made all of the dataset; None if there are none."""
    with suppress(DataprepError):  # the run makes a damaged artifact again
        return dataset.counted(store)
    return None


def _changed(dataset: Dataset, store: ArtifactStore, before: Counted | None) -> Iterator[str]:
    now, cells = present_counts(dataset, store), cells_of(dataset.declaration)
    if before is None or now is None:
        return
    old, new = ({one.split: one for one in counted.splits} for counted in (before, now))
    if not old:  # a card from before cards had the counts of splits
        return
    lines = [line for name in {**old, **new} for line in _split_change(name, old.get(name), new.get(name), cells)]
    since = f"since the complete run of {before.receipt.measured.get('created', 'an unknown time')}"
    yield f"changed {since}:" if lines else f"documents and tokens: as before, {since}"
    yield from lines


def _split_change(name: str, old: SplitCounts | None, new: SplitCounts | None, cells: SmallCells) -> Iterator[str]:
    """A line if the counts of a split are other than they were."""
    old, new = old or SplitCounts(split=name), new or SplitCounts(split=name)
    nouns = ["documents", "tokens"] if {old.documents, new.documents} != {None} else ["rows", "tokens"]
    pairs = {noun: (getattr(old, noun) or 0, getattr(new, noun) or 0) for noun in nouns}
    pairs = {noun: (a, b) for noun, (a, b) in pairs.items() if a != b}
    # the difference is a count, too, and the tokens beside a small one tell how large it is
    if any(map(cells.hides, (number for a, b in pairs.values() for number in (a, b, abs(b - a))))):
        yield f"  {name}: other {' and '.join(pairs)}"
    elif pairs:
        yield f"  {name}: " + ", ".join(f"{cells.count(a)} → {cells.count(b)} {noun}" for noun, (a, b) in pairs.items())


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
