"""The checks of one shard of token bins: `tokens.bin`, `document_ends.bin`, `quarantine.jsonl` and the receipt.

Each check recomputes the receipt's claims from the bytes. Files are mapped and read in blocks, so memory does not
grow with the shard. From cheap to expensive, the checks are `size_matches`, `ledger_balances`, `engine_certified`,
`looks_like_text`, `ids_in_vocabulary`, `separators_match_documents` and `round_trip`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from dataprep_assets.curation.selection import count_bad_rows
from dataprep_assets.engine.artifact.losses import (
    find_ledger_imbalance,
    find_unbalanced_lines,
    find_wrong_drops,
    find_wrong_sums,
    format_drops,
)
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    NO_RETRACTED,
    REBUILD,
    Check,
    Finding,
    OpenedPartition,
    build_verdict,
    choose_sample_count,
    describe_artifact,
    fail_on_errors,
    require_ledger,
)
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.stream.eye_test import looks_like_text
from dataprep_assets.stream.reencoding import build_encode_function, engine_certified, read_quarantined_rows, round_trip
from dataprep_assets.stream.retracted_documents import no_retracted_document
from dataprep_assets.stream.separators import separators_match_documents
from dataprep_assets.stream.stream_losses import build_losses_check, losses_within_limit
from dataprep_assets.stream.token_shard import ENDS, QUARANTINE, TOKENS, TokenBinsFacts, TokenShard
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan
from dataprep_assets.tokenization.bundle import TokenizerBundle, load_cached

BLOCK = 1 << 20
"""Tokens processed at a time, so that a check needs memory for only a few arrays of this length."""


@fail_on_errors
def ledger_balances(directory: Path, receipt: Receipt) -> Finding:
    """Check that every row is a document or dropped with a reason: in total, per source file, and in the quarantine."""
    ledger = require_ledger(receipt)
    dropped_rows = sum(ledger.dropped.values())
    return build_verdict(
        _find_ledger_defects(directory, receipt, ledger),
        f"{count_of(ledger.rows_in, 'row')} read: {count_of(ledger.documents, 'document')} and "
        f"{count_of(dropped_rows, 'dropped row')}. The counts add up for each source file.",
        REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "documents": ledger.documents,
            "dropped": dropped_rows,
            "tokens": ledger.tokens,
            "source_files": len(receipt.sources),
            **{f"dropped_{k}": v for k, v in ledger.dropped.items()},
        },
    )


def _find_ledger_defects(directory: Path, receipt: Receipt, ledger: Ledger) -> Iterator[str]:
    name = describe_artifact(receipt)
    yield from find_ledger_imbalance(receipt)
    facts = TokenBinsFacts.from_receipt(receipt)
    separated = ledger.documents if facts.separator_id is not None else 0
    if ledger.separators != separated:
        yield (
            f"{name}: the ledger has {count_of(ledger.separators, 'separator')}, but "
            f"{count_of(separated, 'document ends', 'documents end')} with a separator"
        )
    rows = read_quarantined_rows(directory / QUARANTINE)
    quarantined = {file: Counter(reason for *_, reason in file_rows) for file, file_rows in rows.items()}
    for line in receipt.sources:
        drops = count_bad_rows(line["dropped"])
        counts = quarantined.pop(line["file"], Counter())
        if drops != counts:
            dropped_text, quarantined_text = format_drops(drops), format_drops(counts)
            yield (
                f"{name}: source file {line['file']}: rejected rows by reason: {dropped_text} in the receipt, but "
                f"{quarantined_text} in {QUARANTINE}"
            )
    # The remaining rows belong to files that the receipt does not list.
    for file, counts in quarantined.items():
        yield (
            f"{name}: {QUARANTINE} has {count_of(counts.total(), 'row')} of {file}, which is not a source file of this "
            "shard"
        )
    yield from find_unbalanced_lines(receipt, receipt.sources)
    yield from find_wrong_sums(receipt, receipt.sources, ("rows_in", "documents", "tokens"))
    yield from find_wrong_drops(receipt)


@fail_on_errors
def size_matches(directory: Path, receipt: Receipt, declared_dtype: str | None = None) -> Finding:
    """Check that the bin's size is tokens × item size, and that document ends are complete, ordered and cover it.

    `declared_dtype` is the dtype in the recipe; None if it is not known.
    """
    ledger, dtype = require_ledger(receipt), TokenBinsFacts.from_receipt(receipt).dtype
    width = flat_bins.token_dtype(dtype).itemsize
    size, expected_size = (directory / TOKENS).stat().st_size, ledger.tokens * width
    defects = []
    if declared_dtype not in (None, dtype):
        defects.append(f"{describe_artifact(receipt)}: its ids are {dtype}, but its recipe has {declared_dtype}")
    if size != expected_size:
        defects.append(
            f"{describe_artifact(receipt)}: {TOKENS} has {count_of(size, 'byte')}, but {ledger.tokens} {dtype} "
            f"tokens need {expected_size}. The file is wrong from byte {min(size, expected_size)} on, or earlier"
        )
    # Do not round the quotient, because a fraction reveals a truncated file.
    documents = (directory / ENDS).stat().st_size / 8
    if documents != ledger.documents:
        defects.append(
            f"{describe_artifact(receipt)}: {ENDS} has {documents:g} document ends, but the ledger has "
            f"{count_of(ledger.documents, 'document')}"
        )
    try:
        document_ends.validate(directory / ENDS, ledger.tokens)
    except FormatError as error:
        defects.append(str(error))
    return build_verdict(
        defects,
        f"{count_of(size, 'byte contains', 'bytes contain')} {ledger.tokens} {dtype} tokens in "
        f"{count_of(ledger.documents, 'document')}.",
        REBUILD,
        facts={"bytes": size, "tokens": ledger.tokens, "documents": ledger.documents},
    )


@fail_on_errors
def ids_in_vocabulary(directory: Path, receipt: Receipt, vocab_size: int) -> Finding:
    """Check that every id is below `vocab_size` (`len(tokenizer)`), and that the ledger has the range of ids.

    A dtype that is too small for the vocabulary is a defect even if all ids are in range, because they have wrapped.
    """
    ledger, dtype = require_ledger(receipt), TokenBinsFacts.from_receipt(receipt).dtype
    tokens = flat_bins.open_tokens(directory / TOKENS, dtype)
    low: int | None = None
    high: int | None = None
    outside, first_outside = 0, None
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        block_min, block_max = int(block.min()), int(block.max())
        low, high = (
            block_min if low is None else min(low, block_min),
            block_max if high is None else max(high, block_max),
        )
        if block_max >= vocab_size:
            wrong_positions = np.flatnonzero(block >= vocab_size)
            outside += len(wrong_positions)
            if first_outside is None:
                first_outside = start + int(wrong_positions[0]), int(block[wrong_positions[0]])
    defects = []
    if first_outside is not None:
        defects.append(
            f"{describe_artifact(receipt)}: id {first_outside[1]} at token offset {first_outside[0]} of {TOKENS} "
            f"is outside the vocabulary (0 to {vocab_size - 1}; {count_of(outside, 'such id')})"
        )
    if flat_bins.token_dtype(dtype).itemsize < flat_bins.token_dtype(flat_bins.choose_dtype(vocab_size)).itemsize:
        defects.append(
            f"{describe_artifact(receipt)}: {dtype} is too small for a vocabulary of {vocab_size}, so larger ids "
            "have wrapped around"
        )
    if (low, high) != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{describe_artifact(receipt)}: ids are {low} to {high}, but the ledger has {ledger.min_id} to "
            f"{ledger.max_id}"
        )
    return build_verdict(
        defects,
        f"{count_of(len(tokens), 'id is', 'ids are')} {low} to {high}, below the vocabulary size {vocab_size}.",
        REBUILD,
        facts={
            "tokens": len(tokens),
            # Use a string, because Dagster plots numbers over time, and a plot of a constant is useless.
            "vocab_size": str(vocab_size),
            "ids_outside_vocabulary": outside,
            **({"min_id": low, "max_id": high} if low is not None and high is not None else {}),
        },
    )


# --- checks of shards of token bins, and of a blend's bin and idx


class OpenedTokens(OpenedPartition[TokenShard]):
    """A shard to check, with everything that determines the bytes of its stream."""

    @cached_property
    def bundle(self) -> TokenizerBundle:
        """The tokenizer."""
        return load_cached(self.planned.plan.tokenizer)

    @property
    def sources(self) -> Mapping[str, SourcePart]:
        """The shard's source parts, by label of the source file."""
        return {file.label: file for file in self.planned.files}

    @property
    def recipe(self) -> StreamPlan | None:
        """The shard's plan; None if the shard has a different key, and so may have a different dtype or separator."""
        return self.planned.plan if self.receipt.key == self.planned.key else None


