"""All proofs on a shard of packed chat data: those on its rows, and those that need its text.

Entry points: `PACKED_SFT_PROOFS`, `prove_packed_sft`.
"""

from pathlib import Path

from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft import conversation_proofs, row_proofs
from dataprep_assets.pipelines.blend.sft.answer_proofs import answers_trained
from dataprep_assets.pipelines.blend.sft.shard import SftShard
from dataprep_assets.tokenization.bundle import loaded_once

__all__ = ["PACKED_SFT_PROOFS", "prove_packed_sft"]

PACKED_SFT_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("ledger_balances", "Rows in = conversations + rows dropped by reason, in total and for each source file."),
    Proof("counts_match", "Rows, sequences, tokens, trained tokens and fill are those of the receipt."),
    Proof(
        "rows_valid",
        "Exact schema; starts increase from 0, the mask is 0 or 1, 0 at each end, something is trained unless chosen.",
        version=2,
    ),
    Proof("ids_in_vocabulary", "Every id is below len(tokenizer), recomputed from the file."),
    Proof("stop_tokens_trained", "Every trained answer ends with the stop token: the mask is shifted once."),
    Proof("specials_not_doubled", "No special token is followed by itself."),
    Proof("decoded_mask", "Sequences decoded, what is trained between ⟦ and ⟧, to look at."),
    Proof(
        "round_trip",
        "Sampled sequences, rendered, encoded and masked again by the reference, are the stored ones.",
        version=2,
    ),
    Proof("answers_trained", "What is trained of sampled sequences are their rows' answers, found by text alone."),
)


def prove_packed_sft(shard: SftShard, *, sensitive: bool) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all. `sensitive`: lengths instead of decoded text."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        bundle, choices = loaded_once(shard.plan.tokenizer), shard.plan.choices
        untrained = choices.untrained == "kept"
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": row_proofs.ledger_balances(directory, receipt),
            "counts_match": row_proofs.counts_match(directory, receipt),
            "rows_valid": row_proofs.rows_valid(directory, receipt, untrained_allowed=untrained),
            "ids_in_vocabulary": row_proofs.ids_in_vocabulary(directory, receipt, bundle.vocab_size),
            "stop_tokens_trained": row_proofs.stop_tokens_trained(directory, receipt),
            "specials_not_doubled": row_proofs.specials_not_doubled(
                directory,
                receipt,
                bundle,
                literals_are_special=choices.special_literals == "special",
            ),
            "decoded_mask": conversation_proofs.decoded_mask(
                directory, receipt, bundle, sensitive=sensitive, untrained_allowed=untrained
            ),
            "round_trip": conversation_proofs.round_trip(directory, receipt, shard.sources, shard.plan, bundle),
            "answers_trained": answers_trained(directory, receipt, shard.sources, shard.plan, bundle),
        }

    return proven(shard.artifact, shard.store, PACKED_SFT_PROOFS, prove)
