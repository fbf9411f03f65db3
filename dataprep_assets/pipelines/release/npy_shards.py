"""Builds npy shards: the token stream of each split, ordered and cut (`layout`), with the ids of its samples.

One pass over the stream writes the ids, digests both files and hashes the samples; memory is a few blocks of tokens and
the document lengths of one group (see `order`).
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import IntegrityError
from dataprep_assets.execution.processes import Meter, report
from dataprep_assets.execution.shards import run_shards
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.flat_bins import create, token_dtype
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout

VERSION = 1
NAME = "npy_shards"


class NpyShardFacts(Facts):
    """What the receipt of a shard tells, besides what `meta_of` says of the tokenizer.

    `prefix` is its split, `index` its number in it. The shard is tokens `[stream_start, stream_stop)` of the split's
    `stream_tokens`, then `padding_tokens` separators; `tail_dropped_tokens` of the stream follow it in no shard.
    """

    tokenizer: str
    vocab_size: int
    eos_token_id: int
    eos_token: str
    dtype: str
    tokenizer_sha256: str
    separator_id: int
    prefix: str
    index: int
    sequence_length: int
    tokens: int
    samples: int
    stream_start: int
    stream_stop: int
    stream_tokens: int
    padding_tokens: int
    tail_dropped_tokens: int
    shuffle_seed: int | None
    mix: int


def shard_artifact(release: ReleaseDeclaration, partition: str) -> Artifact:
    """The artifact of one shard."""
    return release.artifact(NAME, partition)


def shard_key(release: ReleaseDeclaration, layout: ReleaseLayout, partition: str) -> str:
    """The artifact key of a shard: the digest of everything that decides its bytes.

    `partition` is one of `layout.partitions`; `release` has the options that `layout` was made with. A change of
    another source shard changes the key only when it moves the stretch of the stream that this shard is cut from.
    """
    split, cut = layout.find(partition)
    stretch = [
        [[[shard.partition, shard.content] for shard in group], low, high]
        for group, low, high in split.order.stretch(cut.start, cut.stop)
    ]
    padding = [cut.padding, layout.separator_id if cut.padding else None, cut.dropped]
    options = [release.release.sequence_length, split.order.seed, layout.meta["dtype"]]
    place = [split.split, cut.index, cut.start]
    return digest_value([NAME, VERSION, options, place, stretch, padding, dict(layout.meta)])


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """One shard to build or to prove, as it is sent to a worker: `layout` has only the shard's own split.

    `threads` is the number of threads that hash its samples.
    """

    release: ReleaseDeclaration
    store: ArtifactStore
    layout: ReleaseLayout
    partition: str
    threads: int

    @property
    def artifact(self) -> Artifact:
        """The shard's artifact."""
        return shard_artifact(self.release, self.partition)

    @property
    def source_bytes(self) -> int:
        """Bytes of its stretch of the token bins."""
        split, cut = self.layout.find(self.partition)
        return (cut.stop - cut.start) * token_dtype(split.order.groups[0][0].dtype).itemsize


def planned_shards(
    release: ReleaseDeclaration,
    store: ArtifactStore,
    layout: ReleaseLayout,
    partitions: Sequence[str],
    *,
    workers: int,
) -> list[PlannedShard]:
    """The shards of these `partitions`, to be built or proven by `workers` processes that share the cores.

    `layout` is the whole release's; `release` and `store` go with each shard to its worker.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, min(workers, len(partitions))))
    planned = []
    for partition in partitions:
        split, _ = layout.find(partition)
        own = replace(layout, splits={split.split: split})
        planned.append(PlannedShard(release=release, store=store, layout=own, partition=partition, threads=threads))
    return planned


def build_npy_shards(
    planned: Sequence[PlannedShard],
    *,
    workers: int,
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Build all shards that are not current, each in a worker process: yields each when it is found, built or failed.

    `planned` are the shards, `workers` the number of processes; `on_progress` gets the meter and the number of
    processes at work. A failed shard does not stop the others. A worker that dies does (WorkerDiedError): what is
    finished is committed.
    """
    return run_shards(planned, build_planned, workers=workers, on_progress=on_progress)


def build_planned(shard: PlannedShard) -> tuple[Receipt, bool]:
    """The task of a worker process: `build_npy_shard` of a planned shard."""
    return build_npy_shard(shard.release, shard.store, shard.layout, shard.partition, threads=shard.threads)


