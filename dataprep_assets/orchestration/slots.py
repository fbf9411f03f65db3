"""How many artifacts of a dataset are made, failed and stale, by Dagster's own records.

A slot is an artifact, or a partition of one that has partitions. What a later run of something else did says nothing of
a slot that failed: it counts until it was made, or until a later run of the dataset's job has passed its step.

A slot is stale if its code version is not that of its step now, or if an input, or the same partition of one, got
another data version after it was made. A run of the whole job that succeeded after that has compared the receipts:
what it left as it was is current, whatever the records of a plan say that has grown.

Entry point: `slots_of`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dataprep_assets.orchestration.keys import DATASET, FAILED_PARTITIONS, PART, TOGETHER, job_name

_MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
_CODE, _DATA = "dagster/code_version", "dagster/data_version"
# most runs of the job that are looked at for failures, back to its last whole success; what older ones left is not told
_RUNS_LOOKED_AT = 30
_ENDED: Mapping[dg.DagsterRunStatus, Any] = {
    dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
    dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
}
_APART = 1.0
"""Seconds by which the times of a run and of the event with which it ended may differ: both are of that event."""
_MOST_ENDS = 1000
"""More runs than ever end within that time."""


@dataclass(frozen=True, kw_only=True)
class FailedSlots:
    """Slots of an asset that failed: those partitions, or the whole; `run_id` is the run that says why."""

    key: dg.AssetKey
    partitions: Sequence[str]
    run_id: str

    @property
    def slots(self) -> Sequence[str | None]:
        """Its partitions; one None if it is the whole that failed."""
        return self.partitions or [None]


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Of a dataset: how many slots it should have, how many are made, how many of these are stale, which failed."""

    wanted: int
    made: int
    stale: int
    failed: Sequence[FailedSlots]

    @property
    def failures(self) -> int:
        """How many failed."""
        return sum(len(one.slots) for one in self.failed)


class _Asset:
    """What the records say of one asset. Partitions are those that it should have; None is an asset without any."""

    def __init__(
        self, spec: dg.AssetSpec, record: Any, partitions: Sequence[str], instance: dg.DagsterInstance
    ) -> None:
        self.spec, self._instance = spec, instance
        self._entry = None if record is None else record.asset_entry
        # ids of the events of all assets are one sequence: they tell whether an input was made before an artifact
        self.last = (self._entry.last_materialization_storage_id if self._entry is not None else None) or 0
        self.wanted: Sequence[str | None] = [None] if spec.partitions_def is None else partitions
        self.made: dict[str | None, int] = {}
        """Each slot that is made, with the id of the event."""
        if spec.partitions_def is None:
            self.made = {None: self.last} if self.last else {}
        elif partitions and self._entry is not None:
            there = instance.get_latest_storage_id_by_partition(spec.key, _MADE)
            self.made = {key: there[key] for key in partitions if key in there}

    def begun(self, after: int) -> dict[str | None, str]:
        """Each slot that a run of assets was to make after an event and did not, with the run, which may be at work."""
        entry = self._entry
        if entry is None or not self.wanted:
            return {}
        if self.spec.partitions_def is None:
            event = self._event()
            last = entry.last_run_id
            return {} if last is None or (event is not None and event.run_id == last) else {None: last}
        storage, wanted = self._instance.event_log_storage, {*self.wanted}
        found = storage.get_latest_asset_partition_materialization_attempts_without_materializations(
            self.spec.key, after or None
        )
        return {slot: run for slot, (run, at) in found.items() if slot in wanted and at > self.made.get(slot, 0)}

    def _event(self) -> dg.EventLogEntry | None:
        return None if self._entry is None else self._entry.last_materialization

    @property
    def of_other_code(self) -> bool:
        """Whether the step that made it last was another: of single partitions Dagster can be asked for data alone."""
        event = self._event()
        made = None if event is None else event.asset_materialization
        code = None if made is None else (made.tags or {}).get(_CODE)
        return code is not None and code != self.spec.code_version

    def data(self, before: int | None = None) -> Mapping[str | None, str | None]:
        """The data version of each slot that was made, by its latest event, or the latest before one."""
        key = self.spec.key
        if self.spec.partitions_def is not None:
            storage = self._instance.event_log_storage
            found = storage.get_latest_tags_by_partition(key, _MADE, [_DATA], None, before)
            return {slot: tags.get(_DATA) for slot, tags in found.items()}
        records = dg.AssetRecordsFilter(asset_key=key, before_storage_id=before)
        latest = next(iter(self._instance.fetch_materializations(records, limit=1).records), None)
        event = None if latest is None else latest.asset_materialization
        return {} if event is None else {None: (event.tags or {}).get(_DATA)}


