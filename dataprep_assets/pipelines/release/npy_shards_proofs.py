"""Proofs on npy shards: one shard's files and receipt, a split's account of its tokens, the order and the repeats.

Each recomputes from the bytes what the receipt claims. Files are mapped and read in blocks, so memory does not grow
with the shard; `sample_ids_repeat` needs a few bytes per sample for one part of all ids at a time.

From cheap to expensive: `tokens_accounted`, `format_valid`, `order_shuffled`, `sample_ids_repeat`, `ids_in_vocabulary`,
`sample_ids_recompute`, `equals_stream`. `prove_shard` runs all of a shard.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import IntegrityError
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.formats.flat_bins import dtype_for_vocab, token_dtype
from dataprep_assets.graph.finding import (
    REBUILD,
    SHOWN,
    Finding,
    Row,
    files_intact,
    judged,
    ledger_of,
    name_of,
    verdict,
)
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.release.layout import ShardCut, SplitLayout
from dataprep_assets.pipelines.release.npy_shard import NpyShard, NpyShardFacts
from dataprep_assets.pipelines.release.order import shuffled
from dataprep_assets.plural import count_of
from dataprep_assets.stream.retraction_proofs import none_listed
from dataprep_assets.stream.token_shard import ENDS

BLOCK = 1 << 20
"""Tokens processed at a time."""
IDS_AT_ONCE = 1 << 26
"""Sample ids sorted at a time, half a gigabyte; more are compared in parts by their leading bits."""

Shards = Sequence[tuple[Path, Receipt]]
"""Directory and receipt of every shard of a split, in order."""


def _paths(directory: Path, receipt: Receipt) -> tuple[Path, Path]:
    facts = NpyShardFacts.of(receipt)
    token_name = npy_shards.token_key(facts.prefix, facts.index)
    ids_name = npy_shards.ids_key(facts.prefix, facts.index)
    return directory / Path(token_name).name, directory / Path(ids_name).name


def _open(directory: Path, receipt: Receipt) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    token_path, ids_path = _paths(directory, receipt)
    length = NpyShardFacts.of(receipt).sequence_length
    tokens = npy_shards.open_shard(token_path, sequence_length=length)
    return tokens, sample_ids.open_sample_ids(ids_path, len(tokens) // length)


SHARD_PROOFS = (
    Proof("files_intact", "Both files have the sizes and digests of the receipt, and no file is unlisted."),
    Proof(
        "format_valid",
        "A NumPy 1.0 header, one dimension, the declared dtype, whole sequences; as many headerless ids.",
    ),
    Proof("sample_ids_recompute", "Every sample id is the BLAKE2b of its sample's tokens."),
    Proof("ids_in_vocabulary", "Every token id is below the vocabulary's size."),
    Proof("equals_stream", "The shard is its stretch of the token bins in the seeded order, token for token."),
)
"""The proofs of one shard."""
SPLIT_PROOFS = (
    Proof("tokens_accounted", "The shards follow one another and are the whole stream but for the counted tail."),
    Proof("no_retracted_document", "The token bins that the shards are cut from are those of now, and hold none."),
    Proof("sample_ids_repeat", "Few samples are copies of another: equal ids are repeated text.", blocking=False),
    Proof("order_shuffled", "Documents are far from the neighbours that they have in the source.", blocking=False),
)
"""The proofs that need all shards of a split."""


def prove_shard(shard: NpyShard) -> dict[str, Finding]:
    """Every proof of one shard, for `find_in_workers`; a missing shard fails them all."""
    split, cut = shard.layout.find(shard.partition)

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        return {
            "files_intact": files_intact(directory, receipt),
            "format_valid": format_valid(directory, receipt, _declared(shard)),
            "sample_ids_recompute": sample_ids_recompute(directory, receipt, threads=shard.threads),
            "ids_in_vocabulary": ids_in_vocabulary(directory, receipt),
            "equals_stream": equals_stream(directory, receipt, shard.store, split, cut),
        }

    return proven(shard.artifact, shard.store, SHARD_PROOFS, prove)


def _declared(shard: NpyShard) -> dict[str, Any]:
    """The expected facts of a shard; further facts are about the whole split, and may be those of an earlier one."""
    split, cut = shard.layout.find(shard.partition)
    length = shard.release.release.sequence_length
    return {
        **shard.layout.meta,
        "separator_id": shard.layout.separator_id,
        "prefix": split.split,
        "index": cut.index,
        "sequence_length": length,
        "tokens": cut.tokens,
        "samples": cut.tokens // length,
        "stream_start": cut.start,
        "stream_stop": cut.stop,
        "padding_tokens": cut.padding,
        "tail_dropped_tokens": cut.dropped,
    }


@judged
def format_valid(directory: Path, receipt: Receipt, declared: Mapping[str, Any] | None = None) -> Finding:
    """A NumPy 1.0 header of 128 bytes, one dimension, the declared dtype, whole sequences; ids headerless, as many.

    `declared` are the expected facts of the receipt.
    """
    for name, wanted in (declared or {}).items():
        if (said := receipt.facts.get(name)) != wanted:
            raise IntegrityError(
                f"{name_of(receipt)}: {name}: the receipt says {said}, it should be {wanted}. {REBUILD}"
            )
    token_path, ids_path = _paths(directory, receipt)
    facts = NpyShardFacts.of(receipt)
    dtype, tokens, length = facts.dtype, facts.tokens, facts.sequence_length
    npy_shards.validate(token_path, dtype=dtype, tokens=tokens, sequence_length=length)
    ids = sample_ids.open_sample_ids(ids_path, tokens // length)
    return Finding(
        passed=True,
        summary=f"{tokens} {dtype} tokens are {len(ids)} samples of {length}, and there are as many ids.",
        facts={"tokens": tokens, "samples": len(ids), "bytes": token_path.stat().st_size},
    )


@judged
def sample_ids_recompute(directory: Path, receipt: Receipt, *, threads: int | None = None) -> Finding:
    """Every id is the hash of its sample's tokens.

    `directory` and `receipt` are the shard's; `threads` hash its samples, by default one per core.
    """
    tokens, ids = _open(directory, receipt)
    length = NpyShardFacts.of(receipt).sequence_length
    wrong = sample_ids.differing(tokens, ids, length, threads=threads)
    return verdict(
        (f"{name_of(receipt)}: the id of sample {k} is not the hash of its {length} tokens" for k in wrong),
        f"{len(ids)} ids are the hashes of their samples.",
        REBUILD,
        facts={"samples": len(ids)},
    )


@judged
def ids_in_vocabulary(directory: Path, receipt: Receipt) -> Finding:
    """Every token id is below the vocabulary's size, the dtype can hold it, and the ledger has counted right."""
    tokens, _ = _open(directory, receipt)
    ledger, facts = ledger_of(receipt), NpyShardFacts.of(receipt)
    dtype, vocab_size, separator = facts.dtype, facts.vocab_size, facts.separator_id
    low, high, separators = None, None, 0
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        least, most = int(block.min()), int(block.max())
        low, high = least if low is None else min(low, least), most if high is None else max(high, most)
        separators += int(np.count_nonzero(block == separator))
    found = (low, high, separators, len(tokens))
    said = (ledger.min_id, ledger.max_id, ledger.separators, ledger.tokens)
    defects = []
    if high is not None and high >= vocab_size:
        defects.append(f"{name_of(receipt)}: id {high} is not below {vocab_size}")
    if token_dtype(dtype).itemsize < token_dtype(dtype_for_vocab(vocab_size)).itemsize:
        defects.append(f"{name_of(receipt)}: {dtype} cannot hold a vocabulary of {vocab_size}; larger ids have wrapped")
    # A shard cuts documents, so its ledger counts neither rows nor documents nor drops: with any it was changed.
    counted = Ledger(tokens=len(tokens), separators=separators, min_id=low, max_id=high)
    if found == said and ledger != counted:
        defects.append(f"{name_of(receipt)}: its ledger counts what no shard has")
    if found != said:
        defects.append(
            f"{name_of(receipt)}: lowest id, highest, separators, tokens are {found}, the ledger says {said}"
        )
    return verdict(
        defects,
        f"{len(tokens)} ids are in [{low}, {high}], below {vocab_size}.",
        REBUILD,
        facts={"tokens": len(tokens), "separators": separators, "vocab_size": str(vocab_size)},
    )


