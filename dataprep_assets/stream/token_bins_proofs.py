"""Every proof of one shard of token bins: `tokens.bin`, `document_ends.bin`, `quarantine.jsonl` and the receipt.

Each proof recomputes from the bytes what the receipt claims. Files are mapped and read in blocks, so memory does not
grow with the shard. From cheap to expensive: `size_matches`, `ledger_balances`, `certificate_valid`, `eye_test`,
`ids_in_vocabulary`, `separators_match_documents`, `round_trip`.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dataprep_assets.documents.selection import bad_rows
from dataprep_assets.errors import FormatError
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.graph.finding import REBUILD, Finding, files_intact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.ledgers import unbalanced, unbalanced_lines, wrong_drops, wrong_sums
from dataprep_assets.graph.proof_level import samples_of
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stream.eye_test import eye_test
from dataprep_assets.stream.losses_proof import LOSSES_PROOF, losses_within_limit
from dataprep_assets.stream.retraction_proofs import no_retracted_document
from dataprep_assets.stream.round_trip_proofs import certificate_valid, encode_of, quarantined_rows, round_trip
from dataprep_assets.stream.separator_proofs import separators_match_documents
from dataprep_assets.stream.token_shard import ENDS, QUARANTINE, TOKENS, TokenBinsFacts, TokenShard
from dataprep_assets.tokenization.bundle import loaded_once

BLOCK = 1 << 20
"""Tokens processed at a time; a proof needs memory for a few arrays of this length only."""

FILES_INTACT = Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted.")
LEDGER_BALANCES = Proof(
    "ledger_balances", "Rows in = documents + rows dropped by reason, in total and for each source file."
)
IDS_IN_VOCABULARY = Proof("ids_in_vocabulary", "Every id is below len(tokenizer), recomputed from the file.")
CERTIFICATE_VALID = Proof("certificate_valid", "The engine that encoded the shard was certified for it.")
ROUND_TRIP = Proof(
    "round_trip",
    "Sampled documents, or every one, re-read from source and re-encoded, are the stored ids; the index of documents "
    "has their rows and hashes.",
    samples=True,
)
TOKEN_BINS_PROOFS = (
    FILES_INTACT,
    LEDGER_BALANCES,
    Proof(
        "size_matches",
        "Bytes = tokens × item size of the declared dtype, and document ends cover the stream exactly.",
    ),
    IDS_IN_VOCABULARY,
    Proof(
        "separators_match_documents",
        "One separator ends each document; none is doubled, missing or unaccounted for.",
    ),
    CERTIFICATE_VALID,
    ROUND_TRIP,
    LOSSES_PROOF,
    Proof(
        "no_retracted_document",
        "No document is on the retraction list, by the index and by a sample's tokens.",
    ),
    Proof(
        "eye_test",
        "Decoded windows look like text: entropy, printable share, no runs of one id.",
        blocking=False,
    ),
)


def prove_shard(shard: TokenShard, *, sensitive: bool) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all. `sensitive`: no decoded text is shown."""
    plan, files = shard.plan, {file.label: file for file in shard.files}

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        # seeded by the key, so that the same windows are looked at again
        bundle, seed = loaded_once(plan.tokenizer), int(receipt.key[:8], 16)
        tokens, ends = directory / TOKENS, directory / ENDS
        recipe = plan if receipt.key == shard.key else None  # an out-of-date shard may have another dtype or separator
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": ledger_balances(directory, receipt),
            "size_matches": size_matches(directory, receipt, None if recipe is None else recipe.dtype),
            "ids_in_vocabulary": ids_in_vocabulary(directory, receipt, bundle.vocab_size),
            "separators_match_documents": separators_match_documents(directory, receipt, recipe),
            "certificate_valid": certificate_valid(receipt, bundle, plan.special_tokens),
            "round_trip": round_trip(
                directory,
                receipt,
                files,
                bundle,
                text_field=plan.text_field,
                selection=plan.selection,
                samples=samples_of(plan.level),
                encode=encode_of(plan),
            ),
            "eye_test": eye_test(tokens, ends, plan.dtype, bundle, seed=seed, sensitive=sensitive),
            LOSSES_PROOF.name: losses_within_limit(receipt, plan.max_loss),
            "no_retracted_document": no_retracted_document(directory, receipt, plan, files, bundle),
        }

    return proven(shard.artifact, shard.store, TOKEN_BINS_PROOFS, prove)


@judged
def ledger_balances(directory: Path, receipt: Receipt) -> Finding:
    """Every row is a document or a drop with a reason: in total, for each source file, and in the quarantine."""
    ledger = ledger_of(receipt)
    dropped = sum(ledger.dropped.values())
    return verdict(
        _unbalanced(directory, receipt, ledger),
        f"{ledger.rows_in} rows are {ledger.documents} documents and {dropped} drops, in total and file by file.",
        REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "documents": ledger.documents,
            "dropped": dropped,
            "tokens": ledger.tokens,
            "source_files": len(receipt.sources),
            **{f"dropped_{k}": v for k, v in ledger.dropped.items()},
        },
    )


