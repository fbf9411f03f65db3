"""Builds the combined bins of a split: its shards in manifest order as one file, with `meta.pkl`.

Refuses missing and damaged shards. The kernel joins the files (or links a single one); the digest of every shard's
range is taken from the joined file itself and compared with the shard's receipt, in the same pass that digests the
whole.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.builds.artifact import Written, have
from dataprep_assets.builds.corpus import CorpusDeclaration
from dataprep_assets.builds.engine_certificate import meta_of
from dataprep_assets.builds.manifest import Manifest
from dataprep_assets.builds.token_bins import ENDS, TOKENS
from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.formats import document_ends, flat_bins, meta
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, read_receipt

VERSION = 1
_BLOCK = 8 << 20


def shard_receipts(corpus: CorpusDeclaration, root: Path, manifest: Manifest, split: str) -> list[tuple[Path, Receipt]]:
    """Directory and receipt of every shard of a split, in manifest order.

    Raises MissingArtifactError naming the shards that are not there: a combined file is never made of what happens
    to exist.
    """
    found, missing = [], []
    for partition in manifest.partitions(split):
        directory = corpus.artifact("token_bins", partition).directory(root)
        receipt = read_receipt(directory)
        if receipt is None:
            missing.append(partition)
        else:
            found.append((directory, receipt))
    if missing:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise MissingArtifactError(
            f"{corpus.dataset}/{split}: {len(missing)} of {len(missing) + len(found)} shards are not there: {shown}. "
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


def combined_key(shards: Sequence[tuple[Path, Receipt]], meta_values: Mapping[str, Any]) -> str:
    """The key of the combined bins of these shards."""
    return digest_value(["combined_bins", VERSION, [r.content for _, r in shards], meta_values])


def build_combined_bins(corpus: CorpusDeclaration, root: Path, manifest: Manifest, split: str) -> tuple[Receipt, bool]:
    """Join the shards of a split into `<split>.bin` and `document_ends.bin`, with `meta.pkl` and `meta.json`.

    Returns the receipt, and whether the artifact that was there is current.
    """
    shards = shard_receipts(corpus, root, manifest, split)
    meta_values = meta_of(corpus)

    def write(staged: Path) -> Written:
        tokens = staged / f"{split}.bin"
        flat_bins.concatenate([folder / TOKENS for folder, _ in shards], tokens)
        whole = _digest_against_shards(tokens, shards)
        ledgers = [r.ledger or Ledger() for _, r in shards]
        document_ends.concatenate(
            [(folder / ENDS, ledger.tokens) for (folder, _), ledger in zip(shards, ledgers, strict=True)], staged / ENDS
        )
        meta.write_meta(staged, meta_values)
        ledger = Ledger.total(ledgers)
        ledger.balance(f"{corpus.dataset}/combined_bins/{split}")
        flat_bins.validate(tokens, meta_values["dtype"], ledger.tokens)
        return Written(
            inputs={str(r.partition): r.content for _, r in shards},
            facts=meta_values | {"shards": len(shards), "bos_id": shards[0][1].facts["bos_id"]},
            ledger=ledger,
            digests={tokens.name: whole},
        )

    key = combined_key(shards, meta_values)
    return have(corpus.artifact("combined_bins", split), root, key, write, corpus.verify)


def _digest_against_shards(tokens: Path, shards: Sequence[tuple[Path, Receipt]]) -> str:
    whole = hashlib.sha256()
    with open(tokens, "rb", buffering=0) as file:
        for folder, receipt in shards:
            record, part = receipt.file(TOKENS), hashlib.sha256()
            left = record.bytes
            while left and (data := file.read(min(left, _BLOCK))):
                part.update(data)
                whole.update(data)
                left -= len(data)
            if part.hexdigest() != record.sha256:
                raise IntegrityError(
                    f"{folder / TOKENS}: its bytes are not those of its receipt (sha256 {part.hexdigest()}, receipt "
                    f"{record.sha256}). Materialize token_bins of {receipt.partition} again: it is rebuilt"
                )
        if file.read(1):
            raise IntegrityError(f"{tokens}: longer than its shards together")
    return whole.hexdigest()
