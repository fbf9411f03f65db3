"""Proofs on a shard of a pretraining blend: Megatron's bin and idx are the documents of the source, each once.

Entry points: `INDEXED_BINS_PROOFS`, `prove_indexed_bins`, and the proofs one by one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.formats import document_ends, flat_bins, megatron
from dataprep_assets.graph.finding import Finding, files_intact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.proof_level import samples_of
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.sentences import safe, sentence, typed
from dataprep_assets.stream.losses_proof import LOSSES_PROOF, losses_within_limit
from dataprep_assets.stream.round_trip_proofs import certificate_valid, encode_of, round_trip
from dataprep_assets.stream.separator_proofs import other_specials
from dataprep_assets.stream.token_bins_proofs import ids_in_vocabulary, ledger_balances
from dataprep_assets.stream.token_shard import (
    ENDS,
    MEGATRON_INDEX,
    TOKENS,
    TokenBinsFacts,
    TokenShard,
)
from dataprep_assets.stream.token_stream import StreamPlan
from dataprep_assets.tokenization.bundle import loaded_once

INDEXED_BINS_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("ledger_balances", "Rows in = documents + rows dropped by reason, in total and for each source file."),
    Proof("index_matches_stream", "The idx describes the bin: sizes, pointers, lengths of 1 and more, indices 0 to S."),
    Proof("ids_in_vocabulary", "Every id is below len(tokenizer), recomputed from the file."),
    Proof(
        "documents_end_right",
        "Every document begins and ends with the configured tokens, none of them doubled.",
        version=2,
    ),
    Proof("certificate_valid", "The engine that encoded the shard was certified for it."),
    Proof(
        "round_trip",
        "Sampled documents, or every one, re-read from source and re-encoded, are the stored ids; the index of "
        "documents has their rows and hashes.",
        version=4,
        samples=True,
    ),
    LOSSES_PROOF,
)

_REBUILD = "Materialize this partition of indexed_bins again"


def prove_indexed_bins(shard: TokenShard) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        bundle = loaded_once(shard.plan.tokenizer)
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": ledger_balances(directory, receipt),
            "index_matches_stream": index_matches_stream(directory, receipt),
            "ids_in_vocabulary": ids_in_vocabulary(directory, receipt, bundle.vocab_size),
            # a shard of another key was made with other settings: these say nothing of its tokens
            "documents_end_right": documents_end_right(
                directory, receipt, shard.plan if receipt.key == shard.key else None
            ),
            "certificate_valid": certificate_valid(receipt, bundle, shard.plan.special_tokens),
            "round_trip": round_trip(
                directory,
                receipt,
                {file.label: file for file in shard.files},
                bundle,
                text_field=shard.plan.text_field,
                selection=shard.plan.selection,
                max_tokens=shard.plan.max_tokens,
                samples=samples_of(shard.plan.level),
                encode=encode_of(shard.plan),
            ),
            LOSSES_PROOF.name: losses_within_limit(receipt, shard.plan.max_loss),
        }

    return proven(shard.artifact, shard.store, INDEXED_BINS_PROOFS, prove)


@judged
def index_matches_stream(directory: Path, receipt: Receipt) -> Finding:
    """`tokens.idx` is that of `tokens.bin`, one sequence per document, and of the counts and dtype of the receipt."""
    megatron.validate(directory / TOKENS, directory / MEGATRON_INDEX)
    index, ledger = megatron.read_idx(directory / MEGATRON_INDEX), ledger_of(receipt)
    return verdict(
        _index_defects(directory, receipt, index),
        f"{ledger.documents} sequences of {ledger.tokens} {index.dtype} tokens, as the receipt says.",
        _REBUILD,
        facts={"sequences": len(index.lengths), "tokens": int(index.lengths.sum(dtype=np.int64))},
    )


def _index_defects(directory: Path, receipt: Receipt, index: megatron.MegatronIndex) -> Iterator[str]:
    name, ledger = name_of(receipt), ledger_of(receipt)
    dtype = TokenBinsFacts.of(receipt).dtype
    if index.dtype != dtype:
        yield f"{name}: the idx says {index.dtype}, the receipt {dtype}"
    if len(index.lengths) != ledger.documents:
        yield f"{name}: the idx has {len(index.lengths)} sequences, the ledger {ledger.documents} documents"
    if (tokens := int(index.lengths.sum(dtype=np.int64))) != ledger.tokens:
        yield f"{name}: the idx has {tokens} tokens, the ledger {ledger.tokens}"
    if empty := int(np.count_nonzero(np.asarray(index.lengths) < 1)):
        yield f"{name}: {empty} sequences have no token; Megatron takes no sequence shorter than 1"
    ends = document_ends.open_ends(directory / ENDS)
    # prepended as uint64: with an int NumPy would make both float64, which is not exact beyond 2^53
    if len(ends) != len(index.lengths) or not np.array_equal(np.diff(ends, prepend=np.uint64(0)), index.lengths):
        yield f"{name}: the lengths of the idx are not those of {ENDS}"


@judged
def documents_end_right(directory: Path, receipt: Receipt, recipe: StreamPlan | None = None) -> Finding:
    """Each document begins with the BOS and ends with the separator that the receipt names, if it names one.

    Neither stands next to itself, except where a document is empty or holds it as text, which the ledger counts.
    `recipe` is that of the shard; None if it is not known.
    """
    facts = TokenBinsFacts.of(receipt)
    others = (
        [] if recipe is None else [sentence(f"{name_of(receipt)}: {typed(d)}") for d in other_specials(facts, recipe)]
    )
    tokens = flat_bins.open_tokens(directory / TOKENS, facts.dtype)
    ends = document_ends.open_ends(directory / ENDS)
    document_ends.validate(directory / ENDS, len(tokens))
    return verdict(
        [*others, *_boundary_defects(receipt, tokens, ends)],
        f"{len(ends)} documents begin and end as configured.",
        _REBUILD,
        facts={"documents": len(ends)},
    )


def _boundary_defects(receipt: Receipt, tokens: NDArray[Any], ends: NDArray[np.uint64]) -> Iterator[str]:
    name, ledger = name_of(receipt), ledger_of(receipt)
    facts = TokenBinsFacts.of(receipt)
    separator, bos = facts.separator_id, facts.bos_id
    for start in range(0, len(ends), document_ends.BLOCK):
        block = np.asarray(ends[start : start + document_ends.BLOCK]).astype(np.int64)
        # a document begins where the one before it ends, which for a block's first is in the block before
        before = int(ends[start - 1]) if start else 0
        starts = np.concatenate([[before], block[:-1]])
        for wanted, places, what in ((separator, block - 1, "end"), (bos, starts, "begin")):
            if wanted is None:
                continue
            wrong = np.flatnonzero(tokens[places] != wanted)
            if wrong.size:
                at = int(wrong[0])
                yield sentence(
                    f"{name}: {wrong.size} documents do not {what} with id {wanted}; the first is document "
                    f"{safe(start + at)}, token {places[at]} is {int(tokens[places[at]])}"
                )
    if separator is not None:
        # in blocks of 4 million ids: the comparison holds a byte for each
        found = sum(
            int(np.count_nonzero(tokens[i : i + (1 << 22)] == separator)) for i in range(0, len(tokens), 1 << 22)
        )
        # where one token does both, it also begins every document
        also = len(ends) if bos == separator else 0
        if found != ledger.separators + ledger.literal_separators + also:
            yield (
                f"{name}: id {separator} is there {found} times, for {ledger.separators} document ends and "
                f"{ledger.literal_separators} out of text: it was added twice, or lost"
            )
