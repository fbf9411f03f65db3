"""Expected cost of a build: shards, runs, hours, disk space and requests, computed from the shard plan only.

The time has three parts, because each is reduced by different means: orchestration by fewer and larger shards or by
Postgres, transfer by bandwidth, tokenizing by cores. A backfill downloads a batch and then tokenizes it, so the parts
add up. A second concurrent run overlaps them, so the true time is between the longest part and the sum. The sum is
reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.planning.manifest import ManifestEntry, split_name
from dataprep_assets.table import format_share

SHARDS_PER_RUN = 50
"""Shards per run of a backfill: a thousand shards take tens of runs, and a lost run costs at most minutes of work."""
RANGE_BYTES = 32 << 20
"""Part size of ranged downloads and of uploads."""
HEADROOM = 1.2
"""Factor for the required free disk space (20% extra), as in the check `disk_headroom` of a snapshot."""
OTHER_RUNS = 3
"""Runs of a dataset in addition to its shards' runs: manifest and certificate, combined bins, views."""
MINUTE, HOUR = 60.0, 3600.0
_RATED_CPU_SECONDS = 0.5
"""Minimum tokenizing time for a measured rate; shorter times are dominated by the cold word cache."""
_FORMAT_DENSITY = {"parquet": 0.7}
_PLAIN_DENSITY = 0.3
"""Compressed bytes (zstd, level 3) per stored byte: 0.69 to 0.88 for Parquet (Snappy, zstd), and 0.32 for
uncompressed JSON Lines, measured on the same text as the rates."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Resources of a build: the cores for tokenizing, and the bandwidth to the source in bytes per second.

    `runs_at_a_time` is the number of concurrent runs of token bins that share the cores (on a cluster: pods). `dataprep
    run` executes one run at a time, in its own process. Dagster's daemon launches several.
    """

    cores: int
    bandwidth: float
    runs_at_a_time: int = 1

    def __post_init__(self) -> None:
        for name in ("cores", "bandwidth", "runs_at_a_time"):
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"plan: {name} must be greater than 0, not {value}")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Unit costs; `from_receipts` measures the first three on finished shards.

    Attributes:
        source_bytes_per_cpu_second: Source bytes that are decompressed, parsed, tokenized and digested per CPU-second.
            The default is for compressed bytes, from the project's benchmark over mixed text with the Qwen3 tokenizer
            and a cold word cache (about 9 M tokens per CPU-second).
        tokens_per_source_byte: Tokens per byte of the source; the default was measured on the same text.
        bytes_per_token: Bytes per stored token.
        partition_seconds: Time for Dagster's records of one shard of one asset (22 ms on Postgres with batched events).
        run_seconds: Time of one run of a backfill with its steps, checks and workers, without tokenizing.
        build_seconds: The same time for `dataprep run` (5.7 to 8.8 s for a small corpus, of which tokenizing takes at
            most 1.4 s; `bench.whole_run`).
        launch_seconds: Extra time of a run that the daemon launches, because it is a separate process.
        tick_seconds: Time until the daemon processes a backfill.
    """

    source_bytes_per_cpu_second: float = 9e6
    tokens_per_source_byte: float = 1.05
    bytes_per_token: float = 4.0
    partition_seconds: float = 0.022
    run_seconds: float = 1.2
    build_seconds: float = 5.0
    launch_seconds: float = 9.0
    tick_seconds: float = 30.0

    @classmethod
    def from_receipts(
        cls,
        source_bytes: int,
        tokens: int,
        cpu_seconds: float,
        *,
        bytes_per_token: float,
        density: float = 1.0,
        **other_seconds: float,
    ) -> "Rates":
        """Return the rates measured on finished shards, or the defaults if no shard is finished.

        The default speed also applies if the shards took too little time for a measurement. Defaults are adjusted by
        the source's `density` (`measure_density`).

        `source_bytes`, `tokens` and `cpu_seconds` (of all cores) are totals over the shards. `bytes_per_token` is the
        width of the dtype, 2 or 4; `other_seconds` are further fields of `Rates`.
        """
        if not (source_bytes and tokens and cpu_seconds):
            return cls(
                source_bytes_per_cpu_second=cls.source_bytes_per_cpu_second / density,
                tokens_per_source_byte=cls.tokens_per_source_byte * density,
                bytes_per_token=bytes_per_token,
                **other_seconds,
            )
        is_rated = cpu_seconds >= _RATED_CPU_SECONDS
        return cls(
            source_bytes_per_cpu_second=(
                source_bytes / cpu_seconds if is_rated else cls.source_bytes_per_cpu_second / density
            ),
            tokens_per_source_byte=tokens / source_bytes,
            bytes_per_token=bytes_per_token,
            **other_seconds,
        )


def measure_density(entries: Iterable[ManifestEntry]) -> float:
    """Estimate the files' zstd-compressed bytes per stored byte: 1 for compressed files, 0.3 for plain text."""
    stored_bytes = packed_bytes = 0.0
    for entry in entries:
        density = 1.0 if entry.compression is not None else _FORMAT_DENSITY.get(entry.format, _PLAIN_DENSITY)
        stored_bytes, packed_bytes = stored_bytes + entry.size_bytes, packed_bytes + entry.size_bytes * density
    return packed_bytes / stored_bytes if stored_bytes else 1.0


