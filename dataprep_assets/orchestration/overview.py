"""What the instance knows about every dataset: its last run, its checks, its age and its counts.

Everything comes from Dagster's event log, in a few queries a dataset, and nothing from a store: an
overview of fifty datasets of two thousand partitions takes seconds, works when the stores are out of reach, and shows
what was recorded, not what happened to the files since. `dataprep status` reads the stores.

Entry point: `overview`. `overview_page` shows it in the UI.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from dataprep_assets.graph.card import BUILD_SECONDS, DATA_CARD, MADE_AGAIN, PRODUCT_BYTES, PROOF_LEVEL
from dataprep_assets.graph.finding import ACCEPTED
from dataprep_assets.orchestration.checks import OLDEST
from dataprep_assets.orchestration.slots import Slots, slots_of

_COMPLETED = {"SUCCEEDED", "FAILED"}


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """The run that touched a dataset last.

    Attributes:
        run_id: Its id.
        status: As Dagster has it: SUCCESS, FAILURE, STARTED, …
        at: When the run ended, or was created if it has not ended. Seconds since 1970.
        shared: Whether it was to make assets of other datasets, too: then it may have failed at those.
    """

    run_id: str
    status: str
    at: float
    shared: bool


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
        slots: How many of its artifacts and partitions are made, failed and stale.
        proven: When the oldest verdict on one of its artifacts was given. Seconds since 1970.
        proof_level: How much is proven, a `sample` or `every_document`, from its data card.
        made_again: The share of the documents that the checks make again from the source, from its data card.
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
    slots: Slots
    proven: float | None
    proof_level: str | None
    made_again: float | None
    documents: int | str | None
    tokens: int | str | None
    bytes: int | None
    build_seconds: float | None

    @property
    def unknown(self) -> int:
        """Number of checks that have no result yet."""
        return self.checks - self.passed - len(self.failed) - len(self.warned)


def overview(definitions: dg.Definitions, instance: dg.DagsterInstance) -> list[DatasetOverview]:
    """Every dataset of a code location, sorted by name.

    Args:
        definitions: Those of the code location. Whatever has a data card is a dataset.
        instance: Where its runs and checks were recorded.
    """
    assets = _assets(definitions)
    recorded = _recorded(assets, instance)
    return [_dataset(name, assets[name], recorded) for name in sorted(assets)]


def broken(definitions: dg.Definitions) -> dict[dg.AssetKey, str]:
    """The assets that stand for declarations that cannot be loaded (`code_location`), each with the reason."""
    specs = [spec for spec in definitions.resolve_all_asset_specs() if spec.key.path[1:] == ["cannot_be_loaded"]]
    return {spec.key: (spec.description or "").partition("```")[2].rpartition("```")[0].strip() for spec in specs}


@dataclass(frozen=True, kw_only=True)
class _Asset:
    """An asset of a dataset, with the keys of its checks, sorted by name."""

    spec: dg.AssetSpec
    checks: Sequence[dg.AssetCheckKey]

    @property
    def key(self) -> dg.AssetKey:
        return self.spec.key


def _assets(definitions: dg.Definitions) -> dict[str, list[_Asset]]:
    """Dataset → its assets, sorted by key; the first part of their keys is its name."""
    checks: dict[dg.AssetKey, list[dg.AssetCheckKey]] = {}
    for one in definitions.asset_checks or ():
        for key in sorted(one.check_keys, key=lambda key: key.name):
            checks.setdefault(key.asset_key, []).append(key)
    found: dict[str, list[_Asset]] = {}
    for spec in sorted(definitions.resolve_all_asset_specs(), key=lambda spec: spec.key):
        found.setdefault(spec.key.path[0], []).append(_Asset(spec=spec, checks=checks.get(spec.key, ())))
    return {name: assets for name, assets in found.items() if any(a.key.path[1:] == [DATA_CARD] for a in assets)}


@dataclass(frozen=True, kw_only=True)
class _Evaluated:
    """The latest evaluation of a check.

    Attributes:
        run_id: The run that evaluated it.
        at: When it did. Seconds since 1970.
        evaluation: What it found.
    """

    run_id: str
    at: float
    evaluation: dg.AssetCheckEvaluation


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """What the instance recorded about all datasets.

    Attributes:
        touched: The run that touched each asset last, of those that were ever part of a run.
        materializations: The latest materialization of each asset that has one.
        checks: The checks that were ever evaluated, with their latest evaluation.
        runs: The latest run of each asset and check, by run id.
        freshness: The state of each asset whose freshness policy Dagster has judged.
        slots: What is made, failed and stale of each dataset.
    """

    touched: Mapping[dg.AssetKey, str | None]
    materializations: Mapping[dg.AssetKey, dg.EventLogEntry]
    checks: Mapping[dg.AssetCheckKey, _Evaluated]
    runs: Mapping[str, LastRun]
    freshness: Mapping[dg.AssetKey, str]
    slots: Mapping[str, Slots]


def _recorded(datasets: Mapping[str, Sequence[_Asset]], instance: dg.DagsterInstance) -> _Recorded:
    assets = [asset for members in datasets.values() for asset in members]
    records = {record.asset_entry.asset_key: record for record in instance.get_asset_records([a.key for a in assets])}
    entries = [record.asset_entry for record in records.values()]
    checks = _evaluated([check for asset in assets for check in asset.checks], instance)
    touched = {entry.asset_key: entry.last_run_id for entry in entries}
    runs = {*touched.values(), *(check.run_id for check in checks.values())} - {None}
    return _Recorded(
        touched=touched,
        materializations={e.asset_key: e.last_materialization for e in entries if e.last_materialization is not None},
        checks=checks,
        runs=_runs([run for run in runs if run is not None], set(datasets), instance),
        freshness=freshness_states([asset.spec for asset in assets], instance),
        slots={
            name: slots_of(name, [asset.spec for asset in members], records, instance)
            for name, members in datasets.items()
        },
    )


def freshness_states(specs: Iterable[dg.AssetSpec], instance: dg.DagsterInstance) -> dict[dg.AssetKey, str]:
    """Asset → what Dagster says of its freshness policy (PASS, WARN, FAIL, …), of those that it has judged."""
    judged = [spec.key for spec in specs if spec.freshness_policy is not None]
    states = instance.get_freshness_state_records(judged) if judged else {}
    return {key: record.freshness_state.value for key, record in states.items()}


def _evaluated(keys: Sequence[dg.AssetCheckKey], instance: dg.DagsterInstance) -> dict[dg.AssetCheckKey, _Evaluated]:
    """Check → its latest evaluation; checks that were never evaluated are left out.

    The latest record of a check may be of a run that has not reached the check, or ended before it did. Then the
    evaluation before it still holds.
    """
    storage = instance.event_log_storage
    found = {}
    for key, record in storage.get_latest_asset_check_execution_by_key(keys).items():
        latest = record
        if record.status.value not in _COMPLETED:
            # the enumeration has no public name
            completed = {status for status in type(record.status) if status.value in _COMPLETED}
            latest = next(iter(storage.get_asset_check_execution_history(key, limit=1, status=completed)), record)
        # of a check that was planned alone the record has no result
        if latest.status.value in _COMPLETED and latest.evaluation is not None:
            # the record itself is created when its run is planned
            at = latest.create_timestamp if latest.event is None else latest.event.timestamp
            found[key] = _Evaluated(run_id=latest.run_id, at=at, evaluation=latest.evaluation)
    return found


def _runs(ids: Sequence[str], datasets: Container[str], instance: dg.DagsterInstance) -> dict[str, LastRun]:
    """The runs with these ids, except deleted ones; assets of a dataset are those below its name."""
    found = {}
    for record in instance.get_run_records(dg.RunsFilter(run_ids=ids)) if ids else ():
        run, at = record.dagster_run, record.end_time or record.create_timestamp.timestamp()
        touched = {key.path[0] for key in run.asset_selection or () if key.path[0] in datasets}
        found[run.run_id] = LastRun(run_id=run.run_id, status=run.status.value, at=at, shared=len(touched) > 1)
    return found


def _dataset(name: str, assets: Sequence[_Asset], recorded: _Recorded) -> DatasetOverview:
    """See `overview`; `assets` are those of this dataset."""
    members = {asset.key: asset for asset in assets}
    card = members[dg.AssetKey([name, DATA_CARD])]
    checks = [key for asset in assets for key in asset.checks]
    evaluated = [recorded.checks[key] for key in checks if key in recorded.checks]
    touched = {recorded.touched.get(key) for key in members} | {check.run_id for check in evaluated}
    touching = [recorded.runs[run] for run in touched if run is not None and run in recorded.runs]
    # a card is made of the ends of its dataset's graph, which are the products
    products = {dep.asset_key for dep in card.spec.deps} & set(members)
    made = [recorded.materializations[key].timestamp for key in products if key in recorded.materializations]
    judged = next((asset for asset in assets if asset.spec.freshness_policy is not None), None)
    counts = _counts(recorded.materializations.get(card.key))
    return DatasetOverview(
        dataset=name,
        last_run=max(touching, key=lambda run: run.at, default=None),
        checks=len(checks),
        passed=sum(check.evaluation.passed for check in evaluated),
        failed=list(_failed(evaluated, dg.AssetCheckSeverity.ERROR)),
        warned=list(_failed(evaluated, dg.AssetCheckSeverity.WARN)),
        accepted=list(_accepted(evaluated)),
        made=min(made, default=None) if len(made) == len(products) else None,
        freshness_policy=None if judged is None else _in_words(judged.spec.freshness_policy),
        freshness=None if judged is None else recorded.freshness.get(judged.key, "UNKNOWN"),
        slots=recorded.slots[name],
        proven=min((_proven(check) for check in evaluated), default=None),
        proof_level=counts.get(PROOF_LEVEL),
        made_again=counts.get(MADE_AGAIN),
        documents=counts.get("documents"),
        tokens=counts.get("tokens"),
        bytes=counts.get(PRODUCT_BYTES),
        build_seconds=counts.get(BUILD_SECONDS),
    )


def _proven(check: _Evaluated) -> float:
    """When the oldest verdict behind a check's result was given; its own time if it does not say so."""
    told = check.evaluation.metadata.get(OLDEST)
    return check.at if told is None else datetime.fromisoformat(str(told.value)).timestamp()


def _failed(evaluated: Iterable[_Evaluated], severity: dg.AssetCheckSeverity) -> Iterator[CheckResult]:
    for check in evaluated:
        found = check.evaluation
        if not found.passed and found.severity == severity:
            yield CheckResult(key=found.asset_check_key, sentence=found.description or "", at=check.at)


def _accepted(evaluated: Iterable[_Evaluated]) -> Iterator[CheckResult]:
    """The checks that passed because the declaration accepts their failure."""
    for check in evaluated:
        why = check.evaluation.metadata.get(ACCEPTED)
        if why is not None:
            yield CheckResult(key=check.evaluation.asset_check_key, sentence=str(why.value), at=check.at)


def _counts(event: dg.EventLogEntry | None) -> dict[str, Any]:
    """The counts in a materialization of a data card, by name."""
    if event is None or event.asset_materialization is None:
        return {}
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def _in_words(policy: Any) -> str:
    """A freshness policy in words: `within 36 h`, `by 0 3 * * 1 UTC`."""
    if (cron := getattr(policy, "deadline_cron", None)) is not None:
        return f"by {cron} {policy.timezone}"
    return f"within {policy.fail_window.to_timedelta().total_seconds() / 3600:g} h"
