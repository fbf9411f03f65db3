"""How `dataprep run` cuts the shards of a blend into runs: one run of all, or several that stream."""

from dataprep_assets.execution.pool import worker_count
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import open_place
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan

STREAMED_RUNS = 64
"""Most runs of a streaming blend: each reads the state of every shard."""


def streamed_shards(blend: BlendDeclaration, total: int) -> int:
    """Shards of each run of a blend that streams `total` of them: enough to keep the workers busy until its end."""
    return max(4 * worker_count(blend.workers), -(-total // STREAMED_RUNS))


def launches(blend: BlendDeclaration, plan: BlendPlan, at_once: int) -> list[list[str]]:
    """The partitions of `plan` in runs, in order, as the `execution_mode` of `blend` asks.

    A run fetches all its sources before it builds a shard. So one run of all shards (`batch`) builds nothing before
    everything is fetched, while runs of `at_once` shards each (`streaming`) build the first ones while the last are
    still remote.
    """
    partitions = plan.partitions
    mode = blend.execution_mode
    if mode == "auto":
        remote = any(open_place(unit.dataset, blend.sources).access.mirrored for unit in plan.units)
        mode = "streaming" if remote else "batch"
    size = len(partitions) if mode == "batch" else at_once
    return [partitions[first : first + size] for first in range(0, len(partitions), size)]
