"""Proofs about a view: the same token stream as the combined bins, in the layout that its trainer accepts."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from dataprep_assets.builds.corpus import View
from dataprep_assets.builds.views import CombinedSplit
from dataprep_assets.errors import DataprepError
from dataprep_assets.formats import datatrove, megatron, meta, olmo
from dataprep_assets.integrity.receipt import Receipt, damage
from dataprep_assets.proofs.finding import Finding, judged, name_of, verdict

_REMEDY = "Materialize the view again"


def token_path(view: View, split: str) -> str:
    """Where a view keeps a split's tokens, relative to its directory."""
    return {"datatrove": f"{split}/{split}.ds", "olmo": f"{split}.npy"}.get(view, f"{split}.bin")


@judged
def same_stream(directory: Path, receipt: Receipt, view: View, splits: Sequence[CombinedSplit]) -> Finding:
    """Every split's tokens in the view have the digest of the combined bins; all files are as the receipt says."""
    defects = [f"{name_of(receipt)}: {d}" for d in damage(directory, receipt)]
    for split in splits:
        ours, theirs = receipt.file(token_path(view, split.split)), split.tokens.record
        if ours.sha256 != theirs.sha256:
            defects.append(f"{name_of(receipt)}: {ours.path} is not the stream of combined_bins/{split.split}")
    tokens = sum(s.token_count for s in splits)
    return verdict(
        defects,
        f"{len(splits)} splits, {tokens} tokens, byte for byte the combined bins.",
        _REMEDY,
        facts={"tokens": tokens},
    )


@judged
def layout_valid(directory: Path, receipt: Receipt, view: View, splits: Sequence[CombinedSplit]) -> Finding:
    """The sidecars describe the token files exactly: every invariant of the format, recomputed."""
    return verdict(
        _invalid(directory, view, splits),
        f"The {view} layout is valid for {len(splits)} splits.",
        _REMEDY,
        facts={"files": len(receipt.files)},
    )


def _invalid(directory: Path, view: View, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        tokens = directory / token_path(view, split.split)
        dtype = str(split.receipt.facts["dtype"])
        documents = split.receipt.ledger.documents if split.receipt.ledger else 0
        try:
            if view == "nanogpt":
                meta.validate(directory)
                if meta.read_meta(directory)["dtype"] != dtype:
                    yield f"{directory / 'meta.json'}: dtype is not {dtype}, that of {split.split}"
            elif view == "megatron":
                megatron.validate(tokens, tokens.with_suffix(".idx"))
                held = len(megatron.read_idx(tokens.with_suffix(".idx")).lengths)
                if held != documents:
                    yield f"{tokens.with_suffix('.idx')}: {held} sequences for {documents} documents"
            elif view == "datatrove":
                datatrove.validate(tokens, dtype=dtype)
            else:
                olmo.validate(directory / f"{split.split}_index.json", directory)
        except (DataprepError, OSError, json.JSONDecodeError) as error:
            yield str(error)
