"""What the instance knows about every dataset: its last run, its checks, its age and its counts.

Everything comes from Dagster's event log, in a few queries for all datasets together, and nothing from a store: an
overview of fifty datasets of two thousand partitions takes seconds, works when the stores are out of reach, and shows
what was recorded, not what happened to the files since. `dataprep status` reads the stores.

Entry point: `overview`. `overview_page` shows it in the UI.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus as Status

from dataprep_assets.graph.card import BUILD_SECONDS, DATA_CARD, PRODUCT_BYTES
from dataprep_assets.graph.finding import ACCEPTED

if TYPE_CHECKING:
    from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
    from dagster._core.storage.event_log.base import AssetRecord

__all__ = ["CheckResult", "DatasetOverview", "LastRun", "overview"]

_COMPLETED = {Status.SUCCEEDED, Status.FAILED}


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """The run that touched a dataset last.

    Attributes:
        run_id: Its id.
        status: As Dagster has it: SUCCESS, FAILURE, STARTED, …
        at: When the run ended, or was created if it has not ended. Seconds since 1970.
    """

    run_id: str
    status: str
    at: float


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The latest result of a check, for the list of checks to read.

    Attributes:
        key: The key of the check.
        sentence: What the check found; for an accepted failure the declared reason.
        at: When it was evaluated. Seconds since 1970.
    """

    key: dg.AssetCheckKey
    sentence: str
    at: float


@dataclass(frozen=True, kw_only=True)
class DatasetOverview:
    """A dataset at a glance. None stands for anything that the instance does not know.

    Attributes:
        dataset: Its name.
        last_run: The run that touched it last.
        checks: How many checks it has.
        passed: How many of them passed, accepted ones included.
        failed: Those that failed as errors.
        warned: Those that failed as warnings.
        accepted: Those whose warning the declaration accepts, with a reason.
        made: When the oldest of its products was last materialized. Seconds since 1970.
        freshness_policy: The freshness policy of one of its artifacts, in words.
        freshness: What Dagster says of that policy now: PASS, WARN, FAIL, UNKNOWN.
        partitions: How many partitions its artifacts should have, all together.
        partitions_made: How many of these partitions were materialized.
        documents: Number of documents, from its data card.
        tokens: Number of tokens, from its data card.
        bytes: Bytes of its products, from its data card.
        build_seconds: Time that building the present artifacts took, from its data card.
    """

    dataset: str
    last_run: LastRun | None
    checks: int
    passed: int
    failed: Sequence[CheckResult]
    warned: Sequence[CheckResult]
    accepted: Sequence[CheckResult]
    made: float | None
    freshness_policy: str | None
    freshness: str | None
    partitions: int
    partitions_made: int
    documents: int | str | None
    tokens: int | str | None
    bytes: int | None
    build_seconds: float | None

    @property
    def unknown(self) -> int:
        """Number of checks that have no result yet."""
        return self.checks - self.passed - len(self.failed) - len(self.warned)


def overview(graph: "AssetGraph", instance: dg.DagsterInstance) -> list[DatasetOverview]:
    """Every dataset of a code location, sorted by name.

    Args:
        graph: The assets of the code location. Whatever has a data card is a dataset.
        instance: Where their runs and checks were recorded.
    """
    members = _members(graph)
    recorded = _recorded(graph, instance, [key for keys in members.values() for key in keys])
    return [_dataset(name, members[name], recorded) for name in sorted(members)]


def _members(graph: "AssetGraph") -> dict[str, list[dg.AssetKey]]:
    """Dataset → the keys of its assets, whose first part is its name."""
    members: dict[str, list[dg.AssetKey]] = {}
    for key in graph.materializable_asset_keys:
        members.setdefault(key.path[0], []).append(key)
    return {name: sorted(keys) for name, keys in members.items() if dg.AssetKey([name, DATA_CARD]) in keys}


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """What the instance recorded about all datasets.

    Attributes:
        graph: The asset graph.
        records: The assets that were ever part of a run, with their latest materialization.
        checks: The checks that were ever evaluated, with their latest evaluation.
        runs: The latest run of each asset and check, by run id.
        freshness: The state of each asset whose freshness policy Dagster has judged.
        made: How many partitions of each partitioned asset were materialized, and how many it should have.
    """

    graph: "AssetGraph"
    records: "Mapping[dg.AssetKey, AssetRecord]"
    checks: "Mapping[dg.AssetCheckKey, AssetCheckExecutionRecord]"
    runs: Mapping[str, LastRun]
    freshness: Mapping[dg.AssetKey, str]
    made: Mapping[dg.AssetKey, tuple[int, int]]


def _recorded(graph: "AssetGraph", instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]) -> _Recorded:
    storage = instance.event_log_storage
    records = {record.asset_entry.asset_key: record for record in instance.get_asset_records(keys)}
    checks = _evaluated([check for key in keys for check in graph.get(key).check_keys], instance)
    runs = {record.asset_entry.last_run_id for record in records.values()} | {c.run_id for c in checks.values()}
    judged = [key for key in keys if graph.get(key).freshness_policy is not None]
    return _Recorded(
        graph=graph,
        records=records,
        checks=checks,
        runs=_runs([run for run in runs if run is not None], instance),
        freshness={key: r.freshness_state.value for key, r in storage.get_freshness_state_records(judged).items()},
        made=_made(graph, keys, instance),
    )


