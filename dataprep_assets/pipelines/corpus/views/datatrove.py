"""datatrove and nanotron: `<split>/<split>.ds` with its index and metadata."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dataprep_assets.formats import datatrove
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, ViewFacts, ViewWriter
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.token_shard import ENDS


def _build_linked_path(split: str) -> str:
    return f"{split}/{split}.ds"


def _write_view(splits: Sequence[CombinedSplit], view: ViewWriter) -> None:
    for split in splits:
        view.link(split, _build_linked_path(split.split))
        tokens = view.target / _build_linked_path(split.split)
        # Create the folder explicitly, because linking in object storage creates no local file.
        tokens.parent.mkdir(exist_ok=True)
        datatrove.write_sidecars(
            tokens,
            view.local(split, ENDS),
            tokens=split.token_count,
            dtype=split.facts.dtype,
            tokenizer=split.facts.tokenizer,
        )


def _find_defects(directory: Path, receipt: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        tokens = directory / _build_linked_path(split.split)
        datatrove.validate(tokens, dtype=split.facts.dtype)
        # Compare the ends with the combined bins, because `datatrove.validate` accepts any ends that do not decrease.
        if sha256_file(index := datatrove.build_index_path(tokens)) != split.receipt.file(ENDS).sha256:
            yield f"{index}: the document ends differ from combined_bins/{split.split}"
        metadata_bytes = datatrove.encode_metadata(
            split.token_count, split.facts.dtype, ViewFacts.from_receipt(receipt).tokenizer
        )
        if (path := datatrove.build_metadata_path(tokens)).read_bytes() != metadata_bytes:
            yield f"{path}: must have the lines: {'; '.join(metadata_bytes.decode().splitlines())}"


def _format_trainer_lines(location: str, facts: ViewFacts) -> str:
    path, width = f"{location}/{_build_linked_path(next(iter(facts.splits)))}", np.dtype(facts.dtype).itemsize
    return f"datatrove: DatatroveFileDataset({path!r}, seq_len=…, token_size={width})"


VIEW = CorpusView(
    name="datatrove",
    description="`<split>/<split>.ds` with index and metadata, for datatrove and nanotron.",
    kinds=frozenset({"numpy", "datatrove"}),
    linked=_build_linked_path,
    calls=lambda span, _: {"document": span.document},
    write=_write_view,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
