"""The history of a dataset, as earlier runs reported it, from Dagster's public records.

Each build of a dataset materializes its `data_card`, whose metadata has the counts, and evaluates the checks of its
artifacts. Dagster keeps both. Reading a year of records of many datasets takes minutes, so the records are kept in
a file per dataset, and only newer ones are read. The file may be deleted at any time.

Entry points: `read_history`, `DatasetHistory`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import orjson
from typing_extensions import TypedDict  # pydantic requires this `TypedDict` before Python 3.12

from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.orchestration.partitions import asset_key
from dataprep_assets.orchestration.runs.dataset_runs import builds_dataset
from dataprep_assets.project import read_state
from dataprep_assets.site.stored import StoredDataset

MAX_BUILDS, MAX_EVALUATIONS = 400, 60
"""Maximum number of builds of a dataset, and of evaluations of a check, that pages show."""
MAX_RUNS = 300
"""Maximum number of the newest runs that are searched."""
_FIRST_PAGE = 5
"""Number of records that are read first, because usually only the newest ones are unknown."""

CheckKey = tuple[str, str]
"""Path of an artifact below its dataset, such as `token_bins`, and the name of a check."""
VolumeKey = tuple[str, str, str]
"""Source, rule and kind, such as `rows dropped`; the rule is empty for the total of a source."""


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """A build of the dataset.

    Counts are in their public form: a text, such as `< 11`, or None if they are not recorded.

    Attributes:
        time: End of the build, in seconds since 1970.
        run_id: Dagster's id of the run.
        rows: Rows of the source.
        documents: Documents in the dataset.
        tokens: Tokens in the dataset.
        dropped: Source rows that were dropped.
        volumes: Counts by source, rule and kind.
    """

    time: float
    run_id: str
    rows: int | str | None = None
    documents: int | str | None = None
    tokens: int | str | None = None
    dropped: int | str | None = None
    volumes: Mapping[VolumeKey, int] = field(default_factory=dict)

    @property
    def drop_rate(self) -> float | None:
        """Share of the source rows that were dropped; None if it is unknown."""
        if not isinstance(self.rows, int) or not isinstance(self.dropped, int) or not self.rows:
            return None
        return self.dropped / self.rows


@dataclass(frozen=True)
class CheckRecord:
    """An evaluation of a check.

    Attributes:
        time: Its time, in seconds since 1970.
        passed: Whether the check passed.
        severity: `WARN` or `ERROR`, which matters only if it did not pass.
        run_id: Dagster's id of the run.
    """

    time: float
    passed: bool
    severity: str = "ERROR"
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetHistory:
    """The history of a dataset, oldest records first.

    Attributes:
        builds: Its builds.
        checks: The evaluations of each check.
        details: The rows of a check's newest evaluation, in their public form, if it did not pass.
        is_private: Whether the dataset is sensitive, so that no shares and differences of its counts may be shown.
    """

    builds: tuple[BuildRecord, ...] = ()
    checks: Mapping[CheckKey, tuple[CheckRecord, ...]] = field(default_factory=dict)
    details: Mapping[CheckKey, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    is_private: bool = False

    def list_drop_rates(self) -> list[float | None]:
        """Return the share of source rows that each build dropped; None if it is unknown or private."""
        return [None if self.is_private else build.drop_rate for build in self.builds]

    def count_unpassed_checks(self) -> list[tuple[float, int]]:
        """Return the time of each run that evaluated checks, and the number of checks that did not pass after it."""
        events = [(record.time, key, record) for key, records in self.checks.items() for record in records]
        # Keep the order of a check's records with the same time, because SQLite stores whole seconds.
        events.sort(key=lambda event: event[0])
        unpassed: set[CheckKey] = set()
        counts: dict[str, tuple[float, int]] = {}
        for time, key, record in events:
            (unpassed.discard if record.passed else unpassed.add)(key)
            counts[record.run_id] = (time, len(unpassed))
        return list(counts.values())


_Evaluation = tuple[int, float, bool, str, str]
"""Id of Dagster's record, and the fields of `CheckRecord`."""


