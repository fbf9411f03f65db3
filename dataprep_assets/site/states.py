"""The state of each dataset, as the overview and the asset `datasets` show it.

Out-of-date artifacts and failed checks are determined as in `dataprep status`, from the receipts and verdicts in the
stores. The runs and the freshness are read from Dagster's records. Nothing is derived from events, so a page cannot
contradict either source.

Entry point: `summarize_datasets`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD, CardFacts
from dataprep_assets.engine.card.products import find_products
from dataprep_assets.engine.checks.results import UnpassedCheck, read_results
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.partitions import DATASET, asset_key
from dataprep_assets.orchestration.runs.dataset_runs import builds_dataset
from dataprep_assets.orchestration.runs.planning import PLANNER
from dataprep_assets.orchestration.sensors.freshness import build_policy
from dataprep_assets.site.history import MAX_RUNS, DatasetHistory
from dataprep_assets.site.stored import StoredDataset

_MAX_RUNS_OF_DATASET = 20
"""Maximum number of older runs with a dataset's tag that are searched."""
_SENSOR_TAG = "dagster/sensor_name"

Level = Literal["unknown", "failed", "warned", "out of date", "up to date", "never built"]
LEVELS: tuple[Level, ...] = ("failed", "unknown", "warned", "out of date", "up to date", "never built")
"""States, most urgent first."""
STYLES: Mapping[Level, str] = {
    "failed": "bad",
    "unknown": "bad",
    "warned": "warn",
    "out of date": "warn",
    "up to date": "good",
    "never built": "idle",
}
"""State → its class in `site.css`."""
_COMMAND = re.compile(r"`(dataprep(?: [\w./=-]+)+)`")
"""A command in a sentence. It has no characters that a shell interprets, because a sentence may quote a file name."""


@dataclass(frozen=True, kw_only=True)
class DatasetState:
    """Summary of a dataset's state.

    Attributes:
        dataset: The dataset's name.
        kind: Name of its component.
        owners: Its declared owners.
        state: `up to date`, `never built`, `N to build`; `unknown` if its store or source cannot be read.
        to_build: Number of artifacts that a run would build.
        why: The reason to build the first of these artifacts, or the reason for the unknown state.
        passed: Number of checks that pass for the current artifacts, including accepted failures.
        not_passed: Checks that do not pass: artifact and check name → the finding.
        card: Counts from the data card, in their public form.
        last_build: The newest run that built or checked any of its artifacts, except planning runs.
        last_success: The newest such run that succeeded.
        freshness: Dagster's state of its freshness policy; None if it has no policy.
        history: The history from earlier runs.
    """

    dataset: str
    kind: str = ""
    owners: tuple[str, ...] = ()
    state: str
    to_build: int = 0
    why: str = ""
    passed: int = 0
    not_passed: Mapping[tuple[str, str], UnpassedCheck] = field(default_factory=dict)
    card: Mapping[str, str] = field(default_factory=dict)
    last_build: dg.RunRecord | None = None
    last_success: dg.RunRecord | None = None
    freshness: str | None = None
    history: DatasetHistory = field(default_factory=DatasetHistory)

    @property
    def failed_checks(self) -> list[tuple[str, str]]:
        """Blocking checks that failed."""
        return [key for key, finding in self.not_passed.items() if finding.blocks]

    @property
    def warned(self) -> list[tuple[str, str]]:
        """Checks that warned."""
        return [key for key, finding in self.not_passed.items() if finding.sentence and not finding.blocks]

    @property
    def check_counts(self) -> str:
        """The number of checks that failed, warned or did not run; the number that passed if all did."""
        not_run = len(self.not_passed) - len(self.failed_checks) - len(self.warned)
        counts = {"failed": len(self.failed_checks), "warned": len(self.warned), "not run": not_run}
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or f"{self.passed:,} passed"

    @property
    def has_failed_run(self) -> bool:
        """Whether the newest build failed."""
        return self.last_build is not None and self.last_build.dagster_run.status == dg.DagsterRunStatus.FAILURE

    @property
    def level(self) -> Level:
        """The most urgent of its states."""
        if self.state == "unknown":
            return "unknown"
        if self.failed_checks or self.has_failed_run:
            return "failed"
        if self.warned:
            return "warned"
        if self.state == "never built":
            return "never built"
        return "out of date" if self.to_build else "up to date"


def choose_command(dataset: str, sentence: str) -> str:
    """Return the command that helps with a check that did not pass: the one that its sentence names, if any."""
    match = _COMMAND.search(sentence)
    return f"dataprep show {dataset}" if match is None else match[1]


