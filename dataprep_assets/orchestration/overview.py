"""The asset `datasets`: a page of the UI with all datasets of the code location, and the sensor that updates it.

Out-of-date artifacts and failed checks are determined as in `dataprep status`, from the receipts and verdicts in the
stores. The last build and the freshness are read from Dagster's records. Nothing is derived from events, so the page
cannot contradict either source.

Dagster shows the metadata of a materialization on the asset's page, so no other server is needed. A run builds the
page, because examining large datasets takes longer than a sensor may run.

Entry point: `build_overview`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

import dagster as dg

from dataprep_assets.engine.artifact.metadata_values import Markdown, ShownValue, Table
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD, CardFacts
from dataprep_assets.engine.checks.results import UnpassedCheck, find_oldest, read_results
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.engine.staleness.status import find_stale, is_never_built
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.metadata import render_value
from dataprep_assets.orchestration.runs.dataset_runs import builds_dataset
from dataprep_assets.orchestration.runs.planning import PLANNER
from dataprep_assets.stores.files import digest_value

DATASETS = dg.AssetKey(["datasets"])
SECONDS_BETWEEN_PAGES = 60
_MAX_INLINE_LENGTH = 930
"""Maximum length of Markdown, in characters, that the UI shows inline; longer text needs a click."""
_MAX_SENTENCE_LENGTH, _LONG_WORD_LENGTH = 240, 36
_MAX_RUNS = 300
_SENSOR_TAG = "dagster/sensor_name"
_ENDED_STATUSES = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_MARKDOWN_CHARACTER = re.compile(r"([\\`*_\[\]<>|~])")

DatasetStores = Mapping[str, tuple[Sequence[ArtifactSpec], ArtifactStore]]
"""Dataset → its artifacts and their store."""


@dataclass(frozen=True, kw_only=True)
class DatasetState:
    """Summary of a dataset's state.

    Attributes:
        dataset: The dataset's name.
        state: `up to date`, `never run`, `N to build`; `unknown` if its store or source cannot be read.
        to_build: Number of artifacts that a run would build.
        why: The reason to build the first of these artifacts, or the reason for the unknown state.
        passed: Number of checks that pass for the current artifacts, including accepted failures.
        not_passed: Checks that do not pass: asset key and check name → the finding.
        oldest_verdict: Time of the oldest valid verdict, in seconds since 1970.
        card: Counts from the data card.
        last_build: The newest run that built or checked any of its artifacts, except planning runs.
        freshness: Dagster's state of its freshness policy; None if it has no policy.
    """

    dataset: str
    state: str
    to_build: int = 0
    why: str = ""
    passed: int = 0
    not_passed: Mapping[tuple[dg.AssetKey, str], UnpassedCheck] = field(default_factory=dict)
    oldest_verdict: float | None = None
    card: Mapping[str, str] = field(default_factory=dict)
    last_build: dg.RunRecord | None = None
    freshness: str | None = None

    @property
    def failed_checks(self) -> list[tuple[dg.AssetKey, str]]:
        """Blocking checks that failed."""
        return [key for key, finding in self.not_passed.items() if finding.blocks]

    @property
    def warned(self) -> list[tuple[dg.AssetKey, str]]:
        """Checks that warned."""
        return [key for key, finding in self.not_passed.items() if finding.sentence and not finding.blocks]

    @property
    def is_broken(self) -> bool:
        """Whether the dataset needs attention."""
        return bool(self.failed_checks or self.warned or self.state == "unknown") or _has_failed(self.last_build)


def _has_failed(run: dg.RunRecord | None) -> bool:
    return run is not None and run.dagster_run.status == dg.DagsterRunStatus.FAILURE


def summarize_datasets(
    stores: DatasetStores, instance: dg.DagsterInstance, specs: Sequence[dg.AssetSpec] = ()
) -> list[DatasetState]:
    """Return the state of every dataset, sorted by name.

    Args:
        stores: The datasets.
        instance: The instance that recorded their runs.
        specs: The assets of the code location, which have the freshness policies.
    """
    runs = instance.get_run_records(limit=_MAX_RUNS)
    builds = [run for run in runs if run.dagster_run.tags.get(_SENSOR_TAG) != PLANNER]
    freshness_by_key = _evaluate_freshness(specs, instance)
    return [
        _summarize_dataset(
            name,
            *stores[name],
            last_build=next((run for run in builds if builds_dataset(run.dagster_run, name)), None),
            freshness=next((state for key, state in freshness_by_key.items() if key.path[0] == name), None),
        )
        for name in sorted(stores)
    ]


def _summarize_dataset(
    name: str,
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    *,
    last_build: dg.RunRecord | None,
    freshness: str | None,
) -> DatasetState:
    """Summarize a dataset; the state is `unknown`, with the reason, if its artifacts cannot be read."""
    privacy = load_privacy(specs[0].declaration, store)
    try:
        is_new = is_never_built(specs, store)
        stale = [] if is_new else list(find_stale(specs, store, verification="size"))
        check_results = {
            (dg.AssetKey(list(spec.path)), check): result
            for spec in specs
            if not is_new
            for check, result in read_results(spec, store).items()
        }
        oldest_verdict = (
            [] if is_new else [time for spec in specs if (time := _find_oldest_result(spec, store)) is not None]
        )
        card = {} if is_new else _read_card_counts(specs, store)
    except DataprepError as error:
        reason = privacy.public_error(error)
        return DatasetState(dataset=name, state="unknown", why=reason, last_build=last_build, freshness=freshness)
    return DatasetState(
        dataset=name,
        state="never run" if is_new else f"{len(stale):,} to build" if stale else "up to date",
        to_build=len(stale),
        why=privacy.public_text(str(stale[0]), stale[0].name) if stale else "",
        passed=sum(result is None for result in check_results.values()),
        not_passed={
            key: UnpassedCheck(result.sentence and privacy.public_text(result.sentence, "failed"), result.blocks)
            for key, result in check_results.items()
            if result is not None
        },
        oldest_verdict=min(oldest_verdict, default=None),
        card=card,
        last_build=last_build,
        freshness=freshness,
    )


def _find_oldest_result(spec: ArtifactSpec, store: ArtifactStore) -> float | None:
    try:
        return find_oldest(spec, store)
    except DataprepError:  # e.g., because the shards are not planned yet
        return None


def _read_card_counts(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> dict[str, str]:
    declaration = specs[0].declaration
    receipt = store.receipt(declaration.artifact(DATA_CARD))
    if receipt is None:
        return {}
    facts, count = CardFacts.from_receipt(receipt), load_privacy(declaration).public_count
    return {name: count(getattr(facts, name)) for name in ("documents", "tokens", "dropped")}


def _evaluate_freshness(specs: Sequence[dg.AssetSpec], instance: dg.DagsterInstance) -> dict[dg.AssetKey, str]:
    keys = [spec.key for spec in specs if spec.freshness_policy is not None]
    records = instance.get_freshness_state_records(keys) if keys else {}
    return {key: records[key].freshness_state.value if key in records else "UNKNOWN" for key in keys}


# --- Asset and sensor


def build_overview(
    load_definitions: Callable[[], dg.Definitions], open_stores: Callable[[], DatasetStores]
) -> dg.Definitions:
    """Return the asset `datasets` and its sensor.

    Args:
        load_definitions: Returns the definitions of the code location; called when the page is built, like
                `open_stores`.
        open_stores: Returns the datasets of the code location.
    """

    @dg.asset(
        key=DATASETS,
        group_name="overview",
        kinds={"markdown"},
        description="Overview of all datasets, with times in UTC. Out-of-date artifacts and failed checks match "
        "`dataprep status`, except that only file sizes are compared. A sensor rebuilds this page when runs "
        "end, and once a day. Materialize it to rebuild it now.",
    )
    def datasets(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        definitions = load_definitions()
        states = summarize_datasets(open_stores(), context.instance, list(definitions.resolve_all_asset_specs()))
        return dg.MaterializeResult(metadata=build_page(states, _find_broken_declarations(definitions)))

    @dg.sensor(
        asset_selection=[DATASETS],
        minimum_interval_seconds=SECONDS_BETWEEN_PAGES,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Rebuilds the page `datasets` when a run has ended or a dataset was declared.",
    )
    def datasets_sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        change = _digest_changes(load_definitions(), context.instance)
        if change == context.cursor:
            return dg.SkipReason("No run has ended since the page was built.")
        context.update_cursor(change)
        return dg.RunRequest(run_key=change, asset_selection=[DATASETS])

    return dg.Definitions(assets=[datasets], sensors=[datasets_sensor])


def _find_broken_declarations(definitions: dg.Definitions) -> dict[dg.AssetKey, str]:
    """Return the asset of each declaration that cannot be loaded (`code_location`), with the reason."""
    specs = [spec for spec in definitions.resolve_all_asset_specs() if spec.key.path[1:] == ["cannot_be_loaded"]]
    return {spec.key: (spec.description or "").partition("```")[2].rpartition("```")[0].strip() for spec in specs}


def _digest_changes(definitions: dg.Definitions, instance: dg.DagsterInstance) -> str:
    """Return a digest that changes daily, and when a run ends or a declaration, load error or freshness changes."""
    ended_runs = instance.get_run_records(
        dg.RunsFilter(statuses=_ENDED_STATUSES), limit=10, order_by="update_timestamp"
    )
    # Ignore runs that build the page, because each rebuild of the page would otherwise cause another.
    other_runs = [run for run in ended_runs if run.dagster_run.asset_selection != {DATASETS}]
    specs = sorted(definitions.resolve_all_asset_specs(), key=lambda spec: spec.key)
    return digest_value(
        [
            [spec.key.to_user_string() for spec in specs],
            [[run.dagster_run.run_id, run.update_timestamp.isoformat()] for run in other_runs[:1]],
            [[key.to_user_string(), state] for key, state in sorted(_evaluate_freshness(specs, instance).items())],
            [[key.to_user_string(), why] for key, why in sorted(_find_broken_declarations(definitions).items())],
            # Include the date, so that the page is rebuilt daily even if no run ends.
            f"{datetime.now(UTC):%Y-%m-%d}",
        ]
    )


# --- Content of the page


def build_page(states: Sequence[DatasetState], broken: Mapping[dg.AssetKey, str]) -> dict[str, dg.MetadataValue]:
    """Build the metadata of `datasets`: declarations that cannot be loaded, problems, a table, a line per dataset."""
    sorted_states = sorted(states, key=lambda state: (not state.is_broken, state.dataset))
    unloadable = (f"- {_format_link(key.path[0], key)}: {_fit_sentence(why)}" for key, why in sorted(broken.items()))
    entries: dict[str, ShownValue] = {}
    if broken:
        entries["cannot be loaded"] = Markdown(_shorten_lines(list(unloadable)))
    entries |= {
        "to build": sum(state.to_build for state in sorted_states),
        "checks failed": sum(len(state.failed_checks) for state in sorted_states),
        "checks warned": sum(len(state.warned) for state in sorted_states),
    }
    for number, state in enumerate((state for state in sorted_states if state.is_broken), 1):
        entries[f"needs attention {number}"] = Markdown(_shorten_lines([_format_line(state), *_list_reasons(state)]))
    entries["all datasets"] = Table(
        [
            {
                # Insert zero-width spaces, so that a long name can break at its underscores.
                "dataset": state.dataset.replace("_", "_\u200b"),
                "state": state.state,
                "failed": len(state.failed_checks),
                "warned": len(state.warned),
            }
            for state in sorted_states
        ]
    )
    entries["details"] = Markdown("\n".join(f"- {_format_line(state)}" for state in sorted_states))
    return {name: render_value(value) for name, value in entries.items()}


def _format_line(state: DatasetState) -> str:
    """Format a dataset's state as one line."""
    checks = state.passed + len(state.not_passed)
    parts = [state.state, f"{state.passed} of {count_of(checks, 'check')} passed" if checks else ""]
    if state.last_build is not None:
        run, end_time = (
            state.last_build.dagster_run,
            state.last_build.end_time or state.last_build.create_timestamp.timestamp(),
        )
        parts.append(f"last build [{run.status.value.lower()} {_format_time(end_time)}](/runs/{run.run_id})")
    parts += [f"freshness {state.freshness.lower()}" if state.freshness else ""]
    parts += [f"oldest check {_format_time(state.oldest_verdict)}" if state.oldest_verdict is not None else ""]
    parts += [f"{count} {name}" for name, count in state.card.items()]
    return f"**{_format_link(state.dataset, dg.AssetKey([state.dataset]))}**: {'; '.join(filter(None, parts))}"