class _KeptRecords(TypedDict):
    """Content of the file with the records of a dataset, newest first.

    Attributes:
        builds: Ids of Dagster's records, and the fields of `BuildRecord`.
        checks: `artifact:check` → its evaluations.
        runs: Ids of the runs that had ended.
    """

    builds: list[tuple[int, dict[str, Any]]]
    checks: dict[str, list[_Evaluation]]
    runs: list[str]


def read_history(
    instance: dg.DagsterInstance,
    dataset: StoredDataset,
    folder: Path | None = None,
    runs: Sequence[dg.RunRecord] = (),
) -> DatasetHistory:
    """Return the history of a dataset.

    Args:
        instance: The instance that recorded its runs.
        dataset: The dataset.
        folder: The folder in which records are kept; None for no folder.
        runs: The newest runs of the instance. After a single new run, they save a query per check.
    """
    path = None if folder is None else folder / f"{dataset.name}.json"
    kept_records = None if path is None else read_state(path, _KeptRecords)
    kept_records = kept_records or {"builds": [], "checks": {}, "runs": []}
    builds = _extend(kept_records["builds"], _read_builds(instance, dataset.name, kept_records["builds"]), MAX_BUILDS)
    newest = _read_newest_evaluations(instance, dataset)
    dataset_runs = [run.dagster_run for run in runs if _may_evaluate(run.dagster_run, dataset.name)]
    new_ids = [run.run_id for run in dataset_runs if run.run_id not in kept_records["runs"]]
    # The list has all new runs if it also has an old one, or if it has all runs and nothing is kept.
    has_all = len(dataset_runs) > len(new_ids) or (len(runs) < MAX_RUNS and not kept_records["checks"])
    single_run = new_ids[0] if has_all and len(new_ids) == 1 else None
    records: _KeptRecords = {
        "builds": builds,
        "checks": _read_checks(instance, newest, kept_records["checks"], single_run),
        "runs": [run.run_id for run in dataset_runs if run.is_finished],
    }
    if path is not None and records != kept_records:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, orjson.dumps(records), durably=False)
    return DatasetHistory(
        builds=tuple(_to_build(fields) for _, fields in reversed(builds)),
        checks={
            _split_name(name): tuple(CheckRecord(*evaluation[1:]) for evaluation in reversed(evaluations))
            for name, evaluations in records["checks"].items()
        },
        details={
            _split_name(name): rows for name, (_, record) in newest.items() if (rows := tuple(_list_details(record)))
        },
        is_private=dataset.privacy.closed,
    )


def _split_name(name: str) -> CheckKey:
    artifact, _, check = name.rpartition(":")
    return artifact, check


def _extend(kept_records: Sequence[Any], new: tuple[list[Any], bool], limit: int) -> list[Any]:
    """Return the newest records; the kept ones are dropped if Dagster no longer has the newest of them."""
    records, is_continued = new
    return [*records, *(map(tuple, kept_records) if is_continued else ())][:limit]


def _read_builds(
    instance: dg.DagsterInstance, name: str, kept_builds: Sequence[tuple[int, dict[str, Any]]]
) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """Return the builds that are not kept yet, newest first, and whether the newest kept one was found."""
    key, cursor, new_builds = dg.AssetKey([name, DATA_CARD]), None, list[tuple[int, dict[str, Any]]]()
    newest = kept_builds[0] if kept_builds else None
    limit = _FIRST_PAGE if kept_builds else MAX_BUILDS
    while len(new_builds) < MAX_BUILDS:
        page = instance.fetch_materializations(key, limit=limit, cursor=cursor)
        for record in page.records:
            if newest is not None and (record.storage_id, record.timestamp) == (newest[0], newest[1]["time"]):
                return new_builds, True
            if record.asset_materialization is not None:
                metadata = {name: entry.value for name, entry in record.asset_materialization.metadata.items()}
                fields = _summarize_metadata(metadata)
                new_builds.append((record.storage_id, {"time": record.timestamp, "run_id": record.run_id, **fields}))
        if not page.has_more:
            break
        cursor, limit = page.cursor, MAX_BUILDS
    return new_builds, False