def build_npy_shard(
    release: ReleaseDeclaration,
    store: ArtifactStore,
    layout: ReleaseLayout,
    partition: str,
    *,
    threads: int | None = None,
) -> tuple[Receipt, bool]:
    """Build one shard unless it is current: `<split>_<iiiiii>.npy` and `sample_ids_<iiiiii>.bin`.

    `partition` is one of `layout.partitions`, which `release_layout` makes of `release` and the token bins in `store`;
    `threads` hash its samples, by default one a core. Returns the receipt and whether it was reused. Raises
    IntegrityError naming the shard of token bins whose bytes do not match its receipt.
    """
    split, cut = layout.find(partition)
    options, dtype = release.release, str(layout.meta["dtype"])

    def write(staged: Path) -> Written:
        blocks = _padded(split.order.read(store, cut.start, cut.stop), cut.padding, layout.separator_id, dtype)
        shard = _ShardWriter(
            token_path=staged / Path(npy_shards.token_key(split.split, cut.index)).name,
            ids_path=staged / Path(npy_shards.ids_key(split.split, cut.index)).name,
            tokens=cut.tokens,
            dtype=dtype,
            sequence_length=options.sequence_length,
            separator_id=layout.separator_id,
            threads=threads,
        )
        digests = shard.write(blocks)
        return Written(
            inputs={
                source.partition: source.content
                for group, _, _ in split.order.stretch(cut.start, cut.stop)
                for source in group
            },
            facts=NpyShardFacts(
                **layout.meta,
                separator_id=layout.separator_id,
                prefix=split.split,
                index=cut.index,
                sequence_length=options.sequence_length,
                tokens=cut.tokens,
                samples=cut.tokens // options.sequence_length,
                stream_start=cut.start,
                stream_stop=cut.stop,
                stream_tokens=split.order.tokens,
                padding_tokens=cut.padding,
                tail_dropped_tokens=cut.dropped,
                shuffle_seed=options.shuffle_seed,
                mix=options.mix,
            ),
            ledger=shard.ledger,
            digests=digests,
        )

    artifact = shard_artifact(release, partition)
    return ensure(artifact, store, shard_key(release, layout, partition), write, release.verify)


def _padded(blocks: Iterable[NDArray[Any]], padding: int, separator_id: int, dtype: str) -> Iterator[NDArray[Any]]:
    yield from blocks
    if padding:
        yield np.full(padding, separator_id, dtype=token_dtype(dtype))


@dataclass(kw_only=True)
class _ShardWriter:
    """Writes one shard in one pass; `ledger` counts what was written."""

    token_path: Path
    ids_path: Path
    tokens: int
    dtype: str
    sequence_length: int
    separator_id: int
    threads: int | None
    ledger: Ledger = field(default_factory=Ledger)

    def write(self, blocks: Iterable[NDArray[Any]]) -> dict[str, str]:
        """Both files from the blocks of the stream; the SHA-256 of each by name."""
        digest = hashlib.sha256()
        ids = []
        reported_ms = _cpu_ms()
        header = npy_shards.header(self.tokens, self.dtype)
        with create(self.token_path) as file:
            file.write(header)
            digest.update(header)
            for block in self._whole_sequences(blocks):
                data = np.ascontiguousarray(block, dtype=token_dtype(self.dtype))
                file.write(data.data)
                digest.update(data.data)
                ids.append(sample_ids.sample_ids(data, self.sequence_length, threads=self.threads))
                before, self.ledger = self.ledger, self.ledger + self._counted(data)
                cpu_ms = _cpu_ms()
                report(
                    tokens=len(data),
                    documents=self.ledger.separators - before.separators,
                    source_bytes=block.nbytes,
                    cpu_ms=cpu_ms - reported_ms,
                )
                reported_ms = cpu_ms
        if self.ledger.tokens != self.tokens:
            raise IntegrityError(
                f"{self.token_path.name}: the stream gave {self.ledger.tokens} tokens, {self.tokens} were planned. "
                "Materialize token_bins again"
            )
        sample_ids.write(self.ids_path, ids)
        return {self.token_path.name: digest.hexdigest()}

    def _whole_sequences(self, blocks: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """The same tokens in blocks of whole sequences. Tokens after the last one are missing from the ledger."""
        rest: NDArray[Any] | None = None
        for block in blocks:
            joined = block if rest is None else np.concatenate((rest, block))
            whole = len(joined) // self.sequence_length * self.sequence_length
            if whole:
                yield joined[:whole]
            rest = joined[whole:] if whole < len(joined) else None

    def _counted(self, block: NDArray[Any]) -> Ledger:
        separators = int(np.count_nonzero(block == self.separator_id))
        return Ledger(tokens=len(block), separators=separators, min_id=int(block.min()), max_id=int(block.max()))


def _cpu_ms() -> int:
    """CPU time of this process, all threads, in milliseconds."""
    return time.process_time_ns() // 1_000_000


def stale_shards(release: ReleaseDeclaration, store: ArtifactStore, layout: ReleaseLayout) -> Iterator[str]:
    """Names of the shards of `layout` that are missing in `store`, damaged, or out of date for `release`, in order."""
    for partition in layout.partitions:
        artifact = shard_artifact(release, partition)
        if store.current(artifact, shard_key(release, layout, partition), release.verify) is None:
            yield str(artifact)
