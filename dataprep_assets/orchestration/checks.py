"""Turns an artifact's proofs into its asset checks, and findings into the texts and tables of the UI."""

from collections.abc import Iterable, Iterator

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding, accepted
from dataprep_assets.graph.small_cells import cells_of
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.orchestration.keys import asset_key
from dataprep_assets.orchestration.metadata import rendered_entries, table
from dataprep_assets.orchestration.partitions import partitions_of_run
from dataprep_assets.resources import StorageResource
from dataprep_assets.stores.private import privately

__all__ = ["LONGEST_DESCRIPTION", "check_evaluation", "check_result", "checks_of", "findings"]

LONGEST_DESCRIPTION = 1_000
"""Maximum length of a result in characters, because it is one line of a check's history. The table has the rest."""
_MAX_ROWS = 50


def checks_of(spec: ArtifactSpec) -> dg.AssetChecksDefinition:
    """The checks of an artifact that has proofs.

    They run in one step, because they read the same files; each can still be executed alone.
    """
    key, proofs = asset_key(spec), spec.proofs
    assert proofs is not None
    specs = [
        dg.AssetCheckSpec(proof.name, asset=key, description=proof.description, blocking=proof.blocking)
        for proof in proofs.proofs
    ]

    @dg.multi_asset_check(name="__".join([*key.path, "checks"]), specs=specs, can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        for name, finding in findings(spec, storage, context.run, context.selected_asset_check_keys):
            yield check_result(spec, name, finding)

    return checks


def findings(
    spec: ArtifactSpec, storage: StorageResource, run: dg.DagsterRun, chosen: Iterable[dg.AssetCheckKey]
) -> Iterator[tuple[str, Finding]]:
    """The findings of an artifact's proofs in a run, each with the name of its check.

    Args:
        spec: The artifact, which has proofs.
        storage: Where artifacts are, unless the declaration names a storage of its own.
        run: The run; its partitions are examined again.
        chosen: The checks to evaluate.
    """
    assert spec.proofs is not None
    wanted = {check.name for check in chosen}
    store = spec.declaration.store(storage)
    try:
        every = [] if spec.partitions is None else spec.partitions.keys(store)
        found = spec.proofs.examine(store, partitions_of_run(run, every))
        for name, finding in privately(found, spec.declaration.sensitive):
            if name in wanted:
                wanted.remove(name)
                yield name, finding
    except DataprepError as error:
        # if what the proofs need cannot be read (a damaged receipt, a missing shard), that is a verdict too
        for name in sorted(wanted):
            yield name, Finding(passed=False, summary=str(error))


def check_result(spec: ArtifactSpec, name: str, finding: Finding) -> dg.AssetCheckResult:
    """The result of an artifact's check.

    Args:
        spec: The artifact.
        name: The check's name.
        finding: What its proof found; a failure that the declaration accepts is shown as a warning with the reason.
    """
    if _blocks(spec, name) is False and (why := spec.declaration.accept.get(name)) is not None:
        finding = accepted(finding, why)
    metadata = rendered_entries(spec, finding.facts)
    cells = cells_of(spec.declaration)
    if finding.table:
        metadata["table"] = table([cells.row(row) for row in finding.table[:_MAX_ROWS]])
    return dg.AssetCheckResult(
        asset_key=asset_key(spec),
        check_name=name,
        passed=finding.passed,
        description=_line(cells.text(finding.summary)),
        severity=dg.AssetCheckSeverity.WARN if finding.warning else dg.AssetCheckSeverity.ERROR,
        metadata=metadata,
    )


def check_evaluation(
    spec: ArtifactSpec, name: str, finding: Finding, made: dg.EventLogRecord | None = None
) -> dg.AssetCheckEvaluation:
    """As `check_result`, but as an event, for checks that are evaluated outside of a check step.

    Args:
        spec: The artifact.
        name: The check's name.
        finding: What its proof found.
        made: The materialization that was examined, if it is not of the same run. Without it the UI compares the times
            of both, and SQLite keeps the time of an evaluation in whole seconds.
    """
    result = check_result(spec, name, finding)
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(spec),
        check_name=name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        blocking=_blocks(spec, name) is True,
        target_materialization_data=None
        if made is None
        else AssetCheckEvaluationTargetMaterializationData(
            storage_id=made.storage_id, run_id=made.run_id, timestamp=made.timestamp
        ),
    )


def _line(sentence: str) -> str:
    """A sentence as one line of the check's history."""
    if len(sentence) <= LONGEST_DESCRIPTION:
        return sentence
    return sentence[: LONGEST_DESCRIPTION - 1].rstrip(" ,") + "…"


def _blocks(spec: ArtifactSpec, name: str) -> bool | None:
    """Whether the proof of this name blocks what is downstream; None if the artifact has no such proof."""
    proofs = spec.proofs.proofs if spec.proofs is not None else ()
    return next((proof.blocking for proof in proofs if proof.name == name), None)
