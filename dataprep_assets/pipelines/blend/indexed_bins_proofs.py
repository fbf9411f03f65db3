"""Proofs on a shard of a pretraining blend: Megatron's bin and idx are the documents of the source, each once.

Entry points: `INDEXED_BINS_PROOFS`, `prove_indexed_bins`, and the proofs one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.documents.documents import Documents
from dataprep_assets.formats import document_ends, flat_bins, megatron
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.graph.finding import Finding, files_intact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.ledgers import unbalanced, unbalanced_lines, wrong_drops, wrong_quarantine, wrong_sums
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stream.index_check import IndexCheck
from dataprep_assets.stream.round_trip_proofs import certificate_valid
from dataprep_assets.stream.token_bins_proofs import ids_in_vocabulary
from dataprep_assets.stream.token_shard import (
    ENDS,
    MEGATRON_INDEX,
    QUARANTINE,
    TOKENS,
    TokenBinsFacts,
    TokenShard,
    document_rows,
)
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan
from dataprep_assets.tokenization.bundle import TokenizerBundle, loaded_once
from dataprep_assets.tokenization.engines import ReferenceEngine

INDEXED_BINS_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("ledger_balances", "Rows in = documents + rows dropped by reason, in total and for each source file."),
    Proof("index_matches_stream", "The idx describes the bin: sizes, pointers, lengths of 1 and more, indices 0 to S."),
    Proof("ids_in_vocabulary", "Every id is below len(tokenizer), recomputed from the file."),
    Proof("documents_end_right", "Every document begins and ends with the configured tokens, none of them doubled."),
    Proof("certificate_valid", "The engine that encoded the shard was certified for it."),
    Proof(
        "round_trip",
        "Sampled documents, re-read from source and re-encoded by the reference, are the stored ids; the index of "
        "documents has their rows and hashes.",
        version=2,
    ),
)

_REBUILD = "Materialize this partition of indexed_bins again"
_READ = 2000
"""Documents of a source file from which the round trip samples."""


def prove_indexed_bins(shard: TokenShard) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        bundle = loaded_once(shard.plan.tokenizer)
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": ledger_balances(directory, receipt),
            "index_matches_stream": index_matches_stream(directory, receipt),
            "ids_in_vocabulary": ids_in_vocabulary(directory, receipt, bundle.vocab_size),
            "documents_end_right": documents_end_right(directory, receipt),
            "certificate_valid": certificate_valid(receipt, bundle, shard.plan.special_tokens),
            "round_trip": round_trip(directory, receipt, shard, bundle),
        }

    return proven(shard.artifact, shard.store, INDEXED_BINS_PROOFS, prove)


@judged
def ledger_balances(directory: Path, receipt: Receipt) -> Finding:
    """Every row is a document or a drop with a reason: in total, for each source file, and in the quarantine.

    Documents that a plan filters (short ones, ones without tokens) are dropped but not quarantined.
    """
    ledger = ledger_of(receipt)
    return verdict(
        _unbalanced(directory, receipt),
        f"{ledger.rows_in} rows are {ledger.documents} documents and {sum(ledger.dropped.values())} drops.",
        _REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "documents": ledger.documents,
            "tokens": ledger.tokens,
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
        },
    )


def _unbalanced(directory: Path, receipt: Receipt) -> Iterator[str]:
    ledger, name = ledger_of(receipt), name_of(receipt)
    yield from unbalanced(receipt)
    separated = ledger.documents if TokenBinsFacts.of(receipt).separator_id is not None else 0
    if ledger.separators != separated:
        yield f"{name}: the ledger has {ledger.separators} separators, {separated} were to be written"
    yield from unbalanced_lines(receipt, receipt.sources)
    yield from wrong_sums(receipt, receipt.sources, ("rows_in", "documents", "tokens"))
    yield from wrong_drops(receipt)
    bad = sum(n for reason, n in ledger.dropped.items() if reason not in ("below_min_doc_chars", "no_tokens"))
    yield from wrong_quarantine(receipt, directory / QUARANTINE, bad)


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
    if len(ends) != len(index.lengths) or not np.array_equal(np.diff(ends, prepend=np.uint64(0)), index.lengths):
        yield f"{name}: the lengths of the idx are not those of {ENDS}"


@judged
def documents_end_right(directory: Path, receipt: Receipt) -> Finding:
    """Each document begins with the BOS and ends with the separator that the receipt names, if it names one.

    Neither stands next to itself, except where a document is empty or holds it as text, which the ledger counts.
    """
    tokens = flat_bins.open_tokens(directory / TOKENS, TokenBinsFacts.of(receipt).dtype)
    ends = document_ends.open_ends(directory / ENDS)
    document_ends.validate(directory / ENDS, len(tokens))
    return verdict(
        _boundary_defects(receipt, tokens, ends),
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
        before = int(ends[start - 1]) if start else 0
        starts = np.concatenate([[before], block[:-1]])
        for wanted, places, what in ((separator, block - 1, "end"), (bos, starts, "begin")):
            if wanted is None:
                continue
            wrong = np.flatnonzero(tokens[places] != wanted)
            if wrong.size:
                at = int(wrong[0])
                yield (
                    f"{name}: {wrong.size} documents do not {what} with id {wanted}; the first is document "
                    f"{start + at}, token {places[at]} is {int(tokens[places[at]])}"
                )
    if separator is not None:
        found = sum(
            int(np.count_nonzero(tokens[i : i + (1 << 22)] == separator)) for i in range(0, len(tokens), 1 << 22)
        )
        also = len(ends) if bos == separator else 0
        if found != ledger.separators + ledger.literal_separators + also:
            yield (
                f"{name}: id {separator} is there {found} times, for {ledger.separators} document ends and "
                f"{ledger.literal_separators} out of text: it was added twice, or lost"
            )


@judged
def round_trip(
    directory: Path, receipt: Receipt, shard: TokenShard, bundle: TokenizerBundle, *, samples: int = 16
) -> Finding:
    """Sampled documents, read again from their source rows and encoded by the reference, are the stored ids.

    Filters and cuts of the plan are applied again. At most two source files are read, and only their first documents.
    Messages name file, row and document, and show neither text nor ids.
    """
    ends = document_ends.open_ends(directory / ENDS)
    tokens = flat_bins.open_tokens(directory / TOKENS, TokenBinsFacts.of(receipt).dtype)
    document_ends.validate(directory / ENDS, len(tokens))
    rng = np.random.default_rng(int(digest_value(receipt.key)[:16], 16))
    filled = [i for i, line in enumerate(receipt.sources) if line["documents"]]
    chosen = sorted(rng.choice(filled, min(2, len(filled)), replace=False).tolist()) if filled else []
    defects: list[str] = []
    compared = 0
    ids = shard.plan.ids
    stored = open_ids(directory / IDS, len(ends)) if ids is not None else None
    index = IndexCheck(document_rows(directory, receipt), ids, stored)
    for position in chosen:
        first = sum(line["documents"] for line in receipt.sources[:position])
        held = receipt.sources[position]["documents"]
        documents = list(islice(_documents(shard.files[position], shard.plan, bundle), _READ))
        again = Documents(
            [document.text for document in documents],
            np.array([document.row for document in documents], np.uint64),
            ids,
        )
        defects += index.differences(again, position, first, shard.files[position].label)
        if len(documents) != min(held, _READ):
            defects.append(f"{shard.files[position].label}: {len(documents)} documents read, {held} stored")
        count = min(len(documents), samples, held)
        for at in sorted(rng.choice(min(len(documents), held), count, replace=False).tolist()):
            document = documents[at]
            compared += 1
            start = int(ends[first + at - 1]) if first + at else 0
            if not np.array_equal(tokens[start : int(ends[first + at])], document.ids):
                defects.append(
                    f"{shard.files[position].label}: row {document.row}: document {first + at} is not what the "
                    "reference gives"
                )
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{compared} documents of {len(chosen)} source files, encoded again by the reference, are the stored ids.",
        f"Source or shard changed since it was built. {_REBUILD}",
        facts={"documents_compared": compared, "source_files_read": len(chosen)},
    )


@dataclass(frozen=True, slots=True)
class _Document:
    """A document of the source: its row, its text, its ids in the stream."""

    row: int
    text: str
    ids: NDArray[np.int64]


def _documents(part: SourcePart, plan: StreamPlan, bundle: TokenizerBundle) -> Iterator[_Document]:
    """Each document of a source part, as the plan wants them, by the reference engine."""
    reference = ReferenceEngine(bundle, plan.special_tokens)
    before = [] if plan.bos_id is None else [plan.bos_id]
    after = [] if plan.separator_id is None else [plan.separator_id]
    room = None if plan.max_tokens is None else plan.max_tokens - len(before) - len(after)
    for block in part.read_records(plan.fields):
        for index, text in enumerate(block.texts):
            if len(text) < (plan.min_characters or 0):
                continue
            ids = [*before, *reference.encode([text])[0].tolist()[:room], *after]
            if ids:
                yield _Document(block.row(index), text, np.array(ids, np.int64))