def _ledger_balances(shard: OpenedTokens) -> Finding:
    return ledger_balances(shard.directory, shard.receipt)


def _size_matches(shard: OpenedTokens) -> Finding:
    return size_matches(shard.directory, shard.receipt, None if shard.recipe is None else shard.recipe.dtype)


def _ids_in_vocabulary(shard: OpenedTokens) -> Finding:
    return ids_in_vocabulary(shard.directory, shard.receipt, shard.bundle.vocab_size)


def _separators_match_documents(shard: OpenedTokens) -> Finding:
    return separators_match_documents(shard.directory, shard.receipt, shard.recipe)


def _certificate_valid(shard: OpenedTokens) -> Finding:
    return engine_certified(shard.receipt, shard.bundle, shard.planned.plan.special_tokens)


def _round_trip(shard: OpenedTokens) -> Finding:
    plan = shard.planned.plan
    return round_trip(
        shard.directory,
        shard.receipt,
        shard.sources,
        shard.bundle,
        text_field=plan.text_field,
        selection=plan.selection,
        max_tokens=plan.max_tokens,
        samples=choose_sample_count(plan.level),
        encode=build_encode_function(plan),
    )


def _losses_within_limit(shard: OpenedTokens) -> Finding:
    return losses_within_limit(shard.receipt, shard.planned.plan.max_loss)


