"""A blend's run as Megatron-Core reads it: builder, `IndexedDataset`, `GPTDataset`, `BlendedDataset`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets_tests.pipelines.blend.pipeline import SEPARATOR, finished, pretraining, small_sources, text_of
from dataprep_assets_tests.pipelines.corpus.shards import bundle, reference_ids
from dataprep_assets_tests.servers import free_port


def _theirs() -> Any:
    pytest.importorskip("torch")
    return pytest.importorskip("megatron.core.datasets.indexed_dataset")


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _theirs()
    folder = tmp_path_factory.mktemp("blend")
    held = {"valid": 1, "test": 1}
    return finished(pretraining(small_sources(folder / "s"), num_shards=4, held_out=held), folder / "out")[0]


def _prefixes(directory: Path) -> list[str]:
    value = json.loads((directory / "blend.json").read_bytes())
    return [prefix for split in ("train", "valid", "test") for prefix in value[split][1::2]]


def test_every_shard_is_what_megatrons_builder_writes(run_directory: Path, tmp_path: Path) -> None:
    theirs = _theirs()
    import torch

    for number, prefix in enumerate(_prefixes(run_directory)):
        dataset = theirs.IndexedDataset(prefix)
        builder = theirs.IndexedDatasetBuilder(str(tmp_path / f"{number}.bin"), dtype=dataset.index.dtype)
        for at in range(len(dataset)):
            document = dataset[at]
            builder.add_document(torch.from_numpy(document.astype(np.int64)), [len(document)])
        builder.finalize(str(tmp_path / f"{number}.idx"))
        for suffix in (".bin", ".idx"):
            assert (tmp_path / f"{number}{suffix}").read_bytes() == Path(prefix + suffix).read_bytes()


def test_indexed_datasets_hold_every_document_once(run_directory: Path) -> None:
    theirs = _theirs()
    eos = bundle().token(SEPARATOR, key="separator").id
    stored = []
    for prefix in _prefixes(run_directory):
        dataset = theirs.IndexedDataset(prefix)
        stored += [dataset[at].tolist() for at in range(len(dataset))]
    wanted = reference_ids([text_of(name, row) for name, count in (("code", 90), ("web", 60)) for row in range(count)])
    assert sorted(stored) == sorted([*ids, eos] for ids in wanted)


_TRAIN = """
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


def test_a_blended_dataset_draws_the_shares_that_were_asked(run_directory: Path, tmp_path: Path) -> None:
    """In a process of its own: Megatron wants a process group."""
    pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")
    eos = bundle().token(SEPARATOR, key="separator").id
    command = [sys.executable, "-c", _TRAIN, str(run_directory), str(eos), str(tmp_path / "cache"), str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["type"] == "BlendedDataset"
    assert found["counts"]["code"] / 400 == pytest.approx(0.75, abs=0.01)
    assert all(found["lengths"])
