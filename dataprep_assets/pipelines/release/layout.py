"""The division of each split's token stream into the shards of a release, computed from receipts of token bins.

Shard `i` of a split has tokens `[i * tokens_per_shard, (i + 1) * tokens_per_shard)` of its stream. Documents may cross
the boundaries of samples and shards. The tokens after the last whole sequence are dropped or padded, as declared. The
last cut counts them, so each split satisfies `stream_tokens = Σ tokens - padding + dropped`.

Entry points: `release_layout`, `split_layout`, `cut_stream`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.combined_bins import shard_receipts
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.corpus.token_bins import build_meta
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.order import ReleaseSourceShard, StreamOrder
from dataprep_assets.stream.token_shard import TokenBinsFacts, require_separator


@dataclass(frozen=True, kw_only=True)
class ShardCut:
    """One shard of a split: tokens `[start, stop)` of the stream, then `padding` separators.

    `dropped` is the number of stream tokens after it that are in no shard; 0 except for a split's last shard.
    """

    index: int
    start: int
    stop: int
    padding: int = 0
    dropped: int = 0

    @property
    def tokens(self) -> int:
        """Length of the shard's array."""
        return self.stop - self.start + self.padding


def cut_stream(
    tokens: int, *, sequence_length: int, tokens_per_shard: int, tail: Literal["drop", "pad"]
) -> tuple[ShardCut, ...]:
    """Divide a stream of `tokens` tokens into shards; no shards if it has no whole sequence and the tail is dropped.

    Every shard except the last has `tokens_per_shard` tokens, a multiple of `sequence_length`. `tail` sets the
    treatment of the tokens after the last whole sequence: drop them, or complete the sequence with separators.
    """
    remainder = tokens % sequence_length
    padding = sequence_length - remainder if remainder and tail == "pad" else 0
    dropped_tokens = remainder if tail == "drop" else 0
    end = tokens - dropped_tokens
    starts = range(0, end, tokens_per_shard)
    cuts = [ShardCut(index=i, start=start, stop=min(start + tokens_per_shard, end)) for i, start in enumerate(starts)]
    # padding and dropped tokens are at the end of the stream, i.e., they concern only the last shard
    if cuts:
        last_cut = cuts[-1]
        cuts[-1] = ShardCut(
            index=last_cut.index, start=last_cut.start, stop=last_cut.stop, padding=padding, dropped=dropped_tokens
        )
    return tuple(cuts)


@dataclass(frozen=True, kw_only=True)
class SplitLayout:
    """A split of a release: the order of its stream, and its shards."""

    split: str
    order: StreamOrder
    cuts: tuple[ShardCut, ...]


@dataclass(frozen=True, kw_only=True)
class ReleaseLayout:
    """The shards of a release, by split. `meta` is the tokenizer's description from `build_meta`."""

    splits: Mapping[str, SplitLayout]
    separator_id: int
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def partitions(self) -> list[str]:
        """Partition keys of all shards, split by split: `train_000000`."""
        return [partition_key(name, cut.index) for name, split in self.splits.items() for cut in split.cuts]

    def find_shard(self, partition: str) -> tuple[SplitLayout, ShardCut]:
        """Return the split and the cut of a partition key; raise ConfigError for an unknown key."""
        # split at the last underscore, because the split's name may contain some
        name, _, number = partition.rpartition("_")
        split = self.splits.get(name)
        if split is None or not number.isdecimal() or int(number) >= len(split.cuts):
            raise ConfigError(f"unknown shard {partition!r}. Available: {_shorten_names(self.partitions)}")
        return split, split.cuts[int(number)]


def partition_key(split: str, index: int) -> str:
    """Return the partition key of a shard, the name of its file without the suffix."""
    return f"{split}_{index:06d}"


def release_layout(release: ReleaseDeclaration, store: ArtifactStore) -> ReleaseLayout:
    """Return the order and the shards of every split, from its finished token bins.

    `release` has the options, `store` the manifest and the token bins. Raises MissingArtifactError with the missing
    artifacts, ConfigError for a split that is shorter than one sequence, and IntegrityError if the token bins have
    different separators.
    """
    splits, manifest = dict[str, SplitLayout](), load_manifest(release, store)
    separators = set()
    for name in release.splits:
        shards = []
        for artifact, receipt in shard_receipts(release, store, manifest, name):
            separators.add(require_separator(receipt, TokenBinsFacts.from_receipt(receipt)))
            shards.append(ReleaseSourceShard.from_receipt(artifact, receipt))
        splits[name] = split_layout(release, name, shards)
        if not splits[name].cuts:
            raise ConfigError(
                f"{release.dataset}: split {name!r} has fewer than {release.release.sequence_length} tokens (one "
                "sequence). Use `tail: pad`, lower `sequence_length`, or remove the split"
            )
    if len(separators) != 1:
        raise IntegrityError(
            f"{release.dataset}: the token bins have different separators "
            f"({', '.join(map(str, sorted(separators)))}). Rebuild token_bins"
        )
    return ReleaseLayout(splits=splits, separator_id=separators.pop(), meta=build_meta(release))


def split_layout(release: ReleaseDeclaration, split: str, shards: Sequence[ReleaseSourceShard]) -> SplitLayout:
    """Return the order and the shards of a split, from its token bins in manifest order and the release's options."""
    options = release.release
    order = StreamOrder.from_shards(shards, seed=options.shuffle_seed, mix=options.mix)
    cuts = cut_stream(
        order.tokens,
        sequence_length=options.sequence_length,
        tokens_per_shard=options.tokens_per_shard,
        tail=options.tail,
    )
    return SplitLayout(split=split, order=order, cuts=cuts)


def _shorten_names(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" to {names[-1]}" if len(names) > 4 else "")
