"""The line for the trainer of each view, with which a run and `dataprep show` end."""

import pytest

from dataprep_assets.pipelines.corpus.view import ViewFacts, load_corpus_view
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets_tests.messages import assert_names


def lines(name: str, *splits: str, dtype: str = "uint16") -> list[str]:
    """The lines of a view in `/made`."""
    facts = ViewFacts(
        view=name, splits=dict.fromkeys(splits, 10), dtype=dtype, tokenizer="t", vocab_size=9, eos_token_id=0
    )
    found = load_corpus_view(name).trainer("/made", facts)
    return [found] if isinstance(found, str) else list(found)


def line(name: str, *splits: str, dtype: str = "uint16") -> str:
    """The first line of a view in `/made`."""
    return lines(name, *splits, dtype=dtype)[0]


@pytest.mark.parametrize("name", list(VIEWS))
def test_it_names_the_trainer_and_the_place(name: str) -> None:
    for one in lines(name, "train", "val"):
        trainer, _, told = one.partition(": ")
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
    # The line mentions np.uint32 for 32-bit ids, because unmodified nanoGPT reads 16-bit ids, and would train on wrong
    # ids without an error.
    assert ("np.uint32" in line("nanogpt", "train", dtype=dtype)) == (dtype == "uint32")


def test_maxtext_and_torchtitan_get_a_line() -> None:
    assert lines("megatron", "train", "val", "test")[1] == (
        "MaxText: dataset_type=grain grain_file_type=mmap grain_train_files=/made/train grain_eval_files=/made/val "
        "mmap_eod_id=0"
    )
    assert lines("megatron", "valid")[1].endswith("grain_train_files=/made/valid mmap_eod_id=0")
    assert_names(lines("hf_parquet", "train", "val")[1], "torchtitan", "path='/made', split='train'")
