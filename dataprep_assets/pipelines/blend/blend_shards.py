"""Description of a stage's shards, the only part in which the stages differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.spec import count_documents, return_no_metadata
from dataprep_assets.engine.checks.check import Check
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.stream.token_stream import Fetch

S = TypeVar("S", bound=ShardToBuild)
S_contra = TypeVar("S_contra", contravariant=True)


class ShardBuilder(Protocol[S_contra]):
    """Function that builds out-of-date shards and yields each outcome as soon as it is known."""

    def __call__(
        self,
        shards: Sequence[S_contra],
        *,
        workers: int,
        engine: TaskEngine,
        verification: Verification,
        fetches: Mapping[str, Fetch] | None,
        progress: Progress,
        prepare: Callable[[], object] | None,
    ) -> Iterable[Outcome]: ...


@dataclass(frozen=True, kw_only=True)
class BlendShards(Generic[S]):
    """Description of the artifact that contains the shards of a stage.

    Attributes:
        name: Last part of the asset's key, and the artifact's name.
        description: The asset's description in the UI.
        kinds: Dagster's kinds of the asset, which the UI shows as badges.
        shards: Returns the shards of a plan with the given partition keys; raises MissingArtifactError if an input is
            missing.
        build: Builds the shards. Its `prepare` loads what workers share, before they are forked.
        checks: The checks of one shard.
        open: Opens a shard for its checks. It must be a module-level function.
        load_tools: Loads the tools that workers of the same shard share; None without tools. It must be a module-level
            function.
        metadata: Metadata of a finished shard for the UI, in addition to counts and location.
        version, rows: The same as in `ArtifactSpec`.
        columns: Returns the columns for `ArtifactSpec`, given the declaration.
    """

    name: str
    description: str
    kinds: frozenset[str] | set[str]
    shards: Callable[[BlendDeclaration, ArtifactStore, BlendPlan, Iterable[str]], Sequence[S]]
    build: ShardBuilder[S]
    checks: tuple[Check[Any], ...]
    open: Callable[[S], Any]
    version: int
    load_tools: Callable[[S], object] | None = None
    metadata: Callable[[ArtifactStore, Receipt], Mapping[str, ShownValue]] = return_no_metadata
    rows: Callable[[Receipt], int | None] = count_documents
    columns: Callable[[BlendDeclaration], Mapping[str, str]] = lambda _: {}
    column_descriptions: Mapping[str, str] = field(default_factory=dict)
