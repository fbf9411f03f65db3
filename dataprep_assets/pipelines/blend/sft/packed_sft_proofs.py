"""All proofs on a shard of packed chat data: those on its rows, and those that need its text.

Entry points: `PACKED_SFT_PROOFS`, `prove_packed_sft`; `findings` of a shard that is open.
"""

from pathlib import Path

from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.answer_proofs import answers_trained
from dataprep_assets.pipelines.blend.sft.conversation_proofs import decoded_mask, round_trip
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard
from dataprep_assets.pipelines.blend.sft.row_proofs import (
    counts_match,
    ids_in_vocabulary,
    ledger_balances,
    rows_valid,
    specials_not_doubled,
    stop_tokens_trained,
)
from dataprep_assets.pipelines.blend.sft.shard import SftShard
from dataprep_assets.stream.losses_proof import LOSSES_PROOF, losses_within_limit
from dataprep_assets.tokenization.bundle import loaded_once

PACKED_SFT_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("ledger_balances", "Rows in = conversations + rows dropped by reason, in total and for each source file."),
    Proof("counts_match", "Rows, sequences, tokens, trained tokens and fill are those of the receipt."),
    Proof(
        "rows_valid",
        "Exact schema; starts increase from 0, the mask is 0 or 1, 0 at each end, something is trained unless chosen.",
    ),
    Proof("ids_in_vocabulary", "Every id is below len(tokenizer), recomputed from the file."),
    Proof("stop_tokens_trained", "Every trained answer ends with the stop token: the mask is shifted once."),
    Proof("specials_not_doubled", "No special token is followed by itself."),
    LOSSES_PROOF,
    Proof("decoded_mask", "Sequences decoded, what is trained between ⟦ and ⟧, to look at."),
    Proof(
        "round_trip",
        "Sampled sequences, or every one, rendered, encoded and masked again, are the stored ones.",
        samples=True,
    ),
    Proof(
        "answers_trained",
        "What is trained of sampled sequences are their rows' answers, found by text alone.",
    ),
)


def prove_packed_sft(shard: SftShard, *, sensitive: bool) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all. `sensitive`: lengths instead of decoded text."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        packed = OpenedShard(
            directory=directory,
            receipt=receipt,
            sources=shard.sources,
            plan=shard.plan,
            shard=shard,
            bundle=loaded_once(shard.plan.tokenizer),
        )
        return findings(packed, sensitive=sensitive)

    return proven(shard.artifact, shard.store, PACKED_SFT_PROOFS, prove)


def findings(packed: OpenedShard, *, sensitive: bool = False) -> dict[str, Finding]:
    """Every proof of a shard that was opened, by name. `sensitive`: lengths instead of decoded text."""
    return {
        "files_intact": files_intact(packed.directory, packed.receipt),
        "ledger_balances": ledger_balances(packed),
        "counts_match": counts_match(packed),
        "rows_valid": rows_valid(packed),
        "ids_in_vocabulary": ids_in_vocabulary(packed),
        "stop_tokens_trained": stop_tokens_trained(packed),
        "specials_not_doubled": specials_not_doubled(packed),
        LOSSES_PROOF.name: losses_within_limit(packed.receipt, packed.plan.max_loss),
        "decoded_mask": decoded_mask(packed, sensitive=sensitive),
        "round_trip": round_trip(packed),
        "answers_trained": answers_trained(packed),
    }
