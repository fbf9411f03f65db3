"""The asset `<dataset>/blend`: the finished shards where their trainer expects them, and what it reads first.

On disk it is `runs/<run_hash>/`, which `runs.py` lays out. Its metadata has what Nemotron logs to W&B: `progress_table`
and `stage_table` (the plan's asset has `plan_table`); all three go to W&B itself if the declaration has `wandb`.
Beside them are the requested and the realised share of each dataset, as a table and as a plot.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.losses import Loss
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Location, Markdown, Shown, Table
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Proof, Proofs
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_plan import plan_rows
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import finished_shards
from dataprep_assets.pipelines.blend.losses import unused_rows
from dataprep_assets.pipelines.blend.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.planner import stage_identity
from dataprep_assets.pipelines.blend.realised_proofs import realised_as_requested
from dataprep_assets.pipelines.blend.run_proofs import rows_read_once, run_intact, shards_complete, splits_disjoint
from dataprep_assets.pipelines.blend.runs import (
    RUNS,
    RunFacts,
    build_blend_run,
    other_claims,
    run_recipe,
    run_version,
)
from dataprep_assets.pipelines.blend.share_plot import plotted
from dataprep_assets.pipelines.blend.shared_content import shared_content
from dataprep_assets.pipelines.blend.source_shares_proofs import blend_sources_unchanged
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, stage_shards
from dataprep_assets.pipelines.blend.stage_tables import progress_rows, stage_rows
from dataprep_assets.pipelines.blend.trainer_entry import trainer_lines
from dataprep_assets.pipelines.blend.trainer_entry_proofs import entry_lists_every_shard
from dataprep_assets.pipelines.blend.wandb_log import log_tables

BLEND = "blend"
_READS = {
    "pretrain": "blend.json, which Megatron reads",
    "sft": "Split folders of packed Parquet, which Megatron Bridge reads",
    "rl": "A file of JSON lines for every split, and manifest.json, which names them",
}


def blend_spec(blend: BlendDeclaration, *, shards: ArtifactSpec) -> ArtifactSpec:
    """The finished blend run.

    Args:
        blend: The dataset.
        shards: The shards that it lays out.
    """
    return ArtifactSpec(
        declaration=blend,
        name=BLEND,
        version=run_version(blend),
        description=f"{_READS[blend.stage]}, over the shards' own bytes.",
        kinds={"json", "file"},
        inputs=(shards,),
        artifact=partial(blend_run, blend),
        names_places=frozenset(),  # it names the files where the trainer finds them
        recipes=partial(_recipes, blend),
        build=partial(_build, blend),
        metadata=partial(_metadata, blend),
        losses=partial(_losses, blend),
        proofs=Proofs(proofs=_PROOFS, examine=partial(_examine, blend)),
    )


def blend_run(blend: BlendDeclaration, store: ArtifactStore) -> Artifact:
    """The blend run of the committed plan; raises MissingArtifactError if there is no plan yet."""
    return blend.artifact(RUNS, load_blend_plan(blend, store).run_hash)


def run_lines(receipt: Receipt) -> list[str]:
    """The lines with the trainer's settings for a finished blend run."""
    facts = RunFacts.of(receipt)
    return trainer_lines(facts.stage, facts.root, facts.used, [record.path for record in receipt.files])


