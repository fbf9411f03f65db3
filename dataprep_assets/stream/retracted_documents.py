"""The check that no retracted document is left, by the document index and by the tokens of a sample.

A sample of the shard's dropped documents is read from the source again and encoded by the reference engine. The file
is then searched for their tokens. Other checks compare the downstream artifacts with the same stream: `matches_shards`
for combined bins, `matches_combined_bins` for views, and `matches_stream` for npy shards.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.retractions import format_ids
from dataprep_assets.engine.checks.check import (
    Finding,
    build_verdict,
    describe_artifact,
    fail_on_errors,
    require_ledger,
)
from dataprep_assets.errors import count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts, build_document_rows
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets.tokenization.library_errors import EncodingError

SAMPLED = 8
"""Maximum number of retracted documents per shard that are searched for by their tokens."""
SHORTEST = 8
"""Minimum length of a searched document in tokens, because shorter ones occur by chance."""
_NONE_LISTED = "No document of this dataset is retracted."
_AGAIN = "Run `dataprep run` to rebuild the affected shards"
_STAY = "This document has the same text, but was not retracted. Retract it as well to remove the text"
_WITHIN = (
    "Its text is at the end of a document that was not retracted. Retract that document as well to remove the text"
)


def build_retraction_finding(defects: Iterable[str], searched: str, listed_count: int, remedy: str) -> Finding:
    """Return the finding of an artifact that is compared only with the retraction list.

    Args:
        defects: Remains of retracted documents, one sentence each.
        searched: The searched objects, with their number: `3 splits`.
        listed_count: Number of ids on the list.
        remedy: What to do about a defect.
    """
    summary = (
        f"No document of {searched} is on the retraction list of {count_of(listed_count, 'id')}."
        if listed_count
        else _NONE_LISTED
    )
    return build_verdict(defects, summary, remedy, facts={"retracted_ids": listed_count})


@fail_on_errors
def no_retracted_document(
    directory: Path, receipt: Receipt, plan: StreamPlan, files: Mapping[str, SourcePart], bundle: TokenizerBundle
) -> Finding:
    """Check that a shard has no document on the retraction list, and no tokens of a sample of the dropped documents.

    Copies that the list does not name are a warning. If a field provides ids, such a copy is the same text under a
    different id. Otherwise, it is a different document that ends with the text.

    Args:
        directory: The shard's directory.
        receipt: The shard's receipt.
        plan: Everything that determines its stream, including the retraction list.
        files: Label of a source file → its part.
        bundle: The tokenizer.
    """
    facts, listed_ids = TokenBinsFacts.from_receipt(receipt), plan.retracted_ids
    if not len(listed_ids):
        defects = (
            [f"{describe_artifact(receipt)}: some dropped documents are on no retraction list"]
            if facts.retracted
            else []
        )
        return build_verdict(defects, _NONE_LISTED, _AGAIN, facts={"retracted": 0})
    ids = open_ids(directory / IDS, require_ledger(receipt).documents)
    retracted_documents = np.flatnonzero(np.isin(ids, listed_ids))
    searched_documents = list(_sample_documents(receipt, plan, files))
    remaining_defects = list(_find_retained(directory, receipt, plan, retracted_documents))
    copies = list(_find_copies(directory, receipt, plan, bundle, searched_documents)) if searched_documents else []
    by_field = plan.ids is not None and plan.ids.id_field is not None
    # If the ids are hashes of texts, a whole document with the tokens of a retracted document is a defect, because a
    # copy of a text has the same id. If the ids come from a field, it is only a warning, because a copy may have an id
    # that is not on the list. Tokens within a longer document are always only a warning, because that document has a
    # different text.
    listed_defects = (
        remaining_defects
        if by_field
        else [*remaining_defects, *(sentence for sentence, is_whole in copies if is_whole)]
    )
    unlisted_copies = [sentence for sentence, is_whole in copies if by_field or not is_whole]
    dropped_documents = sum(_count_retracted_documents(line, files) for line in receipt.sources)
    return build_verdict(
        listed_defects or unlisted_copies,
        f"Compared {count_of(len(ids), 'document')} with {count_of(len(listed_ids), 'id')} on the retraction list: no "
        f"match. {len(searched_documents):,} of {count_of(dropped_documents, 'dropped document')} "
        f"{'was' if len(searched_documents) == 1 else 'were'} searched for by tokens.",
        _AGAIN if listed_defects else _STAY if by_field else _WITHIN,
        facts={"retracted": dropped_documents, "documents_searched": len(searched_documents)},
        warning=not listed_defects,
    )


def _find_retained(
    directory: Path, receipt: Receipt, plan: StreamPlan, held_indices: Sequence[int] | NDArray[np.intp]
) -> Iterator[str]:
    """Yield retracted documents that are still in the shard, and dropped documents that are no longer retracted."""
    name = describe_artifact(receipt)
    rows = build_document_rows(directory, receipt)
    for document in list(held_indices)[:3]:
        file, row = rows.locate(int(document))
        yield (
            f"{name}: {receipt.sources[file]['file']}: row {row} is retracted, but is in the shard as "
            f"document {document}"
        )
    if len(held_indices) > 3:
        singular, plural = "more retracted document is in the shard", "more retracted documents are in the shard"
        yield f"{name}: {count_of(len(held_indices) - 3, singular, plural)}"
    stray = set(TokenBinsFacts.from_receipt(receipt).retracted) - set(format_ids(plan.retracted_ids))
    if stray:
        documents = count_of(len(stray), "document that is", "documents that are")
        yield f"{name}: dropped {documents} no longer on the retraction list"


def _find_copies(
    directory: Path,
    receipt: Receipt,
    plan: StreamPlan,
    bundle: TokenizerBundle,
    copies: Sequence[tuple[str, int, str]],
) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each dropped document whose tokens are still in the file.

    The second value is True if these tokens are a whole document of the shard.
    """
    name, rows, ends = (
        describe_artifact(receipt),
        build_document_rows(directory, receipt),
        document_ends.open_ends(directory / ENDS),
    )
    reference = ReferenceEngine(bundle, plan.special_tokens)
    dtype = flat_bins.token_dtype(plan.dtype)
    prefix = [] if plan.bos_id is None else [plan.bos_id]
    suffix = [] if plan.separator_id is None else [plan.separator_id]
    for file_name, row, text in copies:
        try:
            tokens = [*prefix, *reference.encode([text])[0].tolist(), *suffix]
        except EncodingError:  # the tokenizer has no tokens for the text, so no document can contain it
            continue
        if len(tokens) < SHORTEST:
            continue
        document, is_whole = None, False
        for offset in _find_positions(directory / TOKENS, np.array(tokens, dtype).tobytes(), dtype.itemsize):
            candidate = int(np.searchsorted(ends, np.uint64(offset), side="right"))
            is_whole = (offset, offset + len(tokens)) == (
                int(ends[candidate - 1]) if candidate else 0,
                int(ends[candidate]),
            )
            # Report the first match, unless a later match is a whole document.
            document = candidate if document is None or is_whole else document
            if is_whole:
                break
        if document is not None:
            file, other_row = rows.locate(document)
            sentence = (
                f"{name}: the tokens of the retracted row {row} of {file_name} are in {TOKENS}, in document {document} "
                f"(row {other_row} of {receipt.sources[file]['file']})"
            )
            yield sentence, is_whole


