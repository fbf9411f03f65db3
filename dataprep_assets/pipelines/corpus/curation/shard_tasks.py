"""Build and checks of tags and signatures, whose shards need only their own source files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dataprep_assets.curation.function_tagger import FunctionTagger
from dataprep_assets.curation.tagging import build_preparation
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.engine.checks.check import Check, set_level
from dataprep_assets.engine.checks.verdicts import CheckWorkers, PartitionChecks
from dataprep_assets.errors import WorkerDiedError
from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import refetch_shards
from dataprep_assets.pipelines.corpus.source.source_parts import build_shard_fetches
from dataprep_assets.stream.token_stream import Fetch


class CorpusShard(Protocol):
    """A shard of tags or signatures, to be built or checked."""

    @property
    def artifact(self) -> Artifact:
        """The artifact that contains the shard."""
        ...

    @property
    def source_bytes(self) -> int:
        """Size of the shard's source files as stored, in bytes."""
        ...

    def recipe(self) -> Recipe:
        """Return the recipe: the shard's key and the values that determine it."""
        ...


S = TypeVar("S", bound=CorpusShard)


@dataclass(frozen=True, kw_only=True)
class ShardTasks(Generic[S]):
    """Functions that build and check the shards of an artifact.

    Attributes:
        name: The artifact's name.
        shards: Returns the shards of these partitions; raises MissingArtifactError if one has no snapshot.
        ensure: The task of a worker: builds a shard unless it is up to date; returns its receipt and whether it was
            reused.
        checks: The checks of each shard.
        open: Opens a shard for its checks; a module-level function, because workers import it.
    """

    name: str
    shards: Callable[[CorpusDeclaration, ArtifactStore, Manifest, Sequence[str]], list[S]]
    ensure: Callable[[S, Verification, Fetch | None], tuple[Receipt, bool]]
    checks: Sequence[Check[Any]]
    open: Callable[[S], Any]

    def recipes(
        self, corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str | None]
    ) -> Iterator[Recipe]:
        """Yield the recipe of each partition."""
        manifest = load_manifest(corpus, store)
        # Plan one shard at a time, because an error ends the iteration. `status` then has the recipes of the shards
        # before the failed shard, and resumes after it.
        for partition in partitions:
            (shard,) = self.shards(corpus, store, manifest, [partition or ""])
            yield shard.recipe()

    def build(self, corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
        """Build the shards that are out of date."""
        manifest = load_manifest(corpus, request.store)
        refetch_shards(corpus, manifest, request.partitions)
        shards = self.shards(corpus, request.store, manifest, request.partitions)
        # This machine has just fetched the files, but workers on other machines must fetch them themselves.
        fetches = {} if corpus.engine.is_this_machine else build_shard_fetches(corpus, manifest, request.partitions)
        jobs = [TaskJob(one, self.ensure, corpus.verify, fetches.get(one.artifact.partition or "")) for one in shards]
        try:
            yield from run_tasks(
                jobs,
                workers=request.workers,
                engine=corpus.engine,
                progress=request.progress,
                prepare=build_preparation(corpus.taggers),
            )
        except WorkerDiedError as error:
            own_functions = [] if corpus.rewriting is None else corpus.rewriting.functions
            own_functions += [
                one.function for one in corpus.taggers if self.name == TAGS and isinstance(one, FunctionTagger)
            ]
            if not own_functions:
                raise
            raise WorkerDiedError(
                f"{error}. The worker ran {', '.join(own_functions)}. Check this code first"
            ) from error

    def group(self, corpus: CorpusDeclaration) -> PartitionChecks[S, Any]:
        """Return the checks of each shard."""

        def plan_shards(store: ArtifactStore, partitions: Sequence[str]) -> list[S]:
            manifest = load_manifest(corpus, store)
            refetch_shards(corpus, manifest, partitions)
            return self.shards(corpus, store, manifest, partitions)

        return PartitionChecks(
            checks=set_level(self.checks, corpus.prove.level),
            planned=plan_shards,
            open=self.open,
            workers=lambda *_: CheckWorkers(
                engine=corpus.engine, declared=corpus.workers, prepare=build_preparation(corpus.taggers)
            ),
        )