def slots_of(
    dataset: str,
    specs: Sequence[dg.AssetSpec],
    records: Mapping[dg.AssetKey, Any],
    instance: dg.DagsterInstance,
) -> Slots:
    """What the records say of a dataset.

    Args:
        dataset: Its name.
        specs: Those of its assets.
        records: The records of those that have one, as `get_asset_records` gives them.
        instance: The instance.
    """
    plans = {spec.partitions_def for spec in specs if spec.partitions_def is not None}
    keys: dict[dg.PartitionsDefinition | None, list[str]] = {
        plan: list(plan.get_partition_keys(dynamic_partitions_store=instance)) for plan in plans
    }
    assets = {
        spec.key: _Asset(spec, records.get(spec.key), keys.get(spec.partitions_def, ()), instance) for spec in specs
    }
    runs = _ended_runs(dataset, instance)
    failed = list(_failed(assets, runs, instance))
    known = {(one.key, part) for one in failed for part in one.slots}
    whole = next((run for run in runs if run.run.is_success and run.is_whole), None)
    settled = 0 if whole is None else whole.event
    failed += _left_by_runs_of_assets(assets.values(), whole, known, instance)
    lost = {(one.key, part) for one in failed for part in one.slots}
    stale = {(key, slot) for key, asset in assets.items() for slot in _stale(asset, assets, settled)}
    return Slots(
        wanted=sum(len(asset.wanted) for asset in assets.values()),
        made=sum((key, slot) not in lost for key, asset in assets.items() for slot in asset.made),
        stale=len(stale - lost),
        failed=failed,
    )


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """A run of the job that has ended: the id of the event that says so, among all events, and the time."""

    run: dg.DagsterRun
    event: int
    at: float

    @property
    def is_part(self) -> bool:
        return PART in self.run.tags

    @property
    def is_whole(self) -> bool:
        return not self.is_part and self.run.parent_run_id is None


def _ended_runs(dataset: str, instance: dg.DagsterInstance) -> list[_Ended]:
    """The latest runs of the job, newest first, to the last one of the whole job that succeeded."""
    ended = dg.RunsFilter(job_name=job_name(dataset), tags={DATASET: dataset}, statuses=[*_ENDED])
    found: list[_Ended] = []
    for one in instance.get_run_records(ended, limit=_RUNS_LOOKED_AT):
        if (event := _event_of(one, instance)) is not None:
            found.append(_Ended(run=one.dagster_run, event=event, at=one.end_time or 0.0))
            if found[-1].run.is_success and found[-1].is_whole:
                break
    return found


def _event_of(record: dg.RunRecord, instance: dg.DagsterInstance) -> int | None:
    """The id of the event with which a run ended, among all events; None if there is none.

    On SQLite the events of a run have ids of their own; the changes of runs' states have those of assets. They are
    asked for by time: only SQLite could filter them by job.
    """
    run, at = record.dagster_run, record.end_time
    if at is None:
        return None
    wanted = dg.RunStatusChangeRecordsFilter(
        event_type=_ENDED[run.status], after_timestamp=at - _APART, before_timestamp=at + _APART
    )
    changes = instance.fetch_run_status_changes(wanted, limit=_MOST_ENDS).records
    return next((one.storage_id for one in changes if one.event_log_entry.run_id == run.run_id), None)


