"""One rank of a templar miner, in a real process group: with the original's manager, or with ours in its place.

What it does with its manager are the lines of the original's `neurons/miner.py` and `neurons/trainer.py` themselves:
the start, what comes before the inner steps of a window, `set_dataloader`. The original fetches shards by its own
`Comms`, from an S3 server. The rest of a window, which needs a chain and a GPU, is one reading of the loader and one
more outer step.

`python -m dataprep_assets_tests.tools.parity.templar_rank PLAN.json RANK`; writes what it read of each step as JSON.
"""

import ast
import asyncio
import hashlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

LENGTH = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run from each of the `starts` to the outer step `steps`; `out` gets a file for each rank.

    The shards are in the folder `release`, which ours reads, and on the S3 server `endpoint`, for the upstream manager.
    """

    original: str
    release: str
    endpoint: str
    whose: str
    world_size: int
    starts: list[int]
    per_shard: int
    steps: int
    shards: int
    out: str

    def write(self, path: Path) -> Path:
        """Write the plan to a file for the processes."""
        path.write_text(json.dumps(asdict(self)))
        return path


class Chain:
    """A replacement of the upstream `ChainManager`, which needs a blockchain, with the attributes that `Comms`
    reads.
    """

    def __init__(self, config: Any, hparams: Any, wallet: Any, bucket: Any) -> None:
        self.config, self.hparams = config, hparams


def originals(folder: Path) -> Any:
    """Return the upstream package, reduced to the parts used here; `bittensor` and its chain are stubs."""
    tplr: Any = ModuleType("tplr")
    tplr.logger = logging.getLogger("tplr")
    tplr.__version__, tplr.T, tplr.P = "0", lambda: 0.0, lambda *_: ""
    stubs = {
        "tplr": tplr,
        "tplr.logging": SimpleNamespace(logger=tplr.logger),
        "tplr.chain": SimpleNamespace(ChainManager=Chain),
        "tplr.compress": SimpleNamespace(TopKCompressor=None, unpack_12bit_indices=None),
        "bittensor": SimpleNamespace(wallet=object),
    }
    sys.modules.update(stubs)  # type: ignore[arg-type]
    for name in ("config", "schemas", "comms", "sharded_dataset", "sharded_sampler"):
        spec = importlib.util.spec_from_file_location(f"tplr.{name}", folder / "src" / "tplr" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"tplr.{name}"] = module
        setattr(tplr, name, module)
        spec.loader.exec_module(module)
        # Set the names that the package's `__init__` exports.
        for exported in ("SharedShardedDataset", "MinerSampler"):
            if hasattr(module, exported):
                setattr(tplr, exported, getattr(module, exported))
    return tplr


def transport(tplr: Any, endpoint: str) -> Any:
    """Return the upstream `Comms`, with its own S3 client; only the host of R2 is replaced."""
    hparams = SimpleNamespace(active_check_interval=1, recent_windows=1)
    comms = tplr.comms.Comms(wallet=None, hparams=hparams, uid=os.getpid())
    comms.get_base_url = lambda account_id: endpoint
    return comms


def loop_of(folder: Path, tplr: Any) -> dict[str, Callable[[Any], Any]]:
    """Return `start(miner)`, `turn(miner)` and `set_dataloader(miner)`, taken from the upstream source lines."""
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
    """Return the reads of a miner at each step from `start` on."""
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


async def _mine(
    manager: Any, comms: Any, loop: dict[str, Callable[[Any], Any]], plan: Plan, rank: int, start: int
) -> list[Any]:
    try:
        return await mine(manager, loop, plan, rank, start)
    finally:
        if comms is not None:
            await comms.close_all_s3_clients()


def _digest(tokens: Any) -> str:
    return hashlib.sha256(tokens.numpy().astype("<u4").tobytes()).hexdigest()[:16]


def main(plan_path: str, rank: int) -> None:
    """Run a rank; see the module."""
    import torch.distributed as dist

    plan = Plan(**json.loads(Path(plan_path).read_text()))
    home = Path(plan.out)
    store = (home / "group").absolute().as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=plan.world_size)
    tplr = originals(Path(plan.original))
    loop, read = loop_of(Path(plan.original), tplr), {}
    for start in plan.starts:
        comms = None
        if plan.whose == "original":
            comms = transport(tplr, plan.endpoint)
            manager = tplr.sharded_dataset.ShardedDatasetManager(LENGTH, rank, plan.world_size, comms)
            manager.max_dataset_idx = plan.shards
        else:
            from dataprep_assets.serving.window.templar import ShardedDatasetManager

            manager = ShardedDatasetManager(
                LENGTH, rank, plan.world_size, None, release=plan.release, cache_dir=home / "shards"
            )
        read[start] = asyncio.run(_mine(manager, comms, loop, plan, rank, start))
        dist.barrier()
        if plan.whose != "original":
            manager.close()
    (home / f"rank-{rank}.json").write_text(json.dumps(read))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
