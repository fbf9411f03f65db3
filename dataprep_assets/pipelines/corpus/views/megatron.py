"""Megatron-Core: `<split>.bin` and `<split>.idx` of an IndexedDataset."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dataprep_assets.errors import count_of
from dataprep_assets.formats import megatron
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, ViewFacts, ViewWriter


def _write(splits: Sequence[CombinedSplit], view: ViewWriter) -> None:
    for split in splits:
        view.link(split, f"{split.split}.bin")
        ends = split.open_ends(view.store)
        megatron.write_idx(view.target / f"{split.split}.idx", ends, dtype=split.facts.dtype)


def _defects(directory: Path, _: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        tokens, index = directory / f"{split.split}.bin", directory / f"{split.split}.idx"
        megatron.validate(tokens, index)
        sequences = len(megatron.read_idx(index).lengths)
        if sequences != split.documents:
            yield f"{index}: {count_of(sequences, 'sequence')} for {count_of(split.documents, 'document')}"


def _trainer(where: str, facts: ViewFacts) -> str:
    """Return Megatron-LM's options for the splits that it supports."""
    options = {"train": "train", "val": "valid", "valid": "valid", "validation": "valid", "test": "test"}
    arguments = [f"--{options[split]}-data-path {where}/{split}" for split in facts.splits if split in options]
    return "Megatron-LM: " + (" ".join(arguments) or f"--data-path {where}/{next(iter(facts.splits))}")


VIEW = CorpusView(
    name="megatron",
    description="`<split>.bin` and `<split>.idx` for Megatron-Core's IndexedDataset.",
    kinds=frozenset({"numpy", "megatron"}),
    linked=lambda split: f"{split}.bin",
    calls=lambda span, _: {"sequence": span.document},
    write=_write,
    defects=_defects,
    trainer=_trainer,
)
