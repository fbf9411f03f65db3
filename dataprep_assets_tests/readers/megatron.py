"""Use Megatron-Core on pairs of `.bin` and `.idx`: its builder, its indexed dataset and its training datasets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets_tests.readers.families import MEGATRON
from dataprep_assets_tests.readers.process import in_process_of

Documents = list[npt.NDArray[Any]]


@in_process_of(MEGATRON)
def build_pair(prefix: Path, documents: Documents, dtype: str) -> None:
    """Write the pair of a prefix with `IndexedDatasetBuilder`; `dtype` is the NumPy type of the stored ids."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type)
    for document in documents:
        builder.add_document(document, [document.size])
    builder.finalize(f"{prefix}.idx")


@in_process_of(MEGATRON)
def rewrite(prefix: Path, target: Path) -> None:
    """Read a pair and write each of its documents to another pair, with Megatron's builder."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    dataset = IndexedDataset(str(prefix))
    builder = IndexedDatasetBuilder(f"{target}.bin", dtype=dataset.index.dtype)
    for at in range(len(dataset)):
        document = dataset[at]
        builder.add_document(torch.from_numpy(document.astype(np.int64)), [len(document)])
    builder.finalize(f"{target}.idx")


@in_process_of(MEGATRON)
def indexed_documents(prefix: Path, *, mmap: bool = True) -> tuple[Documents, list[int]]:
    """Return all documents of an `IndexedDataset`, copied, and its document indices."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(prefix), mmap=mmap)
    return [np.array(dataset[at]) for at in range(len(dataset))], dataset.document_indices.tolist()


@in_process_of(MEGATRON)
def read_documents(prefix: Path, which: list[int]) -> Documents:
    """Return some documents of an `IndexedDataset`, copied."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    # Copy the documents, because Megatron's dataset unmaps the file when it is deleted, which would invalidate its
    # arrays.
    dataset = IndexedDataset(str(prefix))
    return [np.array(dataset[at]) for at in which]


@in_process_of(MEGATRON)
def train_samples(prefix: Path, documents: int, cache: Path, *, length: int, eod: int) -> dict[str, npt.NDArray[Any]]:
    """Every sample of a `GPTDataset` over a pair.

    Args:
        prefix: Path of the pair without its suffix.
        documents: Number of documents in it.
        cache: Folder for Megatron's index files.
        length: Tokens of a sample.
        eod: Id of the separator; the pad id is the one after it.

    Returns:
        `tokens` and `labels` of shape `(samples, length)`, with the dataset's `document_index` and `shuffle_index`.
    """
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        """The part of a tokenizer that `GPTDataset` needs."""

        pad = eod + 1
        vocab_size = 1 << 31
        unique_identifiers: dict[str, str] = {"class": "test"}  # noqa: RUF012

    Tokenizer.eod = eod  # type: ignore[attr-defined]
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=length,
        blend=([str(prefix)], None),
        split="1,0,0",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        path_to_cache=str(cache),
        tokenizer=Tokenizer(),
    )
    low = IndexedDataset(str(prefix))
    dataset = GPTDataset(low, str(prefix), np.arange(documents, dtype=np.int32), None, Split.train, config)
    samples = [dataset[at] for at in range(len(dataset))]
    return {
        "tokens": np.stack([sample["tokens"].numpy() for sample in samples]),
        "labels": np.stack([sample["labels"].numpy() for sample in samples]),
        "document_index": np.array(dataset.document_index),
        "shuffle_index": np.array(dataset.shuffle_index),
    }


@in_process_of(MEGATRON)
def blend_from_list(blend: Any) -> Any:
    """Return the result of `get_blend_from_list` for a split's value."""
    from megatron.core.datasets.utils import get_blend_from_list

    return get_blend_from_list(blend)


