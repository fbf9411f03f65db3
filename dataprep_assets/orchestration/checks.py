"""Dagster asset checks for an artifact's checks, and conversion of findings to text and tables for the UI."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Finding, accept_warnings
from dataprep_assets.engine.checks.results import find_oldest, read_known_results, store_findings
from dataprep_assets.engine.checks.verdicts import identify_version
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, Action
from dataprep_assets.engine.staleness.status import decide_checks
from dataprep_assets.errors import DataprepError, count_of, raise_detached
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.metadata import render_entries, render_table, render_value
from dataprep_assets.orchestration.partitions import Context, asset_key, select_partitions
from dataprep_assets.resources import StorageResource
from dataprep_assets.stores.files import private_files, produce_privately

OLDEST_CHECK = "oldest_check"
"""Metadata of a result: time of the oldest verdict on the artifact's partitions (ISO 8601, UTC)."""
MAX_DESCRIPTION_LENGTH = 1_000
"""Maximum length of a result in characters, because a check's history shows it on one line. The table has all rows."""
_MAX_ROWS = 50


def build_checks(spec: ArtifactSpec) -> dg.AssetChecksDefinition:
    """Build the asset checks of an artifact that has checks.

    They run in one step, because they read the same files. Each can also be executed separately.
    """
    key = asset_key(spec)
    specs = [
        dg.AssetCheckSpec(check.name, asset=key, description=check.sentence, blocking=check.blocking)
        for check in spec.checks
    ]

    @dg.multi_asset_check(name="__".join([*key.path, "checks"]), specs=specs, can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        selected_names = {check.name for check in context.selected_asset_check_keys}
        store = spec.declaration.store(storage)
        for name, finding in examine_in_run(spec, storage, context.run).items():
            if name in selected_names:
                yield build_check_result(spec, store, name, finding)

    return checks


def examine_in_run(spec: ArtifactSpec, storage: StorageResource, run: dg.DagsterRun) -> dict[str, Finding]:
    """Run an artifact's checks in a run of assets; return the findings by check name.

    A run that builds the artifact checks only partitions without a valid stored verdict. A run that contains only
    checks examines all partitions.

    Args:
        spec: The artifact, which has checks.
        storage: The default storage, for declarations that name none.
        run: The run, which selects the partitions.
    """
    store = spec.declaration.store(storage)
    slots: Sequence[str | None] = [None]
    try:
        if spec.partitions is not None:
            slots = select_partitions(run, spec.partitions.keys(store))
    except DataprepError as error:
        return _build_unreadable_findings(spec, error)
    # A run without a selection covers everything, including this artifact.
    is_full_run = run.asset_selection is None and run.asset_check_selection is None
    return examine_artifact(
        spec, store, slots, is_rebuild=not is_full_run and asset_key(spec) not in (run.asset_selection or ())
    )


def examine_artifact(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], *, is_rebuild: bool = False
) -> dict[str, Finding]:
    """Run the due checks of an artifact and store their verdicts; return all findings by check name.

    Args:
        spec: The artifact, which has checks.
        store: The store that contains the artifact.
        slots: The partitions to check; `[None]` for an unpartitioned artifact.
        is_rebuild: Whether to recheck partitions that have a valid stored verdict.
    """
    result: dict[str, Finding] = {}
    try:
        decided = decide_checks(spec, store, slots)
        due_slots = (
            slots if is_rebuild else [slot for slot, decision in decided.items() if decision.action is not Action.KEEP]
        )
        previous_version = identify_version(spec.artifacts(store), store) if due_slots else None
        result |= produce_privately(_examine(spec, store, due_slots), spec.declaration.sensitive)
        if due_slots:
            with private_files(spec.declaration.sensitive):
                store_findings(spec, store, previous_version, result, due_slots)
        result |= _explain_repeated_failures(spec, store, slots, result)
        if (oldest_time := find_oldest(spec, store)) is not None:
            age = {OLDEST_CHECK: datetime.fromtimestamp(oldest_time, UTC).isoformat(timespec="seconds")}
            result = {name: replace(finding, facts={**finding.facts, **age}) for name, finding in result.items()}
    except DataprepError as error:
        # Keep the findings from before the error, because they are still valid.
        result = _build_unreadable_findings(spec, error) | result
    except Exception as error:
        if not spec.declaration.sensitive:
            raise
        message = load_privacy(spec.declaration, store).public_error(error, "/".join(spec.path))
        raise_detached(dg.Failure(message, allow_retries=False))
    return result


