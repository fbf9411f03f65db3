"""Builds token bins: for each shard the canonical stream, its document ends, its quarantine, its receipt.

Files are encoded in parallel, each into a part of its own; a shard is sealed (parts joined by the kernel, digested,
committed) as soon as its last file is done. The order of bytes is the manifest's, whatever the workers' number and
order. A killed run keeps the finished parts, so its rerun redoes only the files that were at work.
"""

import json
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.errors import BadRecordError, DataprepError
from dataprep_assets.execution.processes import Finished, Meter, Progress, Task, WorkerPool, report
from dataprep_assets.formats import document_ends, flat_bins, megatron
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import publish_directory, staging, sweep
from dataprep_assets.integrity.digest import canonical_json, digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, Verification, now, record_files, versions
from dataprep_assets.pipelines.corpus.token_stream import EncodedPart, SourcePart, StreamPlan, encode_part
from dataprep_assets.stores.files import boot_id

VERSION = 1
TOKENS = "tokens.bin"
ENDS = "document_ends.bin"
QUARANTINE = "quarantine.jsonl"
MEGATRON_INDEX = "tokens.idx"
ONE_THREAD = {
    "FASTOKENS_BPE_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}
"""Parallelism is by process: simpler to bound, kill and resume, and as fast (two cores, measured)."""


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """One shard to have: where it goes, and its files in manifest order.

    `megatron` adds Megatron's index of the stream (`tokens.idx`, beside `tokens.bin`). Another `salt` is another key.
    """

    artifact: Artifact
    store: ArtifactStore
    files: tuple[SourcePart, ...]
    plan: StreamPlan
    budget: float
    sizes: tuple[int, ...]
    megatron: bool = False
    salt: str = ""

    @property
    def directory(self) -> Path:
        """Where the shard's artifact is built."""
        return self.store.directory(self.artifact)

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.artifact.partition or ""

    @property
    def source_bytes(self) -> int:
        """Size of its files as stored."""
        return sum(self.sizes)

    @property
    def key(self) -> str:
        """Digest of all that decides the shard's bytes."""
        files = [_identity(f) for f in self.files]
        parts = ["token_bins", VERSION, self.plan.key_parts(), self.budget, files]
        added = {"megatron": self.megatron, "salt": self.salt}
        if set_ones := {name: value for name, value in added.items() if value}:
            parts.append(set_ones)
        return digest_value(parts)


def _identity(file: SourcePart) -> list[Any]:
    whole = [file.label, file.sha256, file.format, file.compression]
    return whole if file.rows is None else [*whole, [file.rows.first, file.rows.stop]]


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What became of a shard: its receipt (`reused` when nothing had to be done), or the error that failed it."""

    partition: str
    receipt: Receipt | None = None
    reused: bool = False
    error: Exception | None = None


@dataclass
class _Open:
    work: ShardWork
    stack: ExitStack
    staged: Path
    waiting: set[int]
    parts: dict[int, EncodedPart] = field(default_factory=dict)
    failed: bool = False


def build_token_bins(
    works: Sequence[ShardWork],
    *,
    workers: int,
    verification: Verification = "full",
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Have all shards: yields each as soon as it is verified, built or failed.

    A failed shard does not stop the others. A worker that dies does (WorkerDiedError): what is finished is committed.
    """
    meter = Meter(sum(sum(w.sizes) for w in works))
    opened: dict[str, _Open] = {}
    # the locks of shards (`everything`) are let go when no worker is left that writes below them
    with ExitStack() as everything, WorkerPool(workers, ONE_THREAD) as pool:
        by_partition = {w.partition: w for w in works}
        for work in works:
            pool.submit(
                Task(_label("verify", work.partition), work.store.current, (work.artifact, work.key, verification))
            )
        missing: dict[str, bool] = {}
        waiting = deque(works)
        reused: list[Path] = []

        def reuse(work: ShardWork, receipt: Receipt) -> ShardResult:
            reused.append(work.directory)
            meter.add({"source_bytes": work.source_bytes})
            return ShardResult(partition=work.partition, receipt=receipt, reused=True)

        def advance() -> Iterator[ShardResult]:
            # in the order of the works, whatever is verified first: two runs that took the locks of several shards in
            # orders of their own would wait for each other for ever
            while waiting and waiting[0].partition in missing and pool.outstanding < 2 * pool.count:
                work = waiting.popleft()
                if not missing[work.partition]:
                    continue
                try:
                    made = _open(work, opened, everything, pool, verification)
                except DataprepError as error:
                    yield ShardResult(partition=work.partition, error=error)
                else:
                    if made is not None:
                        yield reuse(work, made)

        for event in pool.events():
            if isinstance(event, Finished):
                kind, partition, ordinal = event.task.label.split(":", 2)
                work = by_partition[partition]
                if kind == "verify":
                    missing[partition] = event.result is None and event.error is None
                    if event.result is not None:
                        yield reuse(work, event.result)
                    elif event.error is not None:
                        yield ShardResult(partition=partition, error=event.error)
                elif kind == "seal":
                    opened.pop(partition).stack.close()
                    yield ShardResult(partition=partition, receipt=event.result, error=event.error)
                else:
                    state = opened[partition]
                    state.waiting.discard(int(ordinal))
                    if event.error is not None and not state.failed:
                        state.failed = True
                        state.waiting -= {_ordinal(label) for label in pool.cancel(partial(_belongs_to, partition))}
                        yield ShardResult(partition=partition, error=event.error)
                    elif event.error is None:
                        state.parts[int(ordinal)] = event.result
                    if not state.waiting and state.failed:
                        opened.pop(partition).stack.close()  # not before: others of its files were still encoding
                    elif not state.waiting:
                        pool.submit(_seal_task(state), first=True)
                yield from advance()
            elif isinstance(event, Progress):
                meter.add(event.done)
            if on_progress is not None:
                on_progress(meter, pool.count)
        sweep(reused)


def _belongs_to(partition: str, label: str) -> bool:
    return label.split(":", 2)[1] == partition


def _ordinal(label: str) -> int:
    return int(label.split(":", 2)[2])


def _label(kind: Literal["verify", "encode", "seal"], partition: str, ordinal: int | str = "") -> str:
    return f"{kind}:{partition}:{ordinal}"


def _open(
    work: ShardWork, opened: dict[str, _Open], everything: ExitStack, pool: WorkerPool, verification: Verification
) -> Receipt | None:
    """Take the shard's lock and submit what is to be encoded; its receipt if a rival made it while this one waited."""
    with ExitStack() as stack:
        staged = stack.enter_context(staging(work.directory, work.key))
        if (receipt := work.store.current(work.artifact, work.key, verification)) is not None:
            shutil.rmtree(staged)
            return receipt
        state = _Open(work, everything.enter_context(stack.pop_all()), staged, set())
    opened[work.partition] = state
    for part in work.files:
        if (done := finished_part(staged, part.ordinal)) is not None:
            state.parts[part.ordinal] = done
        else:
            state.waiting.add(part.ordinal)
            pool.submit(Task(_label("encode", work.partition, part.ordinal), encode_into, (work.plan, part, staged)))
    if not state.waiting:
        pool.submit(_seal_task(state), first=True)
    return None


def _seal_task(state: _Open) -> Task:
    return Task(_label("seal", state.work.partition), seal, (state.work, state.staged, state.parts))


def _part_paths(staged: Path, ordinal: int) -> tuple[Path, Path, Path]:
    return staged / f"{ordinal:08d}.tokens", staged / f"{ordinal:08d}.ends", staged / f"{ordinal:08d}.json"


def finished_part(staged: Path, ordinal: int) -> EncodedPart | None:
    """The books of a part that an earlier run finished; None when it is to be done.

    A part is not synced to disk, so it is believed only within the boot that wrote it: a killed process loses nothing
    of it, a crashed machine may.
    """
    tokens, ends, books = _part_paths(staged, ordinal)
    try:
        value = json.loads(books.read_bytes())
        ledger = Ledger.from_json(value["ledger"])
        sizes = [tokens.stat().st_size, ends.stat().st_size]
    except (OSError, ValueError, KeyError, DataprepError):
        return None
    if boot_id() is None or value["boot"] != boot_id() or value["sizes"] != sizes:
        return None
    return EncodedPart(
        ledger=ledger,
        quarantine=tuple(tuple(q) for q in value["quarantine"]),
        cpu_seconds=value["cpu_seconds"],
        wall_seconds=value["wall_seconds"],
        truncated=value["truncated"],
    )


def encode_into(plan: StreamPlan, part: SourcePart, staged: Path) -> EncodedPart:
    """A worker's task: encode one file into its part of the staging directory; the books appear last, by rename."""
    tokens, ends, books = _part_paths(staged, part.ordinal)
    for leftover in (tokens, ends, books):
        leftover.unlink(missing_ok=True)
    done = encode_part(plan, part, tokens, ends, report)
    value = asdict(done) | {"boot": boot_id(), "sizes": [tokens.stat().st_size, ends.stat().st_size]}
    draft = books.with_suffix(".draft")
    draft.write_bytes(canonical_json(value))
    os.replace(draft, books)
    return done


def seal(work: ShardWork, staged: Path, parts: Mapping[int, EncodedPart]) -> Receipt:
    """A worker's task: join the parts of a complete shard, write its receipt and commit it.

    Raises BadRecordError when more rows were dropped than the budget allows.
    """
    in_order = [parts[f.ordinal] for f in work.files]
    ledger = Ledger.total(p.ledger for p in in_order)
    ledger.balance(str(work.artifact))
    _check_budget(work, ledger, in_order)
    final = staged / "final"
    _clear(final)
    final.mkdir()
    paths = [_part_paths(staged, f.ordinal) for f in work.files]
    flat_bins.concatenate([p[0] for p in paths], final / TOKENS)
    document_ends.concatenate(
        [(p[1], part.ledger.tokens) for p, part in zip(paths, in_order, strict=True)], final / ENDS
    )
    flat_bins.validate(final / TOKENS, work.plan.dtype, ledger.tokens)
    if work.megatron:
        ends = document_ends.open_ends(final / ENDS)
        megatron.write_idx(final / MEGATRON_INDEX, ends, dtype=work.plan.dtype)
    quarantine = [
        {"file": f.label, "row": row, "byte": byte, "reason": reason}
        for f, part in zip(work.files, in_order, strict=True)
        for row, byte, reason in part.quarantine
    ]
    if quarantine:
        (final / QUARANTINE).write_bytes(b"".join(canonical_json(q) + b"\n" for q in quarantine))
    receipt = Receipt(
        dataset=work.artifact.dataset,
        artifact=work.artifact.name,
        partition=work.artifact.partition,
        key=work.key,
        inputs={f.label: f.sha256 for f in work.files} | {"tokenizer": work.plan.tokenizer_digest},
        files=record_files(final),
        facts={
            "dtype": work.plan.dtype,
            "separator_id": work.plan.separator_id,
            "bos_id": work.plan.bos_id,
            "special_tokens": work.plan.special_tokens,
            "certificate": work.plan.certificate,
            **({"truncated": sum(p.truncated for p in in_order)} if work.plan.max_tokens is not None else {}),
        },
        ledger=ledger,
        sources=tuple(_source_line(f, p) for f, p in zip(work.files, in_order, strict=True)),
        measured={
            "created": now(),
            "versions": versions(),
            "cpu_seconds": round(sum(p.cpu_seconds for p in in_order), 3),
            "wall_seconds": round(sum(p.wall_seconds for p in in_order), 3),
        },
    )
    receipt.write(final)
    publish_directory(final, work.directory)
    work.store.publish(work.artifact)
    _clear(staged)
    return receipt


def _source_line(file: SourcePart, part: EncodedPart) -> dict[str, Any]:
    kept = part.ledger
    return {
        "file": file.label,
        "ordinal": file.ordinal,
        "sha256": file.sha256,
        "rows_in": kept.rows_in,
        "documents": kept.documents,
        "dropped": dict(kept.dropped),
        "tokens": kept.tokens,
        **({"rows": [file.rows.first, file.rows.stop]} if file.rows is not None else {}),
    }


def _check_budget(work: ShardWork, ledger: Ledger, parts: Sequence[EncodedPart]) -> None:
    dropped = sum(len(p.quarantine) for p in parts)  # what the plan filters is wanted, not bad
    if dropped and dropped > work.budget * ledger.rows_in:
        worst = Counter({f.label: len(p.quarantine) for f, p in zip(work.files, parts, strict=True)}).most_common(1)[0]
        first = next((f.label, *p.quarantine[0]) for f, p in zip(work.files, parts, strict=True) if p.quarantine)
        raise BadRecordError(
            f"{work.artifact}: {dropped} of {ledger.rows_in} rows would be dropped {dict(ledger.dropped)}, more than "
            f"the budget of {work.budget:.4%}. The first is {first[0]}, row {first[1]}, byte {first[2]}: {first[3]}; "
            f"the worst file is {worst[0]} with {worst[1]}. Mend the source, or raise `bad_records.budget`"
        )


def _clear(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