@in_process_of(MEGATRON)
def drawn_from_blend(directory: Path, draws: int, cache: Path) -> dict[str, Any]:
    """What training on a blend's run draws, with the `BlendedMegatronDatasetBuilder` of a group of one process.

    Args:
        directory: The folder of `blend.json`, with the data sets below it.
        draws: Samples of the train split to draw; a tenth of it from each of the others.
        cache: Folder for Megatron's index files.

    Returns:
        `type` of the train data set, `counts` of samples by data set, and `lengths` of the three splits (None: none).
    """
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import get_blend_from_list

    class Tokenizer:
        """The part of a tokenizer that `GPTDataset` needs."""

        eod, pad, vocab_size = 0, 1, 4096
        unique_identifiers: dict[str, str] = {"class": "test"}  # noqa: RUF012

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        value = json.loads((directory / "blend.json").read_bytes())
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=32,
            blend_per_split=[get_blend_from_list(value[split]) for split in ("train", "valid", "test")],
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            path_to_cache=str(cache),
            tokenizer=Tokenizer(),
        )
        sizes = [draws, draws // 10, draws // 10]
        built = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
        train = built[0]
        counts: dict[str, int] = {}
        for index in range(draws):
            prefix = train.datasets[train.dataset_index[index]].dataset.path_prefix
            name = prefix.split("/datasets/")[1].split("/")[0]
            counts[name] = counts.get(name, 0) + 1
            assert train[index]["tokens"].shape == (32,)
        lengths = [len(dataset) if dataset is not None else None for dataset in built]
        return {"type": type(train).__name__, "counts": counts, "lengths": lengths}
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def opened_schedule(
    weights: list[int], prefixes: list[str], samples: int, cache: Path, *, length: int, tokenizer: dict[str, str]
) -> Iterator[Any]:
    """The train split that Megatron-LM opens with `--train-data-path` and `--train-samples`, in a group of one process.

    Args:
        weights: Weight of each data set.
        prefixes: Prefix of each pair.
        samples: Samples of the run.
        cache: Folder for Megatron's index files.
        length: Tokens of a sample.
        tokenizer: `unique_identifiers` of the tokenizer.
    """
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import get_blend_from_list

    class Tokenizer:
        """The part of a tokenizer that `GPTDataset` needs, without its own padding."""

        eod, vocab_size = 0, 4096
        unique_identifiers = tokenizer

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        given = [part for pair in zip(map(str, weights), prefixes, strict=True) for part in pair]
        config = GPTDatasetConfig(
            random_seed=1234,
            sequence_length=length,
            blend_per_split=[get_blend_from_list(given if len(prefixes) > 1 else prefixes), None, None],
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
            path_to_cache=str(cache),
            tokenizer=Tokenizer(),
        )
        yield BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
    finally:
        torch.distributed.destroy_process_group()


@in_process_of(MEGATRON)
def scheduled(
    weights: list[int], prefixes: list[str], samples: int, cache: Path, which: list[int], *, length: int,
    tokenizer: dict[str, str], may_build: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Samples of the train split, opened as by `opened_schedule`.

    Args:
        weights: Weight of each data set.
        prefixes: Prefix of each pair.
        samples: Samples of the run.
        cache: Folder for Megatron's index files.
        which: Numbers of the samples.
        length: Tokens of a sample.
        tokenizer: `unique_identifiers` of the tokenizer.
        may_build: Whether index files may be built; else it is an error.

    Returns:
        `tokens`, `labels` and `loss_mask` of shape `(samples, length)`, `type` and `length` of the data set.
    """
    from megatron.core.datasets import gpt_dataset, helpers

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("an index is built")

    kept = [
        (helpers, "build_sample_idx"), (helpers, "build_blending_indices"), (gpt_dataset, "_build_document_index"),
        (gpt_dataset, "_build_shuffle_index"),
    ]  # fmt: skip
    originals = [getattr(module, name) for module, name in kept]
    if not may_build:
        for module, name in kept:
            setattr(module, name, refused)
    try:
        with opened_schedule(weights, prefixes, samples, cache, length=length, tokenizer=tokenizer) as train:
            drawn = [train[number] for number in which]
            stacked = {
                name: np.stack([one[name].numpy() for one in drawn]) if drawn else np.empty(0)
                for name in ("tokens", "labels", "loss_mask")
            }
            return {**stacked, "type": type(train).__name__, "length": len(train)}
    finally:
        for (module, name), original in zip(kept, originals, strict=True):
            setattr(module, name, original)