@dataclass(frozen=True, kw_only=True)
class SplitSizes:
    """Source sizes of a split (in a blend, of a dataset): bytes per file, and source bytes per shard.

    `mirrored`: whether the files are downloaded and not read in place.
    """

    split: str
    files: tuple[int, ...]
    shards: tuple[int, ...]
    mirrored: bool


@dataclass(frozen=True, kw_only=True)
class Products:
    """Outputs of the token stream.

    Attributes:
        copies: Number of full copies of the stream on this machine's disks.
        uploads: Number of full uploads of the stream.
        joined: Whether the shards of a split are joined; in object storage, the server does this.
        tokens_per_shard: Tokens per npy shard of a release; None if the stream is not cut into npy shards.
    """

    copies: int = 2
    uploads: int = 0
    joined: bool = True
    tokens_per_shard: int | None = None


@dataclass(frozen=True, kw_only=True)
class SplitCost:
    """Cost of a split: files, shards, runs (snapshot and token bins), source bytes, and npy shards of a release."""

    split: str
    files: int
    shards: int
    runs: int
    source_bytes: int
    npy_shards: int = 0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Expected cost of a build: times in seconds, sizes in bytes; `mirror_bytes` is 0 for sources read in place."""

    splits: tuple[SplitCost, ...]
    orchestration: float
    transfer: float
    tokenizing: float
    tokens: int
    mirror_bytes: int
    artifact_bytes: int
    scratch_bytes: int
    get_requests: int
    put_requests: int

    @property
    def shards(self) -> int:
        """Total number of shards."""
        return sum(split.shards for split in self.splits)

    @property
    def runs(self) -> int:
        """Total number of runs for the shards."""
        return sum(split.runs for split in self.splits)

    @property
    def source_bytes(self) -> int:
        """Total source bytes."""
        return sum(split.source_bytes for split in self.splits)

    @property
    def seconds(self) -> float:
        """Expected wall time: the sum of the parts."""
        return self.orchestration + self.transfer + self.tokenizing

    @property
    def orchestration_share(self) -> float:
        """Share of orchestration in the expected wall time, 0 to 1."""
        return self.orchestration / self.seconds if self.seconds else 0.0

    @property
    def disk_bytes(self) -> int:
        """Free disk space needed before the start, in bytes, with headroom."""
        return int((self.mirror_bytes + self.artifact_bytes + self.scratch_bytes) * HEADROOM)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object with the documented keys of `--json`; sizes in bytes, times in seconds."""
        seconds = {"orchestration": self.orchestration, "transfer": self.transfer, "tokenizing": self.tokenizing}
        return {
            "splits": [asdict(split) for split in self.splits],
            "shards": self.shards,
            "runs": self.runs,
            "source_bytes": self.source_bytes,
            "tokens": self.tokens,
            **{f"{name}_seconds": round(value, 1) for name, value in seconds.items()},
            "seconds": round(self.seconds, 1),
            "disk_bytes": self.disk_bytes,
            "get_requests": self.get_requests,
            "put_requests": self.put_requests,
        }


def measure_split_sizes(
    entries: Sequence[ManifestEntry], plan: Mapping[str, Sequence[int]], *, mirrored: bool
) -> list[SplitSizes]:
    """Return the sizes of each split, in the order of the plan.

    `entries` are the manifest's files; `plan` maps a partition (`train-00017`) to the ordinals of its files in
    `entries`. `mirrored` means that the files are downloaded before they are read.
    """
    grouped: dict[str, list[list[int]]] = {}
    for partition, ordinals in plan.items():
        grouped.setdefault(split_name(partition), []).append([entries[o].size_bytes for o in ordinals])
    return [
        SplitSizes(
            split=split,
            files=tuple(size for sizes in shards for size in sizes),
            shards=tuple(sum(sizes) for sizes in shards),
            mirrored=mirrored,
        )
        for split, shards in grouped.items()
    ]


