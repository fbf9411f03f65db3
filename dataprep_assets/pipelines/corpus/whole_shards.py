"""Token bins with one task a shard: for engines whose workers share no disk with the run.

A task verifies, encodes and seals its shard on the machine where it lands. `build_token_bins` spreads a shard's files
over the workers of one machine instead, which needs their staging directory in common. The bytes and the receipts are
the same. Two runs that want the same shard on one machine or one shared disk wait for each other and make it once; on
two machines over a bucket both may make it, identically, and the receipt is put once.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from dataprep_assets.execution.pool import PROCESSES, Pool, chosen_engine, open_pool
from dataprep_assets.execution.processes import Meter, Task
from dataprep_assets.execution.shards import shard_results
from dataprep_assets.integrity.commit import staging, sweep
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, open_source
from dataprep_assets.pipelines.corpus.token_bins import (
    ONE_THREAD,
    ShardResult,
    ShardWork,
    build_token_bins,
    encode_into,
    finished_part,
    seal,
)
from dataprep_assets.planning.manifest import ManifestEntry

Bring = Callable[[], None]
"""Fetches a shard's source files to where its `SourcePart`s say. Picklable."""


def bringers(corpus: CorpusDeclaration, manifest: Manifest, partitions: Sequence[str]) -> dict[str, Bring]:
    """What fetches the sources of each shard on a machine whose mirror does not have them."""
    return {p: partial(_bring, corpus, manifest.shard(p)) for p in partitions}


def _bring(corpus: CorpusDeclaration, entries: tuple[ManifestEntry, ...]) -> None:
    open_source(corpus.source).fetch(entries)


def build_on_engine(
    corpus: CorpusDeclaration,
    manifest: Manifest,
    works: Sequence[ShardWork],
    *,
    workers: int,
    on_progress: Callable[[Meter, int], None] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[ShardResult]:
    """Have all shards, on the engine that the dataset declares (`run_on`) or the environment names.

    Processes share a shard's files; another engine has one task a shard. Raises ConfigError when the engine is not
    installed or its cluster is not there.
    """
    if chosen_engine(environment, corpus.run_on) == PROCESSES:
        yield from build_token_bins(works, workers=workers, verification=corpus.verify, on_progress=on_progress)
        return
    bring = bringers(corpus, manifest, [work.partition for work in works])
    with open_pool(workers, ONE_THREAD, environment, corpus.run_on) as pool:
        yield from build_whole_shards(works, pool, verification=corpus.verify, bring=bring, on_progress=on_progress)


def have_shard(work: ShardWork, verification: Verification, bring: Bring | None) -> tuple[Receipt, bool]:
    """A worker's task: the shard's receipt, and whether it was there already."""
    if (receipt := work.store.current(work.artifact, work.key, verification)) is not None:
        sweep([work.directory])
        return receipt, True
    if bring is not None and not all(part.path.exists() for part in work.files):
        bring()
    with staging(work.directory, work.key) as staged:
        # a rival may have made it while this one waited for the lock
        if (receipt := work.store.current(work.artifact, work.key, verification)) is not None:
            shutil.rmtree(staged)
            return receipt, True
        parts = {
            part.ordinal: finished_part(staged, part.ordinal) or encode_into(work.plan, part, staged)
            for part in work.files
        }
        return seal(work, staged, parts), False


def build_whole_shards(
    works: Sequence[ShardWork],
    pool: Pool,
    *,
    verification: Verification = "full",
    bring: Mapping[str, Bring] | None = None,
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Have all shards, a task each: yields each as soon as it is verified, built or failed.

    A failed shard does not stop the others. A worker that dies more often than its engine retries does
    (WorkerDiedError): what is finished is committed. `pool` is open.
    """
    brought = bring or {}

    def task_of(work: ShardWork) -> Task:
        return Task(f"shard:{work.partition}", have_shard, (work, verification, brought.get(work.partition)))

    return shard_results(pool, works, task_of, on_progress=on_progress)
