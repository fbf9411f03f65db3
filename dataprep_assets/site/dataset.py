"""The page of a dataset: its sources, its losses, its mixture, its checks and its files.

The page shows what `dataprep show`, `dataprep status`, `dataprep documents`, the data card and the end of a run
compute, through the same functions. The page of a sensitive dataset has only names, results of checks and rounded
counts.

Entry point: `describe_dataset`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dataprep_assets.engine.artifact.dataset import MixtureShare
from dataprep_assets.engine.artifact.summary import OUTCOMES, build_loss_table, classify_outcome
from dataprep_assets.engine.card.card import build_page_facts
from dataprep_assets.engine.card.contents import Card, CardArtifact, CardSection, gather_card
from dataprep_assets.engine.checks.check import Check
from dataprep_assets.engine.checks.verdicts import identify_version
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, Decision
from dataprep_assets.errors import DataprepError
from dataprep_assets.site.changes import compare_builds, explain_documents
from dataprep_assets.site.charts import Chart, draw_bar_groups, draw_bars, draw_lines
from dataprep_assets.site.distributions import Distributions, describe_distributions
from dataprep_assets.site.history import CheckRecord, DatasetHistory
from dataprep_assets.site.pages import PageEnvironment, format_count, format_day, format_size, format_time
from dataprep_assets.site.partitions import STATES, PartitionGrid, describe_grids
from dataprep_assets.site.states import STYLES, DatasetState, choose_command
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.stores.files import digest_value
from dataprep_assets.table import format_share

_MAX_FILES = 100
"""Maximum number of listed files of an artifact."""
_MAX_REASONS = 12
"""Maximum number of listed artifacts that a run would build."""
_MAX_RESULTS = 30
"""Maximum number of earlier results of a check."""
_MAX_LOSS_FILES = 3
"""Maximum number of files that are listed with a loss."""
_MAX_SHARES = 30
"""Maximum number of sources in the chart of shares."""
_PICTURE = re.compile(r"(:?)(?:^|\s*\n)!\[[^\n]*")
"""A line with a picture in Markdown, with the colon and the empty lines before it."""
_TRAINER = re.compile(r"(\w[\w ,.-]*):(?: (.*))?")
"""A line of settings that begins with the names of its trainers."""
_STYLES = {"passed": "good", "warned": "warn", "failed": "bad", "not_run": ""}
"""Outcome of a check → class in the style sheet."""


@dataclass(frozen=True)
class Numbers:
    """A table: its header and its rows. A row begins with a label."""

    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """A check with its current outcome.

    Attributes:
        artifact: Path of the artifact below the dataset.
        name: The check.
        outcome: The outcome in words.
        style: Class of the outcome.
        blocks: Whether a failure blocks what follows.
        description: The sentence that is true if the check passes.
        sentence: The finding in its public form; empty if it passed.
        results: Earlier results, oldest first: time, outcome in words, class.
        command: The command that helps; empty if the check passed.
        details: Rows that explain a failure; None if it has none.
    """

    artifact: str
    name: str
    outcome: str
    style: str
    blocks: bool
    description: str
    sentence: str = ""
    results: tuple[tuple[float, str, str], ...] = ()
    command: str = ""
    details: Numbers | None = None


@dataclass(frozen=True, kw_only=True)
class ProductFiles:
    """The files of an artifact for trainers; `unlisted` is the number of files that are not listed."""

    artifact: CardArtifact
    files: Numbers
    unlisted: int = 0


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """Facts on the page of a dataset. Counts are in their public form.

    Attributes:
        dataset: The dataset.
        state: Its state, with what earlier runs reported.
        style: Class of the state.
        reasons: The first artifacts that a run would build, with the reasons.
        more_reasons: Number of further artifacts that a run would build.
        tiles: The main counts: label → count.
        trends: Charts of earlier builds.
        changes: Counts of the last two builds with their differences; None for a sensitive dataset.
        explanation: Why the number of documents changed; empty if it did not, or if the reason is unknown.
        previous_build: Time of the build before the last one.
        builds: Table of earlier builds, newest first.
        card: The variables of the data card's template; None if the dataset is not complete, or has no card.
        splits: Known counts of files, rows, documents and tokens of each split; None without a card.
        sections: Sections of the data card, without pictures.
        parts: Rows, drops by reason and kept rows of each part of the dataset.
        losses: Every loss, as `dataprep show` lists them.
        headline: All losses on one line.
        funnel: Chart from source rows to documents.
        mixture: Table of requested, available and realized shares.
        shares: Chart of the same shares.
        distributions: Histograms, languages and drops by source.
        failing: Checks that did not pass, blocking ones first.
        checks: Artifact → its checks.
        products: The files for trainers.
        trainers: Name of a trainer → its lines of settings.
        grids: States of partitions.
    """

    dataset: StoredDataset
    state: DatasetState
    style: str
    reasons: tuple[str, ...] = ()
    more_reasons: int = 0
    tiles: Mapping[str, int | str | None] = field(default_factory=dict)
    trends: tuple[Chart, ...] = ()
    changes: Numbers | None = None
    explanation: str = ""
    previous_build: float | None = None
    builds: Numbers | None = None
    card: Mapping[str, Any] | None = None
    splits: Numbers | None = None
    sections: tuple[CardSection, ...] = ()
    parts: Numbers | None = None
    losses: Numbers | None = None
    headline: str = ""
    funnel: Chart | None = None
    mixture: Numbers | None = None
    shares: Chart | None = None
    distributions: Distributions = field(default_factory=Distributions)
    failing: tuple[CheckRow, ...] = ()
    checks: Mapping[str, tuple[CheckRow, ...]] = field(default_factory=dict)
    products: tuple[ProductFiles, ...] = ()
    trainers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    grids: tuple[PartitionGrid, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DatasetPage:
    """The page of a dataset, whose facts are gathered only when it is rendered."""

    slug: str = "index"
    title: str
    digest: str
    dataset: StoredDataset = field(repr=False)
    state: DatasetState = field(repr=False)

    def render(self, environment: PageEnvironment) -> str:
        """Return the page."""
        return environment.render(
            "dataset.html.j2", title=self.title, facts=gather_facts(self.dataset, self.state), states=STATES
        )


def describe_dataset(dataset: StoredDataset, state: DatasetState) -> DatasetPage:
    """Return the page of a dataset."""
    digest = digest_value(
        [
            # These facts determine the page: everything else on it is read from the artifacts.
            dataset.component.declaration.model_dump(mode="json"),
            [state.level, state.why, state.passed, state.has_failed_run],
            [[key, vars(reason)] for key, reason in state.not_passed.items()],
            [[str(decision), decision.action.name, decision.kind] for decision in _read_decisions(dataset, state)],
            list(_list_versions(dataset)),
            repr(state.history),
            [dataset.upstream, dataset.dependents],
        ]
    )
    return DatasetPage(title=dataset.name, digest=digest, dataset=dataset, state=state)


def _list_versions(dataset: StoredDataset) -> Iterator[str | None]:
    """Yield a version of each artifact that changes when it is rebuilt."""
    for spec in dataset.specs:
        try:
            yield identify_version(spec.artifacts(dataset.store), dataset.store)
        except DataprepError:  # its partitions are not planned yet
            yield None


def _read_decisions(dataset: StoredDataset, state: DatasetState) -> Sequence[Decision]:
    """Return the decision for each partition; nothing if it is unknown."""
    return () if state.level == "unknown" else dataset.decisions


def gather_facts(dataset: StoredDataset, state: DatasetState) -> DatasetFacts:
    """Return the facts on the page of a dataset."""
    checks = [] if state.level in ("unknown", "never built") else _list_checks(dataset, state)
    by_artifact: dict[str, list[CheckRow]] = {}
    for row in checks:
        by_artifact.setdefault(row.artifact, []).append(row)
    decisions = _read_decisions(dataset, state)
    # Leave out failed checks, which have a section of their own.
    stale_decisions = [decision for decision in decisions if decision.is_stale and decision.kind != CHECK_FAILED]
    privacy, card = dataset.privacy, _gather_card(dataset)
    losses = build_loss_table(dataset.component, dataset.store)
    loss_rows = losses.to_json()
    mixture, shares = _describe_mixture(dataset)
    return DatasetFacts(
        dataset=dataset,
        state=state,
        style=STYLES[state.level],
        reasons=tuple(
            # The reason may contain values of the data.
            f"{decision.name}: {decision.kind}" if privacy.closed else str(decision)
            for decision in stale_decisions[:_MAX_REASONS]
        ),
        more_reasons=max(0, len(stale_decisions) - _MAX_REASONS),
        tiles=_list_tiles(dataset, card),
        trends=tuple(_draw_trends(state.history)),
        changes=_list_changes(state),
        explanation=explain_documents(state.history),
        previous_build=state.history.builds[-2].time if len(state.history.builds) > 1 else None,
        builds=_list_builds(state.history),
        card=None if card is None else build_page_facts(card),
        splits=None if card is None else _list_splits(card, dataset.component.row_noun),
        sections=()
        if card is None
        else tuple(replace(section, text=_remove_pictures(section.text)) for section in card.sections),
        losses=_list_losses(loss_rows),
        headline=losses.headline,
        parts=None if privacy.closed else _list_parts(loss_rows),
        funnel=None if card is None or privacy.closed else _draw_funnel(card),
        mixture=mixture,
        shares=shares,
        distributions=describe_distributions(dataset),
        failing=tuple(
            sorted(
                (row for row in checks if row.style in ("bad", "warn")),
                key=lambda row: (row.style != "bad", row.artifact, row.name),
            )
        ),
        checks={artifact: tuple(rows) for artifact, rows in by_artifact.items()},
        products=() if card is None else tuple(_list_products(card)),
        trainers=() if privacy.closed or not decisions else tuple(_group_trainers(dataset)),
        grids=tuple(describe_grids(dataset.specs, decisions, privacy)),
    )


def _gather_card(dataset: StoredDataset) -> Card | None:
    """Return the content of the data card according to the current receipts; None if an artifact is missing."""
    subject = dataset.component.card_subject
    with suppress(DataprepError):
        return None if subject is None else gather_card(subject, dataset.store)
    return None


def _list_tiles(dataset: StoredDataset, card: Card | None) -> dict[str, int | str | None]:
    if card is None:
        counts = None
        with suppress(DataprepError):
            counts = dataset.component.read_last_counts(dataset.store)
        if counts is None:
            return {}
        totals = {
            "documents": sum(split.documents or split.rows or 0 for split in counts.splits),
            "tokens": sum(split.tokens or 0 for split in counts.splits),
        }
        return dataset.privacy.public_row(totals)
    return dataset.privacy.public_row(
        {
            "source rows": card.ledger.rows_in,
            "dropped": sum(card.ledger.dropped.values()),
            "documents": card.ledger.documents,
            # RL records are not tokenized, so their ledgers have no tokens.
            **({"tokens": card.ledger.tokens} if card.ledger.tokens else {}),
        }
    )


def _list_splits(card: Card, row_noun: str) -> Numbers:
    """Return the counts of each split, without those that no split records."""
    titles = {"files": "source files", "rows": f"{row_noun}s", "documents": "documents", "tokens": "tokens"}
    names = [name for name in titles if any(getattr(split, name) is not None for split in card.splits)]
    return Numbers(
        ("split", *(titles[name] for name in names)),
        tuple(
            # Withhold the counts next to a small count, because they would reveal it.
            (split.split, *card.privacy.public_row({name: getattr(split, name) for name in names}).values())
            for split in card.splits
        ),
    )


def _remove_pictures(text: str) -> str:
    """Return Markdown without pictures, because pages show Markdown as text; a sentence before one ends with a dot."""
    return _PICTURE.sub(lambda match: "." if match[1] else "", text)


# --- Earlier builds


def _draw_trends(history: DatasetHistory) -> Iterator[Chart]:
    """Yield charts of documents, tokens and drop rates; nothing for one build, or for rounded counts."""
    builds = history.builds
    if len(builds) < 2 or history.is_private:
        return
    days = [format_day(build.time) for build in builds]
    labels = days if len(set(days)) == len(days) else [format_time(build.time) for build in builds]
    for name in ("documents", "tokens"):
        counts = [getattr(build, name) for build in builds]
        if any(counts):
            yield draw_lines(f"{name} after each build", labels, {name: counts})
    rates = history.list_drop_rates()
    if any(rates):
        yield draw_lines(
            "share of source rows dropped by each build", labels, {"dropped": rates}, format_value=format_share
        )


def _list_changes(state: DatasetState) -> Numbers | None:
    rows = tuple(
        (change.what, change.before, change.now, _format_difference(change.now - change.before))
        for change in compare_builds(state.dataset, state.history)
    )
    return Numbers(("count", "before", "now", "difference"), rows) if rows else None


def _format_difference(count: int) -> str:
    return f"{count:+,}" if count else "0"


def _list_builds(history: DatasetHistory) -> Numbers | None:
    builds = history.builds[-1 : -_MAX_RESULTS - 1 : -1]
    rows = tuple(
        (format_time(build.time), build.documents, build.tokens, build.dropped, build.run_id[:8]) for build in builds
    )
    return Numbers(("end of the build (UTC)", "documents", "tokens", "dropped", "run"), rows) if rows else None


# --- Losses


def _list_losses(losses: Sequence[Mapping[str, Any]]) -> Numbers | None:
    """Return a row for each loss, with the files that lost most; counts are in their public form."""
    rows = tuple(
        (
            f"{loss['reason']} ({loss['kind']})" if loss["kind"] else loss["reason"],
            loss["action"],
            loss["part"],
            loss["count"],
            f"{loss['unit']}s",
            loss["of"] or None,
            ", ".join(f"{name} {format_count(count)}" for name, count in list(loss["files"].items())[:_MAX_LOSS_FILES]),
        )
        for loss in losses
    )
    return Numbers(("reason", "action", "part", "count", "unit", "of", "most from"), rows) if rows else None


def _list_parts(losses: Sequence[Mapping[str, Any]]) -> Numbers | None:
    """Return the dropped rows of each part by reason, if there is more than one reason or part."""
    dropped_losses = [loss for loss in losses if loss["action"] == "dropped" and loss["unit"] == "row"]
    parts = list(dict.fromkeys(loss["part"] for loss in dropped_losses))
    reasons = list(dict.fromkeys(loss["reason"] for loss in dropped_losses))
    if len(parts) < 2 and len(reasons) < 2:
        return None
    counts = {(loss["part"], loss["reason"]): loss["count"] for loss in dropped_losses}
    totals = {loss["part"]: loss["of"] for loss in dropped_losses}
    rows = [
        (
            part or "all",
            totals[part],
            *(counts.get((part, reason), 0) for reason in reasons),
            totals[part] - sum(counts.get((part, reason), 0) for reason in reasons),
        )
        for part in parts
    ]
    return Numbers(("part", "source rows", *reasons, "kept"), tuple(rows))


def _draw_funnel(card: Card) -> Chart | None:
    """Draw the way from source rows to documents; None if nothing was dropped."""
    drop_counts = {reason: count for reason, count in card.ledger.dropped.items() if count}
    if not drop_counts:
        return None
    bars = {
        "source rows": card.ledger.rows_in,
        **{f"dropped: {reason}": count for reason, count in sorted(drop_counts.items(), key=lambda item: -item[1])},
        "documents": card.ledger.documents,
    }
    return draw_bars("from source rows to documents", bars, label_name="step", value_name="rows")


# --- Mixtures


def _describe_mixture(dataset: StoredDataset) -> tuple[Numbers | None, Chart | None]:
    """Return the table and the chart of requested, available and realized shares; nothing if shares are private."""
    if dataset.privacy.closed:
        return None, None
    shares: Sequence[MixtureShare] = ()
    with suppress(DataprepError):
        shares = dataset.component.read_mixture(dataset.store)
    if not shares:
        return None, None
    header = ("source", "split", "requested", "available", "realized", "difference", "epochs", "tokens")
    rows = tuple(
        (
            share.name,
            share.split or "all",
            format_share(share.requested),
            "any" if share.available is None else format_share(share.available),
            format_share(share.realized),
            f"{round(100 * (share.realized - share.requested), 2) + 0.0:+.2f} points",
            None if share.epochs is None else f"{share.epochs:.2f}",
            share.tokens or None,
        )
        for share in shares
    )
    charted_shares = shares[:_MAX_SHARES]
    chart = draw_bar_groups(
        "requested and realized shares",
        [f"{share.name}{f' ({share.split})' if share.split else ''}" for share in charted_shares],
        {
            "requested": [share.requested for share in charted_shares],
            "realized": [share.realized for share in charted_shares],
        },
        label_name="source",
        format_value=format_share,
    )
    return Numbers(header, rows), chart


# --- Checks


def _list_checks(dataset: StoredDataset, state: DatasetState) -> list[CheckRow]:
    return [_describe_check("/".join(spec.path[1:]), check, state) for spec in dataset.specs for check in spec.checks]


def _describe_check(artifact: str, check: Check[Any], state: DatasetState) -> CheckRow:
    key = (artifact, check.name)
    reason = state.not_passed.get(key)
    outcome = classify_outcome(reason)
    return CheckRow(
        artifact=artifact,
        name=check.name,
        outcome=OUTCOMES[outcome],
        style=_STYLES[outcome],
        blocks=check.blocking,
        description=check.sentence,
        sentence="" if reason is None else reason.sentence,
        results=tuple(map(_describe_result, state.history.checks.get(key, ())[-_MAX_RESULTS:])),
        command="" if reason is None else choose_command(state.dataset, reason.sentence),
        details=_tabulate(state.history.details.get(key, ())) if reason is not None and reason.sentence else None,
    )


def _tabulate(rows: Sequence[Mapping[str, Any]]) -> Numbers | None:
    # Dagster's tables have all columns in each row.
    return Numbers(tuple(rows[0]), tuple(tuple(row[name] for name in rows[0]) for row in rows)) if rows else None


def _describe_result(record: CheckRecord) -> tuple[float, str, str]:
    outcome = "passed" if record.passed else "warned" if record.severity == "WARN" else "failed"
    return record.time, OUTCOMES[outcome], _STYLES[outcome]


# --- Files


def _list_products(card: Card) -> Iterator[ProductFiles]:
    for artifact in card.artifacts:
        if artifact.product:
            files = artifact.described[:_MAX_FILES]
            rows = tuple((file.path, format_size(file.record.bytes), file.record.sha256[:16]) for file in files)
            unlisted = len(artifact.described) - len(files)
            yield ProductFiles(artifact=artifact, files=Numbers(("file", "size", "SHA-256"), rows), unlisted=unlisted)


def _group_trainers(dataset: StoredDataset) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name before the first colon of a line, which may be empty, with this and the next lines without one."""
    lines: Sequence[str] = ()
    with suppress(DataprepError):  # the product is not built
        lines = dataset.component.describe_trainers(dataset.store)
    groups: list[tuple[str, list[str]]] = []
    for line in lines:
        match = _TRAINER.fullmatch(line)
        if match is not None or not groups:
            groups.append((match[1] if match else "", []))
        groups[-1][1].extend([(match[2] or "") if match else line])
    yield from ((name, tuple(filter(None, settings))) for name, settings in groups)
