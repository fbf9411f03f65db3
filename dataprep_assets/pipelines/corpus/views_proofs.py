"""Proofs about a view: the same token stream as the combined bins, in the layout that its trainer accepts."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import DataprepError
from dataprep_assets.formats import datatrove, hf_parquet, mds, megatron, meta, olmo
from dataprep_assets.graph.finding import Finding, judged, name_of, verdict
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, damage
from dataprep_assets.pipelines.corpus.declaration import View
from dataprep_assets.pipelines.corpus.views import COPIED, CombinedSplit

_REMEDY = "Materialize the view again"


def token_path(view: View, split: str) -> str:
    """Where a view that links a split's tokens keeps them, relative to its directory."""
    return {"datatrove": f"{split}/{split}.ds", "olmo": f"{split}.npy"}.get(view, f"{split}.bin")


@judged
def same_stream(
    directory: Path, receipt: Receipt, view: View, splits: Sequence[CombinedSplit], store: ArtifactStore
) -> Finding:
    """Every split's tokens in the view are those of the combined bins; all files are as the receipt says.

    Linked tokens by their digest; copied ones id by id, with the documents where the view has any.
    """
    defects = [f"{name_of(receipt)}: {d}" for d in damage(directory, receipt)]
    tokens = sum(s.token_count for s in splits)
    if view in COPIED:
        if not defects:  # what has other bytes than it was committed with need not be readable
            defects += [f"{name_of(receipt)}: {d}" for s in splits for d in _other_ids(directory, view, s, store)]
        how = "id for id"
    else:
        how = "byte for byte"
        defects += _other_files(receipt, view, splits)
    return verdict(
        defects,
        f"{len(splits)} splits, {tokens} tokens, {how} the combined bins.",
        _REMEDY,
        facts={"tokens": tokens},
    )


def _other_files(receipt: Receipt, view: View, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        ours, theirs = receipt.file(token_path(view, split.split)), split.tokens.record
        if ours.sha256 != theirs.sha256:
            yield f"{name_of(receipt)}: {ours.path} is not the stream of combined_bins/{split.split}"


def _other_ids(directory: Path, view: View, split: CombinedSplit, store: ArtifactStore) -> Iterator[str]:
    """The first difference between a copy and the combined bins, if there is one."""
    wanted, ends = split.open_tokens(store), split.open_ends(store)
    token = document = 0
    try:
        for ids, lengths in _copied(directory, view, split.split):
            same = wanted[token : token + len(ids)]
            if len(same) < len(ids) or (wrong := np.flatnonzero(ids != same)).size:
                at = len(same) if len(same) < len(ids) else int(wrong[0])
                yield f"{split.split}: token {token + at} is not that of combined_bins"
                return
            held = token + np.cumsum(lengths)
            if not np.array_equal(held, ends[document : document + len(held)].astype(np.int64)):
                yield f"{split.split}: documents from number {document} on do not end where those of combined_bins do"
                return
            token, document = token + len(ids), document + len(held)
    except DataprepError as error:
        yield str(error)
        return
    if view == "hf_parquet" and (token, document) != (len(wanted), len(ends)):
        yield f"{split.split}: {document} documents, {token} tokens; combined_bins has {len(ends)}, {len(wanted)}"


def _copied(directory: Path, view: View, split: str) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """The ids of a copy in order, with the lengths of documents; none where the view keeps no documents."""
    if view == "hf_parquet":
        yield from hf_parquet.read_blocks(directory, split)
    else:
        for samples in mds.read_blocks(directory / split):
            yield samples.reshape(-1), np.zeros(0, np.int64)


@judged
def layout_valid(directory: Path, receipt: Receipt, view: View, splits: Sequence[CombinedSplit]) -> Finding:
    """The sidecars describe the token files exactly: every invariant of the format, recomputed."""
    return verdict(
        _invalid_copy(directory, receipt, view, splits) if view in COPIED else _invalid(directory, view, splits),
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


def _invalid_copy(directory: Path, receipt: Receipt, view: View, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    """Every invariant of MDS or of the Parquet files and their card; as many samples, or rows, as there should be."""
    try:
        if view == "hf_parquet":
            wanted = {s.split: s.receipt.ledger.documents if s.receipt.ledger else 0 for s in splits}
            if (rows := hf_parquet.validate(directory)) != wanted:
                yield f"{directory}: {rows} rows for {wanted} documents"
            return
        for split in splits:
            length, left_out = receipt.facts["sequence_length"], receipt.facts["tokens_left_out"][split.split]
            samples = mds.validate(directory / split.split)
            if samples * length + left_out != split.token_count or left_out >= length:
                yield (
                    f"{directory / split.split}: {samples} samples of {length} and {left_out} tokens left out are not "
                    f"{split.token_count} tokens"
                )
    except (DataprepError, OSError, LookupError, TypeError) as error:
        yield str(error)
