"""The summary of a finished dataset: printed at the end of a run, and by `dataprep show`.

The dataset itself provides the lines about the build and for trainers (`Dataset.summary`, `Dataset.trainer_lines`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from textwrap import wrap
from typing import Any

from dataprep_assets.engine.artifact.dataset import Dataset, DatasetCounts
from dataprep_assets.engine.artifact.losses import LINES, WIDTH, LossTable, losses_of
from dataprep_assets.engine.card.contents import SplitCounts
from dataprep_assets.engine.checks.results import NotPassed, results
from dataprep_assets.engine.privacy import OPEN, Privacy, privacy_of
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore

_FILES_SHOWN = 12
OUTCOMES = {
    "passed": "passed",
    "warned": "warning, not passed",
    "failed": "failed, blocking",
    "not_run": "not run yet",
}
"""Outcomes of a check, as text."""
_URGENCY = ("failed", "not_run", "warned")
_MOST_LINES = 30
"""Maximum number of lines at the end of a run."""
_INDENTED: dict[str, Any] = {
    "initial_indent": "  ",
    "subsequent_indent": "  ",
    "break_long_words": False,
    "break_on_hyphens": False,
}


def summary(dataset: Dataset, store: ArtifactStore, *, losses: Sequence[str], seconds: float | None = None) -> str:
    """Return the text that describes what was built, its losses, its checks, and how trainers read it.

    Raises MissingArtifactError if an artifact that the summary describes is missing.

    Args:
        dataset: The dataset.
        store: Where its artifacts are stored.
        losses: The lines about its losses and about the changes of a run.
        seconds: Duration of the run; None outside of a run, which prints the summary in full.
    """
    product, name = dataset.product(store), dataset.declaration.dataset
    receipt = store.receipt(product)
    privacy = privacy_of(dataset.declaration)
    summary_lines, trainers = [f"summary: `dataprep show --private {privacy.dataset}`"], list[str]()
    if not privacy.closed:
        summary_lines, trainers = dataset.summary(store), list(dataset.trainer_lines(store))
    names = _shorten_names([record.path for record in (receipt.files if receipt else ())])
    took = "" if seconds is None or privacy.closed else f"built in {seconds:,.1f} s: "
    sections: list[list[str]] = [
        [*summary_lines, f"{took}{store.location(product)}", *wrap(", ".join(names), WIDTH, **_INDENTED)],
        [*losses],
        [*_checks(dataset, store)],
        ["for the trainer:", *(f"  {line}" for line in trainers)] if trainers else [],
    ]
    if seconds is not None:
        sections = shorten_sections(sections, f"dataprep show {name}")
    return "\n".join(chain.from_iterable(["", *lines] for lines in sections if lines))


def shorten_sections(sections: Sequence[Sequence[str]], more: str) -> list[list[str]]:
    """Return the sections with at most `_MOST_LINES` in total; the longest are shortened, and `more` shows the rest."""
    sizes = [len(lines) for lines in sections]
    while sum(sizes) + len(sizes) > _MOST_LINES:
        sizes[sizes.index(max(sizes))] -= 1
    return [
        [*lines] if size == len(lines) else [*lines[: size - 1], f"  and {len(lines) - size + 1} more: {more}"]
        for lines, size in zip(sections, sizes, strict=True)
    ]


def up_to_date(dataset: Dataset, store: ArtifactStore) -> Iterator[str]:
    """Yield the lines of a run with nothing to do: a summary, and a line per check that did not pass."""
    name = dataset.declaration.dataset
    passed, *check_lines = _checks(dataset, store)
    yield f"{name}: everything is up to date, nothing to do; {passed}; {loss_table(dataset, store).headline}"
    yield from shorten_sections([check_lines], f"dataprep show {name}")[0]
    yield from dataset.standing_lines(store)


def loss_table(dataset: Dataset, store: ArtifactStore) -> LossTable:
    """Return the losses of a dataset, with counts in their public form."""
    return LossTable(losses_of(dataset.specs, store), privacy_of(dataset.declaration))


def end_of_run(dataset: Dataset, store: ArtifactStore, before: DatasetCounts | None) -> list[str]:
    """Return the lines at the end of a run: the losses, and the changes since the state with the counts `before`."""
    return [*_losses(dataset, loss_table(dataset, store)), *_describe_changes(dataset, store, before)]


def end_of_failed_run(dataset: Dataset, store: ArtifactStore) -> list[str]:
    """Return the lines at the end of a failed run: the losses of finished artifacts, if any."""
    table = loss_table(dataset, store)
    return ["so far:", *_losses(dataset, table)] if table.losses else []


def _losses(dataset: Dataset, table: LossTable) -> Iterator[str]:
    return table.lines(LINES, f"dataprep show {dataset.declaration.dataset}")


def present_counts(dataset: Dataset, store: ArtifactStore) -> DatasetCounts | None:
    """Return the counts of the last complete run; None if there are none."""
    with suppress(DataprepError):  # a damaged artifact is not an error here, because the run rebuilds it
        return dataset.last_counts(store)
    return None


def _describe_changes(dataset: Dataset, store: ArtifactStore, before: DatasetCounts | None) -> Iterator[str]:
    now, privacy = present_counts(dataset, store), privacy_of(dataset.declaration)
    if before is None or now is None:
        return
    old, new = ({split.split: split for split in counts.splits} for counts in (before, now))
    lines = [line for name in {**old, **new} for line in _split_change(name, old.get(name), new.get(name), privacy)]
    since = "since the last complete run"
    if not privacy.closed:
        since = f"since the complete run of {before.receipt.measured.get('created', 'an unknown time')}"
    yield f"changed {since}:" if lines else f"documents and tokens: unchanged {since}"
    yield from lines


def _split_change(name: str, old: SplitCounts | None, new: SplitCounts | None, privacy: Privacy) -> Iterator[str]:
    """Yield a line if the counts of a split changed."""
    old, new = old or SplitCounts(split=name), new or SplitCounts(split=name)
    nouns = ["documents", "tokens"] if {old.documents, new.documents} != {None} else ["rows", "tokens"]
    pairs = {noun: (getattr(old, noun) or 0, getattr(new, noun) or 0) for noun in nouns}
    pairs = {noun: (a, b) for noun, (a, b) in pairs.items() if a != b}
    if pairs and privacy.closed:
        yield f"  {name}: changed {' and '.join(pairs)}"
    elif pairs:
        yield f"  {name}: " + ", ".join(f"{a:,} → {b:,} {noun}" for noun, (a, b) in pairs.items())


def checks(dataset: Dataset, store: ArtifactStore) -> list[dict[str, str]]:
    """Return each check's artifact, name, `outcome` (a key of `OUTCOMES`) and `sentence` (empty if it passed)."""
    is_closed = dataset.declaration.sensitive
    return [
        {
            "artifact": "/".join(spec.path[1:]),
            "check": name,
            "outcome": _outcome(why),
            "sentence": "" if why is None or is_closed else why.sentence,
        }
        for spec in dataset.specs
        for name, why in results(spec, store).items()
    ]


