"""The dataset of `graph.notices` on Dagster: its definitions, on an instance in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.graph.runs import planned_runs
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.assets import asset_key, asset_of, store_of
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.orchestration.partitions import range_tags
from dataprep_assets.orchestration.runs import materialize
from dataprep_assets_tests.graph.notices import Notices, notices_specs, write_notices
from resources import StorageResource, resources_of
from resources.environment import initialized


@dataclass
class NoticeBoard:
    """Its declaration, specs and instance."""

    declaration: Notices
    specs: Sequence[ArtifactSpec]
    instance: dg.DagsterInstance
    storage: StorageResource

    @property
    def store(self) -> ArtifactStore:
        """Where its artifacts are."""
        return store_of(self.declaration, initialized(self.storage))

    @property
    def definitions(self) -> dg.Definitions:
        """Its definitions, bound to the storage."""
        return dg.Definitions(
            assets=[asset_of(spec) for spec in self.specs],
            asset_checks=[checks_of(spec) for spec in self.specs if spec.proofs is not None],
            resources=resources_of(self.storage),
        )

    def say(self, partition: str, text: str) -> None:
        """Change a notice's source."""
        (self.declaration.folder / f"{partition}.txt").write_text(text)

    def materialize(self) -> bool:
        """All runs, as `dataprep run` does them."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return materialize(job, planned_runs(self.specs, self.store), self.instance)

    def run(self, *specs: ArtifactSpec, partitions: Sequence[str] = ()) -> dg.ExecuteInProcessResult:
        """One run of some artifacts, for consecutive partitions."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=[asset_key(spec) for spec in specs],
            tags=range_tags(partitions),
            instance=self.instance,
            raise_on_error=False,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )


@contextmanager
def notice_board(folder: Path, **texts: Any) -> Iterator[NoticeBoard]:
    """A dataset of notices in a folder, nothing of it built."""
    declaration = write_notices(folder / "words", **texts)
    with dg.DagsterInstance.ephemeral() as instance:
        storage = StorageResource(root=str(folder / "artifacts"))
        yield NoticeBoard(declaration, notices_specs(declaration), instance, storage)
