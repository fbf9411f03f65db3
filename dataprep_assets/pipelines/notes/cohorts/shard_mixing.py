"""Puts the shards of several datasets into one order.

==============  =====================================================================================================
mode            order of the shards
==============  =====================================================================================================
concat          sources as declared, each in its own order, as the original `rename_records_combined` does
interleave      each source's shards shuffled (seeded) and spread evenly by rows over all
weighted        shards repeated or left out so that rows come to the declared shares, then interleaved
==============  =====================================================================================================

Only whole shards are reordered: no data are written. Entry points: `ordered`; `weighted`, `interleaved`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.pipelines.notes.replay.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import SourceShare
from dataprep_assets.pipelines.notes.tfds.provenance import ShardOrigin

Shards = list[ShardOrigin]


def ordered(replay: ReplayDeclaration, split: str, shards: list[Shards]) -> tuple[Shards, dict[str, SourceShare]]:
    """Put the shards of a split into their order.

    Args:
        replay: The combination; its mode, seed, weights and tolerance decide.
        split: One of its splits.
        shards: Those of each source, in declared order.

    Returns:
        The shards, each with the number of its earlier occurrences, and the share of each source.

    Raises:
        ConfigError: Whole shards cannot come within the tolerance of the declared weights.
    """
    names = [source.dataset for source in replay.sources]
    every = sum(rows_of(s) for s in shards)
    wanted = [rows_of(s) / every for s in shards]
    if replay.mode == "weighted":
        weights = [source.weight or 0.0 for source in replay.sources]
        wanted = [weight / sum(weights) for weight in weights]
    # Before `weighted`, which leaves out what comes last: the draw decides what that is, not the order of the months.
    # A seed for each name, so that another source changes no order.
    if replay.mode != "concat":
        shards = [_shuffled(s, [replay.seed, name, split]) for s, name in zip(shards, names, strict=True)]
    if replay.mode == "weighted":
        shards = weighted(shards, wanted)
    total = sum(rows_of(s) for s in shards)
    shares = {
        name: SourceShare(rows=rows_of(s), share=round(rows_of(s) / total, 6), wanted=round(want, 6))
        for name, s, want in zip(names, shards, wanted, strict=True)
    }
    for name, s, want in zip(names, shards, wanted, strict=True):
        # the other modes take all shards, and so have the shares that they want
        if not s or abs(rows_of(s) / total - want) > replay.tolerance:
            raise ConfigError(
                f"{replay.dataset}: split {split}: whole shards of {name} come to a share of {rows_of(s) / total:.4f}, "
                f"wanted {want:.4f}, tolerance {replay.tolerance}. Make its shards smaller (rows_per_shard), or raise "
                "the tolerance"
            )
    chosen = [origin for s in shards for origin in s] if replay.mode == "concat" else interleaved(shards)
    return list(_number_repeats(chosen)), shares


def rows_of(shards: Shards) -> int:
    """Rows of all these shards."""
    return sum(origin.rows for origin in shards)


def _shuffled(shards: Shards, seed: Sequence[Any]) -> Shards:
    # NumPy guarantees the raw stream of PCG64 forever, but not the results of Generator.permutation.
    draws = np.random.PCG64(int(digest_value(list(seed))[:16], 16)).random_raw(len(shards))
    return [shards[at] for at in np.argsort(draws, kind="stable").tolist()]


def weighted(shards: Sequence[Shards], wanted: Sequence[float]) -> list[Shards]:
    """Each source's shards, repeated or left out in their order, so that rows come near the wanted shares.

    The total stays near that of all sources; `wanted` are shares of 1. Only whole shards are taken.
    """
    total = sum(map(rows_of, shards))
    return [_about(source, want * total) for source, want in zip(shards, wanted, strict=True)]


def _about(shards: Shards, rows: float) -> Shards:
    # all shards as often as they fit whole, then some of them as long as each brings the sum nearer
    times = int(rows // rows_of(shards))
    chosen = list(shards) * times
    left = rows - times * rows_of(shards)
    for origin in shards:
        if abs(left - origin.rows) >= left:
            continue  # a shorter one may still bring it nearer
        chosen.append(origin)
        left -= origin.rows
        if left <= 0:
            break
    return chosen


def interleaved(shards: Sequence[Shards]) -> Shards:
    """The shards of all sources, each source's in their order and spread evenly by rows over all."""
    placed = []
    for source, origins in enumerate(shards):
        total, before = rows_of(origins), 0
        for at, origin in enumerate(origins):
            # the middle of the shard as a fraction of its source: sorted by it, all sources advance evenly
            placed.append(((2 * before + origin.rows) / (2 * total), source, at, origin))
            before += origin.rows
    # equal fractions are ordered by source and place, because origins have no order
    return [origin for *_, origin in sorted(placed, key=lambda entry: entry[:3])]


def _number_repeats(shards: Shards) -> Iterator[ShardOrigin]:
    """The same shards, each with the number of its earlier occurrences."""
    seen: dict[str, int] = {}
    for origin in shards:
        repeat = seen.get(origin.sha256, 0)
        seen[origin.sha256] = repeat + 1
        yield replace(origin, repeat=repeat)
