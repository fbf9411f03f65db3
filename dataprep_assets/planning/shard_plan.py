"""The shard plan: which consecutive files of the manifest make up each shard.

A shard is what one partition materializes. Files stay whole and in manifest order, so that the concatenation of the
shards is the concatenation of the files, whatever the number of shards or workers. The plan is frozen beside the
manifest (`shard_plan.json`): partitions mean the same files until the manifest itself is materialized again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import ConfigError, FormatError
from dataprep_assets.planning.manifest import ManifestEntry

SHARD_PLAN = "shard_plan.json"
DEFAULT_TARGET_BYTES = 1 << 30
"""Compressed bytes a shard: minutes of work, against at most 0.8 s that Dagster spends on a partition."""
MAX_SHARDS = 4000
"""Beyond this many partitions an asset is slow to look at; the default target grows instead."""


@dataclass(frozen=True, kw_only=True)
class ShardSizing:
    """How a split is cut: `count` shards, or as many as it takes at about `target_bytes` of source each."""

    target_bytes: int | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.target_bytes is not None and self.count is not None:
            raise ConfigError("shards: give `target_bytes` or `count`, not both")
        for key in ("target_bytes", "count"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise ConfigError(f"shards.{key}: {value}: must be at least 1")


def shard_key(split: str, index: int) -> str:
    """The partition key of a shard, `train-00017`; it sorts like the shard's index up to 99,999."""
    return f"{split}-{index:05d}"


def plan_shards(entries: Sequence[ManifestEntry], sizing: ShardSizing) -> dict[str, list[int]]:
    """Partition key → manifest ordinals, in order, for every split of the manifest.

    Boundaries are placed where the running size crosses the next multiple of the total divided by the number of
    shards, so shards are even and no shard is empty; a split has at most as many shards as files.
    """
    by_split: dict[str, list[ManifestEntry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split, []).append(entry)
    plan: dict[str, list[int]] = {}
    for split, members in by_split.items():
        total = sum(e.size_bytes for e in members)
        if sizing.count is not None:
            count = sizing.count
        elif sizing.target_bytes is not None:
            count = -(-total // sizing.target_bytes)
        else:
            count = min(-(-total // DEFAULT_TARGET_BYTES), MAX_SHARDS)
        count = max(1, min(count, len(members)))
        for index, group in enumerate(_cut(members, count, total)):
            plan[shard_key(split, index)] = [e.ordinal for e in group]
    return plan


def _cut(members: Sequence[ManifestEntry], count: int, total: int) -> list[list[ManifestEntry]]:
    groups: list[list[ManifestEntry]] = [[]]
    done = 0
    for position, entry in enumerate(members):
        left = len(members) - position
        must = left == count - len(groups)  # as many files left as shards: one each from here on
        due = groups[-1] and len(groups) < count and (done + entry.size_bytes / 2) * count >= total * len(groups)
        if groups[-1] and (must or due):
            groups.append([])
        groups[-1].append(entry)
        done += entry.size_bytes
    return groups


def split_of(partition: str) -> str:
    """The split that a shard's partition key belongs to."""
    return partition.rpartition("-")[0]


def counts(plan: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Number of shards per split."""
    found: dict[str, int] = {}
    for key in plan:
        found[split_of(key)] = found.get(split_of(key), 0) + 1
    return found


def write_plan(directory: Path, plan: Mapping[str, Sequence[int]]) -> None:
    """Write `shard_plan.json`: partition key → `[first ordinal, last ordinal + 1]`."""
    ranges = {key: [ordinals[0], ordinals[-1] + 1] for key, ordinals in plan.items()}
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in ranges.items())
    (directory / SHARD_PLAN).write_text("{\n" + lines + "\n}\n")


def read_plan(directory: Path) -> dict[str, range]:
    """Partition key → range of manifest ordinals, in manifest order."""
    path = directory / SHARD_PLAN
    try:
        return {key: range(*bounds) for key, bounds in json.loads(path.read_bytes()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not a shard plan: {error}") from error
