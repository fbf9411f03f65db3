"""The overview: datasets by state, failing checks first, unusual changes of volume, and trends.

Entry point: `describe_overview`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from markupsafe import Markup

from dataprep_assets.errors import count_of
from dataprep_assets.site.charts import draw_sparkline
from dataprep_assets.site.history import DatasetHistory
from dataprep_assets.site.pages import FactsPage, format_count, format_optional_share
from dataprep_assets.site.states import LEVELS, STYLES, DatasetState, Level, choose_command, find_end_time
from dataprep_assets.stores.files import digest_value

UNUSUAL_SHARE, UNUSUAL_COUNT = 0.2, 50
"""A volume changed unusually if it changed by more than this share and at least this count since the last build."""


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
class VolumeChange:
    """A count that changed unusually between the last two builds.

    Attributes:
        dataset: The dataset's name.
        what: Name of the count.
        before: Count in the build before the last one.
        now: Count in the last build.
        time: Time of the last build, in seconds since 1970.
    """

    dataset: str
    what: str
    before: int
    now: int
    time: float

    @property
    def change(self) -> str:
        """The change in percent, with its sign; in words if there was nothing before."""
        return f"{(self.now - self.before) / self.before:+.0%}" if self.before else "new"


def find_volume_changes(dataset: str, history: DatasetHistory) -> Iterator[VolumeChange]:
    """Yield the counts that changed unusually between the last two builds, the largest change first."""
    if len(history.builds) < 2:
        return
    before, now = history.builds[-2:]
    counts = {
        **{(name, "", ""): (getattr(before, name), getattr(now, name)) for name in ("documents", "tokens")},
        **{
            key: (before.volumes.get(key, 0), now.volumes.get(key, 0))
            for key in {**before.volumes, **now.volumes}
            # A build before the site existed recorded no volumes.
            if before.volumes and now.volumes
        },
    }
    changes = [
        VolumeChange(dataset=dataset, what=_describe_volume(*key), before=old, now=new, time=now.time)
        for key, (old, new) in counts.items()
        if isinstance(old, int) and isinstance(new, int)
        if abs(new - old) >= UNUSUAL_COUNT and abs(new - old) > UNUSUAL_SHARE * old
    ]
    yield from sorted(
        changes, key=lambda change: (-abs(change.now - change.before) / max(change.before, 1), change.what)
    )


def _describe_volume(source: str, reason: str, kind: str) -> str:
    if not kind:
        return source
    text = f"{kind}: {reason}" if reason else kind
    return f"{text}, {source}" if source else text


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The values of one count over the builds of a dataset."""

    title: str
    line: Markup
    text: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A dataset in the table of all datasets."""

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
        "changes": [change for state in ordered for change in find_volume_changes(state.dataset, state.history)],
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
    if state.has_failed_run and state.last_build is not None:
        run = state.last_build.dagster_run.run_id
        sentence = f"The last run failed. Run {run[:8]} in Dagster has the reason."
        yield Problem(
            dataset=name,
            what="run failed",
            style="bad",
            sentence=sentence,
            command=f"dataprep run {name}",
            asset=f"runs/{run}",
        )
    if state.to_build:
        yield Problem(
            dataset=name,
            what="out of date",
            style="warn",
            sentence=f"{count_of(state.to_build, 'artifact')} to build. {state.why}",
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
    rates = [build.drop_rate for build in history.builds]
    yield _draw_trend(name, "dropped share", rates, format_optional_share(rates[-1] if rates else None))
    unpassed = [count for _, count in history.count_unpassed_checks()]
    checks = state.passed + len(state.not_passed)
    passed = f"{state.passed} of {checks} passed" if checks else format_count(None)
    yield _draw_trend(name, "checks that did not pass", unpassed, passed)


def _draw_trend(dataset: str, title: str, values: Sequence[float | None], text: str) -> Trend:
    label = f"{dataset}: {title} in {count_of(len(values), 'run')}"
    has_line = sum(value is not None for value in values) > 1
    return Trend(title=title, line=draw_sparkline(label, values) if has_line else Markup(), text=text)
