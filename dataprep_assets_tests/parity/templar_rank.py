"""One rank of a templar trainer, in a real process group: with the original's manager, or with ours in its place.

`python -m dataprep_assets_tests.parity.templar_rank PLAN.json RANK`; writes what it read of each turn as JSON.
"""

import asyncio
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

LENGTH = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`turns` turns from shard `start` on, of `shards`; `out` gets a file for each rank."""

    original: str
    release: str
    whose: str
    world_size: int
    start: int
    turns: int
    shards: int
    out: str

    def write(self, path: Path) -> Path:
        """As a file for the processes."""
        path.write_text(json.dumps(asdict(self)))
        return path


class Comms:
    """The transport that the original's manager asks for files: out of the folder of the release."""

    def __init__(self, release: str) -> None:
        self._release = Path(release)

    def get_own_bucket(self, name: str, access: str) -> str:
        """The original only hands it back."""
        return f"{name}:{access}"

    async def s3_get_object(self, path: str, bucket: str, load_data: bool) -> None:
        """The object of this name, under it on the disk."""
        await asyncio.sleep(0)
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._release / target.name, target)


def originals(folder: Path) -> tuple[Any, Any]:
    """The original's manager and sampler, from its files, with its package reduced to what these two import of it."""
    tplr = ModuleType("tplr")
    tplr.logger = logging.getLogger("tplr")  # type: ignore[attr-defined]
    tplr.comms = SimpleNamespace(Comms=Comms)  # type: ignore[attr-defined]
    tplr.schemas = SimpleNamespace(Bucket=str)  # type: ignore[attr-defined]
    sys.modules["tplr"] = tplr
    found = []
    for name in ("sharded_dataset", "sharded_sampler"):
        spec = importlib.util.spec_from_file_location(f"tplr.{name}", folder / "src" / "tplr" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"tplr.{name}"] = module
        spec.loader.exec_module(module)
        if name == "sharded_dataset":
            tplr.SharedShardedDataset = module.SharedShardedDataset  # type: ignore[attr-defined]
        found.append(module)
    return found[0].ShardedDatasetManager, found[1].MinerSampler


async def train(manager: Any, sampler: Any, plan: Plan, rank: int) -> list[dict[str, Any]]:
    """What a miner does with its manager: initialize, then swap; and its sampler over each active dataset."""
    import torch.distributed as dist

    turns = []
    for turn in range(plan.turns):
        if turn == 0:
            await manager.initialize_datasets(plan.start)
        else:
            await manager.swap_datasets()
        dist.barrier()  # as the miner does after each of the two
        dataset = manager.active_dataset
        own = sampler(
            dataset=dataset,
            uid=7,
            window=plan.start + turn,
            steps_per_window=2,
            micro_bs=1,
            batch_size=4,
            target_batch_size=4,
            rank=rank,
            world_size=plan.world_size,
        )
        read = [[k, dataset.sample_id(k), _digest(dataset[k])] for k in own]
        whole = [_digest(dataset[k]) for k in range(len(dataset))]
        turns.append({"samples": len(dataset), "read": read, "whole": whole})
    return turns


def _digest(tokens: Any) -> str:
    return hashlib.sha256(tokens.numpy().astype("<u4").tobytes()).hexdigest()[:16]


def main(plan_path: str, rank: int) -> None:
    """See the module."""
    import torch.distributed as dist

    plan = Plan(**json.loads(Path(plan_path).read_text()))
    home = Path(plan.out)
    store = (home / "group").absolute().as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=plan.world_size)
    original, sampler = originals(Path(plan.original))
    os.environ["DATASET_BINS_PATH"] = str(home / "shards")
    if plan.whose == "original":
        manager = original(LENGTH, rank, plan.world_size, Comms(plan.release))
        manager.max_dataset_idx = plan.shards
    else:
        from dataprep_assets.serving.templar import ShardedDatasetManager

        manager = ShardedDatasetManager(
            LENGTH, rank, plan.world_size, None, release=plan.release, cache_dir=home / "shards"
        )
    turns = asyncio.run(train(manager, sampler, plan, rank))
    (home / f"rank-{rank}.json").write_text(json.dumps(turns))
    dist.barrier()
    if plan.whose != "original":
        manager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