def find_end_time(run: dg.RunRecord | None) -> float | None:
    """Return the end of a run, or its creation if it has not ended, in seconds since 1970; None for None."""
    return None if run is None else run.end_time or run.create_timestamp.timestamp()


def summarize_datasets(
    datasets: Sequence[StoredDataset],
    instance: dg.DagsterInstance,
    histories: Mapping[str, DatasetHistory] | None = None,
) -> list[DatasetState]:
    """Return the state of every dataset, sorted by name.

    Args:
        datasets: The datasets.
        instance: The instance that recorded their runs.
        histories: Dataset → its history from earlier runs.
    """
    runs = [run for run in instance.get_run_records(limit=MAX_RUNS) if not _is_planning(run)]
    return [
        _summarize_dataset(
            dataset,
            runs=list(_find_runs(dataset.name, runs, instance)),
            freshness=_evaluate_freshness(dataset.specs, instance),
            history=(histories or {}).get(dataset.name, DatasetHistory()),
        )
        for dataset in sorted(datasets, key=lambda dataset: dataset.name)
    ]


def _is_planning(run: dg.RunRecord) -> bool:
    return run.dagster_run.tags.get(_SENSOR_TAG) == PLANNER


def _has_succeeded(run: dg.RunRecord) -> bool:
    return run.dagster_run.status == dg.DagsterRunStatus.SUCCESS


def _find_runs(dataset: str, runs: Sequence[dg.RunRecord], instance: dg.DagsterInstance) -> Iterator[dg.RunRecord]:
    """Yield the builds of a dataset among the newest runs, then older ones if none of these succeeded."""
    newest = [run for run in runs if builds_dataset(run.dagster_run, dataset)]
    yield from newest
    if len(runs) >= MAX_RUNS // 2 and not any(map(_has_succeeded, newest)):
        tagged = instance.get_run_records(dg.RunsFilter(tags={DATASET: dataset}), limit=_MAX_RUNS_OF_DATASET)
        yield from (run for run in tagged if not _is_planning(run))


def _summarize_dataset(
    dataset: StoredDataset, *, runs: Sequence[dg.RunRecord], freshness: str | None, history: DatasetHistory
) -> DatasetState:
    """Summarize a dataset; the state is `unknown`, with the reason, if its artifacts cannot be read."""
    specs, store, privacy = dataset.specs, dataset.store, dataset.privacy
    last_build, last_success = next(iter(runs), None), next(filter(_has_succeeded, runs), None)
    try:
        is_new = not dataset.decisions
        stale_decisions = [decision for decision in dataset.decisions if decision.is_stale]
        check_results = {
            ("/".join(spec.path[1:]), check): result
            for spec in specs
            if not is_new
            for check, result in read_results(spec, store).items()
        }
        card = {} if is_new else _read_card_counts(specs, store)
    except DataprepError as error:
        state = DatasetState(dataset=dataset.name, state="unknown", why=privacy.public_error(error))
    else:
        state = DatasetState(
            dataset=dataset.name,
            state="never built"
            if is_new
            else f"{len(stale_decisions):,} to build"
            if stale_decisions
            else "up to date",
            to_build=len(stale_decisions),
            why=privacy.public_text(str(stale_decisions[0]), stale_decisions[0].name) if stale_decisions else "",
            passed=sum(result is None for result in check_results.values()),
            not_passed={
                key: UnpassedCheck(result.sentence and privacy.public_text(result.sentence, "failed"), result.blocks)
                for key, result in check_results.items()
                if result is not None
            },
            card=card,
        )
    return replace(
        state,
        kind=dataset.component.component,
        owners=dataset.component.declaration.owners,
        last_build=last_build,
        last_success=last_success,
        freshness=freshness,
        history=history,
    )


def _read_card_counts(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> dict[str, str]:
    declaration = specs[0].declaration
    receipt = store.receipt(declaration.artifact(DATA_CARD))
    if receipt is None:
        return {}
    facts, count = CardFacts.from_receipt(receipt), load_privacy(declaration).public_count
    return {name: count(getattr(facts, name)) for name in ("documents", "tokens", "dropped")}


def _evaluate_freshness(specs: Sequence[ArtifactSpec], instance: dg.DagsterInstance) -> str | None:
    """Return Dagster's state of the freshness policy that a dataset's products have; None without a policy."""
    if build_policy(specs[0].declaration.automation) is None:
        return None
    keys = [asset_key(spec) for spec in find_products(specs)]
    records = instance.get_freshness_state_records(keys)
    return next((records[key].freshness_state.value for key in keys if key in records), "UNKNOWN")
