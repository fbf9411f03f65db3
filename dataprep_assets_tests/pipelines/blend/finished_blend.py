"""A finished blend that a test may damage."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_checks import OpenedRun
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets_tests.pipelines.blend.pipeline import finish_blend, plan_shards


@dataclass(frozen=True)
class FinishedBlend:
    """A declaration with its plan and its run."""

    blend: BlendDeclaration
    store: LocalArtifacts
    plan: BlendPlan
    directory: Path
    receipt: Receipt

    @property
    def shards(self) -> Sequence[ShardToBuild]:
        """All shards of the plan."""
        return plan_shards(self.blend, self.store, self.plan)

    @property
    def run(self) -> OpenedRun:
        """The run, opened for its checks."""
        return OpenedRun.open(self.blend, self.store)


def finish(blend: BlendDeclaration, root: Path) -> FinishedBlend:
    """Build all of a blend."""
    directory, receipt, plan = finish_blend(blend, root)
    return FinishedBlend(blend, LocalArtifacts(root), plan, directory, receipt)
