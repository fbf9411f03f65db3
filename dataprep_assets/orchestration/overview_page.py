"""The asset `datasets`: all datasets of the code location on one page of the UI, and the sensor that keeps it current.

Dagster shows the metadata of a materialization on the asset's own page, so no other server is needed for it: a table of
all datasets, and for each a few lines with links to its last run and to the checks to read. Materialize updates the
page. The sensor updates it when a run has ended, at most once in `SECONDS_BETWEEN_PAGES`, in the code server that is
running anyway: a run would start a process and load the code location for a second of work.

Entry point: `overview_definitions`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import dagster as dg

from dataprep_assets.graph.shown import Markdown, Shown, Table
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.orchestration.metadata import rendered
from dataprep_assets.orchestration.overview import CheckResult, DatasetOverview, freshness_states, overview

DATASETS = dg.AssetKey(["datasets"])
SECONDS_BETWEEN_PAGES = 60
_INLINE = 990
"""Longest Markdown, in characters, that the UI shows in place; longer text is behind a click."""
_SENTENCE = 240
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")


def overview_definitions(located: Callable[[], dg.Definitions]) -> dg.Definitions:
    """The asset `datasets` and its sensor.

    Args:
        located: Returns the definitions of the code location; called when the page is made.
    """

    @dg.asset(
        key=DATASETS,
        group_name="overview",
        kinds={"markdown"},
        description="All datasets at a glance: last run, checks to read, freshness, counts and cost, from Dagster's "
        "event log; times in UTC. A sensor makes it again when runs end, Materialize makes it now. `build_seconds` is "
        "what building the present artifacts took: CPU seconds of tokenizing, seconds of all other steps.",
    )
    def datasets(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata=page(overview(located(), context.instance)))

    @dg.sensor(
        minimum_interval_seconds=SECONDS_BETWEEN_PAGES,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Makes the page `datasets` again when a run has ended or a dataset was declared.",
    )
    def datasets_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        cursor = _last_change(located(), context.instance)
        if cursor == context.cursor:
            return dg.SkipReason("No run has ended since the page was made.")
        made = dg.AssetMaterialization(DATASETS, metadata=page(overview(located(), context.instance)))
        return dg.SensorResult(asset_events=[made], cursor=cursor)

    return dg.Definitions(assets=[datasets], sensors=[datasets_sensor])


def _last_change(definitions: dg.Definitions, instance: dg.DagsterInstance) -> str:
    """A text that changes when a run ends, when the declared assets change, or when one becomes stale."""
    ended = instance.get_run_records(dg.RunsFilter(statuses=_ENDED), limit=1, order_by="update_timestamp")
    specs = sorted(definitions.resolve_all_asset_specs(), key=lambda spec: spec.key)
    return digest_value(
        [
            [spec.key.to_user_string() for spec in specs],
            [[run.dagster_run.run_id, run.update_timestamp.isoformat()] for run in ended],
            [[key.to_user_string(), state] for key, state in sorted(freshness_states(specs, instance).items())],
        ]
    )


def page(found: Iterable[DatasetOverview]) -> dict[str, dg.MetadataValue]:
    """The metadata of `datasets`: datasets that need attention, the table of all datasets, the other datasets.

    The page's own entries have a space in their names; entries of datasets have the dataset's name, which has none.
    """
    every = sorted(found, key=lambda d: (not d.failed, not _run_failed(d), not d.warned, d.dataset))
    there = [dataset for dataset in every if not _untouched(dataset)]
    bad = [dataset for dataset in there if dataset.failed or dataset.warned or _run_failed(dataset)]
    shown: dict[str, Shown] = {
        "checks failed": sum(len(dataset.failed) for dataset in every),
        "checks warned": sum(len(dataset.warned) for dataset in every),
        "last runs failed": sum(_run_failed(dataset) for dataset in every),
        **{dataset.dataset: Markdown(_text(dataset)) for dataset in bad},
        "all datasets": Table([_row(dataset) for dataset in there]),
        **{dataset.dataset: Markdown(_text(dataset)) for dataset in there if dataset not in bad},
        "never run": ", ".join(dataset.dataset for dataset in every if _untouched(dataset)) or "none",
    }
    return {name: rendered(value) for name, value in shown.items()}


def _run_failed(dataset: DatasetOverview) -> bool:
    return dataset.last_run is not None and dataset.last_run.status == dg.DagsterRunStatus.FAILURE.value


def _untouched(dataset: DatasetOverview) -> bool:
    return dataset.last_run is None and dataset.unknown == dataset.checks


def _row(dataset: DatasetOverview) -> dict[str, str | int]:
    """A row of the table; empty cells for what is not known."""
    run = dataset.last_run
    row: dict[str, str | int] = {
        "dataset": dataset.dataset,
        "last run (UTC)": "" if run is None else f"{run.status.lower()} {_time(run.at)}",
        "passed": f"{dataset.passed}/{dataset.checks}",
        "failed": len(dataset.failed),
        "warned": len(dataset.warned),
        "accepted": len(dataset.accepted),
        "made (UTC)": _time(dataset.made),
        "oldest proof (UTC)": _time(dataset.proven),
        "partitions": f"{dataset.partitions_made:,}/{dataset.partitions:,}" if dataset.partitions else "",
        "documents": _short(dataset.documents),
        "tokens": _short(dataset.tokens),
        "bytes": _short(dataset.bytes),
        "build_seconds": _short(dataset.build_seconds),
    }
    if dataset.freshness_policy is not None:
        row["freshness"] = _freshness(dataset)
    # one cell that wraps makes the row five lines high
    return {name: value.replace(" ", "\u00a0") if isinstance(value, str) else value for name, value in row.items()}


def _text(dataset: DatasetOverview) -> str:
    """The lines of one dataset, short enough that the UI shows them in place."""
    run = dataset.last_run
    first = [f"{dataset.passed} of {dataset.checks} checks passed"]
    if dataset.unknown:
        first.append(f"{dataset.unknown} without a result")
    if run is None:
        first.insert(0, "never run")
    else:
        first.insert(0, f"last run: [{run.status.lower()} {_time(run.at)} UTC](/runs/{run.run_id})")
    if dataset.freshness_policy is not None:
        first.append(f"freshness {_escaped(_freshness(dataset))}")
    lines = ["; ".join(first)]
    results = list(_lines(dataset))
    for number, line in enumerate(results):
        rest = f"- and {len(results) - number} more: [all assets](/assets/{quote(dataset.dataset)})"
        if len("\n".join([*lines, line, rest])) > _INLINE:
            return "\n".join([*lines, rest])
        lines.append(line)
    return "\n".join(lines)


def _lines(dataset: DatasetOverview) -> Iterator[str]:
    for word, results in (("failed", dataset.failed), ("warned", dataset.warned), ("accepted", dataset.accepted)):
        for result in results:
            yield f"- {word}: {_linked(result)}: {_sentence(result.sentence)}"


def _linked(result: CheckResult) -> str:
    """The check's name, linked to its page: the link is relative to the host, so that it works behind any proxy."""
    path = "/".join(quote(part, safe="") for part in result.key.asset_key.path)
    where = "/".join([*result.key.asset_key.path[1:], result.key.name])
    return f"[{_escaped(where)}](/assets/{path}?view=checks&checkDetail={quote(result.key.name, safe='')})"


def _sentence(text: str) -> str:
    """The text on one line, cut to a length that suits a list."""
    line = " ".join(text.split())
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