def _left_by_runs_of_assets(
    assets: Iterable[_Asset],
    whole: _Ended | None,
    known: Set[tuple[dg.AssetKey, str | None]],
    instance: dg.DagsterInstance,
) -> Iterator[FailedSlots]:
    """What runs of assets failed to make since the last `whole` success, beside what is `known` to have failed."""
    begun = {asset.spec.key: asset.begun(0 if whole is None else whole.event) for asset in assets}
    ids = list({run for slots in begun.values() for run in slots.values()})
    for record in instance.get_run_records(dg.RunsFilter(run_ids=ids)) if ids else ():
        run = record.dagster_run
        if run.is_failure and (whole is None or (record.end_time or 0.0) > whole.at):
            for key in run.asset_selection or ():  # a run of the job only touched the asset
                left = [s for s, by in begun.get(key, {}).items() if by == run.run_id and (key, s) not in known]
                if left:
                    yield FailedSlots(key=key, partitions=[s for s in left if s is not None], run_id=run.run_id)


def _failed(
    assets: Mapping[dg.AssetKey, _Asset], runs: Sequence[_Ended], instance: dg.DagsterInstance
) -> Iterator[FailedSlots]:
    """What runs of the job, newest first, say that failed, and no later one passed."""
    passed: set[str] = set()
    for ended in runs:
        run = ended.run
        if run.is_success:
            if ended.is_whole:
                return
            # a part made some partitions of a step only, which says nothing of the others that failed
            passed |= set() if ended.is_part else set(run.step_keys_to_execute or ())
            continue
        kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_SUCCESS}
        seen: set[str] = set()
        for record in instance.get_records_for_run(run.run_id, of_type=kinds).records:
            event = record.event_log_entry.dagster_event
            if event is None or event.step_key is None:
                continue
            seen.add(event.step_key)
            if event.is_step_failure and event.step_key not in passed:
                for name in event.step_key.split(TOGETHER):
                    yield from _of_step(name, event, ended, assets)
        passed |= set() if ended.is_part else seen


def _of_step(
    name: str, event: dg.DagsterEvent, ended: _Ended, assets: Mapping[dg.AssetKey, _Asset]
) -> Iterator[FailedSlots]:
    """The slots of the failed step's asset of this name that were not made since the run."""
    asset = next((one for key, one in assets.items() if "__".join(key.path[1:]) == name), None)
    if asset is None:
        return
    told = event.step_failure_data.user_failure_data
    listed = None if told is None else told.metadata.get(FAILED_PARTITIONS)
    named: Sequence[str] = [] if listed is None else listed.value  # type: ignore[assignment]
    partitions = [one for one in named if one in asset.wanted and asset.made.get(one, 0) < ended.event]
    if partitions or (not named and asset.made.get(None, 0) < ended.event):
        yield FailedSlots(key=asset.spec.key, partitions=partitions, run_id=ended.run.run_id)


def _stale(asset: _Asset, assets: Mapping[dg.AssetKey, _Asset], settled: int) -> set[str | None]:
    """The slots of an asset that are stale, if no whole run of the job succeeded since the event `settled`."""
    if asset.of_other_code:
        return {*asset.made}
    found: set[str | None] = set()
    for dep in asset.spec.deps:
        source = assets.get(dep.asset_key)
        if source is None or not asset.made:
            continue
        # since its oldest slot was made most inputs have no event, and then no version is asked for
        first = max(min(asset.made.values()), settled)
        if source.last <= first:
            continue
        aligned = source.spec.partitions_def is not None and source.spec.partitions_def == asset.spec.partitions_def
        # as they are, and as they were when that slot was made
        now, then = source.data(), source.data(before=first + 1)
        for slot, made in asset.made.items():
            newer = [one for one, at in source.made.items() if at > max(made, settled)]
            parts = [one for one in newer if one == slot] if aligned else newer
            found |= {slot for one in parts if now.get(one) != then.get(one)}
    return found