def _recipes(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    plan = load_blend_plan(blend, store)
    yield run_recipe(blend, store, plan, finished_shards(blend, store, plan, stage_shards(blend, store, plan)))


def _build(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    store = request.store
    plan = load_blend_plan(blend, store)
    receipt, reused = build_blend_run(blend, store, plan, stage_shards(blend, store, plan))
    logged = {} if blend.wandb is None else {"wandb": Location(_log(blend, store, plan))}
    yield Outcome(partition="", receipt=receipt, reused=reused, metadata=logged)


def _losses(blend: BlendDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    plan, name = load_blend_plan(blend, store), SHARDS[blend.stage].name
    for unit in plan.units:
        left_out = len(unit.shards) - len(unit.chosen)
        yield Loss(
            action="left out", reason="sample", count=left_out, of=len(unit.shards), unit="shard", part=unit.name
        )
    shards = [one for one in store.receipts([blend.artifact(name, p) for p in plan.partitions]) if one is not None]
    for run in receipts:
        used = {partition for partitions in RunFacts.of(run).used.values() for partition in partitions}
        yield from unused_rows(blend, shards, used)


def _log(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> str:
    """Log the three tables to W&B, after the blend run is committed; returns where they are."""
    assert blend.wandb is not None
    return log_tables(
        blend.wandb,
        dataset=blend.dataset,
        stage=blend.stage,
        config={"run_hash": plan.run_hash, **stage_identity(blend)},
        tables={
            "progress_table": progress_rows(blend, store, plan),
            "stage_table": stage_rows(blend, store, plan),
            "plan_table": plan_rows(blend, plan),
        },
    )


def _metadata(blend: BlendDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    plan, facts = load_blend_plan(blend, store), RunFacts.of(receipt)
    rows = [asdict(row) for row in facts.realised]
    return {
        "run_hash": plan.run_hash,
        "realised": Table(rows),
        "requested_and_realised": plotted(rows, "realised"),
        "progress_table": Table(progress_rows(blend, store, plan)),
        "stage_table": Table(stage_rows(blend, store, plan)),
        "empty_shards": len(facts.empty),
        "empty": ", ".join(facts.empty) or "none",
        "train_on_it": Markdown("\n".join(f"- `{line}`" for line in run_lines(receipt))),
        **{f"realised_{row.split}_{row.name}": round(row.realised, 6) for row in facts.realised},
    }


_PROOFS = (
    Proof("shards_complete", "Every chosen shard is there and of this plan, with data or declared empty."),
    Proof(
        "rows_read_once", "Shards of a file that was cut by rows read, together, the rows that it has when counted now."
    ),
    Proof(
        "run_intact",
        "Every file of the run has the digest of its receipt, no other file is there, and all say what its shards do.",
    ),
    Proof("entry_lists_every_shard", "What the trainer reads first lists every used shard once, and nothing else."),
    Proof(
        "splits_disjoint",
        "No shard, no row of a source file, and no document, sequence or record is in two splits.",
    ),
    Proof("realised_as_requested", "Each dataset's share is as its weight asks, within the tolerance."),
    Proof(
        "blend_sources_unchanged",
        "The sources are those that the blend was planned on; else by how much its shares moved.",
        blocking=False,
    ),
)


def _examine(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str]) -> Iterator[tuple[str, Finding]]:
    plan = load_blend_plan(blend, store)
    shards = stage_shards(blend, store, plan)
    yield "shards_complete", shards_complete(store, plan, shards)
    yield "rows_read_once", rows_read_once(blend, store, plan, shards)
    artifact = blend_run(blend, store)
    receipt, directory = store.require(artifact), store.local(artifact)
    yield (
        # the claims are compared while the proof runs: what they raise is its finding, and the other proofs go on
        "run_intact",
        run_intact(directory, receipt, plan, other_claims(blend, store, plan, shards, directory, receipt)),
    )
    yield "entry_lists_every_shard", entry_lists_every_shard(blend, directory, receipt)
    built = {shard.artifact.partition: shard.artifact for shard in shards}

    def shared() -> list[str]:
        used = RunFacts.of(receipt).used.items()
        places = {split: [(store.local(built[p]), store.require(built[p])) for p in names] for split, names in used}
        return shared_content(blend.stage, places)

    yield "splits_disjoint", splits_disjoint(receipt, plan, shared)
    yield "realised_as_requested", realised_as_requested(blend, directory, receipt, plan)
    yield "blend_sources_unchanged", blend_sources_unchanged(blend, RunFacts.of(receipt), plan)
