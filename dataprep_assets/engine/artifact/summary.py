"""The summary of a finished dataset: printed at the end of a run, and by `dataprep show`.

The dataset itself provides the lines about the build and for trainers (`Dataset.summary`, `Dataset.describe_trainers`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from dataprep_assets.engine.artifact.dataset import Dataset, DatasetCounts
from dataprep_assets.engine.artifact.losses import LINES, LossTable, find_losses
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.contents import PUBLISHED, SplitCounts
from dataprep_assets.engine.checks.check import NO_RETRACTED
from dataprep_assets.engine.checks.results import UnpassedCheck, read_results
from dataprep_assets.engine.privacy import OPEN, Privacy, load_privacy
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.screen import LAYOUT_COLUMNS, Section, shorten_sections, wrap_line
from dataprep_assets.table import format_time

TRAINERS = "for the trainer:"
"""Heading of the lines with trainer settings."""
_FILES_SHOWN = 12
_CHANGES_SHOWN = 6
"""Maximum number of splits with changed counts."""
OUTCOMES = {
    "passed": "passed",
    "warned": "warning, not passed",
    "failed": "failed, blocking",
    "not_run": "not run yet",
}
"""Outcomes of a check, as text."""
_URGENCY = ("failed", "not_run", "warned")


def build_sections(
    dataset: Dataset,
    store: ArtifactStore,
    *,
    losses: Section,
    seconds: float | None = None,
    width: int | None = None,
) -> list[Section]:
    """Return the sections of a summary: built artifacts, losses, checks, and how trainers read the dataset.

    Raises MissingArtifactError if an artifact that they describe is missing.

    Args:
        dataset: The dataset.
        store: Where its artifacts are stored.
        losses: The lines about its losses and about the changes in a run.
        seconds: Duration of the run; None outside of a run.
        width: Maximum width of the line with the file names, in columns; None for no limit.
    """
    product = dataset.product(store)
    receipt = store.receipt(product)
    privacy = load_privacy(dataset.declaration)
    summary_lines, trainers = [f"summary: `dataprep show --private {privacy.dataset}`"], list[str]()
    totals = list[str]()
    if not privacy.closed:
        totals, trainers = list(dataset.describe_totals(store)), list(dataset.describe_trainers(store))
        summary_lines = [line for line in dataset.summary(store) if line not in totals]
    took = "" if seconds is None or privacy.closed else f"built in {seconds:,.1f} s: "
    end = [f"not built yet: {store.location(product)}"]
    if receipt is not None:
        names = _shorten_names([record.path for record in receipt.files], width)
        end = [f"{took}{store.location(product)}", f"  {names}"]
    if dataset.declaration.publish is not None:
        publication = store.receipt(dataset.declaration.artifact(PUBLISHED))
        if publication is not None:
            end.append(f"published: {publication.facts['address']}, revision {publication.facts['tag']}")
    return [
        Section(lines=summary_lines, end=[*totals, *end]),
        losses,
        Section(lines=list(_describe_checks(dataset, store))),
        Section(lines=[TRAINERS, *(f"  {line}" for line in trainers)] if trainers else []),
    ]


def format_summary(dataset: Dataset, store: ArtifactStore, width: int | None) -> str:
    """Return the sections of `build_sections` as text, in full, for `width` columns."""
    width = width or LAYOUT_COLUMNS
    losses = Section(lines=list(build_loss_table(dataset, store).lines(width=width)))
    sections = [section.all_lines for section in build_sections(dataset, store, losses=losses)]
    sections[0][-1:] = wrap_line(sections[0][-1], width)
    return "\n".join(chain.from_iterable(["", *lines] for lines in sections if lines))


def describe_up_to_date(dataset: Dataset, store: ArtifactStore, width: int | None) -> Iterator[str]:
    """Yield the lines for a run with nothing to do: a summary, and the checks that did not pass, in `width` columns."""
    name = dataset.declaration.dataset
    passed, *check_lines = _describe_checks(dataset, store)
    yield f"{name}: everything is up to date, nothing to do; {passed}; {build_loss_table(dataset, store).headline}"
    yield from shorten_sections([Section(lines=check_lines)], f"dataprep show {name}", width=width)[0]
    yield from dataset.describe_state(store)


def build_loss_table(
    dataset: Dataset, store: ArtifactStore, partitions: Mapping[ArtifactSpec, Sequence[str | None]] | None = None
) -> LossTable:
    """Return the losses of a dataset, or of some of its `partitions`, with counts in their public form."""
    return LossTable(find_losses(dataset.specs, store, partitions), load_privacy(dataset.declaration))


def describe_unread_files(dataset: Dataset, store: ArtifactStore) -> Iterator[str]:
    """Yield lines about source files that a dataset does not read at all; nothing if it reads all files."""
    losses = [loss for loss in find_losses(dataset.specs, store) if loss.unit == "file" and loss.count]
    if losses:
        yield from LossTable(losses, load_privacy(dataset.declaration)).lines()


def describe_end(dataset: Dataset, store: ArtifactStore, previous_counts: DatasetCounts | None, width: int) -> Section:
    """Return the section about the losses of a finished run, for `width` columns.

    The section ends with removed documents, and with the changes since `previous_counts`.
    """
    losses = build_loss_table(dataset, store)
    return Section(
        lines=_describe_losses(dataset, losses, width),
        # Put these lines in `end`, which is never shortened, because the user cannot see them later: `dataprep show`
        # does not print them.
        end=[*_describe_removal(dataset, store, losses), *_describe_changes(dataset, store, previous_counts)],
    )


def describe_failed_end(
    dataset: Dataset, store: ArtifactStore, partitions: Mapping[ArtifactSpec, Sequence[str | None]], width: int
) -> list[str]:
    """Return the lines about the losses of `partitions`, which are current after a failed run."""
    table = build_loss_table(dataset, store, partitions)
    return _describe_losses(dataset, table, width) if table.losses else []


def _describe_losses(dataset: Dataset, table: LossTable, width: int) -> list[str]:
    return list(table.lines(LINES, f"dataprep show {dataset.declaration.dataset}", width))


def _describe_removal(dataset: Dataset, store: ArtifactStore, losses: LossTable) -> Iterator[str]:
    """Yield a line with the verdict of the checks that search for removed documents, if any were removed."""
    retracted_losses = [loss for loss in losses.losses if loss.reason == RETRACTED]
    verdicts = [check["outcome"] for check in list_check_outcomes(dataset, store) if check["check"] == NO_RETRACTED]
    if not retracted_losses or not verdicts:
        return
    amount = "retracted documents"
    if not dataset.declaration.sensitive:
        amount = count_of(sum(loss.count for loss in retracted_losses), f"retracted {retracted_losses[0].unit}")
    passed_count = verdicts.count("passed")
    verdict = "passed for" if passed_count == len(verdicts) else f"did not pass for {len(verdicts) - passed_count:,} of"
    yield f"removed: {amount}; the check {NO_RETRACTED} {verdict} {count_of(len(verdicts), 'artifact')}"


def read_current_counts(dataset: Dataset, store: ArtifactStore) -> DatasetCounts | None:
    """Return the counts of the last complete run; None if there was no complete run."""
    with suppress(DataprepError):  # a damaged artifact is no error here, because the run rebuilds it
        return dataset.read_last_counts(store)
    return None


def _describe_changes(dataset: Dataset, store: ArtifactStore, previous_counts: DatasetCounts | None) -> Iterator[str]:
    now, privacy = read_current_counts(dataset, store), load_privacy(dataset.declaration)
    if previous_counts is None or now is None:
        return
    old, new = ({split.split: split for split in counts.splits} for counts in (previous_counts, now))
    noun = f"{dataset.document_noun}s"
    lines = [
        line
        for name in {**old, **new}
        for line in _describe_split_change(name, old.get(name), new.get(name), privacy, noun)
    ]
    since = "since the last complete run"
    if not privacy.closed:
        time_text = previous_counts.receipt.measured.get("created")
        since = f"since the complete run of {format_time(time_text) if time_text else 'an unknown time'}"
    yield f"changed {since}:" if lines else f"numbers of {noun} and tokens: unchanged {since}"
    yield from lines[:_CHANGES_SHOWN]
    if len(lines) > _CHANGES_SHOWN:
        yield f"  and {count_of(len(lines) - _CHANGES_SHOWN, 'more split')}"


def _describe_split_change(
    name: str, old: SplitCounts | None, new: SplitCounts | None, privacy: Privacy, documents: str
) -> Iterator[str]:
    """Yield a line if the counts of a split changed. `documents` is the plural noun for the dataset's documents."""
    old, new = old or SplitCounts(split=name), new or SplitCounts(split=name)
    has_documents = {old.documents, new.documents} != {None}
    nouns = {documents: "documents"} if has_documents else {"rows": "rows"}
    nouns |= {"tokens": "tokens"}
    pairs = {noun: (getattr(old, field) or 0, getattr(new, field) or 0) for noun, field in nouns.items()}
    pairs = {noun: (a, b) for noun, (a, b) in pairs.items() if a != b}
    if pairs and privacy.closed:
        yield f"  {name}: changed {' and '.join(pairs)}"
    elif pairs:
        yield f"  {name}: " + ", ".join(f"{a:,} → {b:,} {noun}" for noun, (a, b) in pairs.items())


