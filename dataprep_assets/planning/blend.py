"""Arithmetic of a training blend: the files, or rows of files, of each shard, and the number of shards per dataset.

These are pure functions over sizes, weights and counts. Files are assigned to shards by size (largest first, to the
least loaded shard). Ties are broken as in Nemotron's `create_size_balanced_assignments`, so a plan built here groups
files as Nemotron does. If there are fewer files than shards, files are cut by rows. Each file then has at least one
shard, even if the file sizes differ widely.

Entry points: `assign_by_size`, `divide_shards_by_size`, `sample_shards`, `split_shards`; `normalize_weights`,
`compute_outlooks`, `divide_share`, `choose_whole_shards`, `measure_drift`; for records that are read once per listing,
`compute_repeats` and `compute_record_shares`.
"""

import hashlib
import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.planning.manifest import natural_key

SPLITS = ("train", "valid", "test")
"""Keys of a per-split `blend.json`, in order."""
MAX_REPEATS = 100
"""Maximum number of times that a dataset's records may be listed; more repeats are probably a mistake."""


def assign_by_size(files: Sequence[tuple[str, int]], shards: int) -> list[list[int]]:
    """Return, per shard, the indices of its files; `files` are `(path, bytes)`, at least as many as `shards`.

    Files are sorted by size descending, then path ascending. Each is assigned to the shard with the fewest bytes (the
    lowest number among equals), or round robin if no file has a size. The files of a shard are in the natural order of
    their paths.

    Raises ConfigError for more shards than files, or fewer than one.
    """
    if not 1 <= shards <= len(files):
        raise ConfigError(f"num_shards must be from 1 to the number of files, {len(files)}, not {shards}")
    order = sorted(range(len(files)), key=lambda i: (-files[i][1], files[i][0]))
    groups: list[list[int]] = [[] for _ in range(shards)]
    if not any(size for _, size in files):
        for position, index in enumerate(order):
            groups[position % shards].append(index)
    else:
        heap = [(0, shard) for shard in range(shards)]
        for index in order:
            load, shard = heapq.heappop(heap)
            groups[shard].append(index)
            heapq.heappush(heap, (load + files[index][1], shard))
    return [sorted(group, key=lambda i: natural_key(files[i][0])) for group in groups]


def divide_shards_by_size(files: Sequence[tuple[str, int]], shards: int) -> list[int]:
    """Return the number of shards per file: at least one each, `shards` in total, the rest in proportion to size.

    Each further shard is given to the file whose shards are currently largest. Ties go to the file with the fewest
    shards, then to the first path. Therefore files of unknown size get equal numbers of shards.

    Raises ConfigError for more files than shards, or no files.
    """
    if not 1 <= len(files) <= shards:
        raise ConfigError(
            f"num_shards must be at least the number of files, {len(files)}, not {shards}, because each shard reads "
            "one file"
        )
    shares = [1] * len(files)
    # Use exact fractions, because rounding could make equal sizes differ, or different sizes equal.
    heap = [(Fraction(-size), 1, path, index) for index, (path, size) in enumerate(files)]
    heapq.heapify(heap)
    for _ in range(shards - len(files)):
        _, _, path, index = heapq.heappop(heap)
        shares[index] += 1
        heapq.heappush(heap, (Fraction(-files[index][1], shares[index]), shares[index], path, index))
    return shares


def sample_shards(
    shards: int, *, dataset: str, count: int | None = None, percent: float | None = None, seed: int = 42
) -> list[int]:
    """Draw a sample of a dataset's shards; return their numbers (below `shards`) in ascending order.

    The sample has `count` shards or `percent` of them, at least one; all shards if neither is given. The dataset's own
    seed is the first 8 hex digits of SHA-256(`"<seed>:<dataset>"`), as in Nemotron.
    """
    if count is None and percent is None:
        return list(range(shards))
    sample_size = count if count is not None else round(Fraction(percent or 0) * shards / 100)
    sample_size = max(1, min(shards, sample_size))
    return sorted(_seed_random(seed, dataset).sample(range(shards), sample_size))


def split_shards(shards: Sequence[int], *, dataset: str, valid: int, test: int, seed: int = 42) -> dict[str, list[int]]:
    """Split a dataset's `shards` at random and without overlap into `test`, `valid` and the rest for training.

    The draw is seeded with `seed` and the name `dataset`. Each dataset is split separately, so that each split is a
    sample of the whole blend. Raises ConfigError if no shard would be left for training.
    """
    if valid + test >= len(shards):
        raise ConfigError(
            f"held_out: {dataset} has {count_of(len(shards), 'shard')} with data, but {valid} for valid and {test} "
            "for test leave none for training. Raise `num_shards`, or hold out fewer"
        )
    shuffled = list(shards)
    _seed_random(seed, dataset).shuffle(shuffled)
    return {
        "train": sorted(shuffled[test + valid :]),
        "valid": sorted(shuffled[test : test + valid]),
        "test": sorted(shuffled[:test]),
    }


def _seed_random(seed: int, dataset: str) -> random.Random:
    return random.Random(int(hashlib.sha256(f"{seed}:{dataset}".encode()).hexdigest()[:8], 16))


