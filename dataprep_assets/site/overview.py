"""The overview: datasets by state, failing checks first, unusual changes of volume, and trends.

Entry point: `describe_overview`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from markupsafe import Markup

from dataprep_assets.errors import count_of
from dataprep_assets.site.changes import UNUSUAL_SHARE, find_unusual_changes
from dataprep_assets.site.charts import draw_sparkline
from dataprep_assets.site.pages import FactsPage, format_count, format_optional_share
from dataprep_assets.site.states import LEVELS, STYLES, DatasetState, Level, choose_command, find_end_time
from dataprep_assets.stores.files import digest_value


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A dataset, or one of its checks, that needs attention.

    Attributes:
        dataset: The dataset's name.
        what: The problem in a few words, such as `failed`; `style` has its class.
        where: The artifact and the check; empty for the dataset as a whole.
        sentence: The finding or the reason.
        command: The command that helps.
        asset: Path of its page in Dagster.
    """

    dataset: str
    what: str
    style: str
    where: str = ""
    sentence: str = ""
    command: str
    asset: str


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The values of one count over the builds of a dataset."""

    title: str
    line: Markup
    text: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A dataset in the table of all datasets.

    `is_last_success` is whether its counts are older than its last run, because that run failed.
    """

    name: str
    level: Level
    style: str
    state: str
    kind: str
    owners: tuple[str, ...]
    last_success: float | None
    last_run: str
    freshness: str
    command: str
    is_last_success: bool
    trends: tuple[Trend, ...]


def describe_overview(states: Sequence[DatasetState], broken: Mapping[str, str]) -> FactsPage:
    """Return the overview.

    Args:
        states: The states of the datasets.
        broken: Dataset whose declaration cannot be loaded → the reason.
    """
    ordered = sorted(states, key=lambda state: (LEVELS.index(state.level), state.dataset))
    rows = [_describe_row(state) for state in ordered]
    levels = [row.level for row in rows]
    facts = {
        "counts": [(level, STYLES[level], levels.count(level)) for level in LEVELS if level in levels],
        "broken": [
            Problem(
                dataset=name,
                what="cannot be loaded",
                style="bad",
                sentence=reason,
                command=f"dataprep check {name}",
                asset=f"assets/{name}/cannot_be_loaded",
            )
            for name, reason in sorted(broken.items())
        ],
        "problems": sorted(
            (problem for state in ordered for problem in _list_problems(state)),
            key=lambda problem: ("bad", "warn", "idle").index(problem.style),
        ),
        "changes": [change for state in ordered for change in find_unusual_changes(state.dataset, state.history)],
        "unusual": format_optional_share(UNUSUAL_SHARE),
        "rows": rows,
        "by_name": {row.name: row for row in rows},
        "owners": sorted({owner for row in rows for owner in row.owners}),
        "kinds": sorted({row.kind for row in rows}),
        "trend_titles": _TREND_TITLES,
    }
    return FactsPage(
        slug="index",
        title="Datasets",
        digest=digest_value(
            [
                [[asdict(row), *(str(trend.line) for trend in row.trends)] for row in rows],
                *([asdict(item) for item in facts[name]] for name in ("broken", "problems", "changes")),  # type: ignore
            ]
        ),
        template="overview.html.j2",
        facts=facts,
    )


def _list_problems(state: DatasetState) -> Iterator[Problem]:
    """Yield the problems of a dataset, failed checks first."""
    name = state.dataset
    asset = f"assets/{name}"
    for what, style, keys in (("failed", "bad", state.failed_checks), ("warned", "warn", state.warned)):
        for artifact, check in keys:
            sentence = state.not_passed[artifact, check].sentence
            yield Problem(
                dataset=name,
                what=what,
                style=style,
                where=f"{artifact}: {check}",
                sentence=sentence,
                command=choose_command(name, sentence),
                asset=f"assets/{name}/{artifact}?view=checks&checkDetail={check}",
            )
    if state.level == "unknown":
        command = f"dataprep status {name}"
        yield Problem(dataset=name, what="unknown", style="bad", sentence=state.why, command=command, asset=asset)
    if state.failed_checks:  # They are also why the run failed, and why artifacts are not built.
        return
    to_build = f"{count_of(state.to_build, 'artifact')} to build. {state.why}" if state.to_build else ""
    if state.has_failed_run and state.last_build is not None:
        run = state.last_build.dagster_run.run_id
        yield Problem(
            dataset=name,
            what="run failed",
            style="bad",
            sentence=f"The last run failed. `dataprep ui` shows the reason of run {run[:8]}. {to_build}".strip(),
            command=f"dataprep run {name}",
            asset=f"runs/{run}",
        )
    elif to_build:
        yield Problem(
            dataset=name,
            what="out of date",
            style="warn",
            sentence=to_build,
            command=f"dataprep run {name}",
            asset=asset,
        )


def _describe_row(state: DatasetState) -> Row:
    run = state.last_build
    last_build = state.history.builds[-1] if state.history.builds else None
    return Row(
        name=state.dataset,
        level=state.level,
        style=STYLES[state.level],
        # Say how much to build, even if a more urgent state is shown.
        state=state.state if state.to_build else "",
        kind=state.kind,
        owners=state.owners,
        last_success=find_end_time(state.last_success) or (last_build.time if last_build is not None else None),
        last_run="" if run is None else run.dagster_run.status.value.lower(),
        freshness=(state.freshness or "").lower(),
        command=f"dataprep {'status' if state.level == 'unknown' else 'run'} {state.dataset}",
        is_last_success=state.level == "failed" and bool(state.card),
        trends=tuple(_draw_trends(state)),
    )


_TREND_TITLES = ("documents", "tokens", "dropped share", "checks")


def _draw_trends(state: DatasetState) -> Iterator[Trend]:
    """Yield the trends of a dataset; a value that is private or unknown leaves a gap."""
    name, history = state.dataset, state.history
    for count in ("documents", "tokens"):
        values = [getattr(build, count) for build in history.builds]
        numbers = [value if isinstance(value, int) else None for value in values]
        last_value = values[-1] if values else None
        yield _draw_trend(name, count, numbers, state.card.get(count) or format_count(last_value))
    rates = history.list_drop_rates()
    yield _draw_trend(name, "dropped share", rates, format_optional_share(rates[-1] if rates else None))
    unpassed = [count for _, count in history.count_unpassed_checks()]
    has_checks = bool(state.passed or state.not_passed)
    yield _draw_trend(
        name, "checks that did not pass", unpassed, state.check_counts if has_checks else format_count(None)
    )


def _draw_trend(dataset: str, title: str, values: Sequence[float | None], text: str) -> Trend:
    label = f"{dataset}: {title} in {count_of(len(values), 'run')}"
    has_line = sum(value is not None for value in values) > 1
    return Trend(title=title, line=draw_sparkline(label, values) if has_line else Markup(), text=text)
