"""Turns an artifact's proofs into its asset checks, and findings into the texts and tables of the UI."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Finding, accepted
from dataprep_assets.engine.checks.results import keep, known_results, oldest
from dataprep_assets.engine.checks.verdicts import version_of
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, Action
from dataprep_assets.engine.staleness.status import check_decisions
from dataprep_assets.errors import DataprepError, count_of, raise_alone
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.metadata import rendered, rendered_entries, table
from dataprep_assets.orchestration.partitions import Context, asset_key, partitions_of_run
from dataprep_assets.resources import StorageResource
from dataprep_assets.stores.files import private_files, privately

OLDEST = "oldest_proof"
"""Metadata of a result: time of the oldest verdict on the artifact's partitions (ISO 8601, UTC)."""
LONGEST_DESCRIPTION = 1_000
"""Maximum length of a result in characters, because a check's history shows it on one line. The table has the rest."""
_MAX_ROWS = 50


def checks_of(spec: ArtifactSpec) -> dg.AssetChecksDefinition:
    """The checks of an artifact that has proofs.

    They run in one step, because they read the same files; each can still be executed alone.
    """
    key = asset_key(spec)
    specs = [
        dg.AssetCheckSpec(check.name, asset=key, description=check.sentence, blocking=check.blocking)
        for check in spec.checks
    ]

    @dg.multi_asset_check(name="__".join([*key.path, "checks"]), specs=specs, can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        wanted = {check.name for check in context.selected_asset_check_keys}
        store = spec.declaration.store(storage)
        for name, finding in findings_of_run(spec, storage, context.run).items():
            if name in wanted:
                yield check_result(spec, store, name, finding)

    return checks


def findings_of_run(spec: ArtifactSpec, storage: StorageResource, run: dg.DagsterRun) -> dict[str, Finding]:
    """The findings of an artifact's proofs in a run of assets, by the name of the check.

    A run that makes the artifact proves what no remembered verdict holds for; a run of checks alone proves all again.

    Args:
        spec: The artifact, which has proofs.
        storage: Where artifacts are, unless the declaration names a storage of its own.
        run: The run, which says the partitions.
    """
    store = spec.declaration.store(storage)
    slots: Sequence[str | None] = [None]
    try:
        if spec.partitions is not None:
            slots = partitions_of_run(run, spec.partitions.keys(store))
    except DataprepError as error:
        return _unreadable(spec, error)
    # a run that selects nothing is of everything, this artifact included
    everything = run.asset_selection is None and run.asset_check_selection is None
    return findings(spec, store, slots, again=not everything and asset_key(spec) not in (run.asset_selection or ()))


def findings(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], *, again: bool = False
) -> dict[str, Finding]:
    """The findings of an artifact's proofs, by the name of the check; what was examined is remembered.

    Args:
        spec: The artifact, which has proofs.
        store: Where it is.
        slots: The partitions that were made or are examined; one None if it is unpartitioned.
        again: Whether what a remembered verdict holds for is proven, too.
    """
    found: dict[str, Finding] = {}
    try:
        decided = check_decisions(spec, store, slots)
        left = slots if again else [slot for slot, one in decided.items() if one.action is not Action.KEEP]
        before = version_of(spec.artifacts(store), store) if left else None
        found |= privately(_examine(spec, store, left), spec.declaration.sensitive)
        if left:
            with private_files(spec.declaration.sensitive):
                keep(spec, store, before, found, left)
        found |= _built_in_vain(spec, store, slots, found)
        if (at := oldest(spec, store)) is not None:
            age = {OLDEST: datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")}
            found = {name: replace(finding, facts={**finding.facts, **age}) for name, finding in found.items()}
    except DataprepError as error:
        # what was found before the error stands
        found = _unreadable(spec, error) | found
    except Exception as error:
        if not spec.declaration.sensitive:
            raise
        told = privacy_of(spec.declaration, store).error(error, "/".join(spec.path))
        raise_alone(dg.Failure(told, allow_retries=False))
    return found


def _unreadable(spec: ArtifactSpec, error: DataprepError) -> dict[str, Finding]:
    """The findings if what the proofs need cannot be read (a damaged receipt, a missing shard): a verdict, too."""
    return {check.name: Finding(passed=False, summary=str(error)) for check in spec.checks}


def _examine(spec: ArtifactSpec, store: ArtifactStore, left: Sequence[str | None]) -> Iterator[tuple[str, Finding]]:
    """The finding of every proof; what is not `left` to be proven is as remembered."""
    if left or spec.partitions is not None:
        yield from spec.examine(store, [slot for slot in left if slot is not None])
        return
    for name, finding in known_results(spec, store, [None])[None].findings.items():
        yield name, replace(finding, facts={"examined": "before"})


def _built_in_vain(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], found: Mapping[str, Finding]
) -> Iterator[tuple[str, Finding]]:
    """The findings that failed before and after the artifact was built again, with what a person can do then."""
    folders: dict[str, list[str]] = {}
    for slot, failed in check_decisions(spec, store, slots).items():
        if failed.kind == CHECK_FAILED and failed.action is Action.CHECK:
            for name in failed.checks:
                folders.setdefault(name, []).append(store.location(spec.located(store, slot)))
    for name, places in folders.items():
        others = f" and {count_of(len(places) - 1, 'more folder')}" if len(places) > 1 else ""
        todo = (
            "A rebuild from the same inputs fails again. Correct the source or the declaration, or delete "
            f"{places[0]}{others} to force a rebuild"
        )
        yield name, replace(found[name], summary=f"{found[name].summary.rstrip('. ')}. {todo}")


def check_result(spec: ArtifactSpec, store: ArtifactStore | None, name: str, finding: Finding) -> dg.AssetCheckResult:
    """The result of an artifact's check.

    Args:
        spec: The artifact.
        store: Where it is; None for a check of times, of which nothing is kept.
        name: The check's name.
        finding: What its proof found; a failure that the declaration accepts is shown as a warning with the reason.
    """
    if spec.blocks(name) is False and (why := spec.declaration.accept.get(name)) is not None:
        finding = accepted(finding, why)
    finding = privacy_of(spec.declaration, store).finding(finding, f"{'/'.join(spec.path)}: {name}")
    metadata = rendered_entries(spec, finding.facts)
    if finding.table:
        metadata["table"] = table(finding.table[:_MAX_ROWS])
    if finding.plot is not None:
        metadata["plot"] = rendered(finding.plot)
    return dg.AssetCheckResult(
        asset_key=asset_key(spec),
        check_name=name,
        passed=finding.passed,
        description=_line(finding.summary),
        severity=dg.AssetCheckSeverity.WARN if finding.warning else dg.AssetCheckSeverity.ERROR,
        metadata=metadata,
    )


def check_evaluation(
    spec: ArtifactSpec, store: ArtifactStore | None, name: str, finding: Finding
) -> dg.AssetCheckEvaluation:
    """As `check_result`, but as an event, for checks that are evaluated outside of a check step."""
    result = check_result(spec, store, name, finding)
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
    """Log an evaluation in a step; Dagster's types do not say that it takes one."""
    context.log_event(cast("Any", evaluation))


def _line(sentence: str) -> str:
    """A sentence as one line of the check's history."""
    if len(sentence) <= LONGEST_DESCRIPTION:
        return sentence
    return sentence[: LONGEST_DESCRIPTION - 1].rstrip(" ,") + "…"
