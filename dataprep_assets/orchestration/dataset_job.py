"""The job of a dataset, `build_<dataset>`: one launch makes and checks all of it, however many partitions there are.

Nothing has to exist beforehand, not even the partitions, which only a manifest or a plan knows. An artifact that is
current by its receipt costs one read, so the same job also repairs and appends. The job's run makes a small dataset
itself, one run of assets after the other, as `dataprep run` does: the daemon would look at a backfill only twice a
minute, which takes longer than the work. For a large dataset the run makes the plan and launches a backfill of the
rest. If the plan of the rest depends on finished shards (a release), the backfill is tagged `CONTINUES`, and the sensor
of `planning` launches the job again when the backfill has succeeded.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from dataprep_assets.graph.runs import PlannedRun, planned_runs
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.graph.status import sweep
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.assets import asset_of
from dataprep_assets.orchestration.backfill import launch
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.orchestration.instance_records import InstanceRecords
from dataprep_assets.orchestration.keys import DATASET, job_name
from dataprep_assets.orchestration.needed import needed, plannable, up_to_date
from dataprep_assets.orchestration.pools import POOLS
from dataprep_assets.orchestration.runs import materialize
from dataprep_assets.resources import StorageResource, io_manager
from dataprep_assets.stores.private import private_files

__all__ = ["BUILD_RUN", "CONTINUES", "job_of"]

BUILD_RUN = "dataprep/build_run"
"""Tag of a run that the job's run makes in its own process: the id of the job's run."""
CONTINUES = "dataprep/continues"
"""Tag of a backfill after which the job has to be launched again."""
MOST_IN_A_RUN = 500
"""Most partitions that the job makes in its own run: the rows of checks in the database grow with the square of a run's
partitions (4 MB at 500, 62 MB at 2,000), and a run that is lost starts again from the beginning."""


def job_of(specs: Sequence[ArtifactSpec]) -> dg.JobDefinition:
    """The job of a dataset.

    Args:
        specs: All artifacts of the dataset, inputs before what is made of them.
    """
    declaration = specs[0].declaration
    name = job_name(declaration.dataset)

    @dg.op(name=f"{name}__steps", pool=POOLS["cpu"], description="Plans, then makes and checks what is not current.")
    def steps(context: dg.OpExecutionContext, storage: StorageResource) -> None:
        with private_files(declaration.sensitive):
            _Build(context, specs, declaration.store(storage)).all()

    @dg.job(
        name=name,
        description=f"Make and check all of {declaration.dataset}: what is current is kept, what is not is built.",
        tags={DATASET: declaration.dataset},
    )
    def job() -> None:
        steps()

    return job


class _Build:
    """One run of the job."""

    def __init__(self, context: dg.OpExecutionContext, specs: Sequence[ArtifactSpec], store: ArtifactStore) -> None:
        self._context, self._specs, self._store = context, specs, store
        self._dataset = specs[0].declaration.dataset

    def all(self) -> None:
        """Make everything, or launch the backfill that does; raises dg.Failure if a step or a blocking check fails."""
        if up_to_date(self._specs, self._store, InstanceRecords(self._context.instance)):
            sweep(self._specs, self._store)
            self._tell(f"{self._dataset}: all is up to date and green, nothing to do")
            return
        if _may_run_here(self._context.instance):
            self._here(self._small())
            if not self._large():
                self._tell(f"{self._dataset}: made and checked")
                return
        self._launch()

    def _small(self) -> Iterator[PlannedRun]:
        """All runs of a small dataset; only the planning runs of a large one."""
        for run in planned_runs(self._specs, self._store):
            if run.partitions and self._large():
                return
            yield run

    def _large(self) -> bool:
        cut = {spec.partitions for spec in plannable(self._specs, self._store) if spec.partitions is not None}
        return sum(len(partitions.keys(self._store)) for partitions in cut) > MOST_IN_A_RUN

    def _here(self, runs: Iterator[PlannedRun]) -> None:
        """Execute runs of assets in this process."""
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line.strip())
            self._context.log.info(line.strip())

        def complain(line: str) -> None:
            said.append(line.strip())
            self._context.log.error(line.strip())

        definitions = dg.Definitions(
            assets=[asset_of(spec) for spec in self._specs],
            asset_checks=[checks_of(spec) for spec in self._specs if spec.proofs is not None],
            # the resource definitions of the job, not initialized ones, whose secrets would become defaults of a
            # recorded schema
            resources={name: self._context.job_def.resource_defs[name] for name in ("storage", io_manager.KEY)},
        )
        job = definitions.resolve_implicit_global_asset_job_def()
        tags = {BUILD_RUN: self._context.run.run_id}
        if not materialize(job, runs, self._context.instance, tags=tags, say=say, complain=complain):
            after = said[next((at for at, line in enumerate(said) if line == "failed"), 0) + 1 :]
            why = [line for line in after if line != "failed" and not line.endswith(" …")]  # no titles of other runs
            raise dg.Failure(
                description=f"{self._dataset}: "
                + " | ".join(why)
                + ". What is finished is kept: correct it, then re-execute this run or launch the job again",
                allow_retries=False,
            )

    def _launch(self) -> None:
        """Launch a backfill of everything that is not current and whose partitions are known."""
        wanted = needed(self._specs, self._store, InstanceRecords(self._context.instance))
        if not wanted:
            left = [spec for spec in self._specs if spec not in plannable(self._specs, self._store)]
            raise dg.Failure(
                f"{self._dataset}: {'/'.join(left[0].path)} is not planned, and all that plans it is current; "
                "materialize what it is made of by hand",
                allow_retries=False,
            )
        continues = len(plannable(self._specs, self._store)) < len(self._specs)
        count = sum(max(1, len(partitions)) for partitions in wanted.values())
        backfill = launch(
            self._context.instance,
            wanted,
            title=job_name(self._dataset),
            description=f"{len(wanted)} assets, {count} partitions; launched by run {self._context.run.run_id}",
            tags={DATASET: self._dataset, **({CONTINUES: "true"} if continues else {})},
        )
        more = "; the job is launched again when it has succeeded" if continues else ""
        self._tell(
            f"{self._dataset}: backfill {backfill} makes {len(wanted)} assets ({count:,} partitions); "
            f"watch it under Runs, Backfills{more}",
            backfill=dg.MetadataValue.url(f"/runs/b/{backfill}"),
        )

    def _tell(self, sentence: str, **metadata: dg.MetadataValue) -> None:
        self._context.log.info(sentence)
        self._context.add_output_metadata({"outcome": sentence, **metadata})


def _may_run_here(instance: dg.DagsterInstance) -> bool:
    """Whether the process of the job's run may execute runs of assets.

    A launcher that watches the pods of runs would take a run without a pod of its own for lost. And if each step claims
    a slot of its pool, a step inside this one would wait for the slot forever.
    """
    storage = instance.event_log_storage
    config = storage.get_pool_config()
    by_run = config.pool_granularity is not None and config.pool_granularity.value == "run"
    limited = config.default_pool_limit is not None or bool(storage.get_pool_limits())
    return not instance.run_launcher.supports_check_run_worker_health and (by_run or not limited)
