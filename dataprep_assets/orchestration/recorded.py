"""What an instance has recorded of a dataset: which partitions were materialized, and the latest result of each check.

Entry points: `Recorded`, `unrecorded`, `unevaluated`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import ACCEPTED
from dataprep_assets.graph.spec import ArtifactSpec, OtherAsset, OtherDataset, Partitions
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.keys import asset_key


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The latest result of a check.

    Attributes:
        passed: Whether it passed.
        blocks: Whether a failure of it is an error, not a warning.
        accepted: The reason with which the declaration accepts a failure; None if it passed without.
    """

    passed: bool
    blocks: bool
    accepted: str | None = None


class Recorded:
    """The records of an instance."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def made_at(self, spec: ArtifactSpec | OtherDataset | OtherAsset) -> float | None:
        """When an artifact was last materialized, in seconds since 1970; None for never, or wiped since."""
        event = self._instance.get_latest_materialization_event(asset_key(spec))
        return None if event is None else event.timestamp

    def unseen(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> list[str | None]:
        """Those of the slots that were never materialized, or wiped since."""
        if spec.partitions is None:
            return list(slots) if self.made_at(spec) is None else []
        seen = self._instance.get_materialized_partitions(asset_key(spec))
        return [slot for slot in slots if slot not in seen]

    def has_registered(self, partitions: Partitions, store: ArtifactStore) -> bool:
        """Whether the instance has the planned keys of dynamic partitions in order, or `partitions` are fixed.

        Somebody may delete a key in the UI.
        """
        if partitions.dynamic is None:
            return True
        return list(self._instance.get_dynamic_partitions(partitions.dynamic)) == list(partitions.keys(store))

    def evaluations(self, specs: Sequence[ArtifactSpec]) -> Mapping[tuple[ArtifactSpec, str], Evaluation | None]:
        """The latest evaluation of each check of the artifacts; None for one whose latest execution has no result."""
        checks = {
            dg.AssetCheckKey(asset_key(spec), proof.name): (spec, proof.name)
            for spec in specs
            if spec.checks
            for proof in spec.checks
        }
        found: dict[tuple[ArtifactSpec, str], Evaluation | None] = dict.fromkeys(checks.values())
        if not checks:
            return found
        latest = self._instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
        for key, record in latest.items():
            event = record.event.dagster_event if record.event is not None else None
            if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                evaluation = event.asset_check_evaluation_data
                accepted = evaluation.metadata.get(ACCEPTED)
                found[checks[key]] = Evaluation(
                    passed=evaluation.passed,
                    blocks=evaluation.severity == dg.AssetCheckSeverity.ERROR,
                    accepted=None if accepted is None else str(accepted.value),
                )
        return found


def unrecorded(specs: Sequence[ArtifactSpec], store: ArtifactStore, recorded: Recorded) -> bool:
    """Whether the instance lacks a record of these artifacts: a materialization, a check's result, or a partition."""
    try:
        return (
            any(recorded.unseen(spec, spec.slots(store)) for spec in specs)
            or not all(recorded.has_registered(planned, store) for spec in specs for planned in spec.plans)
            or bool(unevaluated(specs, recorded))
        )
    except DataprepError:  # not planned
        return True


def unevaluated(specs: Sequence[ArtifactSpec], recorded: Recorded) -> set[ArtifactSpec]:
    """The artifacts whose checks have to be evaluated, whatever their verdicts are.

    That is one with a blocking check that has no result, or whose latest result is a failure, and one with a check that
    was judged under another acceptance than the declaration has now.

    Args:
        specs: The artifacts to look at.
        recorded: Where their checks were recorded.
    """
    found: set[ArtifactSpec] = set()
    for (spec, name), evaluation in recorded.evaluations(specs).items():
        if spec.blocks(name):
            again = evaluation is None or (not evaluation.passed and evaluation.blocks)
        else:
            again = evaluation is not None and _judged_otherwise(evaluation, spec.declaration.accept.get(name))
        if again:
            found.add(spec)
    return found


def _judged_otherwise(evaluation: Evaluation, why: str | None) -> bool:
    """Whether a warning check was evaluated under another `accept` reason than `why` (None: not accepted)."""
    if evaluation.passed:
        return evaluation.accepted is not None and evaluation.accepted != why
    return why is not None
