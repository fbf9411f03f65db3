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
from dataprep_assets.curation.retractions import hex_ids
from dataprep_assets.engine.checks.check import Finding, fail_on_errors, ledger_of, name_of, verdict
from dataprep_assets.errors import count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts, document_rows
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan
from dataprep_assets.tokenization.bundle import EncodingError, TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine

SAMPLED = 8
"""Maximum number of retracted documents per shard that are searched for by their tokens."""
SHORTEST = 8
"""Minimum length of a searched document in tokens, because shorter ones occur by chance."""
_NONE_LISTED = "No document of this dataset is retracted."
_AGAIN = "Materialize token_bins again to rebuild the affected shards"
_STAY = "This document has the same text, but was not retracted. Retract it as well to remove the text"
_WITHIN = (
    "Its text is at the end of a document that was not retracted. Retract that document as well to remove the text"
)


def retraction_finding(defects: Iterable[str], searched: str, listed: int, remedy: str) -> Finding:
    """Return the finding of an artifact that is compared only with the retraction list.

    Args:
        defects: Remains of retracted documents, one sentence each.
        searched: The searched objects, with their number: `3 splits`.
        listed: Number of ids on the list.
        remedy: What to do about a defect.
    """
    summary = f"No document of {searched} is on the list of {count_of(listed, 'id')}." if listed else _NONE_LISTED
    return verdict(defects, summary, remedy, facts={"listed": listed})


@fail_on_errors
def no_retracted_document(
    directory: Path, receipt: Receipt, plan: StreamPlan, files: Mapping[str, SourcePart], bundle: TokenizerBundle
) -> Finding:
    """Check that a shard has no document on the retraction list, and no tokens of a sample of the dropped documents.

    Copies that the list does not name are a warning. If a field provides ids, this is the same text under another id;
    otherwise it is another document that ends with the text.

    Args:
        directory: The shard's directory.
        receipt: The shard's receipt.
        plan: Everything that determines its stream, including the retraction list.
        files: Label of a source file → its part.
        bundle: The tokenizer.
    """
    facts, listed_ids = TokenBinsFacts.of(receipt), plan.retracted_ids
    if not len(listed_ids):
        defects = [f"{name_of(receipt)}: dropped documents that are on no retraction list"] if facts.retracted else []
        return verdict(defects, _NONE_LISTED, _AGAIN, facts={"retracted": 0})
    ids = open_ids(directory / IDS, ledger_of(receipt).documents)
    retracted_documents = np.flatnonzero(np.isin(ids, listed_ids))
    searched_documents = list(_sample(receipt, plan, files))
    remaining_defects = list(_find_left(directory, receipt, plan, retracted_documents))
    copies = list(_copies(directory, receipt, plan, bundle, searched_documents)) if searched_documents else []
    by_field = plan.ids is not None and plan.ids.id_field is not None
    # Defects named by the list must be removed; other copies are only a warning.
    listed_defects = (
        remaining_defects
        if by_field
        else [*remaining_defects, *(sentence for sentence, is_whole in copies if is_whole)]
    )
    unlisted_copies = [sentence for sentence, is_whole in copies if by_field or not is_whole]
    dropped_documents = sum(_count_retracted(line, files) for line in receipt.sources)
    return verdict(
        listed_defects or unlisted_copies,
        f"None of the {count_of(len(listed_ids), 'id')} on the list is among the {count_of(len(ids), 'document')}; "
        f"{len(searched_documents)} of {dropped_documents} dropped documents were searched for by their tokens.",
        _AGAIN if listed_defects else _STAY if by_field else _WITHIN,
        facts={"retracted": dropped_documents, "looked_for": len(searched_documents)},
        warning=not listed_defects,
    )


def _find_left(
    directory: Path, receipt: Receipt, plan: StreamPlan, held: Sequence[int] | NDArray[np.intp]
) -> Iterator[str]:
    """Yield retracted documents that are still in the shard, and dropped documents that are no longer retracted."""
    name = name_of(receipt)
    rows = document_rows(directory, receipt)
    for document in list(held)[:3]:
        file, row = rows.locate(int(document))
        yield (
            f"{name}: {receipt.sources[file]['file']}: row {row} is retracted and is document {document} of the shard"
        )
    if len(held) > 3:
        yield f"{name}: {count_of(len(held) - 3, 'more retracted document')}"
    stray = set(TokenBinsFacts.of(receipt).retracted) - set(hex_ids(plan.retracted_ids))
    if stray:
        yield f"{name}: dropped {count_of(len(stray), 'document')} that are no longer on the list"


