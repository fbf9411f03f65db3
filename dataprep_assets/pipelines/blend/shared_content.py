"""Content that several splits of a blend hold: the same document, sequence or record, wherever it came from.

Splits that share no file may share what is in the files: rows that a source holds twice, or that another one copied.
Compared are 64-bit hashes of what trainers read, one for each document (`pretrain`), sequence (`sft`) or line (`rl`).

Entry point: `shared_content`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.packed_sft import open_packed
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import Stage
from dataprep_assets.pipelines.blend.rl.rl_jsonl_proofs import lines_of
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackedSftFacts
from dataprep_assets.plural import count_of
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts

Hashes = NDArray[np.uint64]
_NOUNS: Mapping[Stage, str] = {"pretrain": "document", "sft": "sequence", "rl": "record"}


def shared_content(stage: Stage, splits: Mapping[str, Sequence[tuple[Path, Receipt]]]) -> list[str]:
    """A sentence for each split that holds content of another one, which names both and how much of it.

    `splits` has the directory and receipt of each shard that a split uses. Nothing is read of a single split.
    """
    used = {split: shards for split, shards in splits.items() if shards}
    if len(used) < 2:
        return []
    # the greatest is read last and never held: held-out splits are a small part of the data
    order = sorted(used, key=lambda split: sum(receipt.total_bytes for _, receipt in used[split]))
    held = {split: _unique([_hashes(stage, *shard) for shard in used[split]]) for split in order[:-1]}
    found = []
    for at, split in enumerate(order):
        for other in order[:at]:
            blocks = [held[split]] if split in held else (_hashes(stage, *shard) for shard in used[split])
            shared = _unique([block[np.isin(block, held[other])] for block in blocks]).size
            if shared:
                noun = _NOUNS[stage]
                share = f"{shared / held[other].size:.1%} of those of {other}"
                found.append(f"{count_of(shared, noun)} of {other} ({share}) are the same in {split}")
    return found


def _unique(blocks: Sequence[Hashes]) -> Hashes:
    return np.unique(np.concatenate([*blocks, np.zeros(0, np.uint64)]))


def _hashes(stage: Stage, directory: Path, receipt: Receipt) -> Hashes:
    contents = {"pretrain": _documents, "sft": _sequences, "rl": lines_of}[stage](directory, receipt)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, contents), np.uint64)


def _documents(directory: Path, receipt: Receipt) -> Iterator[Any]:
    tokens = flat_bins.open_tokens(directory / TOKENS, TokenBinsFacts.of(receipt).dtype)
    ends = document_ends.open_ends(directory / ENDS)
    yield from (tokens[start:stop].data for start, stop in pairwise([0, *ends.tolist()]))


def _sequences(directory: Path, receipt: Receipt) -> Iterator[Any]:
    if PackedSftFacts.of(receipt).empty:
        return
    for rows in open_packed(directory / PACKED):
        begins, ends = rows.sequence_bounds()
        yield from (rows.tokens[a:b].data for a, b in zip(begins.tolist(), ends.tolist(), strict=True))
