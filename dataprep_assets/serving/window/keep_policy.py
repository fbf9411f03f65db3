"""Eviction policies of a cache: keep all shards, at most N shards, or at most N bytes. Pure functions.

A policy limits the shards on disk, including the one that is being downloaded. It never evicts a shard in use by a
process.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dataprep_assets.errors import ConfigError, count_of


@dataclass(frozen=True)
class KeepBytes:
    """Policy that keeps at most this many bytes of shards in the cache."""

    bytes: int


Keep = Literal["all"] | int | KeepBytes


def check_keep(keep: Keep, sizes: Sequence[int]) -> None:
    """Raise ConfigError unless the policy has room for every shard together with the next one, if there is one.

    `sizes` contains the shards' bytes in schedule order.
    """
    several = len(sizes) > 1
    if isinstance(keep, KeepBytes):
        needed = max(size + (sizes[(i + 1) % len(sizes)] if several else 0) for i, size in enumerate(sizes))
        if keep.bytes < needed:
            what = "a shard and the next one, which is downloaded while the first is in use," if several else "a shard"
            raise ConfigError(
                f"keep: {count_of(keep.bytes, 'byte is', 'bytes are')} too few: {what} need up to {needed}. Set at "
                "least that"
            )
    elif keep != "all":
        least = 2 if several else 1
        # `bool` is excluded, because True is also an int.
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < least:
            why = "the active shard and the one being downloaded" if several else "the active shard"
            raise ConfigError(
                f"keep must be 'all', KeepBytes(n), or a number of shards of at least {least} ({why}), not {keep!r}"
            )


def fits(keep: Keep, present: Mapping[int, int], size: int) -> bool:
    """Return whether `keep` allows a shard of `size` bytes in addition to `present` (index → bytes)."""
    if isinstance(keep, KeepBytes):
        return sum(present.values()) + size <= keep.bytes
    return keep == "all" or len(present) + 1 <= keep


def victims(
    keep: Keep, present: Mapping[int, int], size: int, *, held: Collection[int], wanted: int, shards: int
) -> list[int]:
    """Return the shards of `present` (index → bytes) to evict, in order, so that shard `wanted` fits into `keep`.

    `wanted` has `size` bytes. Shards that the schedule of `shards` shards needs last after `wanted` are evicted
    first. Shards in `held` are never evicted, so `wanted` may still not fit afterwards.
    """
    # `size` already covers partial files of the wanted shard.
    remaining = {index: held_bytes for index, held_bytes in present.items() if index != wanted}
    victim_indices: list[int] = []
    for index in sorted((i for i in remaining if i not in held), key=lambda i: (i - wanted) % shards, reverse=True):
        if fits(keep, remaining, size):
            break
        del remaining[index]
        victim_indices.append(index)
    return victim_indices
