"""OLMo-core and MaxText's olmo_grain: `<split>.npy`, headerless, with an index."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.engine.trace.place import DocumentSpan
from dataprep_assets.errors import count_of
from dataprep_assets.formats import olmo
from dataprep_assets.formats.olmo import TokenFile
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, ViewFacts, ViewWriter


def _write_view(splits: Sequence[CombinedSplit], view: ViewWriter) -> None:
    for split in splits:
        view.link(split, f"{split.split}.npy")
        index = _build_index(split, view.corpus.olmo_sequence_length, split.facts.tokenizer)
        olmo.write_index(view.target / f"{split.split}_index.json", index)


def _build_index(split: CombinedSplit, length: int, tokenizer: str) -> dict[str, Any]:
    file = TokenFile(f"{split.split}.npy", split.split, split.token_count)
    return olmo.build_index([file], length, split.facts.dtype, tokenizer)


def _read_declared_length(receipt: Receipt) -> int:
    """Return the sequence length that was declared when the view was built."""
    length: int = receipt.recipe["settings"]["olmo_sequence_length"]
    return length


def _find_defects(directory: Path, receipt: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    length, tokenizer = _read_declared_length(receipt), ViewFacts.from_receipt(receipt).tokenizer
    for split in splits:
        path = directory / f"{split.split}_index.json"
        olmo.validate(path, directory, sequence_length=length)
        if json.loads(path.read_bytes()) != _build_index(split, length, tokenizer):
            yield f"{path}: does not match split {split.split}, divided into instances of {count_of(length, 'token')}"


def _locate_instances(span: DocumentSpan, receipt: Receipt) -> Mapping[str, int | list[int]]:
    """Return the numbers of OLMo-core's instances (consecutive windows of the declared length) that overlap a span."""
    length = _read_declared_length(receipt)
    return {"instances": list(range(span.start // length, (span.stop - 1) // length + 1))}


def _format_trainer_lines(location: str, facts: ViewFacts) -> str:
    paths = [f"{location}/{next(iter(facts.splits))}.npy"]
    return f"OLMo-core: NumpyFSLDatasetConfig(paths={paths}, dtype=NumpyDatasetDType.{facts.dtype}, …)"


VIEW = CorpusView(
    name="olmo",
    description="`<split>.npy` (without a header) and an index, for OLMo-core and MaxText's `olmo_grain`.",
    kinds=frozenset({"numpy", "olmo"}),
    settings=("olmo_sequence_length",),
    linked=lambda split: f"{split}.npy",
    calls=_locate_instances,
    write=_write_view,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
