"""The asset `<dataset>/blend`: the finished shards where their trainer expects them, and what it reads first.

Its metadata has what Nemotron logs to W&B: `progress_table` and `stage_table` (the plan's asset has `plan_table`), and
what was asked of each dataset against what came of it, as a table and as bars.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dataprep_assets.assets.blend_plan import SHARDS, BlendAssets
from dataprep_assets.assets.dataset import result, table, worker_count
from dataprep_assets.builds.blend.declaration import BlendDeclaration
from dataprep_assets.builds.blend.finalize import ARTIFACT as RUNS
from dataprep_assets.builds.blend.finalize import BLEND, DATA_ARGS, MANIFEST, build_blend_run
from dataprep_assets.builds.blend.plan import BlendPlan
from dataprep_assets.builds.blend.status import works_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from resources import StorageResource

NAME = "blend"
_BAR = 40
"""Characters of a whole blend in the bars."""


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
        works = works_of(blend)(blend, store, plan, plan.partitions)
        receipt, reused = build_blend_run(blend, store, plan, works)
        rows: Sequence[Mapping[str, Any]] = receipt.facts["realised"]
        empty = receipt.facts["empty"]
        extra: dict[str, Any] = {
            "run_hash": plan.run_hash,
            "realised": table(rows),
            "requested_and_realised": dg.MetadataValue.md(bars(rows)),
            "progress_table": table(progress_rows(blend, store, plan)),
            "stage_table": table(stage_rows(blend, store, plan)),
            "empty_shards": len(empty),
            "empty": ", ".join(empty) or "none",
            "train_on_it": dg.MetadataValue.md("\n".join(f"- `{line}`" for line in trainer_lines(blend, receipt))),
        }
        extra |= {f"realised_{row['split']}_{row['name']}": round(row["realised"], 6) for row in rows}
        return result(receipt, store.place(blend.artifact(RUNS, plan.run_hash)), reused, extra)

    return finished_blend


_READS = {
    "pretrain": "blend.json, which Megatron reads",
    "sft": "Split folders of packed Parquet, which Megatron Bridge reads",
    "rl": "manifest.json, which lists the JSON lines of every split",
}


def trainer_lines(blend: BlendDeclaration, receipt: Receipt) -> list[str]:
    """What to tell the trainer."""
    root, used = receipt.facts["root"], receipt.facts["used"]
    if blend.stage == "pretrain":
        lines = [f"--per-split-data-args-path {root}/{BLEND}"]
        if any(record.path == DATA_ARGS for record in receipt.files):
            lines.append(f"--data-args-path {root}/{DATA_ARGS}")
        return lines
    if blend.stage == "sft":
        keys = {"train": "packed_train_data_path", "valid": "packed_val_data_path"}
        return [f"{keys.get(split, split)}={root}/splits/{split}/" for split in used]
    return [f"{root}/{MANIFEST}"]


def bars(rows: Sequence[Mapping[str, Any]]) -> str:
    """Requested shares (light) over realised ones (dark), a pair of bars a dataset and split."""
    width = max(len(f"{row['split']} {row['name']}") for row in rows)
    lines = []
    for row in rows:
        for share, mark in ((row["requested"], "░"), (row["realised"], "█")):
            label = f"{row['split']} {row['name']}" if mark == "░" else ""
            lines.append(f"{label:<{width}} {mark * round(share * _BAR):<{_BAR}} {share:7.4f}")
    return "```\n" + "\n".join(lines) + "\n```"


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
    """The stages of the pipeline: tasks done, those that wait before a stage and after it, its worker processes."""
    total = len(plan.partitions)
    fetched = len(_there(blend, store, "blend_snapshot", plan.partitions))
    made = _there(blend, store, SHARDS[blend.stage], plan.partitions)
    cpu = sum(r.measured.get("cpu_seconds", 0.0) for r in made)
    tokens = sum(r.ledger.tokens for r in made if r.ledger)
    return [
        {"stage": "blend_snapshot", "tasks": fetched, "queue_in": total - fetched, "queue_out": fetched - len(made)}
        | {"actors": 1, "tokens_per_cpu_second": 0.0},
        {"stage": SHARDS[blend.stage], "tasks": len(made), "queue_in": total - len(made), "queue_out": 0}
        | {"actors": worker_count(blend.workers), "tokens_per_cpu_second": round(tokens / cpu, 1) if cpu else 0.0},
    ]


def _there(blend: BlendDeclaration, store: ArtifactStore, name: str, partitions: Sequence[str]) -> list[Receipt]:
    found = store.receipts([blend.artifact(name, partition) for partition in partitions])
    return [receipt for receipt in found if receipt is not None]
