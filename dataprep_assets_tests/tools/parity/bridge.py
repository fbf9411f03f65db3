"""Read our packed rows with Megatron-Bridge's own dataset, and collate them into the tensors that a model is trained
on.

Its packed Parquet dataset is `data/packing/parquet.py`; its imports for other kinds of data are replaced by empty
modules. A row is equal if `validate_row` accepts it and its tokens, labels and loss mask are those of
docs/formats/packed-sft.md. Entry point: `compare`.
"""

import importlib
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, chat_plan
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.choices import PRESETS, ChatChoices
from dataprep_assets.tokenization.chat.template import SHIPPED, ChatTemplate
from dataprep_assets_tests.tools.parity.absent import bare_package, empty_module
from dataprep_assets_tests.tools.parity.conversations import SHAPES, rows
from dataprep_assets_tests.tools.parity.nemotron_sft import TOKENIZER
from dataprep_assets_tests.tools.parity.shards import packed
from dataprep_assets_tests.tools.parity.table import Row

_PROMPT = {"prompt_template": "{input} {output}", "label_key": "output", "truncation_field": "input"}
"""A tokenizer that its dataset requires but does not use with packed rows."""
PER_SHAPE, PACK_SIZE = 12, 512
_PACKAGES = ("", "data", "data.packing", "data.datasets", "training", "training.tokenizers", "utils")
_UNUSED = ("data.datasets.utils", "data.sft_processing", "data.token_utils", "training.tokenizers.tokenizer")


def compare(folder: Path) -> list[Row]:
    """Return a row for each preset. `folder` is a clone of NVIDIA-NeMo/Megatron-Bridge."""
    dataset = _dataset(folder / "src" / "megatron" / "bridge")
    found = []
    for like, choices in PRESETS.items():
        with tempfile.TemporaryDirectory() as scratch:
            given = [row for shape in SHAPES for row in rows(shape, PER_SHAPE)]
            path = packed(_plan(choices), given, Path(scratch) / "a")
            theirs = dataset(file_path=str(path.parent), tokenizer=_Tokenizer(), max_seq_length=PACK_SIZE, **_PROMPT)
            held = pq.read_table(path).to_pylist()
            assert len(theirs) == len(held)
            equal = sum(_is_taken(theirs, index, row) for index, row in enumerate(held))
            note = f"{sum(len(row['seq_start_id']) for row in held)} sequences, validated and collated"
            found.append(Row("packed rows in Bridge", f"like: {like}", len(held), equal, 0, note))
    with tempfile.TemporaryDirectory() as scratch:
        found.append(_padded(dataset, Path(scratch)))
    return found


def _padded(dataset: Any, scratch: Path) -> Row:
    """Return the table row of padded sequences: the batch of each row, with the boundaries for context parallelism."""
    multiple = 8
    given = [row for shape in SHAPES for row in rows(shape, PER_SHAPE)]
    path = packed(_plan(PRESETS["ours"]), given, scratch / "a", pad_to_multiple=multiple, pad_id=_Tokenizer.eos_id)
    options = {"max_seq_length": PACK_SIZE, "pad_seq_to_mult": multiple, "pad_to_max_length": True}
    theirs = dataset(file_path=str(path.parent), tokenizer=_Tokenizer(), **options, **_PROMPT)
    held = pq.read_table(path).to_pylist()
    equal = sum(
        _is_taken(theirs, index, row) and _is_aligned(theirs.collate_fn([theirs[index]]), row, multiple)
        for index, row in enumerate(held)
    )
    note = f"{sum(len(row['seq_start_id']) for row in held)} sequences, padded to multiples of {multiple} labels"
    return Row("padded rows in Bridge", f"pad_seq_to_mult={multiple}", len(held), equal, 0, note)


def _is_aligned(batch: dict[str, Any], row: dict[str, list[int]], multiple: int) -> bool:
    """Return whether the boundaries of a batch are ours, padded and not, and all padding is masked."""
    padded, bare = ([0], [0])
    for length, unpadded in zip(row["seq_lengths"], row["unpadded_lengths"], strict=True):
        padded.append(padded[-1] + length - 1)
        # The last token of a sequence is only a label, unless padding follows. Then it is an input as well.
        bare.append(bare[-1] + min(unpadded, length - 1))
    names = ("cu_seqlens_q", "cu_seqlens_q_padded", "padding_mask", "loss_mask")
    found = {name: batch[name][0].tolist() for name in names}
    positions = batch["position_ids"][0].tolist()
    wanted_positions = [i for start, stop in pairwise(padded) for i in range(stop - start)]
    return (
        found["cu_seqlens_q_padded"][: len(padded)] == padded
        and found["cu_seqlens_q"][: len(bare)] == bare
        and all(bound % multiple == 0 for bound in padded)
        and positions[: padded[-1]] == wanted_positions
        and not any(mask and loss for mask, loss in zip(found["padding_mask"], found["loss_mask"], strict=True))
    )


class _Tokenizer:
    """The part of a tokenizer that its dataset needs."""

    eos_id = bos_id = pad_id = 0


def _dataset(bridge: Path) -> Any:
    for name in _PACKAGES:
        bare_package(f"megatron.bridge.{name}".rstrip("."), bridge.joinpath(*name.split(".")))
    for name in _UNUSED:
        empty_module(f"megatron.bridge.{name}")
    return importlib.import_module("megatron.bridge.data.packing.parquet").GPTSFTPackedParquetDataset


def _plan(choices: ChatChoices) -> ChatPlan:
    bundle = TokenizerBundle.load(TOKENIZER)
    refused = refuse_engine(bundle, "text", "tokenizers", "a comparison")
    return chat_plan(
        bundle, refused, ChatTemplate.load(SHIPPED[0]), pack_size=PACK_SIZE, bad_rows="drop", choices=choices
    )


def _is_taken(dataset: Any, index: int, row: dict[str, list[int]]) -> bool:
    dataset.validate_row(index, row["input_ids"], row["loss_mask"], row["seq_start_id"])
    batch = dataset.collate_fn([dataset[index]])
    places = list(zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(row["input_ids"])], strict=True))
    wanted = {
        "tokens": [i for start, end in places for i in row["input_ids"][start : end - 1]],
        "labels": [i for start, end in places for i in row["input_ids"][start + 1 : end]],
        "loss_mask": [i for start, end in places for i in row["loss_mask"][start : end - 1]],
    }
    return all(batch[name][0].tolist()[: len(ids)] == ids for name, ids in wanted.items())