def _sample_documents(
    receipt: Receipt, plan: StreamPlan, files: Mapping[str, SourcePart]
) -> Iterator[tuple[str, int, str]]:
    """Yield file, row and text of some retracted documents, from the first source file with retracted documents."""
    selection, count = plan.selection, 0
    # Read only one file, and only as far as the sample requires, to keep the check short.
    line = next((line for line in receipt.sources if _count_retracted_documents(line, files)), None)
    if line is None or (part := files.get(line["file"])) is None:
        return
    for block in part.read_records(plan.fields):
        documents = FileDocuments.from_block(block, plan.ids)
        for position in np.flatnonzero(selection.find_listed(documents)).tolist():
            yield part.label, int(documents.rows[position]), documents.texts[position]
            count += 1
            if count == SAMPLED:
                return


def _count_retracted_documents(line: Mapping[str, Any], files: Mapping[str, SourcePart]) -> int:
    """Return how many documents of a source file the ledger and the selection list as dropped because retracted."""
    part = files.get(line["file"])
    selected = () if part is None or part.ruled_out is None else part.ruled_out.select_file(part.label).why
    return int(line["dropped"].get(RETRACTED, 0)) + sum(reason == RETRACTED for reason in selected)


def _find_positions(path: Path, digest: bytes, item: int) -> Iterator[int]:
    """Yield the item positions at which a file contains these bytes."""
    # Check the size first, because an empty file cannot be memory-mapped.
    if path.stat().st_size < len(digest):
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        byte_offset = mapping.find(digest)
        while byte_offset >= 0:
            # Skip a match that begins within a token, because its bytes belong to different tokens.
            if byte_offset % item == 0:
                yield byte_offset // item
            byte_offset = mapping.find(digest, byte_offset + 1)


@fail_on_errors
def check_built_without(
    shards: Sequence[tuple[Path, Receipt]], listed_hashes: NDArray[np.uint64], total_receipt: Receipt
) -> Finding:
    """Check that the shards of combined bins contain no document on the retraction list.

    Args:
        shards: Directory, which contains the document index, and receipt of each shard, in order.
        listed_hashes: The ids on the list.
        total_receipt: The receipt of the combined bins.
    """
    subject = f"its {count_of(len(shards), 'shard')}"
    return build_retraction_finding(
        _find_shards_with_retracted(shards, listed_hashes, total_receipt),
        subject,
        len(listed_hashes),
        "Rebuild token_bins, then combined_bins",
    )


def _find_shards_with_retracted(
    shards: Sequence[tuple[Path, Receipt]], listed_hashes: np.ndarray, total_receipt: Receipt
) -> Iterator[str]:
    for directory, receipt in shards:
        if total_receipt.inputs.get(str(receipt.partition)) != receipt.content:
            yield (f"{describe_artifact(total_receipt)}: was not built from the current version of {receipt.partition}")
        if len(listed_hashes):
            retracted_count = int(
                np.isin(open_ids(directory / IDS, require_ledger(receipt).documents), listed_hashes).sum()
            )
            if retracted_count:
                yield f"{describe_artifact(receipt)}: contains {count_of(retracted_count, 'retracted document')}"
