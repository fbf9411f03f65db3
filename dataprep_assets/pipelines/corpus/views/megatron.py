"""Megatron-Core: `<split>.bin` and `<split>.idx` of an IndexedDataset."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dataprep_assets.errors import count_of
from dataprep_assets.formats import megatron
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, ViewFacts, ViewWriter


def _write_view(splits: Sequence[CombinedSplit], view: ViewWriter) -> None:
    for split in splits:
        view.link(split, f"{split.split}.bin")
        ends = split.open_ends(view.store)
        megatron.write_idx(view.target / f"{split.split}.idx", ends, dtype=split.facts.dtype)


def _find_defects(directory: Path, _: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        tokens, index = directory / f"{split.split}.bin", directory / f"{split.split}.idx"
        megatron.validate(tokens, index)
        sequences = len(megatron.read_idx(index).lengths)
        if sequences != split.documents:
            documents = count_of(split.documents, "document")
            yield f"{index}: has {count_of(sequences, 'sequence')}, but {split.split} has {documents}"


_VALIDATION = frozenset({"val", "valid", "validation"})


def _format_trainer_lines(location: str, facts: ViewFacts) -> list[str]:
    """Return the options of Megatron-LM for the splits that it supports, and of MaxText, which reads the same files."""
    options = {"train": "train", **dict.fromkeys(_VALIDATION, "valid"), "test": "test"}
    arguments = [f"--{options[split]}-data-path {location}/{split}" for split in facts.splits if split in options]
    first_split = next(iter(facts.splits))
    files = [f"grain_train_files={location}/{first_split}"]
    files += [f"grain_eval_files={location}/{split}" for split in facts.splits if split in _VALIDATION - {first_split}][
        :1
    ]
    return [
        "Megatron-LM: " + (" ".join(arguments) or f"--data-path {location}/{first_split}"),
        # Set the option explicitly, because MaxText would otherwise put its own default id at the end of each document.
        f"MaxText: dataset_type=grain grain_file_type=mmap {' '.join(files)} mmap_eod_id={facts.eos_token_id}",
    ]


VIEW = CorpusView(
    name="megatron",
    description="`<split>.bin` and `<split>.idx`, for Megatron-Core's IndexedDataset.",
    kinds=frozenset({"numpy", "megatron"}),
    linked=lambda split: f"{split}.bin",
    calls=lambda span, _: {"sequence": span.document},
    write=_write_view,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
