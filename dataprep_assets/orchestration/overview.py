"""The asset `datasets`: all datasets of the code location on one page of the UI, and the sensor that keeps it current.

What is to build and which checks did not pass is what `dataprep status` decides, from the receipts and verdicts in the
stores; the last build and the freshness are what Dagster recorded. Nothing is worked out from events, so the page
cannot contradict either. Dagster shows the metadata of a materialization on the asset's own page, so no other server is
needed for it. The page is made by a run, because examining large datasets takes longer than a sensor may.

Entry point: `overview_definitions`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

import dagster as dg

from dataprep_assets.engine.artifact.metadata_values import Markdown, Shown, Table
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD, CardFacts
from dataprep_assets.engine.checks.results import NotPassed, oldest, results
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.engine.staleness.status import never_built, stale
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.metadata import rendered
from dataprep_assets.orchestration.runs.dataset_runs import belongs
from dataprep_assets.orchestration.runs.planning import PLANNER
from dataprep_assets.stores.files import digest_value

DATASETS = dg.AssetKey(["datasets"])
SECONDS_BETWEEN_PAGES = 60
_INLINE = 930
"""Maximum length of Markdown, in characters, that the UI shows inline; longer text needs a click."""
_SENTENCE, _LONG_WORD = 240, 36
_RUNS_LOOKED_AT = 300
_SENSOR = "dagster/sensor_name"
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")

Opened = Mapping[str, tuple[Sequence[ArtifactSpec], ArtifactStore]]
"""Dataset → its artifacts, and where they are."""


@dataclass(frozen=True, kw_only=True)
class DatasetState:
    """A dataset at a glance.

    Attributes:
        dataset: Its name.
        state: `up to date`, `never run`, `N to build`; `unknown` if its store or source cannot be read.
        to_build: How many artifacts a run would build.
        why: The reason of the first of them, or why nothing is known.
        passed: How many checks passed as the artifacts are now, accepted ones included.
        not_passed: The other checks: key of the asset and name → what was found.
        proven: When the oldest verdict that holds was given, in seconds since 1970.
        card: What its data card counts.
        last_build: The newest run that built or checked something of it and was more than planning.
        freshness: What Dagster says of its freshness policy; None without one.
    """

    dataset: str
    state: str
    to_build: int = 0
    why: str = ""
    passed: int = 0
    not_passed: Mapping[tuple[dg.AssetKey, str], NotPassed] = field(default_factory=dict)
    proven: float | None = None
    card: Mapping[str, str] = field(default_factory=dict)
    last_build: dg.RunRecord | None = None
    freshness: str | None = None

    @property
    def failed_checks(self) -> list[tuple[dg.AssetKey, str]]:
        """The blocking checks that failed."""
        return [key for key, found in self.not_passed.items() if found.blocks]

    @property
    def warned(self) -> list[tuple[dg.AssetKey, str]]:
        """The checks that warned."""
        return [key for key, found in self.not_passed.items() if found.sentence and not found.blocks]

    @property
    def is_broken(self) -> bool:
        """Whether somebody has to look at it."""
        return bool(self.failed_checks or self.warned or self.state == "unknown") or _has_failed(self.last_build)


def _has_failed(run: dg.RunRecord | None) -> bool:
    return run is not None and run.dagster_run.status == dg.DagsterRunStatus.FAILURE


def overview(opened: Opened, instance: dg.DagsterInstance, specs: Sequence[dg.AssetSpec] = ()) -> list[DatasetState]:
    """The state of every dataset, sorted by name.

    Args:
        opened: The datasets.
        instance: Where their runs were recorded.
        specs: The assets of the code location, which have the freshness policies.
    """
    runs = instance.get_run_records(limit=_RUNS_LOOKED_AT)
    builds = [run for run in runs if run.dagster_run.tags.get(_SENSOR) != PLANNER]
    fresh = _freshness(specs, instance)
    return [
        _state(
            name,
            *opened[name],
            last_build=next((run for run in builds if belongs(run.dagster_run, name)), None),
            freshness=next((state for key, state in fresh.items() if key.path[0] == name), None),
        )
        for name in sorted(opened)
    ]


def _state(
    name: str,
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    *,
    last_build: dg.RunRecord | None,
    freshness: str | None,
) -> DatasetState:
    privacy = privacy_of(specs[0].declaration, store)
    try:
        is_new = never_built(specs, store)
        late = [] if is_new else list(stale(specs, store, verification="size"))
        found = {
            (dg.AssetKey(list(spec.path)), check): result
            for spec in specs
            if not is_new
            for check, result in results(spec, store).items()
        }
        proven = [] if is_new else [time for spec in specs if (time := _oldest(spec, store)) is not None]
        card = {} if is_new else _card(specs, store)
    except DataprepError as error:
        why = privacy.error(error)
        return DatasetState(dataset=name, state="unknown", why=why, last_build=last_build, freshness=freshness)
    return DatasetState(
        dataset=name,
        state="never run" if is_new else f"{len(late):,} to build" if late else "up to date",
        to_build=len(late),
        why=privacy.text(str(late[0]), late[0].name) if late else "",
        passed=sum(result is None for result in found.values()),
        not_passed={
            key: NotPassed(result.sentence and privacy.text(result.sentence, "failed"), result.blocks)
            for key, result in found.items()
            if result is not None
        },
        proven=min(proven, default=None),
        card=card,
        last_build=last_build,
        freshness=freshness,
    )


def _oldest(spec: ArtifactSpec, store: ArtifactStore) -> float | None:
    try:
        return oldest(spec, store)
    except DataprepError:  # its shards are not planned
        return None


def _card(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> dict[str, str]:
    declaration = specs[0].declaration
    receipt = store.receipt(declaration.artifact(DATA_CARD))
    if receipt is None:
        return {}
    facts, count = CardFacts.of(receipt), privacy_of(declaration).count
    return {name: count(getattr(facts, name)) for name in ("documents", "tokens", "dropped")}


def _freshness(specs: Sequence[dg.AssetSpec], instance: dg.DagsterInstance) -> dict[dg.AssetKey, str]:
    judged = [spec.key for spec in specs if spec.freshness_policy is not None]
    records = instance.get_freshness_state_records(judged) if judged else {}
    return {key: records[key].freshness_state.value if key in records else "UNKNOWN" for key in judged}


# --- the asset and its sensor


def overview_definitions(located: Callable[[], dg.Definitions], opened: Callable[[], Opened]) -> dg.Definitions:
    """The asset `datasets` and its sensor.

    Args:
        located: Returns the definitions of the code location; called when the page is built, like `opened`.
        opened: Returns its datasets.
    """

    @dg.asset(
        key=DATASETS,
        group_name="overview",
        kinds={"markdown"},
        description="All datasets at a glance; times are UTC. Out-of-date artifacts and failed checks are those of "
        "`dataprep status`, but only sizes are compared. A sensor rebuilds the page when runs end and "
        "once a day. Materialize rebuilds it now.",
    )
    def datasets(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        definitions = located()
        states = overview(opened(), context.instance, list(definitions.resolve_all_asset_specs()))
        return dg.MaterializeResult(metadata=page(states, _broken(definitions)))

    @dg.sensor(
        asset_selection=[DATASETS],
        minimum_interval_seconds=SECONDS_BETWEEN_PAGES,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Rebuilds the page `datasets` when a run has ended or a dataset was declared.",
    )
    def datasets_sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        change = _last_change(located(), context.instance)
        if change == context.cursor:
            return dg.SkipReason("No run has ended since the page was built.")
        context.update_cursor(change)
        return dg.RunRequest(run_key=change, asset_selection=[DATASETS])

    return dg.Definitions(assets=[datasets], sensors=[datasets_sensor])


def _broken(definitions: dg.Definitions) -> dict[dg.AssetKey, str]:
    """Return the assets that represent declarations that cannot be loaded (`code_location`), with the reasons."""
    specs = [spec for spec in definitions.resolve_all_asset_specs() if spec.key.path[1:] == ["cannot_be_loaded"]]
    return {spec.key: (spec.description or "").partition("```")[2].rpartition("```")[0].strip() for spec in specs}


def _last_change(definitions: dg.Definitions, instance: dg.DagsterInstance) -> str:
    """A text that changes when a run ends, when what is declared changes, when a product is not fresh, and daily."""
    ended = instance.get_run_records(dg.RunsFilter(statuses=_ENDED), limit=10, order_by="update_timestamp")
    # the run that built the page changes nothing on it
    others = [run for run in ended if run.dagster_run.asset_selection != {DATASETS}]
    specs = sorted(definitions.resolve_all_asset_specs(), key=lambda spec: spec.key)
    return digest_value(
        [
            [spec.key.to_user_string() for spec in specs],
            [[run.dagster_run.run_id, run.update_timestamp.isoformat()] for run in others[:1]],
            [[key.to_user_string(), state] for key, state in sorted(_freshness(specs, instance).items())],
            [[key.to_user_string(), why] for key, why in sorted(_broken(definitions).items())],
            # the page shows the age of verdicts in days
            f"{datetime.now(UTC):%Y-%m-%d}",
        ]
    )


# --- the page


def page(states: Sequence[DatasetState], broken: Mapping[dg.AssetKey, str]) -> dict[str, dg.MetadataValue]:
    """Build the metadata of `datasets`: declarations that cannot be loaded, problems, a table, a line per dataset."""
    every = sorted(states, key=lambda one: (not one.is_broken, one.dataset))
    unloadable = (f"- {_link(key.path[0], key)}: {_sentence(why)}" for key, why in sorted(broken.items()))
    shown: dict[str, Shown] = {}
    if broken:
        shown["cannot be loaded"] = Markdown(_shorten_lines(list(unloadable)))
    shown |= {
        "to build": sum(one.to_build for one in every),
        "checks failed": sum(len(one.failed_checks) for one in every),
        "checks warned": sum(len(one.warned) for one in every),
    }
    for number, state in enumerate((one for one in every if one.is_broken), 1):
        shown[f"look at {number}"] = Markdown(_shorten_lines([_line(state), *_reasons(state)]))
    shown["all datasets"] = Table(
        [
            {
                # a long name breaks at its underscores
                "dataset": one.dataset.replace("_", "_\u200b"),
                "state": one.state,
                "failed": len(one.failed_checks),
                "warned": len(one.warned),
            }
            for one in every
        ]
    )
    shown["details"] = Markdown("\n".join(f"- {_line(one)}" for one in every))
    return {name: rendered(value) for name, value in shown.items()}


def _line(state: DatasetState) -> str:
    """A dataset in one line."""
    checks = state.passed + len(state.not_passed)
    parts = [state.state, f"{state.passed} of {count_of(checks, 'check')} passed" if checks else ""]
    if state.last_build is not None:
        run, end_time = (
            state.last_build.dagster_run,
            state.last_build.end_time or state.last_build.create_timestamp.timestamp(),
        )
        parts.append(f"last build [{run.status.value.lower()} {_time(end_time)}](/runs/{run.run_id})")
    parts += [f"freshness {state.freshness.lower()}" if state.freshness else ""]
    parts += [f"oldest check {_time(state.proven)}" if state.proven is not None else ""]
    parts += [f"{count} {name}" for name, count in state.card.items()]
    return f"**{_link(state.dataset, dg.AssetKey([state.dataset]))}**: {'; '.join(filter(None, parts))}"


def _reasons(one: DatasetState) -> Iterator[str]:
    if one.why:
        yield f"- {_sentence(one.why)}"
    for word, keys in (("failed", one.failed_checks), ("warned", one.warned)):
        for key, check in keys:
            name = "/".join([*key.path[1:], check])
            detail = f"?view=checks&checkDetail={quote(check, safe='')}"
            yield f"- {word}: {_link(name, key, detail)}: {_sentence(one.not_passed[key, check].sentence)}"


def _shorten_lines(lines: Sequence[str]) -> str:
    """As many of the lines as the UI shows in place, and how many more there are."""
    kept = 1
    while kept < len(lines) and len("\n".join(lines[: kept + 1])) <= _INLINE:
        kept += 1
    more = [f"- and {len(lines) - kept} more: `dataprep status` lists them"] if kept < len(lines) else []
    return "\n".join([*lines[:kept], *more])


def _link(text: str, key: dg.AssetKey, detail: str = "") -> str:
    """A link to an asset's page, relative to the host, so that it works behind any proxy."""
    return f"[{_escaped(text)}](/assets/{'/'.join(quote(part, safe='') for part in key.path)}{detail})"


def _sentence(text: str) -> str:
    """The text on one line, cut to a length that suits a list; a word that would widen the page breaks at slashes."""
    line = " ".join(text.split())
    line = line if len(line) <= _SENTENCE else f"{line[: _SENTENCE - 1]}…"
    return _escaped(" ".join(w if len(w) < _LONG_WORD else w.replace("/", "/\u200b") for w in line.split()))


def _escaped(text: str) -> str:
    """The text, escaped so that Markdown renders it literally."""
    return _SPECIAL.sub(r"\\\1", text)


def _time(at: float) -> str:
    """A time in UTC, to the minute: unlike an age it stays true when the page is read later."""
    return f"{datetime.fromtimestamp(at, tz=UTC):%Y-%m-%d %H:%M}"