def _unbalanced(directory: Path, receipt: Receipt, ledger: Ledger) -> Iterator[str]:
    name = name_of(receipt)
    yield from unbalanced(receipt)
    facts = TokenBinsFacts.of(receipt)
    separated = ledger.documents if facts.separator_id is not None else 0
    if ledger.separators != separated:
        yield f"{name}: the ledger has {ledger.separators} separators, {separated} documents end with one"
    rows = quarantined_rows(directory / QUARANTINE)
    quarantined = {file: Counter(reason for *_, reason in found) for file, found in rows.items()}
    for line in receipt.sources:
        dropped = bad_rows(line["dropped"])
        held = quarantined.pop(line["file"], Counter())
        if dropped != held:
            yield f"{name}: source file {line['file']}: dropped {dict(dropped)}, {QUARANTINE} holds {dict(held)}"
    # what no line of the receipt has accounted for
    for file, held in quarantined.items():
        yield f"{name}: {QUARANTINE} holds {held.total()} rows of {file}, which is not a source file of this shard"
    yield from unbalanced_lines(receipt, receipt.sources)
    yield from wrong_sums(receipt, receipt.sources, ("rows_in", "documents", "tokens"))
    yield from wrong_drops(receipt)


@judged
def size_matches(directory: Path, receipt: Receipt, declared: str | None = None) -> Finding:
    """The bin's size is tokens times item size; the document ends are complete, in order, and end where it does.

    `declared` is the dtype in its recipe; None if that is not known.
    """
    ledger, dtype = ledger_of(receipt), TokenBinsFacts.of(receipt).dtype
    width = flat_bins.token_dtype(dtype).itemsize
    size, expected = (directory / TOKENS).stat().st_size, ledger.tokens * width
    defects = []
    if declared not in (None, dtype):
        defects.append(f"{name_of(receipt)}: its ids are {dtype}, those of its recipe are {declared}")
    if size != expected:
        defects.append(
            f"{name_of(receipt)}: {TOKENS} has {size} bytes, but {ledger.tokens} {dtype} tokens are "
            f"{expected}: it is wrong from byte {min(size, expected)} on, at the latest"
        )
    # not rounded: of a file that was cut the fraction shows
    documents = (directory / ENDS).stat().st_size / 8
    if documents != ledger.documents:
        defects.append(f"{name_of(receipt)}: {ENDS} has {documents:g} entries, the ledger {ledger.documents} documents")
    try:
        document_ends.validate(directory / ENDS, ledger.tokens)
    except FormatError as error:
        defects.append(str(error))
    return verdict(
        defects,
        f"{size} bytes are {ledger.tokens} {dtype} tokens in {ledger.documents} documents.",
        REBUILD,
        facts={"bytes": size, "tokens": ledger.tokens, "documents": ledger.documents},
    )


@judged
def ids_in_vocabulary(directory: Path, receipt: Receipt, vocab_size: int) -> Finding:
    """Every id is below `vocab_size` (`len(tokenizer)`), and their range is the one in the ledger.

    A dtype that cannot hold the vocabulary is a defect even though all ids are then in range: they have wrapped.
    """
    ledger, dtype = ledger_of(receipt), TokenBinsFacts.of(receipt).dtype
    tokens = flat_bins.open_tokens(directory / TOKENS, dtype)
    low: int | None = None
    high: int | None = None
    outside, first = 0, None
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        least, most = int(block.min()), int(block.max())
        low, high = least if low is None else min(low, least), most if high is None else max(high, most)
        if most >= vocab_size:
            wrong = np.flatnonzero(block >= vocab_size)
            outside += len(wrong)
            if first is None:
                first = start + int(wrong[0]), int(block[wrong[0]])
    defects = []
    if first is not None:
        defects.append(
            f"{name_of(receipt)}: id {first[1]} at token offset {first[0]} of {TOKENS} is not below "
            f"{vocab_size}; {outside} ids are not"
        )
    if flat_bins.token_dtype(dtype).itemsize < flat_bins.token_dtype(flat_bins.dtype_for_vocab(vocab_size)).itemsize:
        defects.append(f"{name_of(receipt)}: {dtype} cannot hold a vocabulary of {vocab_size}; larger ids have wrapped")
    if (low, high) != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{name_of(receipt)}: ids are in [{low}, {high}], the ledger says [{ledger.min_id}, {ledger.max_id}]"
        )
    return verdict(
        defects,
        f"{len(tokens)} ids are in [{low}, {high}], below {vocab_size}.",
        REBUILD,
        facts={
            "tokens": len(tokens),
            # a text, because it never changes: Dagster plots numbers
            "vocab_size": str(vocab_size),
            "outside": outside,
            **({"min_id": low, "max_id": high} if low is not None and high is not None else {}),
        },
    )
