"""What a build of a corpus will cost: shards, runs, hours, disk, requests. Pure arithmetic over the shard plan.

The three parts of the time are kept apart, because each is bought with something else: orchestration with fewer and
bigger shards or Postgres, transfer with bandwidth, tokenizing with cores. A backfill fetches a batch and then tokenizes
it, so the parts add up; a second run at a time overlaps them, and the expected time lies between the longest part and
the sum, which is what is given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.errors import ConfigError
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.planning.shard_plan import split_of

SHARDS_A_RUN = 50
RANGE_BYTES = 32 << 20
"""A ranged download's part, and an upload's."""
HEADROOM = 1.2
MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a build may use: cores for tokenizing in all, and the bandwidth to the source in bytes a second.

    `runs_at_a_time` is how many runs of token bins share the cores (on a cluster: pods).
    """

    cores: int
    bandwidth: float
    runs_at_a_time: int = 1

    def __post_init__(self) -> None:
        for name in ("cores", "bandwidth", "runs_at_a_time"):
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"plan: {name}: {value}: must be more than 0")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What things cost; `of_receipts` takes the first three from shards that are done.

    `source_bytes_per_cpu_second`: of compressed source, through decompression, parsing, tokenizing and digests; the
    default is the project's bench over mixed text with the Qwen3 tokenizer, word cache cold (about 9 M tokens a
    CPU-second). `tokens_per_source_byte`, `bytes_per_token`: what comes out, of the same text. `partition_seconds`:
    Dagster's books of one shard and one asset (22 ms on Postgres with batched events). `run_seconds`: start of a run,
    its steps and its workers. `tick_seconds`: until the daemon looks at a backfill.
    """

    source_bytes_per_cpu_second: float = 9e6
    tokens_per_source_byte: float = 1.05
    bytes_per_token: float = 4.0
    partition_seconds: float = 0.022
    run_seconds: float = 12.0
    tick_seconds: float = 30.0

    @classmethod
    def of_receipts(
        cls, source_bytes: int, tokens: int, cpu_seconds: float, *, bytes_per_token: float, **others: float
    ) -> "Rates":
        """Rates of what was built already; the defaults where nothing was."""
        if not (source_bytes and tokens and cpu_seconds):
            return cls(bytes_per_token=bytes_per_token, **others)
        return cls(
            source_bytes_per_cpu_second=source_bytes / cpu_seconds,
            tokens_per_source_byte=tokens / source_bytes,
            bytes_per_token=bytes_per_token,
            **others,
        )


@dataclass(frozen=True, kw_only=True)
class SplitCost:
    """One split: files, shards, runs (of snapshot and token bins together), source bytes."""

    split: str
    files: int
    shards: int
    runs: int
    source_bytes: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a build will cost; times in seconds, sizes in bytes. `mirror_bytes` is 0 for sources read in place."""

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
        """Of all splits."""
        return sum(split.shards for split in self.splits)

    @property
    def runs(self) -> int:
        """Of all splits."""
        return sum(split.runs for split in self.splits)

    @property
    def source_bytes(self) -> int:
        """Of all splits."""
        return sum(split.source_bytes for split in self.splits)

    @property
    def seconds(self) -> float:
        """Expected wall time: the parts one after the other."""
        return self.orchestration + self.transfer + self.tokenizing

    @property
    def orchestration_share(self) -> float:
        """Of the expected wall time, 0 to 1."""
        return self.orchestration / self.seconds if self.seconds else 0.0

    @property
    def disk_bytes(self) -> int:
        """To have free before the start, with headroom."""
        return int((self.mirror_bytes + self.artifact_bytes + self.scratch_bytes) * HEADROOM)


