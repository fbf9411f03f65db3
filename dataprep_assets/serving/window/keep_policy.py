"""Eviction policies of a cache: keep all shards, at most N shards, or at most N bytes. Pure functions.

A policy limits the shards on disk, including the one that is being downloaded. It never evicts a shard in use by a
process.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dataprep_assets.errors import ConfigError


@dataclass(frozen=True)
class CacheLimit:
    """Policy that keeps at most this many bytes of shards in the cache."""

    bytes: int


Keep = Literal["all"] | int | CacheLimit


def check_keep(keep: Keep, sizes: Sequence[int]) -> None:
    """Raise ConfigError unless the policy has room for every shard together with the next one, if there is one.

    `sizes` contains the shards' bytes in schedule order.
    """
    several = len(sizes) > 1
    if isinstance(keep, CacheLimit):
        needed = max(size + (sizes[(i + 1) % len(sizes)] if several else 0) for i, size in enumerate(sizes))
        if keep.bytes < needed:
            minimum = "the active shard and the next one fit" if several else "every shard fits"
            raise ConfigError(
                f"keep must be at least CacheLimit({needed}), so that {minimum}, not CacheLimit({keep.bytes})"
            )
    elif keep != "all":
        least = 2 if several else 1
        # Exclude `bool`, because True is also an int.
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < least:
            reason = "the active shard and the one being downloaded" if several else "the active shard"
            raise ConfigError(
                f"keep must be 'all', CacheLimit(n), or a number of shards of at least {least} ({reason}), not {keep!r}"
            )


def has_room(keep: Keep, present: Mapping[int, int], size: int) -> bool:
    """Return whether `keep` allows a shard of `size` bytes in addition to `present` (index → bytes)."""
    if isinstance(keep, CacheLimit):
        return sum(present.values()) + size <= keep.bytes
    return keep == "all" or len(present) + 1 <= keep


def choose_victims(
    keep: Keep, present: Mapping[int, int], size: int, *, held_shards: Collection[int], needed_shard: int, shards: int
) -> list[int]:
    """Return the shards of `present` (index → bytes) to evict, in order, so that shard `needed_shard` fits into `keep`.

    `needed_shard` has `size` bytes. Shards that the schedule of `shards` shards needs last after `needed_shard` are
    evicted first. Shards in `held_shards` are never evicted, so `needed_shard` may still not fit afterwards.
    """
    # Leave out the needed shard, because `size` already covers its partial files.
    remaining = {index: held_bytes for index, held_bytes in present.items() if index != needed_shard}
    victim_indices: list[int] = []
    for index in sorted(
        (i for i in remaining if i not in held_shards), key=lambda i: (i - needed_shard) % shards, reverse=True
    ):
        if has_room(keep, remaining, size):
            break
        del remaining[index]
        victim_indices.append(index)
    return victim_indices
