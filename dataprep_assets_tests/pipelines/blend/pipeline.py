"""A small blend and its whole pipeline without Dagster, as a function and as a command to kill.

`python -m dataprep_assets_tests.pipelines.blend.pipeline DECLARATION ROOT WORKERS` runs a declaration in a JSON file.
"""

import gzip
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import zstandard

from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_sample import build_blend_engine
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild
from dataprep_assets.pipelines.blend.indexed_bins import prepare_indexed_bins_shards
from dataprep_assets.pipelines.blend.output.rl_manifest import build_rl_manifest
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
from dataprep_assets.pipelines.blend.plan.blend_preview import build_blend_preview
from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_blend_snapshot
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.rl.rl_jsonl import build_rl_shards, prepare_rl_shards
from dataprep_assets.pipelines.blend.runs import build_blend_run
from dataprep_assets.pipelines.blend.stage_shards import prepare_stage_shards
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets_tests.pipelines.corpus.pipeline import Outcome
from dataprep_assets_tests.samples import SAMPLE

SEPARATOR = "<|endoftext|>"


def make_text(dataset: str, row: int, words: int = 0) -> str:
    """Return a document that names its dataset and row, and whose length depends on the row."""
    count = words or 5 + (row * 7) % 40
    return f"{dataset} {row} " + " ".join(f"word{(row + i) % 17}" for i in range(count))


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """Write a file of rows in the format of its name: .jsonl or .json lines, .zst, .gz, .parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(rows)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
        return path
    data = b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)
    if path.suffix == ".zst":
        data = zstandard.compress(data)
    elif path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    path.write_bytes(data)
    return path


def make_texts(dataset: str, count: int, start: int = 0) -> list[dict[str, Any]]:
    """Return rows of a pretraining dataset."""
    return [{"text": make_text(dataset, row)} for row in range(start, start + count)]


def write_small_sources(folder: Path) -> Path:
    """Write two datasets in three formats: `code` of 90 documents in two files, `web` of 60 in one."""
    write_rows(folder / "code" / "part-2.jsonl.zst", make_texts("code", 40))
    write_rows(folder / "code" / "part-10.jsonl.gz", make_texts("code", 50, 40))
    write_rows(folder / "web" / "train-00000.parquet", make_texts("web", 60))
    return folder


def write_blend_json(folder: Path) -> dict[str, Any]:
    """Write the blend of these datasets: three quarters are code."""
    return {
        "datasets": [
            {"name": "code", "path": str(folder / "code"), "weight": 3.0},
            {"name": "web", "path": str(folder / "web"), "weight": 1.0, "split": "train"},
        ]
    }


def declare_pretraining(folder: Path, **changes: Any) -> BlendDeclaration:
    """Return the declaration of a blend over `small_sources(folder)`, with changes."""
    declared: dict[str, Any] = {
        "dataset": "small_blend",
        "stage": "pretrain",
        "blend": write_blend_json(folder),
        # Use the reference engine, because it needs no certificate, and building one would take most of the time of a
        # small run.
        "tokenizer": {"path": SAMPLE / "tokenizer", "name": "sample-bpe-4096", "engine": "tokenizers"},
        "pretrain": {"separator": SEPARATOR, "sequence_length": 32},
        "num_shards": 3,
    }
    return BlendDeclaration.model_validate(declared | changes)


def plan_shards(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> Sequence[ShardToBuild]:
    """Return all shards of a plan, ready to build."""
    return prepare_stage_shards(blend, store, plan)


def build_shards(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, workers: int, out: Outcome) -> None:
    """Build everything up to and including the shards."""
    for partition in plan.partitions:
        out.add(*build_blend_snapshot(blend, store, plan, partition))
    if blend.stage == "pretrain":
        out.add(*ensure_certificate(build_blend_engine(blend), store))
        bins = prepare_indexed_bins_shards(blend, store, plan, plan.partitions)
        results = build_token_bins(bins, workers=workers, verification=blend.verify)
    else:
        results = build_rl_shards(prepare_rl_shards(blend, store, plan, plan.partitions), workers=workers)
    for result in results:
        if result.receipt is not None:
            out.add(result.receipt, result.reused)
        elif result.error is not None:
            out.failed[result.partition] = result.error


def run_blend(blend: BlendDeclaration, root: Path | ArtifactStore, workers: int = 1) -> tuple[Outcome, Receipt | None]:
    """Build plan, preview, snapshots, shards and, unless one failed, the run."""
    store, outcome = LocalArtifacts(root) if isinstance(root, Path) else root, Outcome()
    outcome.add(*build_blend_plan(blend, store))
    plan = load_blend_plan(blend, store)
    outcome.add(*build_blend_preview(blend, store, plan))
    build_shards(blend, store, plan, workers, outcome)
    if outcome.failed:
        return outcome, None
    receipt, reused = build_blend_run(blend, store, plan, plan_shards(blend, store, plan))
    outcome.add(receipt, reused)
    if blend.stage == "rl":
        outcome.add(*build_rl_manifest(blend, store))
    return outcome, receipt


def finish_blend(blend: BlendDeclaration, root: Path, workers: int = 1) -> tuple[Path, Receipt, BlendPlan]:
    """Run everything, and return the run's directory, its receipt and its plan."""
    outcome, receipt = run_blend(blend, root, workers)
    assert not outcome.failed, outcome.failed
    assert receipt is not None
    store = LocalArtifacts(root)
    return store.directory(blend.artifact("runs", receipt.partition)), receipt, load_blend_plan(blend, store)


def main(arguments: list[str]) -> int:
    """Run the pipeline; the exit code is 1 when a shard failed."""
    declaration, root, workers = arguments
    outcome, _ = run_blend(
        BlendDeclaration.model_validate_json(Path(declaration).read_bytes()), Path(root), int(workers)
    )
    print(json.dumps({"built": outcome.built, "reused": outcome.reused}))
    return int(bool(outcome.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


def list_prefixes(directory: Path) -> list[str]:
    """Return the prefixes in the `blend.json` of a finished run, for all splits in order."""
    value = json.loads((directory / "blend.json").read_bytes())
    return [prefix for split in ("train", "valid", "test") for prefix in value[split][1::2]]
