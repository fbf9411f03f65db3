"""Every proof of one shard of token bins, and of many of them in parallel; `verdicts` remembers the verdicts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.builds.token_bins import ENDS, TOKENS, ShardWork
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs import token_bins
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.verdicts import prove_all
from dataprep_assets.tokenization.bundle import TokenizerBundle

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


@dataclass(frozen=True, kw_only=True)
class ShardExamination:
    """What a worker needs to prove one shard."""

    work: ShardWork
    text_field: str
    sensitive: bool

    @property
    def artifact(self) -> Artifact:
        """The shard."""
        return self.work.artifact

    @property
    def store(self) -> ArtifactStore:
        """Where it is."""
        return self.work.store


def prove_shard(examination: ShardExamination) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all."""
    work = examination.work
    try:
        receipt, directory = work.store.require(work.artifact), work.store.local(work.artifact)
    except DataprepError as error:  # a receipt that cannot be read is the finding
        return dict.fromkeys(SHARD_PROOFS, Finding(passed=False, summary=str(error)))
    bundle = TokenizerBundle.load(work.plan.tokenizer)
    return {
        "files_intact": token_bins.files_intact(directory, receipt),
        "ledger_balances": token_bins.ledger_balances(directory, receipt),
        "size_matches": token_bins.size_matches(directory, receipt),
        "ids_in_vocabulary": token_bins.ids_in_vocabulary(directory, receipt, bundle.vocab_size),
        "separators_match_documents": token_bins.separators_match_documents(directory, receipt),
        "certificate_valid": token_bins.certificate_valid(receipt, bundle, work.plan.special_tokens),
        "round_trip": token_bins.round_trip(
            directory, receipt, {f.label: f for f in work.files}, bundle, text_field=examination.text_field
        ),
        "eye_test": token_bins.eye_test(
            directory / TOKENS,
            directory / ENDS,
            work.plan.dtype,
            bundle,
            seed=int(receipt.key[:8], 16),
            sensitive=examination.sensitive,
        ),
    }


def prove_shards(examinations: Sequence[ShardExamination], workers: int) -> Iterator[tuple[str, dict[str, Finding]]]:
    """Partition and findings of each shard, as they are done; verdicts are remembered."""
    return prove_all({e.work.partition: e for e in examinations}, prove_shard, workers)