def list_check_outcomes(dataset: Dataset, store: ArtifactStore) -> list[dict[str, str]]:
    """Return the artifact, name, `outcome` (a key of `OUTCOMES`) and `sentence` (empty if passed) of each check."""
    is_closed = dataset.declaration.sensitive
    return [
        {
            "artifact": "/".join(spec.path[1:]),
            "check": name,
            "outcome": classify_outcome(why),
            "sentence": "" if why is None or is_closed else why.sentence,
        }
        for spec in dataset.specs
        for name, why in read_results(spec, store).items()
    ]


def classify_outcome(reason: UnpassedCheck | None) -> str:
    """Return the outcome of a check, a key of `OUTCOMES`; None is the reason of a passed one."""
    if reason is None:
        return "passed"
    if not reason.sentence:
        return "not_run"
    return "failed" if reason.blocks else "warned"


def _describe_checks(dataset: Dataset, store: ArtifactStore) -> Iterator[str]:
    """Yield the number of passed checks, then a line per check that did not pass, blocking ones first."""
    all_checks = list_check_outcomes(dataset, store)
    failed_checks = [entry for entry in all_checks if entry["outcome"] != "passed"]
    failed_checks.sort(key=lambda entry: (_URGENCY.index(entry["outcome"]), entry["artifact"], entry["check"]))
    if dataset.declaration.sensitive:
        yield "checks: some have not passed" if failed_checks else "checks: all passed"
    else:
        yield f"checks: {len(all_checks) - len(failed_checks)} of {len(all_checks)} passed"
    name, artifacts = dataset.declaration.dataset, dict[tuple[str, str, str], list[str]]()
    for row in failed_checks:
        # Print one line for all artifacts whose check has the same result, and one line for all checks of an artifact
        # that have not run, because the list would otherwise be long.
        key = row["artifact"] if row["outcome"] == "not_run" else row["check"]
        value = row["check"] if row["outcome"] == "not_run" else row["artifact"]
        artifacts.setdefault((row["outcome"], key, row["sentence"]), []).append(value)
    for (outcome, key, sentence), values in artifacts.items():
        text = f"{key}: {', '.join(values)}" if outcome == "not_run" else f"{', '.join(values)}: {key}"
        yield f"  {OUTCOMES[outcome]}: {name}/{text}{f': {sentence}' if sentence else ''}"


