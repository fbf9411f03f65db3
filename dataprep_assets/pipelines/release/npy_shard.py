"""Build of one npy shard: its range of a split's ordered token stream (`layout.py`), and the ids of its samples.

The tokens are written, digested and hashed as samples in one pass over the stream. Memory must hold only a few blocks
of tokens, and the document lengths of one group (see `order.py`).
"""

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Change, Recipe
from dataprep_assets.errors import IntegrityError, count_of
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout
from dataprep_assets.stores.files import create_file, digest_value
from dataprep_assets.stream.token_shard import TOKEN_BINS

VERSION = 2
NPY_SHARDS = "npy_shards"


class NpyShardFacts(Facts):
    """Facts of a shard, in addition to the tokenizer's description from `build_meta`.

    `prefix` is the split, and `index` is the shard's number in the split. The shard has tokens `[stream_start,
    stream_stop)` of the split's `stream_tokens` tokens, followed by `padding_tokens` separators. The
    `tail_dropped_tokens` tokens after it are in no shard.
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


def get_shard_artifact(release: ReleaseDeclaration, partition: str) -> Artifact:
    """Return the artifact of the shard with this partition key."""
    return release.artifact(NPY_SHARDS, partition)


@dataclass(frozen=True, kw_only=True)
class ShardRecipe(Recipe):
    """The recipe of a shard.

    If an option of the release changes, the ranges of token bins also change. In this case, `difference` reports the
    option as the reason, and not the different token bins.
    """

    def find_change(self, receipt: Receipt) -> Change | None:
        recipe = receipt.recipe
        if recipe["settings"].get("release") != self.settings["release"]:
            # Compare with the receipt's own input artifacts, so that the changed option is reported instead of the
            # different token bins.
            return Recipe.find_change(replace(self, upstream=recipe["upstream"]), receipt)
        return super().find_change(receipt)


def collect_release_settings(release: ReleaseDeclaration) -> dict[str, Any]:
    """Return the options that determine the order and the division of the stream, by name."""
    options = release.release
    return {
        "sequence_length": options.sequence_length,
        "tokens_per_shard": options.tokens_per_shard,
        "shuffle_seed": options.shuffle_seed,
        "mix": options.mix,
        "tail": options.tail,
    }


def build_shard_recipe(release: ReleaseDeclaration, layout: ReleaseLayout, partition: str) -> ShardRecipe:
    """Return the current recipe of a shard.

    The key does not depend on other token bins, unless their change moves the range of the stream that the shard has.

    Args:
        release: The declaration, from which `layout` was computed.
        layout: The layout of the release.
        partition: One of `layout.partitions`.
    """
    split, shard_cut = layout.find_shard(partition)
    groups = split.order.find_groups_between(shard_cut.start, shard_cut.stop)
    stretch = [[[[shard.partition, shard.content] for shard in group], low, high] for group, low, high in groups]
    # Add the separator's id only if there is padding, because the contents in `stretch` already cover the separators of
    # the stream.
    padding = [shard_cut.padding, layout.separator_id if shard_cut.padding else None, shard_cut.dropped]
    # Omit `mix`, `tokens_per_shard` and `tail`, because `position`, `stretch` and `padding` reflect their effects. A
    # shard that these options do not affect therefore stays up to date.
    options = [release.release.sequence_length, split.order.seed, layout.meta["dtype"]]
    position = [split.split, shard_cut.index, shard_cut.start]
    tokenizer = {name: value for name, value in layout.meta.items() if name != "tokenizer_sha256"}
    return ShardRecipe(
        artifact=get_shard_artifact(release, partition),
        key=digest_value([NPY_SHARDS, VERSION, options, position, stretch, padding, dict(layout.meta)]),
        version=VERSION,
        settings={
            "release": collect_release_settings(release),
            **tokenizer,
            "separator_id": layout.separator_id,
            "split": split.split,
            "index": shard_cut.index,
            "stream_start": shard_cut.start,
            "stream_stop": shard_cut.stop,
            "padding_tokens": shard_cut.padding,
            "tail_dropped_tokens": shard_cut.dropped,
        },
        sources={"tokenizer": layout.meta["tokenizer_sha256"]},
        upstream={f"{TOKEN_BINS}/{s.partition}": s.content for group, _, _ in groups for s in group},
    )


@dataclass(frozen=True, kw_only=True)
class NpyShard:
    """A shard, ready to be sent to a worker that builds or checks it. `layout` has only the shard's own split.

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
        return get_shard_artifact(self.release, self.partition)

    @property
    def source_bytes(self) -> int:
        """Size in bytes of the shard's range of the token bins."""
        split, shard_cut = self.layout.find_shard(self.partition)
        return (shard_cut.stop - shard_cut.start) * token_dtype(split.order.groups[0][0].dtype).itemsize


