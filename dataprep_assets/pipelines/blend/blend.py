"""The blend (`<dataset>/blend`): the finished shards in the trainer's layout, with the trainer's entry files.

The run is stored in `runs/<run_hash>/`, which `runs.py` builds. The asset's metadata contains two of the tables that
Nemotron logs to W&B, `progress_table` and `stage_table`; the plan's asset has the third, `plan_table`. If the
declaration has `wandb`, all three tables are also logged to W&B. The metadata also shows each dataset's requested and
realized shares as a table and as a plot.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.lineage.wandb_run import open_run
from dataprep_assets.engine.yaml.declaration import WandbDeclaration
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import choose_worker_count
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_checks import OpenedRun, list_run_checks
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import load_finished_shards
from dataprep_assets.pipelines.blend.losses import find_unused_rows
from dataprep_assets.pipelines.blend.output.share_plot import plot_shares, rename_columns
from dataprep_assets.pipelines.blend.output.trainer_entry import format_trainer_lines
from dataprep_assets.pipelines.blend.plan.blend_plan import build_plan_rows
from dataprep_assets.pipelines.blend.plan.blend_snapshot import BLEND_SNAPSHOT, BlendSnapshotFacts
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.plan.planner import collect_stage_identity
from dataprep_assets.pipelines.blend.runs import (
    RUNS,
    RunFacts,
    build_blend_run,
    build_run_recipe,
    get_run_version,
)
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, prepare_stage_shards

# The functions before `build_blend_spec` log the tables of a finished blend to Weights & Biases, if the declaration has
# `wandb`.
#
# The keys `<stage>/plan_table`, `<stage>/progress_table`
# and `<stage>/stage_table` are the same as in Nemotron's `wandb_hook.py` (docs/formats/wandb-tables.md#keys). The run
# hash is the name of the W&B run and part of its id, so logging the same blend run again resumes the same W&B run. The
# settings disable wandb's own data collection (console output, machine, code, installed packages).

Rows = Sequence[Mapping[str, Any]]


def log_tables(
    declaration: WandbDeclaration, *, dataset: str, stage: str, config: Mapping[str, Any], tables: Mapping[str, Rows]
) -> str:
    """Log the tables and the configuration to W&B; return the W&B run's URL, or its folder if W&B is offline.

    `config["run_hash"]` is the name of the W&B run. Raises ConfigError if the extra `wandb` is not installed, and
    TransferError if W&B cannot be reached or refuses the tables. After an error, the finished blend run stays valid.
    """
    run_hash = str(config["run_hash"])
    with open_run(
        declaration,
        dataset=dataset,
        name=run_hash,
        job_type=f"data-prep-{stage}",
        config=config,
        failure=f"wandb: the run {run_hash} is finished and kept, but its tables were not logged: {{error}}. Log in "
        "with `wandb login`, or set `wandb: {{mode: offline}}`, then rebuild `blend`",
    ) as (wandb, run):
        run.log({f"{stage}/{name}": _build_table(wandb, rows) for name, rows in tables.items()})
        return str(run.url or run.dir)


def _build_table(wandb: Any, rows: Rows) -> Any:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    # Allow mixed types, because a column of numbers has an empty string where nothing was measured.
    return wandb.Table(columns=columns, data=[[row.get(c) for c in columns] for row in rows], allow_mixed_types=True)


def build_progress_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """Return the rows of `progress_table`: each dataset's downloaded and built shards, and their tokens and sequences.

    `blend` is the declaration, `store` contains the artifacts, `plan` is the committed plan.
    """
    rows = []
    for unit in plan.units:
        receipts = _load_receipts(blend, store, SHARDS[blend.stage].name, unit.partitions)
        is_done = len(receipts) == len(unit.partitions)
        rows.append(
            {
                "dataset_name": unit.name,
                "size": unit.size_bytes,
                "total_shards": len(unit.partitions),
                "downloaded": len(_load_receipts(blend, store, BLEND_SNAPSHOT, unit.partitions)),
                "processed": len(receipts),
                "total_tokens": sum(r.ledger.tokens for r in receipts if r.ledger),
                # Count the sequences of the shard's facts if there are any, because a conversation can become several
                # sequences. A document, pair or record counts as one sequence.
                "total_sequences": sum(int(r.facts.get("sequences", r.ledger.documents)) for r in receipts if r.ledger),
                "status": "completed" if is_done else "in_progress" if receipts else "pending",
            }
        )
    return rows


def build_stage_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """Return the rows of `stage_table`: one per step of the pipeline, with its progress from the receipts in `store`.

    `blend` is the declaration, and `plan` is the committed plan. `tasks` counts finished artifacts, `queue_in` those
    that wait for the step, and `queue_out` those that wait for the next step. `rows` counts rows read. `bytes` is the
    size of the artifacts or, for snapshots, of their source files. `worker_seconds` and `cpu_seconds` are empty for
    steps that do not measure them. `first` and `last` are the times when the first and last artifact were finished.
    """
    total = len(plan.partitions)

    def build_single_row(name: str, stage: str, partition: str | None = None) -> dict[str, Any]:
        receipts = _load_receipts(blend, store, name, [partition])
        return _build_stage_row(stage, receipts, queue_in=1 - len(receipts))

    snapshots = _load_receipts(blend, store, BLEND_SNAPSHOT, plan.partitions)
    shards = _load_receipts(blend, store, SHARDS[blend.stage].name, plan.partitions)
    snapshot_row = _build_stage_row(
        BLEND_SNAPSHOT, snapshots, total - len(snapshots), max(0, len(snapshots) - len(shards))
    )
    shard_row = _build_stage_row(
        SHARDS[blend.stage].name, shards, total - len(shards), actors=choose_worker_count(blend.workers)
    )
    return [
        build_single_row("blend_plan", "blend_plan"),
        build_single_row("blend_preview", "blend_preview"),
        snapshot_row | {"bytes": sum(BlendSnapshotFacts.from_receipt(receipt).source_bytes for receipt in snapshots)},
        *([build_single_row("engine_certificate", "engine_certificate")] if blend.stage != "rl" else []),
        shard_row,
        build_single_row(RUNS, "blend", plan.run_hash),
    ]


def _build_stage_row(
    name: str, receipts: Sequence[Receipt], queue_in: int, queue_out: int = 0, actors: int = 1
) -> dict[str, Any]:
    """Return the row of a pipeline step in `stage_table`, with sums over the receipts of its finished artifacts."""
    ledgers = [receipt.ledger for receipt in receipts if receipt.ledger]
    tokens = sum(ledger.tokens for ledger in ledgers)
    wall, cpu = (_sum_measured(receipts, measurement) for measurement in ("wall_seconds", "cpu_seconds"))
    finish_times = sorted(str(receipt.measured["created"]) for receipt in receipts if "created" in receipt.measured)
    return {
        "stage": name,
        "tasks": len(receipts),
        "queue_in": queue_in,
        "queue_out": queue_out,
        "actors": actors,
        "rows": sum(ledger.rows_in for ledger in ledgers),
        "tokens": tokens,
        "bytes": sum(receipt.total_bytes for receipt in receipts),
        "worker_seconds": "" if wall is None else round(wall, 1),
        "cpu_seconds": "" if cpu is None else round(cpu, 1),
        "tokens_per_cpu_second": round(tokens / cpu, 1) if cpu else "",
        "first": finish_times[0] if finish_times else "",
        "last": finish_times[-1] if finish_times else "",
    }


def _sum_measured(receipts: Sequence[Receipt], name: str) -> float | None:
    """Return the sum of the measurement `name` over a step's receipts; None if there are none, or one lacks it."""
    values = [receipt.measured[name] for receipt in receipts if name in receipt.measured]
    return sum(values) if values and len(values) == len(receipts) else None


