"""The division of each split's token stream into the shards of a release, computed from receipts of token bins.

Shard `i` of a split has tokens `[i * tokens_per_shard, (i + 1) * tokens_per_shard)` of the split's stream. Documents
may cross the boundaries of samples and shards. The tokens after the last whole sequence are dropped, or padded to a
whole sequence. The last cut counts them, so each split satisfies `stream_tokens = Σ tokens - padding + dropped`.

Entry points: `compute_release_layout`, `compute_split_layout`, `cut_stream`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.combined_bins import read_shard_receipts
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.corpus.token_bins import build_meta
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.order import ReleaseSourceShard, StreamOrder
from dataprep_assets.stream.token_shard import TokenBinsFacts, require_separator


@dataclass(frozen=True, kw_only=True)
class ShardCut:
    """Content of a shard: tokens `[start, stop)` of its split's stream, followed by `padding` separators.

    For the split's last shard, `dropped` is the number of following tokens that are in no shard. It is 0 for others.
    """

    index: int
    start: int
    stop: int
    padding: int = 0
    dropped: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens in the shard, including padding."""
        return self.stop - self.start + self.padding


def cut_stream(
    tokens: int, *, sequence_length: int, tokens_per_shard: int, tail: Literal["drop", "pad"]
) -> tuple[ShardCut, ...]:
    """Divide a stream of `tokens` tokens into shards; return no shards if no whole sequence would be left.

    Every shard except the last has `tokens_per_shard` tokens, a multiple of `sequence_length`. `tail` determines
    whether the tokens after the last whole sequence are dropped, or padded with separators to a whole sequence.
    """
    remainder = tokens % sequence_length
    padding = sequence_length - remainder if remainder and tail == "pad" else 0
    dropped_tokens = remainder if tail == "drop" else 0
    end = tokens - dropped_tokens
    starts = range(0, end, tokens_per_shard)
    cuts = [ShardCut(index=i, start=start, stop=min(start + tokens_per_shard, end)) for i, start in enumerate(starts)]
    # Only the last shard can have padding or dropped tokens, because both are at the end of the stream.
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
        """Partition keys of all shards, such as `train_000000`, split by split."""
        return [format_partition_key(name, cut.index) for name, split in self.splits.items() for cut in split.cuts]

    def find_shard(self, partition: str) -> tuple[SplitLayout, ShardCut]:
        """Return the split and the cut of a partition key. Raises ConfigError for an unknown key."""
        # Divide the key at the last underscore, because the split's name may also contain underscores.
        name, _, number = partition.rpartition("_")
        split = self.splits.get(name)
        if split is None or not number.isdecimal() or int(number) >= len(split.cuts):
            raise ConfigError(f"unknown shard {partition!r}. Available: {_shorten_names(self.partitions)}")
        return split, split.cuts[int(number)]


def format_partition_key(split: str, index: int) -> str:
    """Return the partition key of a shard, which is also the name of its token file without the suffix."""
    return f"{split}_{index:06d}"


def compute_release_layout(release: ReleaseDeclaration, store: ArtifactStore) -> ReleaseLayout:
    """Return the order and the shards of every split, computed from the receipts of its token bins.

    `release` is the declaration, and `store` contains the manifest and the token bins. Raises MissingArtifactError if
    artifacts are missing, ConfigError for a split that is shorter than one sequence, and IntegrityError if the token
    bins have different separators.
    """
    splits, manifest = dict[str, SplitLayout](), load_manifest(release, store)
    separators = set()
    for name in release.splits:
        shards = []
        for artifact, receipt in read_shard_receipts(release, store, manifest, name):
            separators.add(require_separator(receipt, TokenBinsFacts.from_receipt(receipt)))
            shards.append(ReleaseSourceShard.from_receipt(artifact, receipt))
        splits[name] = compute_split_layout(release, name, shards)
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


def compute_split_layout(release: ReleaseDeclaration, split: str, shards: Sequence[ReleaseSourceShard]) -> SplitLayout:
    """Return the order and the shards of a split. `shards` are its token bins, in the order of the manifest."""
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
