"""How many artifacts of a dataset are made, failed and stale, by Dagster's own records.

A slot is an artifact, or a partition of one that has partitions. What a later run of something else did says nothing of
a slot that failed: it counts until it was made, or until a later run of the dataset's job has passed its step.

A slot is stale if its code version is not that of its step now, or if an input, or the same partition of one, got
another data version after it was made. A run of the whole job that succeeded after that has compared the receipts:
what it left as it was is current, whatever the records of a plan say that has grown.

Entry point: `slots_of`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dataprep_assets.orchestration.keys import DATASET, FAILED_PARTITIONS, PART, TOGETHER, job_name

_MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
_CODE, _DATA = "dagster/code_version", "dagster/data_version"
_RUNS_LOOKED_AT = 30
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


@dataclass(frozen=True, kw_only=True)
class FailedSlots:
    """Slots of an asset that failed: those partitions, or the whole; `run_id` is the run if one says so."""

    key: dg.AssetKey
    partitions: Sequence[str]
    run_id: str | None


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
        return sum(len(one.partitions) or 1 for one in self.failed)


class _Asset:
    """What the records say of one asset. Partitions are those that it should have; None is an asset without any."""

    def __init__(self, spec: dg.AssetSpec, record: Any, instance: dg.DagsterInstance) -> None:
        self.spec, self._instance = spec, instance
        self._entry = None if record is None else record.asset_entry
        self.last = (self._entry.last_materialization_storage_id if self._entry is not None else None) or 0
        self.wanted: list[str | None] = [None]
        self.failed: list[str | None] = []
        self.made: dict[str | None, int] = {}
        """Each slot that is made, with the id of the event."""
        if spec.partitions_def is None:
            self._whole()
        else:
            self._partitioned(spec.partitions_def)

    def _whole(self) -> None:
        entry = self._entry
        if entry is None:
            return
        if self.last:
            self.made = {None: self.last}
        if entry.last_run_id is not None and (self._made_by() != entry.last_run_id):
            run = self._instance.get_run_by_id(entry.last_run_id)
            # a run of assets that planned it, and did not come to make it
            if run is not None and run.is_failure and run.asset_selection and self.spec.key in run.asset_selection:
                self.failed = [None]

    def _partitioned(self, definition: dg.PartitionsDefinition) -> None:
        keys = list(definition.get_partition_keys(dynamic_partitions_store=self._instance))
        self.wanted = [*keys]
        if keys and self._entry is not None:
            there = self._instance.get_latest_storage_id_by_partition(self.spec.key, _MADE)
            self.made = {key: there[key] for key in keys if key in there}
            states = self._instance.get_status_by_partition(self.spec.key, keys, definition) or {}
            self.failed = [key for key, state in states.items() if state == dg.AssetPartitionStatus.FAILED]

    def _event(self) -> dg.EventLogEntry | None:
        return None if self._entry is None else self._entry.last_materialization

    def _made_by(self) -> str | None:
        event = self._event()
        return None if event is None else event.run_id

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
    assets = {spec.key: _Asset(spec, records.get(spec.key), instance) for spec in specs}
    runs = instance.get_run_records(dg.RunsFilter(tags={DATASET: dataset}, statuses=_ENDED), limit=_RUNS_LOOKED_AT)
    jobs = [run.dagster_run for run in runs if run.dagster_run.job_name == job_name(dataset)]
    failed = list(_failed(assets, jobs, instance))
    known = {(one.key, part) for one in failed for part in (one.partitions or [None])}
    for asset in assets.values():
        others = [slot for slot in asset.failed if (asset.spec.key, slot) not in known]
        if others:
            failed.append(FailedSlots(key=asset.spec.key, partitions=[s for s in others if s is not None], run_id=None))
    whole = next((run.run_id for run in jobs if run.is_success and _is_whole(run)), None)
    settled = 0 if whole is None else _last_event(instance, whole)
    lost = {(one.key, part) for one in failed for part in (one.partitions or [None])}
    stale = {(key, slot) for key, asset in assets.items() for slot in _stale(asset, assets, settled)}
    return Slots(
        wanted=sum(len(asset.wanted) for asset in assets.values()),
        made=sum((key, slot) not in lost for key, asset in assets.items() for slot in asset.made),
        stale=len(stale - lost),
        failed=failed,
    )


def _is_whole(run: dg.DagsterRun) -> bool:
    return PART not in run.tags and run.parent_run_id is None


def _last_event(instance: dg.DagsterInstance, run_id: str) -> int:
    """The id of the event with which a run succeeded."""
    found = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.RUN_SUCCESS).records
    return found[-1].storage_id if found else 0


def _failed(
    assets: Mapping[dg.AssetKey, _Asset], jobs: Sequence[dg.DagsterRun], instance: dg.DagsterInstance
) -> Iterator[FailedSlots]:
    """What runs of the job, newest first, say that failed, and no later one passed."""
    passed: set[str] = set()
    for run in jobs:
        if run.is_success:
            if _is_whole(run):
                return
            passed |= set() if PART in run.tags else set(run.step_keys_to_execute or ())
            continue
        steps = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_SUCCESS}
        ended: set[str] = set()
        for record in instance.get_records_for_run(run.run_id, of_type=steps).records:
            event = record.event_log_entry.dagster_event
            if event is None or event.step_key is None:
                continue
            ended.add(event.step_key)
            if event.is_step_failure and event.step_key not in passed:
                for name in event.step_key.split(TOGETHER):
                    yield from _of_step(name, event, record.storage_id, run.run_id, assets)
        passed |= set() if PART in run.tags else ended


def _of_step(
    name: str, event: dg.DagsterEvent, at: int, run_id: str, assets: Mapping[dg.AssetKey, _Asset]
) -> Iterator[FailedSlots]:
    """The slots of the failed step's asset of this name that were not made since."""
    asset = next((one for key, one in assets.items() if "__".join(key.path[1:]) == name), None)
    if asset is None:
        return
    told = event.step_failure_data.user_failure_data
    listed = None if told is None else told.metadata.get(FAILED_PARTITIONS)
    named: Sequence[str] = [] if listed is None else listed.value  # type: ignore[assignment]
    partitions = [one for one in named if one in asset.wanted and asset.made.get(one, 0) < at]
    if partitions or (not named and asset.made.get(None, 0) < at):
        yield FailedSlots(key=asset.spec.key, partitions=partitions, run_id=run_id)


def _stale(asset: _Asset, assets: Mapping[dg.AssetKey, _Asset], settled: int) -> set[str | None]:
    """The slots of an asset that are stale, if no whole run of the job succeeded since the event `settled`."""
    if asset.of_other_code:
        return {*asset.made}
    found: set[str | None] = set()
    for dep in asset.spec.deps:
        source = assets.get(dep.asset_key)
        if source is None or not asset.made:
            continue
        first = max(min(asset.made.values()), settled)
        if source.last <= first:
            continue
        aligned = source.spec.partitions_def is not None and source.spec.partitions_def == asset.spec.partitions_def
        now, then = source.data(), source.data(before=first + 1)
        for slot, made in asset.made.items():
            newer = [one for one, at in source.made.items() if at > max(made, settled)]
            parts = [one for one in newer if one == slot] if aligned else newer
            found |= {slot for one in parts if now.get(one) != then.get(one)}
    return found