def _load_receipts(
    blend: BlendDeclaration, store: ArtifactStore, name: str, partitions: Sequence[str | None]
) -> list[Receipt]:
    receipts = store.receipts([blend.artifact(name, partition) for partition in partitions])
    return [receipt for receipt in receipts if receipt is not None]


BLEND = "blend"
_READS = {
    "pretrain": "blend.json, which Megatron reads",
    "sft": "Split folders of packed Parquet, which Megatron Bridge reads",
    "pairs": "Split folders of preference pairs as Parquet, which TRL reads",
    "rl": "A JSON Lines file per split, and manifest.json, which lists them",
}


def build_blend_spec(blend: BlendDeclaration, *, inputs: tuple[ArtifactSpec, ...]) -> ArtifactSpec:
    """Return the spec of the finished blend run.

    Args:
        blend: The declaration.
        inputs: Specs of the shards that the run consists of and, with rules, of the document table.
    """
    return ArtifactSpec(
        declaration=blend,
        name=BLEND,
        version=get_run_version(blend),
        description=f"{_READS[blend.stage]}, built from the shards without copying data.",
        kinds={"json", "file"},
        inputs=inputs,
        artifact=partial(find_blend_run, blend),
        # A lock must not compare the bytes of the files, because they contain the shards' paths, which differ between
        # machines.
        names_places=frozenset(),
        recipes=partial(_build_recipes, blend),
        build=partial(_build_run, blend),
        metadata=partial(_build_metadata, blend),
        losses=partial(_find_losses, blend),
        check_groups=(WholeArtifactChecks(checks=list_run_checks(blend), open=partial(OpenedRun.open, blend)),),
    )


