"""One rank of a templar miner, in a real process group: with the original's manager, or with ours in its place.

What it does with its manager are the lines of the original's `neurons/miner.py` and `neurons/trainer.py` themselves:
the start, what comes before the inner steps of a window, `set_dataloader`. The rest of a window, which needs a chain
and a GPU, is one reading of the loader and one more outer step.

`python -m dataprep_assets_tests.parity.templar_rank PLAN.json RANK`; writes what it read of each step as JSON.
"""

import ast
import asyncio
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

LENGTH = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run from each of the `starts` to the outer step `steps`; `out` gets a file for each rank."""

    original: str
    release: str
    whose: str
    world_size: int
    starts: list[int]
    per_shard: int
    steps: int
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
    """The original's manager, and its package reduced to what its files import of it here."""
    tplr = ModuleType("tplr")
    tplr.logger = logging.getLogger("tplr")  # type: ignore[attr-defined]
    tplr.comms = SimpleNamespace(Comms=Comms)  # type: ignore[attr-defined]
    tplr.schemas = SimpleNamespace(Bucket=str)  # type: ignore[attr-defined]
    tplr.T, tplr.P = lambda: 0.0, lambda *_: ""  # type: ignore[attr-defined]
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
    tplr.MinerSampler = found[1].MinerSampler  # type: ignore[attr-defined]
    return found[0].ShardedDatasetManager, tplr


def loop_of(folder: Path, tplr: Any) -> dict[str, Callable[[Any], Any]]:
    """`start(miner)`, `turn(miner)` and `set_dataloader(miner)`, out of the original's own lines."""
    import torch

    run = next(node for node in _nodes(folder / "neurons" / "miner.py") if getattr(node, "name", "") == "run")
    start = [
        node for node in ast.walk(run) if isinstance(node, ast.Assign) and "initialize_datasets" in ast.unparse(node)
    ]
    shard = [
        node
        for node in ast.walk(run)
        if isinstance(node, ast.Assign) and "current_shard" in ast.unparse(node.targets[0])
    ]
    turn = [node for node in ast.walk(run) if isinstance(node, ast.If) and "swap_datasets" in ast.unparse(node)]
    loader = [
        node for node in _nodes(folder / "neurons" / "trainer.py") if getattr(node, "name", "") == "set_dataloader"
    ]
    assert [len(found) for found in (shard, start, turn, loader)] == [1, 1, 1, 1], "the original's loop is another one"
    names: dict[str, Any] = {
        "tplr": tplr,
        "torch": torch,
        "dist_helper": SimpleNamespace(safe_barrier=lambda *_: torch.distributed.barrier()),
        "step_window": 0,
    }
    for name, body in (("start", [shard[0], start[0]]), ("turn", turn)):
        lines = "".join(f"\n{ast.unparse(node)}" for node in body).replace("\n", "\n    ")
        exec(f"async def {name}(self):{lines}\n", names)
    exec(ast.unparse(loader[0]), names)
    return names


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


async def mine(manager: Any, loop: dict[str, Callable[[Any], Any]], plan: Plan, rank: int, start: int) -> list[Any]:
    """What a miner reads at each step from `start` on."""
    import torch.distributed as dist

    miner = SimpleNamespace(
        dataset_manager=manager,
        global_step=start,
        outer_steps_per_shard=plan.per_shard,
        rank=rank,
        local_rank=rank,
        world_size=plan.world_size,
        uid=7,
        current_window=start,
        hparams=SimpleNamespace(
            inner_steps=2, micro_batch_size=1, batch_size=4, target_batch_size=4, sequence_length=LENGTH
        ),
    )
    miner.set_dataloader = lambda: loop["set_dataloader"](miner)
    await loop["start"](miner)
    dist.barrier()
    miner.set_dataloader()
    steps = []
    while miner.global_step < plan.steps:
        miner.sampler.set_window_uid(miner.uid, miner.current_window)
        await loop["turn"](miner)
        dataset = manager.active_dataset
        own = list(miner.sampler)
        read = [[k, dataset.sample_id(k), _digest(batch[0])] for k, batch in zip(own, miner.loader, strict=True)]
        whole = [_digest(dataset[k]) for k in range(len(dataset))]
        steps.append({"samples": len(dataset), "read": read, "whole": whole})
        miner.global_step += 1
        miner.current_window += 1
    return steps


def _digest(tokens: Any) -> str:
    return hashlib.sha256(tokens.numpy().astype("<u4").tobytes()).hexdigest()[:16]


def main(plan_path: str, rank: int) -> None:
    """See the module."""
    import torch.distributed as dist

    plan = Plan(**json.loads(Path(plan_path).read_text()))
    home = Path(plan.out)
    store = (home / "group").absolute().as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=plan.world_size)
    original, tplr = originals(Path(plan.original))
    loop, read = loop_of(Path(plan.original), tplr), {}
    os.environ["DATASET_BINS_PATH"] = str(home / "shards")
    for start in plan.starts:
        if plan.whose == "original":
            manager = original(LENGTH, rank, plan.world_size, Comms(plan.release))
            manager.max_dataset_idx = plan.shards
        else:
            from dataprep_assets.serving.templar import ShardedDatasetManager

            manager = ShardedDatasetManager(
                LENGTH, rank, plan.world_size, None, release=plan.release, cache_dir=home / "shards"
            )
        read[start] = asyncio.run(mine(manager, loop, plan, rank, start))
        dist.barrier()
        if plan.whose != "original":
            manager.close()
    (home / f"rank-{rank}.json").write_text(json.dumps(read))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
