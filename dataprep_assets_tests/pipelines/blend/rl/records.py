"""RL blends over generated records."""

from pathlib import Path
from typing import Any

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.verdicts import find_all
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.rl.rl_jsonl import RL_JSONL_CHECKS, OpenedRecords, prepare_rl_shards
from dataprep_assets.pipelines.blend.rl.shard import RlShard
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, write_rows, write_small_sources


def make_rl_rows(count: int) -> list[dict[str, Any]]:
    """Return rows in the form of NVIDIA's RL blend."""
    return [
        {"responses_create_params": {"input": [{"role": "user", "content": f"Frage {i}: ü"}]}, "id": i}
        for i in range(count)
    ]


def declare_rl_blend(folder: Path, options: dict[str, Any] | None = None, **changes: Any) -> BlendDeclaration:
    """Return a dataset with three splits, in two shards each."""
    write_rows(folder / "train-0.jsonl", make_rl_rows(11))
    write_rows(folder / "validation.jsonl.zst", make_rl_rows(4))
    write_rows(folder / "test.parquet", make_rl_rows(3))
    return declare_pretraining(
        folder,
        stage="rl",
        tokenizer=None,
        pretrain=None,
        rl=options or {"transforms": ["nemotron_rl"]},
        **{"blend": {"datasets": [{"name": "a", "path": str(folder)}]}, "num_shards": 2} | changes,
    )


def declare_weighted_records(folder: Path, weights: tuple[float, float], **changes: Any) -> BlendDeclaration:
    """Return an RL blend of 90 records of `code` and 60 of `web`."""
    write_small_sources(folder)
    entries = [{"name": n, "path": str(folder / n), "weight": w} for n, w in zip(("code", "web"), weights, strict=True)]
    settings = {"stage": "rl", "tokenizer": None, "pretrain": None, "blend": {"train": entries}, "num_shards": 2}
    return declare_pretraining(folder, **settings | changes)


def finish_rl_shards(blend: BlendDeclaration, root: Path) -> list[RlShard]:
    """Return the shards of a finished blend."""
    store = LocalArtifacts(root)
    plan = load_blend_plan(blend, store)
    return prepare_rl_shards(blend, store, plan, plan.partitions)


def check_rl_jsonl(work: RlShard) -> dict[str, Finding]:
    """Return the finding of every check of a shard."""
    return find_all(RL_JSONL_CHECKS, OpenedRecords.open, None, work)
