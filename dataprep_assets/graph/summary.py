"""The summary of a finished dataset: printed at the end of a run, and by `dataprep show`.

The lines for the trainer among them are the dataset's own (`Dataset.summary`).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.graph.card import DATA_CARD, CardFacts
from dataprep_assets.graph.card_contents import SplitCounts
from dataprep_assets.graph.dataset import Dataset
from dataprep_assets.graph.losses import LINES, LossTable, losses_of
from dataprep_assets.graph.privacy import OPEN, Privacy, privacy_of
from dataprep_assets.graph.standing import NotPassed, results
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt

_FILES_SHOWN = 12
_SHOW = "`dataprep show --private"


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
    privacy = privacy_of(dataset.declaration)
    lines = [*losses, "", _checks(dataset, store)]
    # its counts, and the lines for its trainer
    lines = (
        ["", f"summary: {_SHOW} {privacy.dataset}`", *lines]
        if privacy.closed
        else ["", *dataset.summary(store), "", *lines]
    )
    lines += [
        f"files:  {store.location(product)}",
        *(f"          {name}" for name in _shown([record.path for record in (receipt.files if receipt else ())])),
    ]
    if seconds is not None and not privacy.closed:
        lines.append(f"time:   {seconds:.1f} s")
    return "\n".join(lines)


def loss_table(dataset: Dataset, store: ArtifactStore) -> LossTable:
    """The losses of a dataset, with the counts that leave."""
    return LossTable(losses_of(dataset.specs, store), privacy_of(dataset.declaration))


def end_of_run(dataset: Dataset, store: ArtifactStore, before: Receipt | None) -> list[str]:
    """The lines at the end of a run: the losses, and what changed since the state with the data card `before`."""
    more = f"dataprep show {dataset.declaration.dataset}"
    return [*loss_table(dataset, store).lines(LINES, more), *_changed(dataset, store, before)]


def present_card(dataset: Dataset, store: ArtifactStore) -> Receipt | None:
    """The receipt of the data card, which tells of the last run that made all of the dataset; None if there is none.

    The card is the last artifact of a run. So a run that was killed leaves the card of the one before it, whatever else
    it has made.
    """
    for spec in dataset.specs:
        if spec.name == DATA_CARD:
            with suppress(IntegrityError):  # the run makes a damaged one again
                return store.receipt(spec.located(store))
    return None


def _changed(dataset: Dataset, store: ArtifactStore, before: Receipt | None) -> Iterator[str]:
    now, privacy = present_card(dataset, store), privacy_of(dataset.declaration)
    if before is None or now is None:
        return
    old, new = ({one.split: one for one in CardFacts.of(card).splits} for card in (before, now))
    if not old:  # a card from before cards had the counts of splits
        return
    lines = [line for name in {**old, **new} for line in _split_change(name, old.get(name), new.get(name), privacy)]
    since = "since the last complete run"
    if not privacy.closed:
        since = f"since the complete run of {before.measured.get('created', 'an unknown time')}"
    yield f"changed {since}:" if lines else f"documents and tokens: as before, {since}"
    yield from lines


def _split_change(name: str, old: SplitCounts | None, new: SplitCounts | None, privacy: Privacy) -> Iterator[str]:
    """A line if the counts of a split differ from before."""
    old, new = old or SplitCounts(split=name), new or SplitCounts(split=name)
    nouns = ["documents", "tokens"] if {old.documents, new.documents} != {None} else ["rows", "tokens"]
    pairs = {noun: (getattr(old, noun) or 0, getattr(new, noun) or 0) for noun in nouns}
    pairs = {noun: (a, b) for noun, (a, b) in pairs.items() if a != b}
    if pairs and privacy.closed:
        yield f"  {name}: other {' and '.join(pairs)}"
    elif pairs:
        yield f"  {name}: " + ", ".join(f"{a:,} → {b:,} {noun}" for noun, (a, b) in pairs.items())


def _checks(dataset: Dataset, store: ArtifactStore) -> str:
    told = {(spec.path, name): why for spec in dataset.specs for name, why in results(spec, store).items()}
    is_closed = dataset.declaration.sensitive
    others = sorted(
        f"\n  {_words(why)}: {'/'.join(path)}: {name}" + (f": {why.sentence}" if why.sentence and not is_closed else "")
        for (path, name), why in told.items()
        if why is not None
    )
    if is_closed:
        return ("checks: some have not passed" if others else "checks: all passed") + "".join(others)
    return f"checks: {len(told) - len(others)} of {len(told)} passed" + "".join(others)


def private_lines(dataset: Dataset, store: ArtifactStore) -> Iterator[str]:
    """What `summary` leaves out for a sensitive dataset: its own lines, its losses, and what its checks found."""
    with suppress(DataprepError):  # not finished
        yield from dataset.summary(store)
    yield from LossTable(losses_of(dataset.specs, store), OPEN).lines()
    for spec in dataset.specs:
        for name, why in results(spec, store).items():
            if why is not None and why.sentence:
                yield f"{'/'.join(spec.path)}: {name}: {why.sentence}"
    yield from dataset.standing(store)


def _words(why: NotPassed) -> str:
    if not why.sentence:
        return "not examined yet"
    return "failed, which blocks" if why.blocks else "not passed, which is a warning"


def _shown(names: Sequence[str]) -> Sequence[str]:
    if len(names) <= _FILES_SHOWN:
        return names
    return [*names[: _FILES_SHOWN - 1], f"… and {len(names) - _FILES_SHOWN + 1} more"]
