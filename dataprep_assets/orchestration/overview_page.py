"""The asset `datasets`: all datasets of the code location on one page of the UI, and the sensor that keeps it current.

Dagster shows the metadata of a materialization on the asset's own page, so no other server is needed for it: what
cannot be loaded, a few lines with links on each dataset that somebody has to look at, a table of all. Materialize
updates the page. The sensor updates it when a run has ended, at most once in `SECONDS_BETWEEN_PAGES`, in the code
server that is running anyway: a run would start a process and load the code location for a second of work.

Entry point: `overview_definitions`.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from urllib.parse import quote

import dagster as dg

from dataprep_assets.graph.shown import Markdown, Shown, Table
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.orchestration.metadata import rendered
from dataprep_assets.orchestration.overview import (
    CheckResult,
    DatasetOverview,
    LastRun,
    broken,
    freshness_states,
    overview,
)

DATASETS = dg.AssetKey(["datasets"])
SECONDS_BETWEEN_PAGES = 60
_INLINE = 990
"""Longest Markdown, in characters, that the UI shows in place; longer text is behind a click."""
_ROOM = 60
"""Of these, for the line that says how many more there are."""
_SENTENCE = 240
_LONG_WORD = 36
_NAMED = 5
"""Partitions that are named in a line."""
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_BREAKS = re.compile(r"[^_]{0,17}_+(?!$)|[^_]{18}(?!$)")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")


def overview_definitions(located: Callable[[], dg.Definitions]) -> dg.Definitions:
    """The asset `datasets` and its sensor.

    Args:
        located: Returns the definitions of the code location; called when the page is made.
    """

    def now(instance: dg.DagsterInstance) -> dict[str, dg.MetadataValue]:
        definitions = located()
        return page(overview(definitions, instance), broken(definitions))

    @dg.asset(
        key=DATASETS,
        group_name="overview",
        kinds={"markdown"},
        description="All datasets at a glance, from Dagster's event log; times in UTC. A sensor makes it "
        "again when runs end and once a day, Materialize makes it now.\n\nArtifacts and partitions are "
        "counted: `missing`; `failed`, if not made since; `stale`, if an input or the step's code has changed "
        "since. `proof`: days since the oldest verdict on what is there. The links `state of each` and `size "
        "of each` lead to all numbers. `build s`: the time that building what is there took, CPU seconds of "
        "tokenizing and seconds of all other steps.",
    )
    def datasets(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata=now(context.instance))

    @dg.sensor(
        minimum_interval_seconds=SECONDS_BETWEEN_PAGES,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Makes the page `datasets` again when a run has ended or a dataset was declared.",
    )
    def datasets_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        cursor = _last_change(located(), context.instance)
        if cursor == context.cursor:
            return dg.SkipReason("No run has ended since the page was made.")
        made = dg.AssetMaterialization(DATASETS, metadata=now(context.instance))
        return dg.SensorResult(asset_events=[made], cursor=cursor)

    return dg.Definitions(assets=[datasets], sensors=[datasets_sensor])


def _last_change(definitions: dg.Definitions, instance: dg.DagsterInstance) -> str:
    """A text that changes when a run ends, when what is declared changes, when a product is not fresh, and daily."""
    ended = instance.get_run_records(dg.RunsFilter(statuses=_ENDED), limit=1, order_by="update_timestamp")
    specs = sorted(definitions.resolve_all_asset_specs(), key=lambda spec: spec.key)
    return digest_value(
        [
            [spec.key.to_user_string() for spec in specs],
            [[run.dagster_run.run_id, run.update_timestamp.isoformat()] for run in ended],
            [[key.to_user_string(), state] for key, state in sorted(freshness_states(specs, instance).items())],
            [[key.to_user_string(), why] for key, why in sorted(broken(definitions).items())],
            # the page says how many days old proofs are
            f"{datetime.now(UTC):%Y-%m-%d}",
        ]
    )


def page(
    found: Iterable[DatasetOverview],
    broken: Mapping[dg.AssetKey, str] = MappingProxyType({}),
    now: float | None = None,
) -> dict[str, dg.MetadataValue]:
    """The metadata of `datasets`: what cannot be loaded, what is to be looked at, a table; wider ones behind links.

    At 1,280 pixels the UI leaves 400 of them for the value of an entry, less where the entry has a long name; what is
    wider, and all that stands above and below it, is cut.

    Args:
        found: The datasets.
        broken: The assets that stand for declarations that cannot be loaded, and why.
        now: The time of the page, in seconds since 1970; the present by default.
    """
    now = time.time() if now is None else now
    every = sorted(found, key=lambda d: (not _is_broken(d), not d.failed, not d.warned, d.dataset))
    there = [dataset for dataset in every if not _untouched(dataset)]
    bad = [dataset for dataset in there if _is_broken(dataset) or dataset.failed or dataset.warned]
    shown: dict[str, Shown] = {}
    if broken:
        shown["cannot be loaded"] = Markdown(_unloadable(broken))
    shown |= {
        "artifacts failed": sum(dataset.slots.failures for dataset in every),
        "checks failed": sum(len(dataset.failed) for dataset in every),
        "checks warned": sum(len(dataset.warned) for dataset in every),
        **{f"look at {at}": Markdown(_text(dataset)) for at, dataset in enumerate(bad, 1)},
        "all datasets": Table(_aligned([_row(dataset, now) for dataset in there])),
        "state of each": Markdown(_states(there)),
        "size of each": Markdown(_sizes(there)),
        "never run": ", ".join(dataset.dataset for dataset in every if _untouched(dataset)) or "none",
    }
    return {name: rendered(value) for name, value in shown.items()}


def _is_broken(dataset: DatasetOverview) -> bool:
    """Whether something of it failed that has not been made since, or a run of it alone failed for another reason."""
    return dataset.slots.failures > 0 or _run_failed(dataset)


def _run_failed(dataset: DatasetOverview) -> bool:
    run = dataset.last_run
    return run is not None and run.status == dg.DagsterRunStatus.FAILURE.value and not run.shared


def _untouched(dataset: DatasetOverview) -> bool:
    return dataset.last_run is None and dataset.unknown == dataset.checks


def _unloadable(broken: Mapping[dg.AssetKey, str]) -> str:
    lines: list[str] = []
    for number, (key, why) in enumerate(sorted(broken.items())):
        line = f"- [{_escaped(key.path[0])}](/assets/{_path(key)}): {_sentence(why)}"
        if len("\n".join([*lines, line])) > _INLINE - _ROOM:
            return "\n".join([*lines, f"- and {len(broken) - number} more; `dataprep check` names all"])
        lines.append(line)
    return "\n".join(lines)


def _row(dataset: DatasetOverview, now: float) -> dict[str, str]:
    """A row of the table: what a person has to know first, in the few letters that there is room for."""
    slots = dataset.slots
    return {
        # a long name breaks at its underscores, or where there are none
        "dataset": _BREAKS.sub(lambda found: f"{found[0]}\u200b", dataset.dataset),
        "missing": f"{slots.wanted - slots.made:,}",
        "failed": f"{slots.failures:,}",
        "stale": f"{slots.stale:,}",
        "proof": "" if dataset.proven is None else f"{max(now - dataset.proven, 0) // 86_400:,.0f}\u00a0d",
    }


def _aligned(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The rows, their numbers to the right: the UI has all cells to the left, in letters of one width."""
    if not rows:
        return []
    # the letters of a column's name are of 6/7 of the size
    widths = {name: max([len(row[name]) for row in rows] + [len(name) * 6 // 7]) for name in rows[0]}
    return [
        {name: value if name == "dataset" else value.rjust(widths[name], "\u00a0") for name, value in row.items()}
        for row in rows
    ]


def _states(datasets: Sequence[DatasetOverview]) -> str:
    """What is made and proven of each."""
    names = ["dataset", "last run", "made", "missing", "failed", "stale"]
    names += ["checks passed", "failed", "warned", "accepted", "oldest proof", "made again"]
    return _markdown(
        names,
        [
            [
                _named(one),
                "" if one.last_run is None else _run(one.last_run),
                *(f"{count:,}" for count in (one.slots.made, one.slots.wanted - one.slots.made)),
                *(f"{count:,}" for count in (one.slots.failures, one.slots.stale)),
                f"{one.passed}/{one.checks}",
                *(f"{len(results)}" for results in (one.failed, one.warned, one.accepted)),
                _day(one.proven),
                _made_again(one),
            ]
            for one in datasets
        ],
    )


def _made_again(dataset: DatasetOverview) -> str:
    """The share of the documents that the checks make again from the source, rounded down, and the level of proof."""
    if dataset.made_again is None:
        return ""
    level = (dataset.proof_level or "").replace("_", "\u00a0")
    return f"{int(dataset.made_again * 1000) / 10:g}\u00a0%,\u00a0{level}"


def _sizes(datasets: Sequence[DatasetOverview]) -> str:
    """How much each is, and how old."""
    return _markdown(
        ("dataset", "documents", "tokens", "bytes", "build s", "oldest product", "freshness"),
        [
            [
                _named(one),
                *(_short(count) for count in (one.documents, one.tokens, one.bytes, one.build_seconds)),
                _day(one.made),
                _escaped(_freshness(one)),
            ]
            for one in datasets
        ],
    )


def _markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is to the left, and the others to the right."""
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    # a short one, which the UI would show in place, would widen the page beyond what is seen
    return text.ljust(_INLINE + _ROOM, "\n")


def _named(dataset: DatasetOverview) -> str:
    return f"[{_escaped(dataset.dataset)}](/assets/{quote(dataset.dataset)})"


def _run(run: LastRun) -> str:
    """The day of a run, with a word where it did not succeed."""
    word = "" if run.status == dg.DagsterRunStatus.SUCCESS.value else f"{run.status.lower()}\u00a0"
    return f"[{word}{_day(run.at)}](/runs/{run.run_id})"


def _day(at: float | None) -> str:
    """A day that does not break."""
    return _time(at)[:10].replace("-", "\u2011")


def _text(dataset: DatasetOverview) -> str:
    """The lines of one dataset, short enough that the UI shows them in place."""
    run = dataset.last_run
    first = [f"{dataset.passed} of {dataset.checks} checks passed"]
    if dataset.unknown:
        first.append(f"{dataset.unknown} without a result")
    if run is None:
        first.insert(0, "never run")
    else:
        of = " of several datasets" if run.shared else ""
        first.insert(0, f"last run{of}: [{run.status.lower()} {_time(run.at)} UTC](/runs/{run.run_id})")
    if dataset.freshness_policy is not None:
        first.append(f"freshness {_escaped(_freshness(dataset))}")
    everything = f"/assets/{quote(dataset.dataset)}"
    lines = [f"**[{_escaped(dataset.dataset)}]({everything})**: {'; '.join(first)}"]
    results = list(_lines(dataset))
    for number, line in enumerate(results):
        if len("\n".join([*lines, line])) > _INLINE - _ROOM:
            return "\n".join([*lines, f"- and {len(results) - number} more: [all assets]({everything})"])
        lines.append(line)
    return "\n".join(lines)


def _lines(dataset: DatasetOverview) -> Iterator[str]:
    for one in dataset.slots.failed:
        name = "/".join(one.key.path[1:])
        which = f" {_escaped(', '.join(one.partitions[:_NAMED]))}" if one.partitions else ""
        if len(one.partitions) > _NAMED:
            which += f" and {len(one.partitions) - _NAMED:,} more"
        yield f"- not made: [{_escaped(name)}](/assets/{_path(one.key)}){which}, see [its run](/runs/{one.run_id})"
    for word, results in (("failed", dataset.failed), ("warned", dataset.warned), ("accepted", dataset.accepted)):
        for result in results:
            yield f"- {word}: {_linked(result)}: {_sentence(result.sentence)}"


def _path(key: dg.AssetKey) -> str:
    return "/".join(quote(part, safe="") for part in key.path)


def _linked(result: CheckResult) -> str:
    """The check's name, linked to its page: the link is relative to the host, so that it works behind any proxy."""
    where = "/".join([*result.key.asset_key.path[1:], result.key.name])
    detail = quote(result.key.name, safe="")
    return f"[{_escaped(where)}](/assets/{_path(result.key.asset_key)}?view=checks&checkDetail={detail})"


def _sentence(text: str) -> str:
    """The text on one line, cut to a length that suits a list; a word that would widen the page breaks at slashes."""
    line = " ".join(w if len(w) < _LONG_WORD else w.replace("/", "/\u200b") for w in text.split())
    return _escaped(line if len(line) <= _SENTENCE else f"{line[: _SENTENCE - 1]}…")


def _escaped(text: str) -> str:
    """The text, escaped so that Markdown renders it literally."""
    return _SPECIAL.sub(r"\\\1", text)


def _freshness(dataset: DatasetOverview) -> str:
    if dataset.freshness_policy is None:
        return ""
    return f"{dataset.freshness_policy}: {(dataset.freshness or '').lower()}"


def _time(at: float | None) -> str:
    """A time in UTC, to the minute: unlike an age it stays true when the page is read later."""
    return "" if at is None else f"{datetime.fromtimestamp(at, tz=UTC):%Y-%m-%d %H:%M}"


def _short(number: float | str | None) -> str:
    """A count in three or four digits: 1,980 and 12.6M; empty if it is not known."""
    if number is None or isinstance(number, str):
        return number or ""  # a small count of a sensitive dataset is already words
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):,.1f}{unit}"
    return f"{number:,}"
