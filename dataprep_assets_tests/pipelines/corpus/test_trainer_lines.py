"""The line for the trainer of each view, with which a run and `dataprep show` end."""

import pytest

from dataprep_assets.pipelines.corpus.view import ViewFacts, view_named
from dataprep_assets.pipelines.corpus.views import VIEWS


def line(name: str, *splits: str, dtype: str = "uint16") -> str:
    """The line of a view in `/made`."""
    facts = ViewFacts(
        view=name, splits=dict.fromkeys(splits, 10), dtype=dtype, tokenizer="t", vocab_size=9, eos_token_id=0
    )
    return view_named(name).trainer("/made", facts)


@pytest.mark.parametrize("name", list(VIEWS))
def test_it_names_the_trainer_and_the_place(name: str) -> None:
    trainer, _, told = line(name, "train", "val").partition(": ")
    assert trainer
    assert "/made" in told
    assert "\n" not in told


def test_megatron_gets_an_option_for_each_split_that_it_knows() -> None:
    assert line("megatron", "train", "val", "test", "held") == (
        "Megatron-LM: --train-data-path /made/train --valid-data-path /made/val --test-data-path /made/test"
    )
    assert line("megatron", "web") == "Megatron-LM: --data-path /made/web"


@pytest.mark.parametrize(("dtype", "width"), [("uint16", 2), ("uint32", 4)])
def test_readers_that_take_the_width_from_their_caller_are_told_it(dtype: str, width: int) -> None:
    assert line("datatrove", "train", dtype=dtype) == (
        f"datatrove: DatatroveFileDataset('/made/train/train.ds', seq_len=…, token_size={width})"
    )
    assert f"dtype=NumpyDatasetDType.{dtype}" in line("olmo", "train", dtype=dtype)
    # unmodified nanoGPT reads 16 bits, and would train on wrong ids without an error
    assert ("np.uint32" in line("nanogpt", "train", dtype=dtype)) == (dtype == "uint32")