@judged
def tokens_accounted(receipts: Sequence[Receipt], *, source_tokens: int) -> Finding:
    """The shards of a split follow one another without gap, and with the declared tail they are the whole stream.

    `source_tokens` is the sum of the token bins' ledgers.
    """
    defects = []
    position = dropped = padding = 0
    for number, receipt in enumerate(receipts):
        facts = NpyShardFacts.of(receipt)
        start, stop = facts.stream_start, facts.stream_stop
        if facts.index != number or start != position:
            defects.append(
                f"{name_of(receipt)}: expected shard {number}, which begins at token {position}, found "
                f"shard {facts.index} at token "
                f"{start}"
            )
        if facts.tokens != stop - start + facts.padding_tokens:
            defects.append(f"{name_of(receipt)}: its length is not that of its stretch and its padding")
        position = stop
        dropped += facts.tail_dropped_tokens
        padding += facts.padding_tokens
    if position + dropped != source_tokens:
        defects.append(
            f"{len(receipts)} shards hold {position} tokens of the stream and dropped {dropped}; the token "
            f"bins have {source_tokens}"
        )
    return verdict(
        defects,
        f"{position} tokens in {count_of(len(receipts), 'shard')}, {dropped} dropped at the end, {padding} of "
        f"padding: all of {source_tokens}.",
        "Materialize npy_shards of this split again",
        facts={"tokens": position, "dropped": dropped, "padding": padding, "source_tokens": source_tokens},
    )