def _summarize_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `BuildRecord` from the metadata of a `data_card`, as JSON has them."""
    rows = [record.data for record in getattr(metadata.get("losses"), "records", ())]
    counts = {name: metadata.get(name) for name in ("rows", "documents", "tokens", "dropped")}
    volumes = [
        [row["source"], row["reason"], row["kind"], row["count"]] for row in rows if isinstance(row.get("count"), int)
    ]
    return {**counts, "volumes": volumes}


def _to_build(fields: Mapping[str, Any]) -> BuildRecord:
    volumes = {(source, rule, kind): count for source, rule, kind, count in fields["volumes"]}
    return BuildRecord(**{**fields, "volumes": volumes})


def _read_newest_evaluations(
    instance: dg.DagsterInstance, dataset: StoredDataset
) -> dict[str, tuple[dg.AssetCheckKey, Any]]:
    """Return `artifact:check` → its key and Dagster's newest record, for each check that was ever evaluated."""
    keys = [dg.AssetCheckKey(asset_key(spec), check.name) for spec in dataset.specs for check in spec.checks]
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys) if keys else {}
    return {f"{'/'.join(key.asset_key.path[1:])}:{key.name}": (key, record) for key, record in newest.items()}


def _list_details(record: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a check's table, if the check was evaluated and did not pass."""
    evaluation = record.evaluation
    if isinstance(evaluation, dg.AssetCheckEvaluation) and not evaluation.passed:
        yield from (row.data for row in getattr(evaluation.metadata.get("table"), "records", ()))


def _may_evaluate(run: dg.DagsterRun, dataset: str) -> bool:
    # A run without a selection may execute everything.
    return builds_dataset(run, dataset) or not (run.asset_selection or run.asset_check_selection)


def _read_checks(
    instance: dg.DagsterInstance,
    newest: Mapping[str, tuple[dg.AssetCheckKey, Any]],
    kept_checks: Mapping[str, list[_Evaluation]],
    single_run: str | None,
) -> dict[str, list[_Evaluation]]:
    """Return the evaluations of each check that was ever evaluated, newest first.

    If all new evaluations are of a `single_run`, Dagster's newest record is a check's only new one.
    """
    evaluations = {}
    for name, (key, record) in newest.items():
        kept_evaluations = kept_checks.get(name, [])
        if not _is_new(record, kept_evaluations):
            new: tuple[list[_Evaluation], bool] = ([], True)
        elif record.run_id == single_run:
            new = (_list_evaluations(record), True)
        else:
            new = _read_evaluations(instance, key, kept_evaluations)
        if extended := _extend(kept_evaluations, new, MAX_EVALUATIONS):
            evaluations[name] = extended
    return evaluations


def _is_new(record: Any, kept_evaluations: Sequence[_Evaluation]) -> bool:
    return not kept_evaluations or (record.id, record.create_timestamp) != tuple(kept_evaluations[0][:2])


def _read_evaluations(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, kept_evaluations: Sequence[_Evaluation]
) -> tuple[list[_Evaluation], bool]:
    """Return the evaluations that are not kept yet, newest first, and whether the newest kept one was found."""
    evaluations: list[_Evaluation] = []
    for record in _iterate_evaluations(instance, key, _FIRST_PAGE if kept_evaluations else MAX_EVALUATIONS):
        if kept_evaluations and not _is_new(record, kept_evaluations):
            return evaluations, True
        # A step that is repeated within a run evaluates its checks again.
        if not evaluations or not record.run_id or record.run_id != evaluations[-1][-1]:
            evaluations += _list_evaluations(record)
        if len(evaluations) >= MAX_EVALUATIONS:
            break
    return evaluations, False


def _list_evaluations(record: Any) -> list[_Evaluation]:
    """Return the evaluation in one of Dagster's records; empty for a planned evaluation, which has no result yet."""
    evaluation = record.evaluation
    if not isinstance(evaluation, dg.AssetCheckEvaluation):
        return []
    return [(record.id, record.create_timestamp, evaluation.passed, evaluation.severity.value, record.run_id)]


def _iterate_evaluations(instance: dg.DagsterInstance, key: dg.AssetCheckKey, limit: int) -> Iterator[Any]:
    cursor = None
    while True:
        records = instance.event_log_storage.get_asset_check_execution_history(key, limit=limit, cursor=cursor)
        yield from records
        if len(records) < limit:
            return
        cursor, limit = records[-1].id, MAX_EVALUATIONS
