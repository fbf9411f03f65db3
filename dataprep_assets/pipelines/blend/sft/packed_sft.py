"""Builds packed chat data: for each shard one Parquet file of packed rows, where its sequences come from, its receipt.

Source files are spooled in parallel (`spool.py`); a shard is packed as soon as its last file is spooled. The order of
the sequences before packing is that of the sources and their rows, so the bytes do not depend on workers. A killed run
keeps the finished spools, and its rerun redoes only the files that were at work.

Files: `packed.parquet` (`formats/packed_sft.py`; absent when no sequence is left: a reader refuses an empty file),
`origins.npy` (int64, shape `(sequences, 3)`: source ordinal, row, sequence of the conversation, in the order of the
packed file) and `quarantine.jsonl`.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import BadRecordError, ConfigError, FormatError
from dataprep_assets.execution.processes import Finished, Meter, Progress, Task, WorkerPool
from dataprep_assets.formats import packed_sft
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.packing.algorithms import ALGORITHMS, Algorithm, pack
from dataprep_assets.packing.bins import Bins, fill
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.spool import CHOSEN, ChatPlan, ChatSource, spool_artifact, spool_source
from dataprep_assets.pipelines.corpus.token_bins import ONE_THREAD, ShardResult
from dataprep_assets.stores.files import concatenate

__all__ = ["ORIGINS", "PACKED", "QUARANTINE", "PackPlan", "SftWork", "build_packed_sft", "pack_shard"]

VERSION = 1
PACKED = "packed.parquet"
ORIGINS = "origins.npy"
QUARANTINE = spool.QUARANTINE
SCRATCH = ".spool"
"""Folder below the store's root for spools: scratch of this machine, never published."""
_SPOOLED = 1
"""Source files spooled ahead for each worker, beyond the one at work."""


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """How sequences become rows. The longest row is the plan's `pack_size`. ConfigError for what cannot be."""

    algorithm: Algorithm = "first_fit_shuffle"
    seed: int = 42
    row_group_bins: int = 1000
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(f"packing algorithm {self.algorithm!r}: must be one of {', '.join(ALGORITHMS)}")
        if self.seed < 0 or self.row_group_bins < 1:
            raise ConfigError(
                f"packing: seed {self.seed} must not be negative, row_group_bins {self.row_group_bins} at least 1"
            )


@dataclass(frozen=True, kw_only=True)
class SftWork:
    """One shard to have: where it goes, and its sources in order. `budget`: largest share of bad rows dropped.

    Another `salt` is another key: it forces a new build.
    """

    artifact: Artifact
    store: ArtifactStore
    sources: tuple[ChatSource, ...]
    plan: ChatPlan
    packing: PackPlan
    budget: float
    salt: str = ""

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.artifact.partition or ""

    @property
    def key(self) -> str:
        """Digest of all that decides the shard's bytes."""
        how = [self.packing.algorithm, self.packing.seed, self.packing.row_group_bins, self.packing.compression]
        files = [source.key_parts() for source in self.sources]
        salt = [self.salt] if self.salt else []
        return digest_value(["packed_sft", VERSION, self.plan.key_parts(), how, self.budget, files, *salt])

    @property
    def size(self) -> int:
        """Bytes of the sources."""
        return sum(source.size for source in self.sources)

    @property
    def scratch(self) -> Path:
        """Where the spools of the shard are."""
        return self.store.root / SCRATCH