def _no_retracted_document(shard: OpenedTokens) -> Finding:
    return no_retracted_document(shard.directory, shard.receipt, shard.planned.plan, shard.sources, shard.bundle)


def _eye_test(shard: OpenedTokens) -> Finding:
    tokens, ends = shard.directory / TOKENS, shard.directory / ENDS
    return looks_like_text(tokens, ends, shard.planned.plan.dtype, shard.bundle, seed=shard.seed)


LEDGER_BALANCES = Check(
    "ledger_balances",
    "The count of rows read equals the documents plus the rows dropped for each reason, in total and per source file.",
    _ledger_balances,
)
IDS_IN_VOCABULARY = Check(
    "ids_in_vocabulary", "Every token id in the file is below `len(tokenizer)`.", _ids_in_vocabulary
)
CERTIFICATE_VALID = Check(
    "engine_certified", "The engine that encoded the shard was certified for it.", _certificate_valid
)
ROUND_TRIP = Check(
    "round_trip",
    "Reading and encoding a sample of documents (or all documents) again reproduces the stored ids and index entries.",
    _round_trip,
    samples=True,
)
LOSSES = build_losses_check(_losses_within_limit)
NO_RETRACTED_DOCUMENT = Check(
    NO_RETRACTED,
    "No removed document is left (checked by document index and by a sample of token sequences).",
    _no_retracted_document,
)
TOKEN_BINS_CHECKS: tuple[Check[OpenedTokens], ...] = (
    FILES_INTACT,
    LEDGER_BALANCES,
    Check(
        "size_matches",
        (
            "The file size equals the number of tokens times the size of the dtype. The document ends cover the "
            "stream exactly."
        ),
        _size_matches,
    ),
    IDS_IN_VOCABULARY,
    Check(
        "separators_match_documents",
        "Every document ends with exactly one separator, and the stream has no other separators.",
        _separators_match_documents,
    ),
    CERTIFICATE_VALID,
    ROUND_TRIP,
    LOSSES,
    NO_RETRACTED_DOCUMENT,
    Check(
        "looks_like_text",
        (
            "Decoded samples of the tokens look like text: normal entropy, mostly printable characters, no long "
            "runs of one id."
        ),
        _eye_test,
        blocking=False,
    ),
)