@judged
def no_retracted_document(receipts: Sequence[Receipt], bins: Shards, listed: NDArray[np.uint64]) -> Finding:
    """Npy shards are cut from the present token bins, and these hold no document on the retraction list.

    `equals_stream` proves that a shard is its range of these token bins, token for token.

    Args:
        receipts: The receipts of every npy shard of a split.
        bins: Directory (with the document index if there is a list) and receipt of each of its token bins.
        listed: The ids on the retraction list.
    """
    now = {str(receipt.partition): receipt.content for _, receipt in bins}

    def defects() -> Iterator[str]:
        for receipt in receipts:
            if other := [key for key, content in receipt.inputs.items() if now.get(key) != content]:
                yield f"{name_of(receipt)}: cut from another content of {other[0]} than is there now"
        for directory, receipt in bins if len(listed) else ():
            if held := int(np.isin(open_ids(directory / IDS, ledger_of(receipt).documents), listed).sum()):
                yield f"{name_of(receipt)}: {held} of its documents are retracted"

    searched = f"{count_of(len(bins), 'shard')} of token bins"
    return none_listed(defects(), searched, len(listed), "Materialize token_bins, then npy_shards")


@judged
def equals_stream(
    directory: Path, receipt: Receipt, store: ArtifactStore, split: SplitLayout, cut: ShardCut
) -> Finding:
    """The shard is its range of the token bins, token for token in the seeded order, then padding.

    `directory` and `receipt` are the shard's, `cut` its place in the stream of `split`; `store` has the token bins.
    """
    tokens, _ = _open(directory, receipt)
    separator = NpyShardFacts.of(receipt).separator_id
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in _differences(tokens, store, split, cut, separator)),
        f"{cut.tokens} tokens are tokens {cut.start} to {cut.stop} of the stream, and {cut.padding} of padding.",
        REBUILD,
        facts={"tokens": len(tokens), "padding": cut.padding},
    )


