"""Builds the combined bins of a split: its shards in manifest order as one file, with `meta.pkl`.

Refuses missing and damaged shards. The store joins the token files (the kernel in a folder, the server in a bucket);
the digest of every shard's range is compared with the shard's receipt, in the same pass that digests the whole.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.formats import document_ends, flat_bins, meta
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Part
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.engine_certificate import meta_of
from dataprep_assets.pipelines.corpus.manifest import Manifest
from dataprep_assets.pipelines.corpus.token_bins import ENDS, TOKENS

VERSION = 1


def shard_receipts(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, split: str
) -> list[tuple[Artifact, Receipt]]:
    """Every shard of a split with its receipt, in manifest order.

    Raises MissingArtifactError naming the shards that are not there: a combined file is never made of what happens
    to exist.
    """
    shards = [corpus.artifact("token_bins", partition) for partition in manifest.partitions(split)]
    receipts = store.receipts(shards)
    found = [(shard, receipt) for shard, receipt in zip(shards, receipts, strict=True) if receipt is not None]
    missing = [str(shard.partition) for shard, receipt in zip(shards, receipts, strict=True) if receipt is None]
    if missing:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise MissingArtifactError(
            f"{corpus.dataset}/{split}: {len(missing)} of {len(shards)} shards are not there: {shown}. "
            "Materialize these partitions of token_bins first"
        )
    _require_same_stream(corpus, split, [receipt for _, receipt in found])
    return found


def _require_same_stream(corpus: CorpusDeclaration, split: str, receipts: Sequence[Receipt]) -> None:
    names = ("dtype", "separator_id", "bos_id", "special_tokens")
    kinds = {(*(str(r.facts[n]) for n in names), r.inputs["tokenizer"][:12]) for r in receipts}
    if len(kinds) > 1:
        raise IntegrityError(
            f"{corpus.dataset}/{split}: its shards were made with different settings {sorted(kinds)} "
            f"({', '.join(names)}, tokenizer). Materialize token_bins again: only stale shards are rebuilt"
        )
    declared = meta_of(corpus)
    for receipt in receipts:
        if (receipt.facts["dtype"], receipt.inputs["tokenizer"]) != (declared["dtype"], declared["tokenizer_sha256"]):
            raise IntegrityError(
                f"{corpus.dataset}/{receipt.partition}: made with another tokenizer or dtype than is declared now. "
                "Materialize token_bins again"
            )


def combined_key(shards: Sequence[tuple[Artifact, Receipt]], meta_values: Mapping[str, Any]) -> str:
    """The key of the combined bins of these shards."""
    return digest_value(["combined_bins", VERSION, [r.content for _, r in shards], meta_values])


def build_combined_bins(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, split: str
) -> tuple[Receipt, bool]:
    """Join the shards of a split into `<split>.bin` and `document_ends.bin`, with `meta.pkl` and `meta.json`.

    Returns the receipt, and whether the artifact that was there is current.
    """
    shards = shard_receipts(corpus, store, manifest, split)
    meta_values = meta_of(corpus)

    def write(staged: Path) -> Written:
        tokens = store.join(staged, f"{split}.bin", [Part(shard, r.file(TOKENS)) for shard, r in shards])
        ledgers = [r.ledger or Ledger() for _, r in shards]
        document_ends.concatenate(
            [
                (store.local(shard, [ENDS]) / ENDS, ledger.tokens)
                for (shard, _), ledger in zip(shards, ledgers, strict=True)
            ],
            staged / ENDS,
        )
        meta.write_meta(staged, meta_values)
        ledger = Ledger.total(ledgers)
        ledger.balance(f"{corpus.dataset}/combined_bins/{split}")
        wanted = ledger.tokens * flat_bins.token_dtype(meta_values["dtype"]).itemsize
        if tokens.record.bytes != wanted:
            raise IntegrityError(
                f"{corpus.dataset}/combined_bins/{split}: {tokens.record.bytes} bytes for {ledger.tokens} "
                f"{meta_values['dtype']} tokens, which are {wanted} bytes. Materialize token_bins again"
            )
        return Written(
            inputs={str(r.partition): r.content for _, r in shards},
            facts=meta_values | {"shards": len(shards), "bos_id": shards[0][1].facts["bos_id"]},
            ledger=ledger,
            joined=(tokens,),
        )

    key = combined_key(shards, meta_values)
    return ensure(corpus.artifact("combined_bins", split), store, key, write, corpus.verify)
