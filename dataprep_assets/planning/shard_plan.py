"""The shard plan: which consecutive files of the manifest make up each shard.

A shard is what one partition materializes. Files stay whole and in manifest order, so that the concatenation of the
shards is the concatenation of the files, whatever the number of shards or workers. The plan is frozen beside the
manifest (`shard_plan.json`): partitions mean the same files until the manifest itself is materialized again, and even
then a shard keeps its files (docs/corpus-changes.md#append). New files form new shards after those of their split; a
file that is gone leaves its shard, and a shard that lost all its files leaves the plan. No shard is ever renamed; but
when the last ones of a split have left, a later plan gives their names to shards of new files, which have other keys.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import ConfigError, FormatError
from dataprep_assets.planning.manifest import ManifestEntry, without_collector

SHARD_PLAN = "shard_plan.json"
DEFAULT_TARGET_BYTES = 1 << 30
"""Compressed bytes per shard: minutes of work, against at most 0.8 s that Dagster spends on a partition."""
MAX_SHARDS = 4000
"""With more partitions an asset is slow to show; the default target size grows instead."""


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


def shard_index(partition: str) -> int:
    """The index in a shard's partition key: 17 of `train-00017`."""
    return int(partition.rpartition("-")[2])


@without_collector()
def plan_shards(
    entries: Sequence[ManifestEntry],
    sizing: ShardSizing,
    kept: Mapping[str, Collection[str]] | None = None,
) -> tuple[list[ManifestEntry], dict[str, list[int]]]:
    """The plan of every split: partition key → manifest ordinals, in order.

    Boundaries are placed where the running size crosses the next multiple of the total divided by the number of
    shards, so shards are even and no shard is empty; a split has at most as many shards as files.

    Args:
        entries: All files, one split after the other, each in natural order.
        sizing: The number of shards, or their size.
        kept: Partition key → paths of the files of that shard in an earlier plan. Those that still exist stay together;
            only other files are cut into new shards, of the earlier ones' size if `sizing` gives a count.

    Returns:
        The entries in the plan's order, renumbered (an appended file comes after the earlier shards), and the plan.
    """
    by_split: dict[str, list[ManifestEntry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split, []).append(entry)
    ordered: list[ManifestEntry] = []
    plan: dict[str, list[int]] = {}
    for split, members in by_split.items():
        earlier = {key: paths for key, paths in (kept or {}).items() if split_of(key) == split}
        shards = _kept_shards(members, earlier)
        held = {e.relpath for shard in shards.values() for e in shard}
        added = [e for e in members if e.relpath not in held]
        # behind all shards of the earlier plan, also those that lose all their files now: no name changes hands at once
        first = max((shard_index(key) + 1 for key in earlier), default=0)
        for index, group in enumerate(_cut_groups(added, _count(added, sizing, list(shards.values())))):
            shards[shard_key(split, first + index)] = group
        position = 0
        for key, group in shards.items():
            plan[key] = list(range(len(ordered), len(ordered) + len(group)))
            for entry in group:
                # of a million tuples only those that moved are made again
                there = (entry.ordinal, entry.file_index) == (len(ordered), position)
                ordered.append(entry if there else entry._replace(ordinal=len(ordered), file_index=position))
                position += 1
    return ordered, plan


def _kept_shards(
    members: Sequence[ManifestEntry], earlier: Mapping[str, Collection[str]]
) -> dict[str, list[ManifestEntry]]:
    """The shards of an earlier plan, in order of their numbers, with the files that are still in the split."""
    home = {path: key for key, paths in earlier.items() for path in paths}
    shards: dict[str, list[ManifestEntry]] = {key: [] for key in sorted(earlier, key=shard_index)}
    for entry in members:
        if (key := home.get(entry.relpath)) is not None:
            shards[key].append(entry)
    return {key: group for key, group in shards.items() if group}


def _count(added: Sequence[ManifestEntry], sizing: ShardSizing, before: Sequence[Sequence[ManifestEntry]]) -> int:
    """Number of new shards for the files `added`, given the existing shards `before`."""
    if not added:
        return 0
    total = sum(e.size_bytes for e in added)
    if sizing.target_bytes is not None:
        count = -(-total // sizing.target_bytes)
    elif sizing.count is None:
        count = min(-(-total // DEFAULT_TARGET_BYTES), MAX_SHARDS - len(before))
    elif before:
        usual = sum(e.size_bytes for shard in before for e in shard) / len(before)
        count = round(total / usual) if usual else 1
    else:
        count = sizing.count
    # where `MAX_SHARDS` is reached, all new files are one shard
    return max(1, min(count, len(added)))


def _cut_groups(members: Sequence[ManifestEntry], count: int) -> list[list[ManifestEntry]]:
    if not members:
        return []
    total = sum(e.size_bytes for e in members)
    groups: list[list[ManifestEntry]] = [[]]
    done = 0
    for position, entry in enumerate(members):
        left = len(members) - position
        must = left == count - len(groups)  # as many files are left as shards: one each from here on
        # the next shard begins with the file whose middle is beyond the boundary, so each boundary is as near as may be
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
    (directory / SHARD_PLAN).write_bytes(plan_bytes(plan))


def plan_bytes(plan: Mapping[str, Sequence[int]]) -> bytes:
    """The bytes of `shard_plan.json`."""
    ranges = {key: [ordinals[0], ordinals[-1] + 1] for key, ordinals in plan.items()}
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in ranges.items())
    return ("{\n" + lines + "\n}\n").encode()


def read_plan(directory: Path) -> dict[str, range]:
    """Partition key → range of manifest ordinals, in manifest order.

    Raises FormatError if the file is missing or not a shard plan, and for a shard without files.
    """
    path = directory / SHARD_PLAN
    try:
        plan = {key: range(first, stop) for key, (first, stop) in json_of(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path}: not a shard plan: {error}") from error
    for key, ordinals in plan.items():
        if not ordinals:
            raise FormatError(f"{path}: not a shard plan: shard {key} holds no file")
    return plan
