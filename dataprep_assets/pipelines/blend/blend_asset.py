"""The asset `<dataset>/blend`: the finished shards where their trainer expects them, and what it reads first.

Its metadata has what Nemotron logs to W&B: `progress_table` and `stage_table` (the plan's asset has `plan_table`); all
three go to W&B itself where the declaration says `wandb`. Beside them is what was asked of each dataset against what
came of it, as a table and as a plot.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import location, result, table, worker_count
from dataprep_assets.orchestration.share_plot import plotted
from dataprep_assets.pipelines.blend.blend_plan import stage_identity
from dataprep_assets.pipelines.blend.blend_plan_asset import SHARDS, BlendAssets, plan_row
from dataprep_assets.pipelines.blend.blend_snapshot import BlendSnapshotFacts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.runs import RUNS, RunFacts, build_blend_run
from dataprep_assets.pipelines.blend.status import shards_of
from dataprep_assets.pipelines.blend.trainer_entry import trainer_lines
from dataprep_assets.pipelines.blend.wandb_log import log_tables
from resources import StorageResource

NAME = "blend"


def blend_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Lay out the finished shards as a run; refuses missing and failed ones by name."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key(NAME),
        deps=[dataset.shards],
        **dataset.common({"json", "file"}, f"{_READS[blend.stage]}, over the shards' own bytes."),
    )
    def finished_blend(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        plan = dataset.plan(store)
        shards = shards_of(blend)(blend, store, plan, plan.partitions)
        receipt, reused = build_blend_run(blend, store, plan, shards)
        facts = RunFacts.of(receipt)
        rows = [asdict(row) for row in facts.realised]
        tables = {
            "progress_table": progress_rows(blend, store, plan),
            "stage_table": stage_rows(blend, store, plan),
        }
        extra: dict[str, Any] = {
            "run_hash": plan.run_hash,
            "realised": table(rows),
            "requested_and_realised": plotted(rows, "realised"),
            **{name: table(shown) for name, shown in tables.items()},
            "empty_shards": len(facts.empty),
            "empty": ", ".join(facts.empty) or "none",
            "train_on_it": dg.MetadataValue.md("\n".join(f"- `{line}`" for line in run_trainer_lines(receipt))),
        }
        extra |= {f"realised_{row['split']}_{row['name']}": round(row["realised"], 6) for row in rows}
        if blend.wandb is not None:
            tables["plan_table"] = [plan_row(blend, unit) for unit in plan.units]
            config = {"run_hash": plan.run_hash, **stage_identity(blend)}
            place = log_tables(blend.wandb, dataset=blend.dataset, stage=blend.stage, config=config, tables=tables)
            extra["wandb"] = location(place)
        return result(receipt, store.place(blend.artifact(RUNS, plan.run_hash)), reused, extra)

    return finished_blend


_READS = {
    "pretrain": "blend.json, which Megatron reads",
    "sft": "Split folders of packed Parquet, which Megatron Bridge reads",
    "rl": "manifest.json, which lists the JSON lines of every split",
}


def run_trainer_lines(receipt: Receipt) -> list[str]:
    """What to give the trainer of a finished run."""
    facts = RunFacts.of(receipt)
    return trainer_lines(facts.stage, facts.root, facts.used, [record.path for record in receipt.files])


def progress_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """How far each dataset is: shards fetched and made, tokens and sequences so far."""
    rows = []
    for unit in plan.units:
        made = _there(blend, store, SHARDS[blend.stage], unit.partitions)
        done = len(made) == len(unit.partitions)
        rows.append(
            {
                "dataset_name": unit.name,
                "size": unit.size_bytes,
                "total_shards": len(unit.partitions),
                "downloaded": len(_there(blend, store, "blend_snapshot", unit.partitions)),
                "processed": len(made),
                "total_tokens": sum(r.ledger.tokens for r in made if r.ledger),
                "total_sequences": sum(int(r.facts.get("sequences", r.ledger.documents)) for r in made if r.ledger),
                "status": "completed" if done else "in_progress" if made else "pending",
            }
        )
    return rows


def stage_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """What each stage of the pipeline has done, from the receipts that are there.

    `tasks` are artifacts, `queue_in` those that wait for the stage and `queue_out` those that the next one has not had;
    `rows` are rows read, `bytes` those of the artifacts, of a snapshot those of its source files. `worker_seconds` and
    `cpu_seconds` are empty for a stage that does not measure them; `first` and `last` are when its first and its last
    artifact were finished.
    """
    total = len(plan.partitions)

    def single(name: str, stage: str, partition: str | None = None) -> dict[str, Any]:
        made = _there(blend, store, name, [partition])
        return _stage(stage, made, queue_in=1 - len(made))

    snapshots = _there(blend, store, "blend_snapshot", plan.partitions)
    shards = _there(blend, store, SHARDS[blend.stage], plan.partitions)
    fetched = _stage("blend_snapshot", snapshots, total - len(snapshots), max(0, len(snapshots) - len(shards)))
    made = _stage(SHARDS[blend.stage], shards, total - len(shards), actors=worker_count(blend.workers))
    return [
        single("blend_plan", "blend_plan"),
        single("blend_preview", "blend_preview"),
        fetched | {"bytes": sum(BlendSnapshotFacts.of(receipt).source_bytes for receipt in snapshots)},
        *([single("engine_certificate", "engine_certificate")] if blend.stage != "rl" else []),
        made,
        single(RUNS, NAME, plan.run_hash),
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
    """The sum of what every receipt of a stage measured; None unless each did."""
    found = [receipt.measured[what] for receipt in made if what in receipt.measured]
    return sum(found) if found and len(found) == len(made) else None


def _there(blend: BlendDeclaration, store: ArtifactStore, name: str, partitions: Sequence[str | None]) -> list[Receipt]:
    found = store.receipts([blend.artifact(name, partition) for partition in partitions])
    return [receipt for receipt in found if receipt is not None]
