"""What an instance has recorded of a dataset, read through Dagster."""

from collections.abc import Mapping, Sequence, Set

import dagster as dg

from dataprep_assets.graph.asset_path import AssetPath
from dataprep_assets.graph.finding import ACCEPTED
from dataprep_assets.orchestration.recorded import Check, Evaluation

__all__ = ["InstanceRecords"]


class InstanceRecords:
    """The records of an instance with any storage."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def is_materialized(self, path: AssetPath) -> bool:
        return self._instance.get_latest_materialization_event(dg.AssetKey(list(path))) is not None

    def partitions(self, path: AssetPath) -> Set[str]:
        return self._instance.get_materialized_partitions(dg.AssetKey(list(path)))

    def evaluations(self, checks: Sequence[Check]) -> Mapping[Check, Evaluation]:
        keys = [dg.AssetCheckKey(dg.AssetKey(list(path)), name) for path, name in checks]
        found: dict[Check, Evaluation] = {}
        for key, record in self._instance.event_log_storage.get_latest_asset_check_execution_by_key(keys).items():
            event = record.event.dagster_event if record.event is not None else None
            if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                evaluation = event.asset_check_evaluation_data
                accepted = evaluation.metadata.get(ACCEPTED)
                found[tuple(key.asset_key.path), key.name] = Evaluation(
                    passed=evaluation.passed,
                    blocks=evaluation.severity == dg.AssetCheckSeverity.ERROR,
                    accepted=None if accepted is None else str(accepted.value),
                )
        return found
