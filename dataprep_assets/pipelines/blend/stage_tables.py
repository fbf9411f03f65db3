"""The tables of a blend run that Nemotron logs to W&B: `progress_table` and `stage_table`. The plan has the third."""

from collections.abc import Sequence
from typing import Any

from dataprep_assets.execution.pool import worker_count
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_snapshot import BLEND_SNAPSHOT, BlendSnapshotFacts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.runs import RUNS
from dataprep_assets.pipelines.blend.stage_shards import SHARDS


def progress_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """The `progress_table`, a row for each dataset: shards fetched and built, tokens and sequences so far.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan.
    """
    rows = []
    for unit in plan.units:
        made = _there(blend, store, SHARDS[blend.stage].name, unit.partitions)
        done = len(made) == len(unit.partitions)
        rows.append(
            {
                "dataset_name": unit.name,
                "size": unit.size_bytes,
                "total_shards": len(unit.partitions),
                "downloaded": len(_there(blend, store, BLEND_SNAPSHOT, unit.partitions)),
                "processed": len(made),
                "total_tokens": sum(r.ledger.tokens for r in made if r.ledger),
                # a document or a record is one sequence; only a conversation may be several, which its shard counts
                "total_sequences": sum(int(r.facts.get("sequences", r.ledger.documents)) for r in made if r.ledger),
                "status": "completed" if done else "in_progress" if made else "pending",
            }
        )
    return rows


def stage_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """The `stage_table`, a row for each step of the pipeline: what it has done, from the receipts in `store`.

    `blend` is the declaration, `plan` the committed plan. `tasks` are artifacts, `queue_in` those that wait for the
    step and `queue_out` those that the next one has not taken; `rows` are rows read, `bytes` those of the artifacts, of
    a snapshot those of its source files. `worker_seconds` and `cpu_seconds` are empty for a step that does not measure
    them; `first` and `last` are when its first and its last artifact were finished.
    """
    total = len(plan.partitions)

    def single(name: str, stage: str, partition: str | None = None) -> dict[str, Any]:
        made = _there(blend, store, name, [partition])
        return _stage(stage, made, queue_in=1 - len(made))

    snapshots = _there(blend, store, BLEND_SNAPSHOT, plan.partitions)
    shards = _there(blend, store, SHARDS[blend.stage].name, plan.partitions)
    fetched = _stage(BLEND_SNAPSHOT, snapshots, total - len(snapshots), max(0, len(snapshots) - len(shards)))
    made = _stage(SHARDS[blend.stage].name, shards, total - len(shards), actors=worker_count(blend.workers))
    return [
        single("blend_plan", "blend_plan"),
        single("blend_preview", "blend_preview"),
        fetched | {"bytes": sum(BlendSnapshotFacts.of(receipt).source_bytes for receipt in snapshots)},
        *([single("engine_certificate", "engine_certificate")] if blend.stage != "rl" else []),
        made,
        single(RUNS, "blend", plan.run_hash),
    ]


def _stage(name: str, made: Sequence[Receipt], queue_in: int, queue_out: int = 0, actors: int = 1) -> dict[str, Any]:
    ledgers = [receipt.ledger for receipt in made if receipt.ledger]
    tokens = sum(ledger.tokens for ledger in ledgers)
    wall, cpu = (_measured(made, what) for what in ("wall_seconds", "cpu_seconds"))
    finished = sorted(str(receipt.measured["created"]) for receipt in made if "created" in receipt.measured)
    return {
        "stage": name,
        "tasks": len(made),
        "queue_in": queue_in,
        "queue_out": queue_out,
        "actors": actors,
        "rows": sum(ledger.rows_in for ledger in ledgers),
        "tokens": tokens,
        "bytes": sum(receipt.total_bytes for receipt in made),
        "worker_seconds": "" if wall is None else round(wall, 1),
        "cpu_seconds": "" if cpu is None else round(cpu, 1),
        "tokens_per_cpu_second": round(tokens / cpu, 1) if cpu else "",
        "first": finished[0] if finished else "",
        "last": finished[-1] if finished else "",
    }


def _measured(made: Sequence[Receipt], what: str) -> float | None:
    """The sum of a measurement over all receipts of a step; None unless every receipt has it."""
    found = [receipt.measured[what] for receipt in made if what in receipt.measured]
    return sum(found) if found and len(found) == len(made) else None


def _there(blend: BlendDeclaration, store: ArtifactStore, name: str, partitions: Sequence[str | None]) -> list[Receipt]:
    found = store.receipts([blend.artifact(name, partition) for partition in partitions])
    return [receipt for receipt in found if receipt is not None]
