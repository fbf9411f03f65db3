"""Every proof of a shard of packed chat data, for `verdicts.prove_all`.

Entry points: `PACKED_SFT_PROOFS`, `prove_packed_sft`.
"""

from collections.abc import Mapping
from pathlib import Path

from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft import packed_sft_proofs as packed_sft
from dataprep_assets.pipelines.blend.sft.packed_sft import SftWork
from dataprep_assets.tokenization.bundle import TokenizerBundle

__all__ = ["PACKED_SFT_PROOFS", "prove_packed_sft"]

PACKED_SFT_PROOFS: Mapping[str, str] = {
    "files_intact": "Every file has the size and digest of the receipt, and no file is unlisted.",
    "ledger_balances": "Rows in = conversations + rows dropped by reason, in total and for each source file.",
    "counts_match": "Rows, sequences, tokens, trained tokens and fill are those of the receipt.",
    "rows_valid": "Exact schema; starts increase from 0, the mask is 0 or 1 and 0 at each end, something is trained.",
    "ids_in_vocabulary": "Every id is below len(tokenizer), recomputed from the file.",
    "stop_tokens_trained": "Every trained answer ends with the stop token: the mask is shifted once.",
    "specials_not_doubled": "No special token is followed by itself.",
    "decoded_mask": "Sequences decoded, what is trained between ⟦ and ⟧, to look at.",
    "round_trip": "Sampled sequences, rendered, encoded and masked again by the reference, are the stored ones.",
}
"""Name of each proof of a shard, and what it proves."""


def prove_packed_sft(work: SftWork, *, sensitive: bool) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all. `sensitive`: lengths instead of decoded text."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        bundle = TokenizerBundle.load(work.plan.tokenizer)
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": packed_sft.ledger_balances(directory, receipt),
            "counts_match": packed_sft.counts_match(directory, receipt),
            "rows_valid": packed_sft.rows_valid(directory, receipt),
            "ids_in_vocabulary": packed_sft.ids_in_vocabulary(directory, receipt, bundle.vocab_size),
            "stop_tokens_trained": packed_sft.stop_tokens_trained(directory, receipt),
            "specials_not_doubled": packed_sft.specials_not_doubled(directory, receipt, bundle),
            "decoded_mask": packed_sft.decoded_mask(directory, receipt, bundle, sensitive=sensitive),
            "round_trip": packed_sft.round_trip(directory, receipt, work.sources, work.plan, bundle),
        }

    return proven(work.artifact, work.store, PACKED_SFT_PROOFS, prove)