def _copies(
    directory: Path,
    receipt: Receipt,
    plan: StreamPlan,
    bundle: TokenizerBundle,
    looked: Sequence[tuple[str, int, str]],
) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each dropped document whose tokens are still in the file.

    The second value is True if these tokens are a whole document of the shard.
    """
    name, rows, ends = name_of(receipt), document_rows(directory, receipt), document_ends.open_ends(directory / ENDS)
    reference = ReferenceEngine(bundle, plan.special_tokens)
    dtype = flat_bins.token_dtype(plan.dtype)
    before = [] if plan.bos_id is None else [plan.bos_id]
    after = [] if plan.separator_id is None else [plan.separator_id]
    for file_name, row, text in looked:
        try:
            tokens = [*before, *reference.encode([text])[0].tolist(), *after]
        except EncodingError:  # the tokenizer has no tokens for the text, so no document can contain it
            continue
        if len(tokens) < SHORTEST:
            continue
        document, is_whole = None, False
        for offset in _locate(directory / TOKENS, np.array(tokens, dtype).tobytes(), dtype.itemsize):
            candidate = int(np.searchsorted(ends, np.uint64(offset), side="right"))
            is_whole = (offset, offset + len(tokens)) == (
                int(ends[candidate - 1]) if candidate else 0,
                int(ends[candidate]),
            )
            # The first match is reported, unless a later one is a whole document.
            document = candidate if document is None or is_whole else document
            if is_whole:
                break
        if document is not None:
            file, other_row = rows.locate(document)
            sentence = (
                f"{name}: the tokens of {file_name}: row {row}, which is retracted, are in {TOKENS}, in "
                f"document {document}, {receipt.sources[file]['file']}: row {other_row}"
            )
            yield sentence, is_whole


def _sample(receipt: Receipt, plan: StreamPlan, files: Mapping[str, SourcePart]) -> Iterator[tuple[str, int, str]]:
    """Yield file, row and text of some retracted documents, from the first source file that had any."""
    selection, count = plan.selection, 0
    # Only one file is read, and only as far as the sample requires.
    line = next((line for line in receipt.sources if _count_retracted(line, files)), None)
    if line is None or (part := files.get(line["file"])) is None:
        return
    for block in part.read_records(plan.fields):
        documents = FileDocuments.from_block(block, plan.ids)
        for position in np.flatnonzero(selection.are_listed(documents)).tolist():
            yield part.label, int(documents.rows[position]), documents.texts[position]
            count += 1
            if count == SAMPLED:
                return


def _count_retracted(line: Mapping[str, Any], files: Mapping[str, SourcePart]) -> int:
    """Return how many documents of a source file were dropped as retracted, by the ledger and by the selection."""
    part = files.get(line["file"])
    selected = () if part is None or part.ruled_out is None else part.ruled_out.rows_of(part.label).why
    return int(line["dropped"].get(RETRACTED, 0)) + sum(reason == RETRACTED for reason in selected)


def _locate(path: Path, wanted: bytes, item: int) -> Iterator[int]:
    """Yield the item positions at which a file contains these bytes."""
    # The size is checked first, because an empty file cannot be mapped.
    if path.stat().st_size < len(wanted):
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        byte_offset = mapping.find(wanted)
        while byte_offset >= 0:
            # A match that begins within a token is not a match.
            if byte_offset % item == 0:
                yield byte_offset // item
            byte_offset = mapping.find(wanted, byte_offset + 1)


@fail_on_errors
def check_built_without(shards: Sequence[tuple[Path, Receipt]], listed: NDArray[np.uint64], whole: Receipt) -> Finding:
    """Check that the shards of combined bins contain no document on the retraction list.

    Args:
        shards: Directory, which contains the document index, and receipt of each shard, in order.
        listed: The ids on the list.
        whole: The receipt of the combined bins.
    """
    subject = f"its {count_of(len(shards), 'shard')}"
    return retraction_finding(
        _shards_with_retracted(shards, listed, whole),
        subject,
        len(listed),
        "Materialize token_bins, then combined_bins",
    )


def _shards_with_retracted(shards: Sequence[tuple[Path, Receipt]], listed: np.ndarray, whole: Receipt) -> Iterator[str]:
    for directory, receipt in shards:
        if whole.inputs.get(str(receipt.partition)) != receipt.content:
            yield f"{name_of(whole)}: built from a different content of {receipt.partition} than the current one"
        if len(listed):
            retracted_count = int(np.isin(open_ids(directory / IDS, ledger_of(receipt).documents), listed).sum())
            if retracted_count:
                yield f"{name_of(receipt)}: {retracted_count} of its documents are retracted"