def find_blend_run(blend: BlendDeclaration, store: ArtifactStore) -> Artifact:
    """Return the blend run of the committed plan. Raises MissingArtifactError if there is no plan yet."""
    return blend.artifact(RUNS, load_blend_plan(blend, store).run_hash)


def describe_run(receipt: Receipt) -> list[str]:
    """Return the trainer's settings for a finished blend run, one per line."""
    facts = RunFacts.from_receipt(receipt)
    return format_trainer_lines(facts.stage, facts.root, facts.used, [record.path for record in receipt.files])


def _build_recipes(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    plan = load_blend_plan(blend, store)
    yield build_run_recipe(
        blend, store, plan, load_finished_shards(blend, store, plan, prepare_stage_shards(blend, store, plan))
    )


def _build_run(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    store = request.store
    plan = load_blend_plan(blend, store)
    receipt, reused = build_blend_run(blend, store, plan, prepare_stage_shards(blend, store, plan))
    wandb_metadata = {} if blend.wandb is None else {"wandb": Location(_log_tables(blend, store, plan))}
    yield Outcome(partition="", receipt=receipt, reused=reused, metadata=wandb_metadata)


def _find_losses(blend: BlendDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """Yield a loss per dataset for the shards that are not in the sample, and for rows of shards that no split uses."""
    plan, name = load_blend_plan(blend, store), SHARDS[blend.stage].name
    for unit in plan.units:
        left_out = len(unit.shards) - len(unit.chosen)
        yield Loss(
            action="left out", reason="sample", count=left_out, of=len(unit.shards), unit="shard", part=unit.name
        )
    shards = [
        receipt for receipt in store.receipts([blend.artifact(name, p) for p in plan.partitions]) if receipt is not None
    ]
    for run in receipts:
        used_partitions = {
            partition for partitions in RunFacts.from_receipt(run).used.values() for partition in partitions
        }
        yield from find_unused_rows(blend, shards, used_partitions)


def _log_tables(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> str:
    """Log the three tables to W&B after the blend run is committed; return their URL or folder."""
    assert blend.wandb is not None
    return log_tables(
        blend.wandb,
        dataset=blend.dataset,
        stage=blend.stage,
        config={"run_hash": plan.run_hash, **collect_stage_identity(blend)},
        tables={
            "progress_table": build_progress_rows(blend, store, plan),
            "stage_table": build_stage_rows(blend, store, plan),
            "plan_table": build_plan_rows(blend, plan),
        },
    )


def _build_metadata(blend: BlendDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    plan, facts = load_blend_plan(blend, store), RunFacts.from_receipt(receipt)
    rows = rename_columns([asdict(row) for row in facts.realised])
    return {
        "run_hash": plan.run_hash,
        "shares_table": Table(rows),
        "requested_and_realized_shares": plot_shares(rows, "realized"),
        "progress_table": Table(build_progress_rows(blend, store, plan)),
        "stage_table": Table(build_stage_rows(blend, store, plan)),
        "empty_shards": len(facts.empty),
        "names_of_empty_shards": ", ".join(facts.empty) or "none",
        "how_to_train": Markdown("\n".join(f"- `{line}`" for line in describe_run(receipt))),
        **{f"realized_share_{row.split}_{row.name}": round(row.realised, 6) for row in facts.realised},
    }