def build_npy_shard(
    release: ReleaseDeclaration,
    store: ArtifactStore,
    layout: ReleaseLayout,
    partition: str,
    *,
    threads: int | None = None,
) -> tuple[Receipt, bool]:
    """Build `<split>_<iiiiii>.npy` and `sample_ids_<iiiiii>.bin` of one shard unless they are up to date.

    `partition` is one of `layout.partitions`, and `layout` is the result of `compute_release_layout` for `release` and
    `store`. `threads` is the number of threads that hash samples; by default, one per core. Returns the receipt, and
    whether the shard was reused. Raises IntegrityError if the bytes of token bins do not match their receipt.
    """
    split, shard_cut = layout.find_shard(partition)
    options, dtype = release.release, str(layout.meta["dtype"])

    def write(staged: Path) -> WrittenFiles:
        blocks = _append_padding(
            split.order.read(store, shard_cut.start, shard_cut.stop), shard_cut.padding, layout.separator_id, dtype
        )
        shard = _ShardWriter(
            token_path=staged / Path(npy_shards.build_token_key(split.split, shard_cut.index)).name,
            ids_path=staged / Path(npy_shards.build_ids_key(split.split, shard_cut.index)).name,
            tokens=shard_cut.tokens,
            dtype=dtype,
            sequence_length=options.sequence_length,
            separator_id=layout.separator_id,
            threads=threads,
        )
        digests = shard.write(blocks)
        return WrittenFiles(
            inputs={
                source.partition: source.content
                for group, _, _ in split.order.find_groups_between(shard_cut.start, shard_cut.stop)
                for source in group
            },
            facts=NpyShardFacts(
                **layout.meta,
                separator_id=layout.separator_id,
                prefix=split.split,
                index=shard_cut.index,
                sequence_length=options.sequence_length,
                tokens=shard_cut.tokens,
                samples=shard_cut.tokens // options.sequence_length,
                stream_start=shard_cut.start,
                stream_stop=shard_cut.stop,
                stream_tokens=split.order.tokens,
                padding_tokens=shard_cut.padding,
                tail_dropped_tokens=shard_cut.dropped,
                shuffle_seed=options.shuffle_seed,
                mix=options.mix,
            ),
            ledger=shard.ledger,
            digests=digests,
        )

    return ensure_built(build_shard_recipe(release, layout, partition), store, write, release.verify)


def build_planned(shard: NpyShard) -> tuple[Receipt, bool]:
    """Build a shard with `build_npy_shard` in a worker; return the receipt, and whether the shard was reused."""
    return build_npy_shard(shard.release, shard.store, shard.layout, shard.partition, threads=shard.threads)


def _append_padding(
    blocks: Iterable[NDArray[Any]], padding: int, separator_id: int, dtype: str
) -> Iterator[NDArray[Any]]:
    yield from blocks
    if padding:
        yield np.full(padding, separator_id, dtype=token_dtype(dtype))


@dataclass(kw_only=True)
class _ShardWriter:
    """Writer of one shard in one pass over its stream; `ledger` counts the written tokens."""

    token_path: Path
    ids_path: Path
    tokens: int
    dtype: str
    sequence_length: int
    separator_id: int
    threads: int | None
    ledger: Ledger = field(default_factory=Ledger)

    def write(self, blocks: Iterable[NDArray[Any]]) -> dict[str, str]:
        """Write both files from the blocks of the stream; return the SHA-256 of the token file, by its name.

        Raises IntegrityError if the stream has a different number of tokens than planned.
        """
        digest = hashlib.sha256()
        ids = []
        reported_ms = _measure_cpu_ms()
        header = npy_shards.build_header(self.tokens, self.dtype)
        with create_file(self.token_path) as file:
            # The header contains the number of tokens, which is known only after the loop. So write the planned number,
            # and compare it with the actual number after the loop.
            file.write(header)
            digest.update(header)
            for block in self._cut_whole_sequences(blocks):
                data = np.ascontiguousarray(block, dtype=token_dtype(self.dtype))
                file.write(data.data)
                digest.update(data.data)
                ids.append(sample_ids.compute_sample_ids(data, self.sequence_length, threads=self.threads))
                old_ledger, self.ledger = self.ledger, self.ledger + count_tokens(data, self.separator_id)
                cpu_ms = _measure_cpu_ms()
                report_work(
                    tokens=len(data),
                    documents=self.ledger.separators - old_ledger.separators,
                    source_bytes=block.nbytes,
                    cpu_ms=cpu_ms - reported_ms,
                )
                reported_ms = cpu_ms
        if self.ledger.tokens != self.tokens:
            raise IntegrityError(
                f"{self.token_path.name}: the stream has {count_of(self.ledger.tokens, 'token')}, but {self.tokens} "
                "were planned. Rebuild token_bins"
            )
        sample_ids.write(self.ids_path, ids)
        return {self.token_path.name: digest.hexdigest()}

    def _cut_whole_sequences(self, blocks: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Yield the tokens in blocks of whole sequences; tokens after the last whole sequence are not yielded."""
        remainder: NDArray[Any] | None = None
        for block in blocks:
            tokens = block if remainder is None else np.concatenate((remainder, block))
            stop = len(tokens) // self.sequence_length * self.sequence_length
            if stop:
                yield tokens[:stop]
            # Keep the beginning of a sample for the next block, because the sample's id needs all of its tokens.
            remainder = tokens[stop:] if stop < len(tokens) else None


def count_tokens(block: NDArray[Any], separator_id: int) -> Ledger:
    """Return the ledger of a non-empty block of tokens."""
    separators = int(np.count_nonzero(block == separator_id))
    return Ledger(tokens=len(block), separators=separators, min_id=int(block.min()), max_id=int(block.max()))


def _measure_cpu_ms() -> int:
    """Return the CPU time of all threads of this process in milliseconds."""
    return time.process_time_ns() // 1_000_000