def cost(
    entries: Sequence[ManifestEntry],
    plan: Mapping[str, Sequence[int]],
    machine: Machine,
    rates: Rates | None = None,
    *,
    mirrored: bool = True,
    in_bucket: bool = False,
    shards_a_run: int = SHARDS_A_RUN,
) -> Cost:
    """The cost of `plan` (partition → ordinals in `entries`) from nothing.

    `mirrored`: the source is fetched, not read in place. `in_bucket`: artifacts go to an object store, whose server
    joins the shards; locally the combined file is a second copy of the shards.
    """
    rates = rates or Rates()
    splits = _splits(entries, plan, shards_a_run)
    source = sum(s.source_bytes for s in splits)
    shards, runs = sum(s.shards for s in splits), sum(s.runs for s in splits)
    tokens = round(source * rates.tokens_per_source_byte)
    stream = round(tokens * rates.bytes_per_token)
    largest = max((sum(entries[o].size_bytes for o in ordinals) for ordinals in plan.values()), default=0)
    at_work = round(largest * rates.tokens_per_source_byte * rates.bytes_per_token) * 2 * machine.runs_at_a_time
    transferred = (source if mirrored else 0) + (stream if in_bucket else 0)
    uploads = shards * 4 + _parts([stream // max(shards, 1)] * shards) if in_bucket else 0
    joins = sum(-(-s.shards // 32) + s.shards for s in splits) if in_bucket else 0
    return Cost(
        splits=splits,
        # snapshot and token bins are two assets over the same shards; runs beside each other share the starts
        orchestration=2 * shards * rates.partition_seconds
        + runs * rates.run_seconds / machine.runs_at_a_time
        + 2 * rates.tick_seconds * len(splits),
        transfer=transferred / machine.bandwidth,
        tokenizing=source / rates.source_bytes_per_cpu_second / machine.cores,
        tokens=tokens,
        mirror_bytes=source if mirrored else 0,
        artifact_bytes=0 if in_bucket else 2 * stream,
        scratch_bytes=at_work,
        get_requests=_parts(e.size_bytes for e in entries) if mirrored else 0,
        put_requests=uploads + joins,
    )


def _splits(
    entries: Sequence[ManifestEntry], plan: Mapping[str, Sequence[int]], shards_a_run: int
) -> tuple[SplitCost, ...]:
    grouped: dict[str, list[Sequence[int]]] = {}
    for partition, ordinals in plan.items():
        grouped.setdefault(split_of(partition), []).append(ordinals)
    return tuple(
        SplitCost(
            split=split,
            files=sum(len(ordinals) for ordinals in shards),
            shards=len(shards),
            runs=-(-len(shards) // shards_a_run),
            source_bytes=sum(entries[o].size_bytes for ordinals in shards for o in ordinals),
        )
        for split, shards in grouped.items()
    )


def _parts(sizes: Iterable[int]) -> int:
    return sum(max(1, -(-size // RANGE_BYTES)) for size in sizes)


def table(dataset: str, found: Cost, machine: Machine) -> str:
    """The cost as a person reads it."""
    rows = [("split", "files", "shards", "runs", "source")]
    rows += [(s.split, f"{s.files:,}", f"{s.shards:,}", f"{s.runs:,}", _bytes(s.source_bytes)) for s in found.splits]
    if len(found.splits) > 1:
        files = sum(s.files for s in found.splits)
        rows.append(("all", f"{files:,}", f"{found.shards:,}", f"{found.runs:,}", _bytes(found.source_bytes)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join(
            cell.ljust(w) if at == 0 else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    one = "core" if machine.cores == 1 else "cores"
    return "\n".join(
        [
            f"{dataset}: {machine.cores} {one}, {_bytes(machine.bandwidth)}/s, "
            f"{machine.runs_at_a_time} run{'s' if machine.runs_at_a_time > 1 else ''} at a time",
            "",
            *lines,
            "",
            f"transfer       {_time(found.transfer)}",
            f"tokenizing     {_time(found.tokenizing)}   about {found.tokens:,} tokens",
            f"orchestration  {_time(found.orchestration)}   {found.orchestration_share:.1%} of the whole",
            f"expected       {_time(found.seconds)}",
            "",
            f"disk           {_bytes(found.disk_bytes)}: mirror {_bytes(found.mirror_bytes)}, artifacts "
            f"{_bytes(found.artifact_bytes)}, shards at work {_bytes(found.scratch_bytes)}, and 20 % to spare",
            f"requests       {found.get_requests:,} to read, {found.put_requests:,} to write",
        ]
    )


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def _time(seconds: float) -> str:
    if seconds >= HOUR:
        return f"{seconds / HOUR:,.1f} h".rjust(9)
    return (f"{seconds / MINUTE:,.1f} min" if seconds >= MINUTE else f"{seconds:,.1f} s").rjust(9)
