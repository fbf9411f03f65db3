"""Megatron-Core's own readers of a blend's run."""

import json
from pathlib import Path
from typing import Any

import pytest

TRAIN = """
import json, os, sys
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list

class Tokenizer:
    eod, pad, vocab_size = 0, 1, 4096
    unique_identifiers = {"class": "test"}

folder, eod = sys.argv[1], int(sys.argv[2])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4], RANK="0", WORLD_SIZE="1")
torch.distributed.init_process_group("gloo", rank=0, world_size=1)
value = json.load(open(f"{folder}/blend.json"))
config = GPTDatasetConfig(
    random_seed=1, sequence_length=32,
    blend_per_split=[get_blend_from_list(value[s]) for s in ("train", "valid", "test")],
    reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, path_to_cache=sys.argv[3],
    tokenizer=Tokenizer(),
)
built = BlendedMegatronDatasetBuilder(GPTDataset, [400, 40, 40], lambda: True, config).build()
train = built[0]
counts = {}
for index in range(400):
    prefix = train.datasets[train.dataset_index[index]].dataset.path_prefix
    name = prefix.split("/datasets/")[1].split("/")[0]
    counts[name] = counts.get(name, 0) + 1
    assert train[index]["tokens"].shape == (32,)
lengths = [len(d) if d is not None else None for d in built]
print(json.dumps({"type": type(train).__name__, "counts": counts, "lengths": lengths}))
"""
"""A program that trains on nothing, but draws from a run: arguments are its folder, the id that ends documents, a cache
folder and a free port; it prints what it drew as JSON."""


def megatron_datasets() -> Any:
    """Its module of indexed datasets; the test is skipped without it."""
    pytest.importorskip("torch")
    return pytest.importorskip("megatron.core.datasets.indexed_dataset")


def prefixes(directory: Path) -> list[str]:
    """The prefixes that `blend.json` of a run lists."""
    value = json.loads((directory / "blend.json").read_bytes())
    return [prefix for split in ("train", "valid", "test") for prefix in value[split][1::2]]
