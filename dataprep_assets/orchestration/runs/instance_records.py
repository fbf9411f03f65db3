"""What an instance has recorded of a dataset: materializations, partitions, and the results of checks."""

from collections.abc import Mapping, Sequence

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput, Partitions
from dataprep_assets.engine.checks.finding import ACCEPTED
from dataprep_assets.engine.staleness.decide import Evaluation, EventFacts
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.keys import asset_key


class Recorded:
    """The records of an instance (`staleness.status.Events`)."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def facts(
        self, spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
    ) -> Mapping[str | None, EventFacts]:
        """What it has of these partitions, and under None of the artifact as a whole."""
        whole = EventFacts(
            materialized=spec.partitions is not None or self._is_made(spec),
            registered=all(self._has_registered(planned, store) for planned in spec.plans),
            evaluations=self.evaluations(spec),
            accept={name: why for name, why in spec.declaration.accept.items() if not spec.blocks(name)},
        )
        if spec.partitions is None:
            return {None: whole}
        materialized = self._instance.get_materialized_partitions(asset_key(spec))
        return {**{slot: EventFacts(materialized=slot in materialized) for slot in slots}, None: whole}

    def evaluations(self, spec: ArtifactSpec) -> Mapping[str, Evaluation | None]:
        """The latest evaluation of each check of an artifact; None for one whose latest execution has no result."""
        checks = {dg.AssetCheckKey(asset_key(spec), proof.name): proof.name for proof in spec.checks}
        evaluations: dict[str, Evaluation | None] = dict.fromkeys(checks.values())
        if not checks:
            return evaluations
        latest = self._instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
        for key, record in latest.items():
            event = record.event.dagster_event if record.event is not None else None
            if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                evaluation = event.asset_check_evaluation_data
                accepted = evaluation.metadata.get(ACCEPTED)
                evaluations[checks[key]] = Evaluation(
                    passed=evaluation.passed,
                    blocks=evaluation.severity == dg.AssetCheckSeverity.ERROR and spec.blocks(checks[key]) is True,
                    accepted=None if accepted is None else str(accepted.value),
                )
        return evaluations

    def _is_made(self, spec: ArtifactSpec) -> bool:
        """Whether it was materialized, and not wiped since; without files also after its inputs were."""
        made = self._made_at(spec)
        inputs = [] if spec.kept else [self._made_at(source) for source in spec.inputs]
        return made is not None and not any(at is not None and at > made for at in inputs)

    def _made_at(self, spec: ArtifactSpec | DatasetInput | AssetInput) -> float | None:
        event = self._instance.get_latest_materialization_event(asset_key(spec))
        return None if event is None else event.timestamp

    def _has_registered(self, partitions: Partitions, store: ArtifactStore) -> bool:
        """Whether the instance has the planned keys of dynamic partitions in order, or `partitions` are fixed.

        Somebody may delete a key in the UI.
        """
        if partitions.dynamic is None:
            return True
        try:
            planned = list(partitions.keys(store))
        except DataprepError:  # not planned yet: building it registers them
            return True
        return list(self._instance.get_dynamic_partitions(partitions.dynamic)) == planned
