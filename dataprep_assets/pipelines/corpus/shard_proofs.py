"""Every proof of one shard of token bins, for `verdicts.prove_all`.

Entry points: `SHARD_PROOFS`, `prove_shard`.
"""

from collections.abc import Mapping
from pathlib import Path

from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus import token_bins_proofs as token_bins
from dataprep_assets.pipelines.corpus.token_bins import ENDS, TOKENS, ShardWork
from dataprep_assets.tokenization.bundle import TokenizerBundle

__all__ = ["SHARD_PROOFS", "prove_shard"]

SHARD_PROOFS: Mapping[str, str] = {
    "files_intact": "Every file has the size and digest of the receipt, and no file is unlisted.",
    "ledger_balances": "Rows in = documents + rows dropped by reason, in total and for each source file.",
    "size_matches": "Bytes = tokens × item size, and document ends cover the stream exactly.",
    "ids_in_vocabulary": "Every id is below len(tokenizer), recomputed from the file.",
    "separators_match_documents": "One separator ends each document; none is doubled, missing or unaccounted for.",
    "certificate_valid": "The engine that encoded the shard was certified for it.",
    "round_trip": "Sampled documents, re-read from source and re-encoded by the reference, are the stored ids.",
    "eye_test": "Decoded windows look like text: entropy, printable share, no runs of one id.",
}
"""Name of each proof of a shard, and what it proves."""


def prove_shard(work: ShardWork, *, sensitive: bool) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all. `sensitive`: no decoded text is shown."""
    plan, files = work.plan, {file.label: file for file in work.files}

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        bundle, seed = TokenizerBundle.load(plan.tokenizer), int(receipt.key[:8], 16)
        tokens, ends = directory / TOKENS, directory / ENDS
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": token_bins.ledger_balances(directory, receipt),
            "size_matches": token_bins.size_matches(directory, receipt),
            "ids_in_vocabulary": token_bins.ids_in_vocabulary(directory, receipt, bundle.vocab_size),
            "separators_match_documents": token_bins.separators_match_documents(directory, receipt),
            "certificate_valid": token_bins.certificate_valid(receipt, bundle, plan.special_tokens),
            "round_trip": token_bins.round_trip(directory, receipt, files, bundle, text_field=plan.text_field),
            "eye_test": token_bins.eye_test(tokens, ends, plan.dtype, bundle, seed=seed, sensitive=sensitive),
        }

    return proven(work.artifact, work.store, SHARD_PROOFS, prove)
