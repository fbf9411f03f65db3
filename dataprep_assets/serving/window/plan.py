"""Prediction of whether training will wait for data, given the disk, bandwidth, step time and release.

The window's behavior is simulated shard by shard over two epochs. The next shard is downloaded and verified while the
active one is trained on, and shards that the policy keeps are not downloaded again. Pure arithmetic: sizes are in
bytes, times in seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.serving.window.keep_policy import CacheLimit, Keep, check_keep, choose_victims, has_room
from dataprep_assets.serving.window.release import Release

# Two epochs are enough: the first starts with an empty cache, the second shows the effect of the policy, and a third
# would repeat the second.
_EPOCHS = 2


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """Prediction for a window. `stalls` is true if any swap except the first start must wait.

    - `first_wait_seconds`: time until the first step, which depends only on the bandwidth;
    - `turn_seconds`: time to train on a shard; `fetch_seconds`: time to download and verify the largest shard;
    - `stall_seconds`: longest wait at a swap; `stalled_swaps`: how many of the `swaps` in two epochs wait;
    - `disk_bytes`: maximum size of the shards on disk; `fetched_bytes`: bytes downloaded in two epochs;
    - `needed_bandwidth`: bytes per second that prevent waiting swaps (0 if all shards are on disk after the start);
    - `advice`: recommended changes, one sentence each; empty if no swap stalls and everything fits.
    """

    stalls: bool
    fits_disk: bool
    first_wait_seconds: float
    turn_seconds: float
    fetch_seconds: float
    stall_seconds: float
    stalled_swaps: int
    swaps: int
    disk_bytes: int
    fetched_bytes: int
    needed_bandwidth: float
    advice: tuple[str, ...]

    @property
    def summary(self) -> str:
        """Prediction as one sentence."""
        if not self.fits_disk:
            return f"The shards do not fit: they need up to {_format_size(self.disk_bytes)} of disk at a time."
        start = f"starts after {_format_time(self.first_wait_seconds)}"
        fetch_time, turn_time = _format_time(self.fetch_seconds), _format_time(self.turn_seconds)
        if not self.stalls:
            return f"Training {start} and never waits: a shard downloads in {fetch_time} and lasts for {turn_time}."
        return (
            f"Training {start} and waits at {self.stalled_swaps} of {count_of(self.swaps, 'swap')}, up to "
            f"{_format_time(self.stall_seconds)}: a shard downloads in {fetch_time}, but lasts for only {turn_time}."
        )


def plan_window(
    release: Release,
    *,
    disk_bytes: int,
    bandwidth: float,
    step_seconds: float,
    steps_per_shard: int,
    keep: Keep = "all",
    prefix: str = "train",
    verify_bandwidth: float = 1e9,
) -> WindowPlan:
    """Return the plan for the shards of one `prefix` of `release`.

    `disk_bytes` is the space for the cache. `bandwidth` is the speed of downloads and `verify_bandwidth` the speed of
    SHA-256, in bytes per second. A step takes `step_seconds`, and each shard is trained on for `steps_per_shard` steps.
    `keep` is the window's policy. Raises ConfigError for values that are not positive and for a `keep` that is too
    small.
    """
    if min(bandwidth, verify_bandwidth) <= 0 or step_seconds < 0 or steps_per_shard < 1:
        raise ConfigError(
            f"plan: bandwidth={bandwidth}, verify_bandwidth={verify_bandwidth}, step_seconds={step_seconds}, "
            f"steps_per_shard={steps_per_shard}: all must be greater than 0 (step_seconds may be 0)"
        )
    sizes = [shard.bytes for shard in release.shards_of(prefix)]
    check_keep(keep, sizes)
    turn_seconds = step_seconds * steps_per_shard
    seconds_per_byte = 1 / bandwidth + 1 / verify_bandwidth
    fetched_bytes, max_bytes, turn_bytes = _replay(sizes, keep)
    # Exclude the first download, because it is the wait at the start and not a stall.
    waits = [max(0.0, size * seconds_per_byte - turn_seconds) for size in turn_bytes[1:]]
    largest = max(turn_bytes[1:], default=0)
    # `download_seconds` is the part of a turn that verification leaves for the download. If none is left, no bandwidth
    # is enough.
    download_seconds = turn_seconds - largest / verify_bandwidth
    needed = 0.0 if not largest else largest / download_seconds if download_seconds > 0 else math.inf
    fits_disk = max_bytes <= disk_bytes
    plan = WindowPlan(
        stalls=any(waits),
        fits_disk=fits_disk,
        first_wait_seconds=turn_bytes[0] * seconds_per_byte,
        turn_seconds=turn_seconds,
        fetch_seconds=max(sizes) * seconds_per_byte,
        stall_seconds=max(waits, default=0.0),
        stalled_swaps=sum(wait > 0 for wait in waits),
        swaps=len(waits),
        disk_bytes=max_bytes,
        fetched_bytes=fetched_bytes,
        needed_bandwidth=needed,
        advice=(),
    )
    advice = _give_advice(plan, sizes, disk_bytes, step_seconds, seconds_per_byte, keep)
    return WindowPlan(**{**vars(plan), "advice": advice})


def _replay(sizes: Sequence[int], keep: Keep) -> tuple[int, int, list[int]]:
    """Return the downloaded bytes, the maximum bytes on disk, and the downloaded bytes per turn, for two epochs."""
    count = len(sizes)
    find_cached_shards: dict[int, int] = {}
    turn_bytes: list[int] = []
    max_bytes = 0
    for turn_number in range(_EPOCHS * count):
        index, active = turn_number % count, (turn_number - 1) % count
        if index in find_cached_shards:
            turn_bytes.append(0)
            continue
        # In the first turn, no shard is active yet, but `turn_number - 1` would be the index of the last shard.
        held_indices = {active} if turn_number else set()
        for victim in choose_victims(
            keep, find_cached_shards, sizes[index], held_shards=held_indices, needed_shard=index, shards=count
        ):
            del find_cached_shards[victim]
        assert has_room(keep, find_cached_shards, sizes[index])
        find_cached_shards[index] = sizes[index]
        max_bytes = max(max_bytes, sum(find_cached_shards.values()))
        turn_bytes.append(sizes[index])
    return sum(turn_bytes), max_bytes, turn_bytes


def _give_advice(
    plan: WindowPlan, sizes: Sequence[int], disk: int, step_seconds: float, seconds_per_byte: float, keep: Keep
) -> tuple[str, ...]:
    sentences = []
    pair = max(size + (sizes[(i + 1) % len(sizes)] if len(sizes) > 1 else 0) for i, size in enumerate(sizes))
    if not plan.fits_disk:
        if pair <= disk:
            sentences.append(f"Set keep=CacheLimit({disk}): the active shard and the next need {_format_size(pair)}.")
        else:
            sentences.append(
                f"Use a disk of at least {_format_size(pair)}, or a release with smaller shards, because two shards "
                "are on the disk at a time."
            )
    if plan.stalls:
        if math.isfinite(plan.needed_bandwidth):
            sentences.append(
                f"Use at least {_format_size(plan.needed_bandwidth)}/s of bandwidth (more workers, or a store "
                "that is closer)."
            )
        if step_seconds > 0:
            steps = math.ceil(max(sizes) * seconds_per_byte / step_seconds)
            sentences.append(
                f"Or train at least {count_of(steps, 'step')} on each shard (smaller global batches, or repeated "
                "passes)."
            )
        if keep != "all" and sum(sizes) <= disk:
            sentences.append("Set keep='all': all shards fit on this disk, so that later epochs download nothing.")
        elif isinstance(keep, int | CacheLimit) and sum(sizes) > disk:
            sentences.append(
                f"Or use a disk of {_format_size(sum(sizes))} with keep='all': later epochs then download nothing."
            )
    return tuple(sentences)


def _format_size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _format_time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