def build_packed_sft(
    works: Sequence[SftWork],
    *,
    workers: int,
    verification: Verification = "full",
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Have all shards: yields each as soon as it is verified, built or failed.

    A failed shard does not stop the others. A worker that dies does (WorkerDiedError): what is finished is kept.
    """
    meter = Meter(sum(work.size for work in works))
    by_partition = {work.partition: work for work in works}
    waiting: dict[str, set[int]] = {}
    finals: list[Path] = []
    with WorkerPool(workers, ONE_THREAD) as pool:
        for work in works:
            look = Task(f"verify:{work.partition}:", work.store.current, (work.artifact, work.key, verification))
            pool.submit(look)
        queue: list[Task] = []
        for event in pool.events():
            if isinstance(event, Finished):
                kind, partition, ordinal = event.task.label.split(":", 2)
                work = by_partition[partition]
                if event.error is not None:
                    doomed = f":{partition}:"
                    queue = [task for task in queue if doomed not in task.label]
                    pool.cancel(lambda label, doomed=doomed: doomed in label)  # type: ignore[misc]
                    if kind == "verify" or waiting.pop(partition, None) is not None:
                        yield ShardResult(partition=partition, error=event.error)
                elif kind == "verify" and event.result is not None:
                    finals.append(work.store.directory(work.artifact))
                    _discard_spools(work)
                    meter.add({"source_bytes": work.size})
                    yield ShardResult(partition=partition, receipt=event.result, reused=True)
                elif kind == "verify":
                    waiting[partition] = {source.ordinal for source in work.sources}
                    queue += _spool_tasks(work) or [_pack_task(work, verification)]
                elif kind == "spool" and partition in waiting:
                    waiting[partition].discard(int(ordinal))
                    if not waiting[partition]:
                        pool.submit(_pack_task(work, verification), first=True)
                elif kind == "pack":
                    del waiting[partition]
                    yield ShardResult(partition=partition, receipt=event.result)
                while queue and pool.outstanding < (1 + _SPOOLED) * pool.count:
                    pool.submit(queue.pop(0))
            elif isinstance(event, Progress):
                meter.add(event.done)
            if on_progress is not None:
                on_progress(meter, pool.count)
        sweep(finals)


def _spool_tasks(work: SftWork) -> list[Task]:
    return [
        Task(f"spool:{work.partition}:{source.ordinal}", spool_source, (work.plan, source, work.scratch, work.artifact))
        for source in work.sources
    ]


def _pack_task(work: SftWork, verification: Verification) -> Task:
    return Task(f"pack:{work.partition}:", pack_shard, (work, verification))


def pack_shard(work: SftWork, verification: Verification = "full") -> Receipt:
    """A worker's task: pack the spools of a shard and commit it; then the spools are removed.

    Raises BadRecordError when more rows were dropped than the budget allows, MissingArtifactError without spools.
    """
    receipt, _ = ensure(work.artifact, work.store, work.key, lambda staged: _Packing(work).write(staged), verification)
    _discard_spools(work)
    return receipt


def _discard_spools(work: SftWork) -> None:
    folders = [spool_artifact(work.artifact, source.ordinal).directory(work.scratch) for source in work.sources]
    sweep(folders)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # it may never have been there, and nothing refers to it any more


class _Packing:
    """Packs the spools of one shard."""

    def __init__(self, work: SftWork) -> None:
        self._work = work
        scratch = LocalArtifacts(work.scratch)
        artifacts = [spool_artifact(work.artifact, source.ordinal) for source in work.sources]
        self._receipts = [scratch.require(artifact) for artifact in artifacts]
        self._folders = [scratch.directory(artifact) for artifact in artifacts]
        for source, receipt in zip(work.sources, self._receipts, strict=True):
            if receipt.key != spool.spool_key(work.plan, source):
                raise FormatError(f"{receipt.artifact} {receipt.partition}: made with other settings. Spool it again")

    def write(self, staged: Path) -> Written:
        """The files of the artifact, and what the receipt says of them."""
        work, plan = self._work, self._work.plan
        ledger = Ledger.total(ledger_of(receipt) for receipt in self._receipts)
        ledger.balance(str(work.artifact))
        self._check_budget(ledger)
        lengths = self._joined(spool.LENGTHS, np.uint32).astype(np.int64)
        bins = pack(lengths, plan.pack_size, work.packing.algorithm, seed=work.packing.seed)
        if len(lengths):
            self._write_rows(staged, bins, lengths)
            self._write_origins(staged, bins)
        quarantine = b"".join(f.read_bytes() for d in self._folders if (f := d / QUARANTINE).exists())
        if quarantine:
            (staged / QUARANTINE).write_bytes(quarantine)
        return Written(
            inputs={source.label: source.sha256 for source in work.sources}
            | {"tokenizer": plan.tokenizer_digest, "chat_template": plan.template.digest},
            facts={
                "format": "packed_sft_parquet",
                "empty": not len(lengths),
                "conversations": ledger.documents,
                "sequences": len(lengths),
                "bins": len(bins),
                "tokens": ledger.tokens,
                "trained_tokens": self._sum("trained_tokens"),
                "truncated": self._sum("truncated"),
                "truncated_to_pack_size": self._sum("truncated_to_pack_size"),
                "sequences_dropped": self._counted("sequences_dropped"),
                "pack_size": plan.pack_size,
                "fill": round(fill(bins, lengths, plan.pack_size), 6),
                "packing_factor": round(len(lengths) / len(bins), 4) if len(bins) else 0.0,
                "algorithm": work.packing.algorithm,
                "seed": work.packing.seed,
                "row_group_bins": work.packing.row_group_bins,
                "compression": work.packing.compression,
                "template": plan.template.name,
                "template_digest": plan.template.digest,
                "tokenizer_digest": plan.tokenizer_digest,
                "stop_id": plan.stop.id,
                "stop_token": plan.stop.content,
                "certificate": plan.certificate,
                "sources": [self._source_line(s, r) for s, r in zip(work.sources, self._receipts, strict=True)],
            },
            ledger=ledger,
        )

    def _source_line(self, source: ChatSource, receipt: Receipt) -> dict[str, Any]:
        kept = ledger_of(receipt)
        return {
            "file": source.label,
            "ordinal": source.ordinal,
            "sha256": source.sha256,
            "rows": [source.rows.first, source.rows.stop],
            "rows_in": kept.rows_in,
            "conversations": kept.documents,
            "dropped": dict(kept.dropped),
            "sequences": receipt.facts["sequences"],
            "tokens": kept.tokens,
        }

    def _sum(self, fact: str) -> int:
        return sum(int(receipt.facts[fact]) for receipt in self._receipts)

    def _counted(self, fact: str) -> dict[str, int]:
        return dict(sorted(sum((Counter(r.facts[fact]) for r in self._receipts), Counter[str]()).items()))

    def _joined(self, name: str, dtype: type[np.generic]) -> NDArray[Any]:
        parts = [np.fromfile(folder / name, dtype) for folder in self._folders]
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def _write_rows(self, staged: Path, bins: Bins, lengths: NDArray[np.int64]) -> None:
        """The packed file. Spools are joined by the kernel and mapped: memory is a row group, whatever the shard."""
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        tokens = self._mapped(spool.TOKENS, np.int32, staged, int(ends[-1]))
        mask = self._mapped(spool.MASKS, np.uint8, staged, int(ends[-1]))
        packed_sft.write_bins(
            staged / PACKED,
            bins.items,
            bins.offsets,
            tokens,
            mask,
            ends,
            row_group_bins=self._work.packing.row_group_bins,
            compression=self._work.packing.compression,
        )
        for name in (spool.TOKENS, spool.MASKS):
            (staged / name).unlink()

    def _mapped(self, name: str, dtype: type[np.generic], staged: Path, size: int) -> NDArray[Any]:
        concatenate([folder / name for folder in self._folders], staged / name)
        joined = np.memmap(staged / name, dtype, "r")
        if len(joined) != size:
            raise FormatError(f"spool {name}: {len(joined)} items, its lengths sum to {size}. Run it again")
        return joined

    def _write_origins(self, staged: Path, bins: Bins) -> None:
        counts = [int(receipt.facts["sequences"]) for receipt in self._receipts]
        ordinals = np.repeat([source.ordinal for source in self._work.sources], counts)
        origins = self._joined(spool.ORIGINS, np.int64).reshape(-1, 2)
        np.save(staged / ORIGINS, np.column_stack([ordinals, origins])[bins.items].astype("<i8"))

    def _check_budget(self, ledger: Ledger) -> None:
        bad = {reason: count for reason, count in ledger.dropped.items() if reason not in CHOSEN}
        total = sum(bad.values())
        if total > self._work.budget * ledger.rows_in:
            raise BadRecordError(
                f"{self._work.artifact}: {total} of {ledger.rows_in} rows would be dropped {bad}, more than the budget "
                f"of {self._work.budget:.4%}. The first is {self._first_bad()}. Mend the source, or raise "
                "`bad_records.budget`"
            )

    def _first_bad(self) -> str:
        for folder in self._folders:
            for row in read_quarantine(folder / QUARANTINE):
                if row["reason"] not in CHOSEN:
                    at = "" if row["message"] is None else f", message {row['message']}"
                    return f"{row['file']}, row {row['row']}, byte {row['byte']}{at}: {row['reason']}"
        return "not in the quarantine"


def read_quarantine(path: Path) -> Iterator[Mapping[str, Any]]:
    """Lines of a quarantine file; none when there is no file. FormatError names a line that is not one."""
    import orjson

    if not path.exists():
        return
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = orjson.loads(line)
                yield {name: row[name] for name in ("file", "row", "byte", "reason", "message")}
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise FormatError(f"{path}: line {number} is not a quarantined row: {error}. Rebuild it") from error


def ledger_of(receipt: Receipt) -> Ledger:
    """The ledger of a spool's receipt."""
    if receipt.ledger is None:
        raise FormatError(f"{receipt.artifact} {receipt.partition}: its receipt has no ledger. Spool it again")
    return receipt.ledger