def compute_cost(
    sizes: Sequence[SplitSizes], machine: Machine, rates: Rates | None = None, products: Products | None = None
) -> Cost:
    """Return the cost of building everything from scratch.

    `sizes` has one item per split. `rates` and `products` default to `Rates()` and `Products()` (the two local copies
    of a corpus).
    """
    rates, products = rates or Rates(), products or Products()
    splits = tuple(_compute_split_cost(split_sizes, rates, products.tokens_per_shard) for split_sizes in sizes)
    source = sum(split.source_bytes for split in splits)
    shards, runs = sum(split.shards for split in splits), sum(split.runs for split in splits)
    npy_shards = sum(split.npy_shards for split in splits)
    tokens = round(source * rates.tokens_per_source_byte)
    stream = round(tokens * rates.bytes_per_token)
    largest = max((size for split in sizes for size in split.shards), default=0)
    mirror = sum(sum(split.files) for split in sizes if split.mirrored)
    uploads = 0
    if products.uploads:
        objects = shards * 4 + npy_shards * 3
        uploads = objects + products.uploads * _count_parts([stream // max(shards, 1)] * shards)
        # Add the requests for joining the shards on the server: one per shard, and one compose request per 32 shards,
        # the maximum of GCS.
        uploads += sum(-(-split.shards // 32) + split.shards for split in splits) if products.joined else 0
    return Cost(
        splits=splits,
        # Count each shard twice, because the snapshot and the token bins are two assets with a partition for each
        # shard.
        orchestration=(2 * shards + npy_shards) * rates.partition_seconds
        + _estimate_overhead(runs, len(splits), machine, rates),
        transfer=(mirror + stream * products.uploads) / machine.bandwidth,
        tokenizing=source / rates.source_bytes_per_cpu_second / machine.cores,
        tokens=tokens,
        mirror_bytes=mirror,
        artifact_bytes=products.copies * stream,
        # Double the size, because a shard's parts and the joined files exist at the same time.
        scratch_bytes=round(largest * rates.tokens_per_source_byte * rates.bytes_per_token)
        * 2
        * machine.runs_at_a_time,
        get_requests=sum(_count_parts(split.files) for split in sizes if split.mirrored),
        put_requests=uploads,
    )


def _estimate_overhead(runs: int, splits: int, machine: Machine, rates: Rates) -> float:
    """Estimate the overhead in seconds of `runs` over shards and of the other runs, excluding the work on data."""
    if machine.runs_at_a_time == 1:
        return rates.build_seconds
    run_seconds = rates.run_seconds + rates.launch_seconds
    return (runs / machine.runs_at_a_time + OTHER_RUNS) * run_seconds + 2 * rates.tick_seconds * splits


def _compute_split_cost(sizes: SplitSizes, rates: Rates, tokens_per_shard: int | None) -> SplitCost:
    source = sum(sizes.shards)
    npy_shards = -(-round(source * rates.tokens_per_source_byte) // tokens_per_shard) if tokens_per_shard else 0
    return SplitCost(
        split=sizes.split,
        files=len(sizes.files),
        shards=len(sizes.shards),
        runs=-(-len(sizes.shards) // SHARDS_PER_RUN) + -(-npy_shards // SHARDS_PER_RUN),
        source_bytes=source,
        npy_shards=npy_shards,
    )


def _count_parts(sizes: Iterable[int]) -> int:
    # Count at least one part per file, because an empty file also takes one request.
    return sum(max(1, -(-size // RANGE_BYTES)) for size in sizes)


def format_cost(dataset: str, cost: Cost, machine: Machine) -> str:
    """Format a cost: a heading with `dataset` and `machine`, a line per split, then the totals."""
    released = any(split.npy_shards for split in cost.splits)
    rows = [["split", "files", "shards", *(["npy shards"] if released else []), "runs", "source"]]
    splits = list(cost.splits)
    if len(splits) > 1:
        splits.append(
            SplitCost(
                split="all",
                files=sum(split.files for split in splits),
                shards=cost.shards,
                runs=cost.runs,
                source_bytes=cost.source_bytes,
                npy_shards=sum(split.npy_shards for split in splits),
            )
        )
    for s in splits:
        counts = [s.files, s.shards, *([s.npy_shards] if released else []), s.runs]
        rows.append([s.split, *(f"{count:,}" for count in counts), format_bytes(s.source_bytes)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if index == 0 else cell.rjust(w)
            for index, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    unit = "core" if machine.cores == 1 else "cores"
    return "\n".join(
        [
            f"{dataset}: {machine.cores} {unit}, {format_bytes(machine.bandwidth)}/s, "
            f"{machine.runs_at_a_time} run{'s' if machine.runs_at_a_time > 1 else ''} at a time",
            "",
            *lines,
            "",
            f"transfer       {format_seconds(cost.transfer)}",
            f"tokenizing     {format_seconds(cost.tokenizing)}   about {count_of(cost.tokens, 'token')}",
            f"orchestration  {format_seconds(cost.orchestration)}   "
            f"{format_share(cost.orchestration_share)} of the whole",
            f"expected       {format_seconds(cost.seconds)}",
            "",
            f"disk           {format_bytes(cost.disk_bytes)}: mirror {format_bytes(cost.mirror_bytes)}, artifacts "
            f"{format_bytes(cost.artifact_bytes)}, shards in progress {format_bytes(cost.scratch_bytes)}, and 20% to "
            "spare",
            f"requests       {cost.get_requests:,} to read, {cost.put_requests:,} to write",
        ]
    )


def format_bytes(count: float) -> str:
    """Format a size: `1.2 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def format_seconds(seconds: float) -> str:
    """Format a duration in nine characters: `  3.5 min`."""
    if seconds >= HOUR:
        return f"{seconds / HOUR:,.1f} h".rjust(9)
    return (f"{seconds / MINUTE:,.1f} min" if seconds >= MINUTE else f"{seconds:,.1f} s").rjust(9)
