"""The check that a shard of conversations, pairs or records has no removed row.

Views need no such check, because `matches_run` compares them with the shards.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dataprep_assets.curation.retractions import format_ids
from dataprep_assets.engine.checks.check import (
    REBUILD,
    SHOWN,
    Finding,
    build_verdict,
    describe_artifact,
    fail_on_errors,
    require_ledger,
)
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.pipelines.blend.removal.row_ids import ROW_IDS, RowIndex, RowRetractions
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.document_ids import RowIds

MAX_SAMPLED = 8
"""Maximum number of rows per source file whose ids are computed again."""
ABOUT = "No removed row is left (checked by the rows' ids, and by computing a sample of them again)."
"""Description of the check that no retracted row is left."""


@fail_on_errors
def no_retracted_row(
    directory: Path, receipt: Receipt, retractions: RowRetractions, sources: Sequence[SourcePart], *, as_json: bool
) -> Finding:
    """Check that no row of a shard is on the retraction list, and that exactly the listed rows were removed.

    Args:
        directory: The shard's directory.
        receipt: The shard's receipt.
        retractions: The blend's retraction list, and the kind of its ids.
        sources: The shard's source files.
        as_json: Whether Parquet rows of the source files are read as JSON.
    """
    ledger, listed_hashes = require_ledger(receipt), retractions.hashes
    removed_count = ledger.dropped.get(RETRACTED, 0)
    if not len(listed_hashes):
        defects = [f"{describe_artifact(receipt)}: some removed rows are on no retraction list"] * bool(removed_count)
        return build_verdict(defects, "No row of this dataset is retracted.", REBUILD, facts={"retracted": 0})
    assert retractions.ids is not None, "a list needs ids"
    index = RowIndex.from_folder(directory, receipt)
    return build_verdict(
        _find_defects(index, receipt, retractions, sources, as_json=as_json),
        f"Compared {count_of(ledger.documents, 'kept row')} with {count_of(len(listed_hashes), 'id')} on the "
        f"retraction list: no match. {count_of(removed_count, 'row was', 'rows were')} removed.",
        REBUILD,
        facts={"retracted": removed_count},
    )


def _find_defects(
    index: RowIndex, receipt: Receipt, retractions: RowRetractions, sources: Sequence[SourcePart], *, as_json: bool
) -> Iterator[str]:
    name = describe_artifact(receipt)
    listed_lines = index.find_lines(retractions.hashes)
    kept_lines = listed_lines[index.are_kept[listed_lines]].tolist()
    for line in kept_lines[:SHOWN]:
        file, row = index.locate_row(line)
        yield f"{name}: {file}: row {row} is retracted, but is in the shard"
    if len(kept_lines) > SHOWN:
        singular, plural = "more retracted row is in the shard", "more retracted rows are in the shard"
        yield f"{name}: {count_of(len(kept_lines) - SHOWN, singular, plural)}"
    if (removed_count := require_ledger(receipt).dropped.get(RETRACTED, 0)) != len(listed_lines):
        yield (
            f"{name}: {count_of(removed_count, 'row was', 'rows were')} removed, but "
            f"{count_of(len(listed_lines), 'row')} in {ROW_IDS} {'is' if len(listed_lines) == 1 else 'are'} retracted"
        )
    listed_hashes = format_ids(np.unique(index.hashes[listed_lines]))
    if tuple(receipt.facts.get("retracted", ())) != listed_hashes:
        yield f"{name}: its receipt and {ROW_IDS} list different retracted ids"
    for source in sources:
        yield from _find_changed_ids(index, name, retractions.ids or RowIds(), source, as_json=as_json)


def _find_changed_ids(index: RowIndex, name: str, ids: RowIds, source: SourcePart, *, as_json: bool) -> Iterator[str]:
    """Yield a sentence for each sampled row of a source file whose id differs from the id in the index."""
    of_source = index.table[:, 0] == source.ordinal
    rows, hashes = index.table[of_source, 1], index.hashes[of_source]
    sample = np.unique(np.linspace(0, len(rows) - 1, min(MAX_SAMPLED, len(rows))).astype(np.intp))
    hash_of_row = dict(zip(rows[sample].tolist(), hashes[sample].tolist(), strict=True))
    for block in source.read_rows(only=hash_of_row.keys(), as_json=as_json) if hash_of_row else ():
        for number, row in zip(block.numbers, block.rows, strict=True):
            if hash_of_row.pop(number) != ids.hash_row(row):
                yield f"{name}: {source.label}: row {number} has a different id in {ROW_IDS}"
    for number in sorted(hash_of_row):
        yield f"{name}: {source.label}: row {number} is in {ROW_IDS}, but does not exist in the source"