def _build_unreadable_findings(spec: ArtifactSpec, error: DataprepError) -> dict[str, Finding]:
    """Return failed findings for unreadable input, such as a damaged receipt or a missing shard."""
    return {check.name: Finding(passed=False, summary=str(error)) for check in spec.checks}


def _examine(
    spec: ArtifactSpec, store: ArtifactStore, due_slots: Sequence[str | None]
) -> Iterator[tuple[str, Finding]]:
    """Yield the finding of every check; slots other than `due_slots` use their stored verdicts."""
    if due_slots or spec.partitions is not None:
        yield from spec.examine(store, [slot for slot in due_slots if slot is not None])
        return
    for name, finding in read_known_results(spec, store, [None])[None].findings.items():
        yield name, replace(finding, facts={"checked": "before"})


def _explain_repeated_failures(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], findings: Mapping[str, Finding]
) -> Iterator[tuple[str, Finding]]:
    """Yield each finding that failed both before and after a rebuild, with a remedy in its summary."""
    folders: dict[str, list[str]] = {}
    for slot, failed in decide_checks(spec, store, slots).items():
        if failed.kind == CHECK_FAILED and failed.action is Action.CHECK:
            for name in failed.checks:
                folders.setdefault(name, []).append(store.location(spec.locate_artifact(store, slot)))
    for name, locations in folders.items():
        more_folders = f" and {count_of(len(locations) - 1, 'more folder')}" if len(locations) > 1 else ""
        remedy = (
            "A rebuild from the same inputs would fail again. Correct the source or the declaration, or delete "
            f"{locations[0]}{more_folders} to force a rebuild"
        )
        yield (
            name,
            replace(findings[name], summary=f"{findings[name].summary.rstrip('. ')}. {remedy}"),
        )


def build_check_result(
    spec: ArtifactSpec, store: ArtifactStore | None, name: str, finding: Finding
) -> dg.AssetCheckResult:
    """Convert a finding of an artifact's check to Dagster's check result.

    Args:
        spec: The artifact.
        store: The store that contains the artifact; None for a check of times, which stores no verdict.
        name: The check's name.
        finding: The check's finding; a failure that the declaration accepts is shown as a warning with the reason.
    """
    if spec.blocks(name) is False and (reason := spec.declaration.accept.get(name)) is not None:
        finding = accept_warnings(finding, reason)
    finding = load_privacy(spec.declaration, store).public_finding(finding, f"{'/'.join(spec.path)}: {name}")
    metadata = render_entries(spec, finding.facts)
    if finding.table:
        metadata["table"] = render_table(finding.table[:_MAX_ROWS])
    if finding.plot is not None:
        metadata["plot"] = render_value(finding.plot)
    return dg.AssetCheckResult(
        asset_key=asset_key(spec),
        check_name=name,
        passed=finding.passed,
        description=_shorten_sentence(finding.summary),
        severity=dg.AssetCheckSeverity.WARN if finding.warning else dg.AssetCheckSeverity.ERROR,
        metadata=metadata,
    )


def build_check_evaluation(
    spec: ArtifactSpec, store: ArtifactStore | None, name: str, finding: Finding
) -> dg.AssetCheckEvaluation:
    """Convert a finding to Dagster's event, for checks that are evaluated outside a check step."""
    result = build_check_result(spec, store, name, finding)
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(spec),
        check_name=name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        blocking=spec.blocks(name) is True,
    )


def log_evaluation(context: Context, evaluation: dg.AssetCheckEvaluation) -> None:
    """Log an evaluation in a step; the cast is needed because Dagster's types do not list this event."""
    context.log_event(cast("Any", evaluation))


def _shorten_sentence(sentence: str) -> str:
    """Shorten a sentence to the length of a line in the check's history."""
    if len(sentence) <= MAX_DESCRIPTION_LENGTH:
        return sentence
    return sentence[: MAX_DESCRIPTION_LENGTH - 1].rstrip(" ,") + "…"
