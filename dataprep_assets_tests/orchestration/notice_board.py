"""The dataset of `engine.notices` on Dagster: its definitions, with an instance in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.decide import Action
from dataprep_assets.engine.staleness.status import decide_checks
from dataprep_assets.engine.yaml.automation import Automation
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.component import build_definitions
from dataprep_assets.orchestration.partitions import asset_key, job_name
from dataprep_assets.orchestration.runs.runs import DagsterEvents, RunEnd, RunResult, execute_job
from dataprep_assets.resources import StorageResource, create_resources
from dataprep_assets.resources.environment import resolve_variables
from dataprep_assets_tests.engine.notices import Notices, make_notices_specs, write_notices
from dataprep_assets_tests.project import new_instance, range_tags


def find_pending(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, instance: dg.DagsterInstance, *kinds: str
) -> set[str]:
    """Return the artifacts for which Dagster or a check lacks something, of any kind or of these kinds."""
    events = DagsterEvents(instance)
    return {
        spec.name
        for spec in specs
        for one in decide_checks(spec, store, spec.slots(store), events).values()
        if one.action is not Action.KEEP and (not kinds or one.kind in kinds)
    }


@dataclass
class NoticeBoard:
    """A notice board with its declaration, specs and instance."""

    declaration: Notices
    specs: Sequence[ArtifactSpec]
    instance: dg.DagsterInstance
    storage: StorageResource

    @property
    def store(self) -> ArtifactStore:
        """The store of its artifacts."""
        return self.declaration.store(resolve_variables(self.storage))

    def left(self, *kinds: str) -> set[str]:
        """Return the artifacts for which Dagster or a check lacks something, of any kind or of these kinds."""
        return find_pending(self.specs, self.store, self.instance, *kinds)

    @cached_property
    def definitions(self) -> dg.Definitions:
        """Its definitions, bound to the storage."""
        return dg.Definitions.merge(
            build_definitions(self.specs), dg.Definitions(resources=create_resources(self.storage))
        )

    def say(self, partition: str, text: str) -> None:
        """Change the source of a notice."""
        (self.declaration.folder / f"{partition}.txt").write_text(text)

    def materialize(self) -> bool:
        """Execute the job as `dataprep run` does, and return whether it succeeds."""
        return self.executed().ended == RunEnd.WELL

    def executed(self) -> RunResult:
        """Execute the job as `dataprep run` does, and return the result."""
        return execute_job(self.definitions.resolve_job_def(job_name("notices")), self.instance)

    def tick(self, name: str, cursor: str | None = None) -> Any:
        """Return the result of a tick of a sensor, or of a schedule if there is no cursor, as the daemon gets it."""
        definitions = self.definitions
        repository = definitions.get_repository_def()
        if repository.has_schedule_def(name):
            context = dg.build_schedule_context(instance=self.instance, resources={"storage": self.storage})
            return repository.get_schedule_def(name).evaluate_tick(context)
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=cursor,
            definitions=definitions,
            resources={"storage": self.storage},
            sensor_name=name,
        ) as sensor_context:
            return repository.get_sensor_def(name).evaluate_tick(sensor_context)

    def run(
        self, *specs: ArtifactSpec, partitions: Sequence[str] = (), tags: Mapping[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Run some artifacts once, for consecutive partitions."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=[asset_key(spec) for spec in specs],
            tags={**range_tags(partitions), **(tags or {})},
            instance=self.instance,
            raise_on_error=False,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )


@contextmanager
def make_notice_board(
    folder: Path,
    *,
    automation: Mapping[str, Any] | None = None,
    sensitive: bool = False,
    home: Path | None = None,
    **texts: Any,
) -> Iterator[NoticeBoard]:
    """Yield a dataset of notices in a folder, without any built artifact.

    Args:
        folder: The folder for texts and artifacts.
        automation: The block `automation` of the YAML.
        sensitive: Whether the dataset is sensitive.
        home: The folder of an instance on disk, which schedules need; None for an instance in memory.
        texts: See `write_notices`.
    """
    declaration = write_notices(folder / "words", **texts)
    declared = Automation.model_validate(automation) if automation is not None else None
    declaration = declaration.model_copy(update={"automation": declared, "sensitive": sensitive})
    with new_instance(home) as instance:
        storage = StorageResource(root=str(folder / "artifacts"))
        yield NoticeBoard(declaration, make_notices_specs(declaration), instance, storage)