def _outcome(why: NotPassed | None) -> str:
    if why is None:
        return "passed"
    if not why.sentence:
        return "not_run"
    return "failed" if why.blocks else "warned"


def _checks(dataset: Dataset, store: ArtifactStore) -> Iterator[str]:
    """Yield the number of passed checks, then a line per check that did not pass, blocking ones first."""
    all_checks = checks(dataset, store)
    failed_checks = [one for one in all_checks if one["outcome"] != "passed"]
    failed_checks.sort(key=lambda one: (_URGENCY.index(one["outcome"]), one["artifact"], one["check"]))
    if dataset.declaration.sensitive:
        yield "checks: some have not passed" if failed_checks else "checks: all passed"
    else:
        yield f"checks: {len(all_checks) - len(failed_checks)} of {len(all_checks)} passed"
    for one in failed_checks:
        where = f"{dataset.declaration.dataset}/{one['artifact']}: {one['check']}"
        sentence = f": {one['sentence']}" if one["sentence"] else ""
        yield f"  {OUTCOMES[one['outcome']]}: {where}{sentence}"


def count_checks(dataset: Dataset, store: ArtifactStore) -> str:
    """Return a line with the number of checks per outcome, for a dataset that is not finished."""
    outcome_counts = Counter(check["outcome"] for check in checks(dataset, store))
    if dataset.declaration.sensitive:
        return "checks: " + ", ".join(f"some {name.replace('_', ' ')}" for name in OUTCOMES if outcome_counts[name])
    return "checks: " + ", ".join(
        f"{outcome_counts[name]:,} {name.replace('_', ' ')}" for name in OUTCOMES if outcome_counts[name]
    )


def private_lines(dataset: Dataset, store: ArtifactStore) -> Iterator[str]:
    """Yield the details that `summary` omits for a sensitive dataset: its own lines, losses and check findings."""
    with suppress(DataprepError):  # an unfinished dataset has no summary
        yield from dataset.summary(store)
        yield from dataset.trainer_lines(store)
    yield from LossTable(losses_of(dataset.specs, store), OPEN).lines()
    for spec in dataset.specs:
        for name, why in results(spec, store).items():
            if why is not None and why.sentence:
                yield f"{'/'.join(spec.path)}: {name}: {why.sentence}"
    yield from dataset.standing_lines(store)


def _shorten_names(names: Sequence[str]) -> Sequence[str]:
    if len(names) <= _FILES_SHOWN:
        return names
    return [*names[: _FILES_SHOWN - 1], f"… and {len(names) - _FILES_SHOWN + 1} more"]