def _differences(
    tokens: NDArray[Any], store: ArtifactStore, split: SplitLayout, cut: ShardCut, separator: int
) -> Iterator[str]:
    if len(tokens) != cut.tokens:
        yield f"it has {len(tokens)} tokens, its stretch {cut.tokens}"
        return
    at = 0
    for block in split.order.read(store, cut.start, cut.stop):
        held = tokens[at : at + len(block)]
        if not np.array_equal(held, block):
            apart = at + int(np.flatnonzero(held != block)[0])
            yield (
                f"token {apart} (byte {npy_shards.HEADER_BYTES + apart * tokens.itemsize}) is not that of the stream"
            )
            return
        at += len(block)
    if (tokens[at:] != separator).any():
        yield f"its padding, from token {at} on, is not only separators"


@judged
def sample_ids_repeat(shards: Shards, *, expected_share: float = 0.001) -> Finding:
    """How many samples of a split are copies of another: equal ids are equal tokens, so repeated text.

    Warns when more than `expected_share` of the samples of `shards` are copies. The table lists the most frequent ones.
    Only the ids are read, so the token files may be absent.
    """
    ids = [
        sample_ids.open_sample_ids(_paths(directory, receipt)[1], NpyShardFacts.of(receipt).samples)
        for directory, receipt in shards
    ]
    total = sum(len(part) for part in ids)
    parts = 1 << max(0, (total // IDS_AT_ONCE).bit_length())
    repeated, rows = 0, []
    for number in range(parts):
        # Ids are hashes: their leading bits cut them into even parts.
        bits = parts.bit_length() - 1
        chosen = [part[part >> np.uint64(64 - bits) == number] if bits else np.asarray(part) for part in ids]
        values, counts = np.unique(np.concatenate(chosen), return_counts=True)
        repeated += int((counts - 1).sum())
        rows += [(int(n), int(value)) for value, n in zip(values[counts > 1], counts[counts > 1], strict=True)]
        # an id is in one part alone, so the most frequent of each part are enough
        rows = sorted(rows, reverse=True)[:SHOWN]
    share = repeated / total if total else 0.0
    table: list[Row] = [{"sample_id": f"{value:016x}", "samples": n} for n, value in rows]
    defects = [] if share <= expected_share else [f"{repeated} of {total} samples ({share:.2%}) repeat another one"]
    return verdict(
        defects,
        f"{repeated} of {total} samples repeat another one ({share:.3%}).",
        "Deduplicate the source, or expect the model to see this text more often",
        facts={"samples": total, "repeated": repeated, "share": share},
        table=table,
        warning=True,
    )


@judged
def order_shuffled(store: ArtifactStore, split: SplitLayout, *, groups: int = 4) -> Finding:
    """How far the order is from the source's: documents that keep their neighbour, and runs of one source shard.

    Looks at the first `groups` groups of `split`, whose token bins are in `store`. With a seed, about one document of a
    group keeps its neighbour by chance; many more is a failure. Without a seed the order is the source's, as declared:
    the finding only says so.
    """
    order = split.order
    if order.seed is None:
        return Finding(passed=True, summary=f"{split.split} keeps the order of the source, as declared.")
    kept = documents = runs = 0
    for group in order.groups[:groups]:
        folders = tuple(store.local(shard.artifact, [ENDS]) for shard in group)
        found = shuffled(order.seed, group, folders)
        lengths = np.diff(found.ends, prepend=0)
        source, first = found.source, found.first
        same = source[1:] == source[:-1]
        kept += int(np.count_nonzero(same & (first[1:] == first[:-1] + lengths[:-1])))
        runs += int(np.count_nonzero(~same)) + 1
        documents += len(source)
    # ten for each group, where chance leaves about one, and 2 % of all: far more than a shuffle keeps
    allowed = 10 * min(groups, len(order.groups)) + documents // 50
    defects = []
    # of a few documents many may be neighbours by chance
    if kept > allowed and documents > 100:
        defects.append(f"{split.split}: {kept} of {documents} documents are still followed by their old neighbour")
    return verdict(
        defects,
        f"{kept} of {documents} documents are still followed by their old neighbour; {documents / max(runs, 1):.1f} in "
        "a row come from one source shard.",
        "Use another `shuffle_seed` or a larger `mix`",
        facts={"documents": documents, "kept_neighbours": kept, "documents_in_a_row": documents / max(runs, 1)},
    )