def normalize_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Return each dataset's share of the blend; shares sum to 1, and datasets of weight 0 are omitted.

    Raises ConfigError unless the weights add up to more than 0.
    """
    total = sum(weights.values())
    if total <= 0:
        raise ConfigError(
            f"blend: the weights of {', '.join(weights)} add up to {total}. Set at least one positive weight"
        )
    return {name: weight / total for name, weight in weights.items() if weight > 0}


@dataclass(frozen=True, kw_only=True)
class SourceOutlook:
    """Tokens that a blend requests from one dataset, and tokens that the dataset can provide.

    The shares of all datasets sum to 1.

    Attributes:
        name: The dataset's name.
        requested: The dataset's requested share.
        tokens: Number of its tokens.
        wanted_tokens: The requested share of the token budget, in tokens.
        epochs: The wanted tokens divided by the dataset's tokens; infinite if it has none.
        realizable: The dataset's share if no dataset is read more than `max_epochs` times.
    """

    name: str
    requested: float
    tokens: int
    wanted_tokens: float
    epochs: float
    realizable: float


def compute_outlooks(
    shares: Mapping[str, float],
    tokens: Mapping[str, int],
    *,
    train_tokens: int | None = None,
    max_epochs: float | None = None,
) -> list[SourceOutlook]:
    """Return the requested and realizable share of each dataset in a blend, in the order of `shares`.

    `shares` sum to 1. `tokens` has the token count of each dataset. The budget is `train_tokens`, or all tokens of all
    datasets. `max_epochs` limits how often a dataset is read; None sets no limit.
    """
    budget = train_tokens if train_tokens is not None else sum(tokens[name] for name in shares)
    wanted_tokens = {name: share * budget for name, share in shares.items()}
    limits = {name: float("inf") if max_epochs is None else max_epochs * tokens[name] for name in shares}
    # A dataset without tokens provides no tokens, even if `max_epochs` sets no limit.
    available_tokens = {
        name: min(requested, limits[name]) if tokens[name] else 0.0 for name, requested in wanted_tokens.items()
    }
    total = sum(available_tokens.values())
    return [
        SourceOutlook(
            name=name,
            requested=shares[name],
            tokens=tokens[name],
            wanted_tokens=wanted_tokens[name],
            epochs=wanted_tokens[name] / tokens[name] if tokens[name] else float("inf"),
            realizable=available_tokens[name] / total if total else 0.0,
        )
        for name in shares
    ]


def divide_share(share: float, tokens: Sequence[int]) -> list[float]:
    """Divide a dataset's share among its shards by their tokens, so that all its tokens are drawn equally often.

    Raises ConfigError if a shard has no tokens.
    """
    total = sum(tokens)
    if total <= 0 or min(tokens) <= 0:
        raise ConfigError(
            f"a share of {share} cannot be divided among shards without tokens (tokens per shard: "
            f"{', '.join(map(str, tokens))}). Remove the empty shards"
        )
    return [share * count / total for count in tokens]


def choose_whole_shards(rows: Mapping[str, Sequence[int]], shares: Mapping[str, float]) -> dict[str, list[int]]:
    """Choose whole shards of each dataset, so that row counts approximate the shares.

    Returns the shard numbers of each dataset, at least one. This is for consumers that read files and not weights
    (packed SFT). The dataset that limits the blend is used completely. For each other dataset, the number of its first
    shards is chosen to come nearest to its share.
    """
    limit = min(sum(rows[name]) / share for name, share in shares.items())
    return {name: _choose_nearest(rows[name], share * limit) for name, share in shares.items()}


def _choose_nearest(rows: Sequence[int], share: float) -> list[int]:
    shard_numbers, row_count = [0], rows[0]
    for index in range(1, len(rows)):
        if abs(row_count + rows[index] - share) > abs(row_count - share):
            break
        shard_numbers.append(index)
        row_count += rows[index]
    return shard_numbers


def measure_drift(requested: Mapping[str, float], realized: Mapping[str, float]) -> float:
    """Return the largest difference between a requested and a realized share, as a fraction of the whole blend."""
    return max((abs(requested.get(n, 0.0) - realized.get(n, 0.0)) for n in {*requested, *realized}), default=0.0)


def compute_repeats(weights: Mapping[str, float]) -> dict[str, int]:
    """Return how many times each dataset's records are listed: its weight divided by the smallest weight, rounded.

    This is for consumers that read every listed file once and have no weights (RL). Datasets of weight 0 are omitted.
    Raises ConfigError if records would be listed more than `MAX_REPEATS` times.
    """
    positive = {name: Fraction(weight) for name, weight in weights.items() if weight > 0}
    smallest_weight = min(positive.values())
    repeats = {name: round(weight / smallest_weight) for name, weight in positive.items()}
    if high_repeats := {name: count for name, count in repeats.items() if count > MAX_REPEATS}:
        counts = ", ".join(f"{name} {count:,} times" for name, count in high_repeats.items())
        raise ConfigError(
            f"blend: the weights would repeat records more than {MAX_REPEATS} times ({counts}). With `stage: rl`, a "
            "weight divided by the smallest weight is the number of repetitions. Bring the weights closer together"
        )
    return repeats


def compute_record_shares(rows: Mapping[str, int], times: Mapping[str, float]) -> dict[str, float]:
    """Return each dataset's share of all records read; `times` is how often each of its `rows` is read."""
    read_counts = {name: count * times[name] for name, count in rows.items()}
    total = sum(read_counts.values())
    return {name: count / total if total else 0.0 for name, count in read_counts.items()}