def _list_reasons(state: DatasetState) -> Iterator[str]:
    if state.why:
        yield f"- {_fit_sentence(state.why)}"
    for word, keys in (("failed", state.failed_checks), ("warned", state.warned)):
        for key, check in keys:
            name = "/".join([*key.path[1:], check])
            detail = f"?view=checks&checkDetail={quote(check, safe='')}"
            yield f"- {word}: {_format_link(name, key, detail)}: {_fit_sentence(state.not_passed[key, check].sentence)}"


def _shorten_lines(lines: Sequence[str]) -> str:
    """Join as many lines as the UI shows inline, and a line with the number of omitted lines."""
    count = 1
    while count < len(lines) and len("\n".join(lines[: count + 1])) <= _MAX_INLINE_LENGTH:
        count += 1
    last_line = [f"- and {len(lines) - count} more: `dataprep status` lists them"] if count < len(lines) else []
    return "\n".join([*lines[:count], *last_line])


def _format_link(text: str, key: dg.AssetKey, detail: str = "") -> str:
    """Return a link to an asset's page, relative to the host, so that it works behind any proxy."""
    return f"[{_escape(text)}](/assets/{'/'.join(quote(part, safe='') for part in key.path)}{detail})"


def _fit_sentence(text: str) -> str:
    """Format the text as one line of limited length, in which long words may break at slashes."""
    line = " ".join(text.split())
    line = line if len(line) <= _MAX_SENTENCE_LENGTH else f"{line[: _MAX_SENTENCE_LENGTH - 1]}…"
    return _escape(" ".join(w if len(w) < _LONG_WORD_LENGTH else w.replace("/", "/\u200b") for w in line.split()))


def _escape(text: str) -> str:
    """Escape the text, so that Markdown renders it literally."""
    return _MARKDOWN_CHARACTER.sub(r"\\\1", text)


def _format_time(timestamp: float) -> str:
    """Format a time in UTC to the minute; unlike an age, it stays correct when the page is read later."""
    return f"{datetime.fromtimestamp(timestamp, tz=UTC):%Y-%m-%d %H:%M}"