def count_checks(dataset: Dataset, store: ArtifactStore) -> str:
    """Return a line with the number of checks per outcome, for a dataset that is not finished."""
    outcome_counts = Counter(check["outcome"] for check in list_check_outcomes(dataset, store))
    if dataset.declaration.sensitive:
        return "checks: " + ", ".join(f"some {name.replace('_', ' ')}" for name in OUTCOMES if outcome_counts[name])
    return "checks: " + ", ".join(
        f"{outcome_counts[name]:,} {name.replace('_', ' ')}" for name in OUTCOMES if outcome_counts[name]
    )


def list_private_details(dataset: Dataset, store: ArtifactStore) -> Iterator[str]:
    """Yield the details that `format_summary` omits for a sensitive dataset: summary, losses and check findings."""
    with suppress(DataprepError):  # an unfinished dataset has no summary
        yield from dataset.summary(store)
        yield from dataset.describe_trainers(store)
    yield from LossTable(find_losses(dataset.specs, store), OPEN).lines()
    for spec in dataset.specs:
        for name, reason in read_results(spec, store).items():
            if reason is not None and reason.sentence:
                yield f"{'/'.join(spec.path)}: {name}: {reason.sentence}"
    yield from dataset.describe_state(store)


def _shorten_names(names: Sequence[str], width: int | None) -> str:
    """Return as many names as fit, but at least one, and the number of remaining names."""
    name_count = len(names) if len(names) <= _FILES_SHOWN else _FILES_SHOWN - 1
    while True:
        text = ", ".join(
            [*names[:name_count], *([f"… and {len(names) - name_count:,} more"] if name_count < len(names) else [])]
        )
        if name_count <= 1 or width is None or len(text) + 2 <= width:
            return text
        name_count -= 1