def _evaluated(
    keys: Sequence[dg.AssetCheckKey], instance: dg.DagsterInstance
) -> "dict[dg.AssetCheckKey, AssetCheckExecutionRecord]":
    """Check → the record of its latest evaluation; checks that were never evaluated are left out.

    The latest record of a check may be of a run that has not reached the check, or ended before it did. Then the
    evaluation before it still holds.
    """
    storage = instance.event_log_storage
    found = dict(storage.get_latest_asset_check_execution_by_key(keys))
    for key in [key for key, record in found.items() if record.status not in _COMPLETED]:
        del found[key]
        for record in storage.get_asset_check_execution_history(key, limit=1, status=_COMPLETED):
            found[key] = record
    return found


def _runs(ids: Sequence[str], instance: dg.DagsterInstance) -> dict[str, LastRun]:
    """The runs with these ids, except deleted ones."""
    found = {}
    for record in instance.get_run_records(dg.RunsFilter(run_ids=ids)) if ids else ():
        run, at = record.dagster_run, record.end_time or record.create_timestamp.timestamp()
        found[run.run_id] = LastRun(run_id=run.run_id, status=run.status.value, at=at)
    return found


def _made(
    graph: "AssetGraph", keys: Iterable[dg.AssetKey], instance: dg.DagsterInstance
) -> dict[dg.AssetKey, tuple[int, int]]:
    """Partitioned asset → how many of its partitions were materialized, and how many it should have."""
    wanted: dict[Any, set[str]] = {}
    found = {}
    for key in keys:
        definition = graph.get(key).partitions_def
        if definition is not None:
            if definition not in wanted:
                wanted[definition] = set(definition.get_partition_keys(dynamic_partitions_store=instance))
            every = wanted[definition]
            # partitions that are no longer in the plan were materialized too
            found[key] = (len(every & instance.get_materialized_partitions(key)) if every else 0, len(every))
    return found


def _dataset(name: str, members: Sequence[dg.AssetKey], recorded: _Recorded) -> DatasetOverview:
    """See `overview`; `members` are the assets of this dataset."""
    graph, card = recorded.graph, dg.AssetKey([name, DATA_CARD])
    checks = [check for key in members for check in sorted(graph.get(key).check_keys, key=lambda check: check.name)]
    evaluated = [recorded.checks[key] for key in checks if key in recorded.checks]
    touched = {recorded.records[key].asset_entry.last_run_id for key in members if key in recorded.records}
    touched |= {record.run_id for record in evaluated}
    touching = [recorded.runs[run] for run in touched if run is not None and run in recorded.runs]
    products = [_materialized(recorded.records.get(key)) for key in graph.get(card).parent_keys & set(members)]
    judged = next((key for key in members if graph.get(key).freshness_policy is not None), None)
    partitions = [recorded.made[key] for key in members if key in recorded.made]
    counts = _counts(recorded.records.get(card))
    return DatasetOverview(
        dataset=name,
        last_run=max(touching, key=lambda run: run.at, default=None),
        checks=len(checks),
        passed=sum(_evaluation(record).passed for record in evaluated),
        failed=list(_failed(evaluated, dg.AssetCheckSeverity.ERROR)),
        warned=list(_failed(evaluated, dg.AssetCheckSeverity.WARN)),
        accepted=list(_accepted(evaluated)),
        made=None if None in products else min((at for at in products if at is not None), default=None),
        freshness_policy=None if judged is None else _in_words(graph.get(judged).freshness_policy),
        freshness=None if judged is None else recorded.freshness.get(judged, "UNKNOWN"),
        partitions=sum(wanted for _, wanted in partitions),
        partitions_made=sum(made for made, _ in partitions),
        documents=counts.get("documents"),
        tokens=counts.get("tokens"),
        bytes=counts.get(PRODUCT_BYTES),
        build_seconds=counts.get(BUILD_SECONDS),
    )


def _evaluation(record: "AssetCheckExecutionRecord") -> dg.AssetCheckEvaluation:
    assert record.evaluation is not None, "those that were not evaluated are left out"
    return record.evaluation


def _evaluated_at(record: "AssetCheckExecutionRecord") -> float:
    """Time of the evaluation in seconds since 1970; the record itself is created when its run is planned."""
    return record.create_timestamp if record.event is None else record.event.timestamp


def _failed(evaluated: "Iterable[AssetCheckExecutionRecord]", severity: dg.AssetCheckSeverity) -> Iterator[CheckResult]:
    for record in evaluated:
        evaluation = _evaluation(record)
        if not evaluation.passed and evaluation.severity == severity:
            yield CheckResult(key=record.key, sentence=evaluation.description or "", at=_evaluated_at(record))


def _accepted(evaluated: "Iterable[AssetCheckExecutionRecord]") -> Iterator[CheckResult]:
    """The checks that passed because the declaration accepts their failure."""
    for record in evaluated:
        why = _evaluation(record).metadata.get(ACCEPTED)
        if why is not None:
            yield CheckResult(key=record.key, sentence=str(why.value), at=_evaluated_at(record))


def _materialized(record: "AssetRecord | None") -> float | None:
    """When an asset was materialized last."""
    event = None if record is None else record.asset_entry.last_materialization
    return None if event is None else event.timestamp


def _counts(record: "AssetRecord | None") -> dict[str, Any]:
    """The counts in the latest materialization of a data card, by name."""
    event = None if record is None else record.asset_entry.last_materialization
    if event is None or event.asset_materialization is None:
        return {}
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def _in_words(policy: Any) -> str:
    """A freshness policy in words: `within 36 h`, `by 0 3 * * 1 UTC`."""
    if (cron := getattr(policy, "deadline_cron", None)) is not None:
        return f"by {cron} {policy.timezone}"
    return f"within {policy.fail_window.to_timedelta().total_seconds() / 3600:g} h"
