"""Finished shards of a plan, the input of every blend run.

Missing shards, shards from different inputs or settings, and datasets without data raise errors that name them.

Entry points: `load_finished_shards`, `find_data_file`, `list_suffixes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import IntegrityError, MissingArtifactError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import FileRecord, Ledger, Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.losses import count_output_rows, describe_missing_data
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, PlannedUnit, describe_first_file

_SUFFIXES = {"pretrain": (".bin", ".idx"), "sft": (".parquet",), "pairs": (".parquet",), "rl": (".jsonl", ".jsonl.zst")}
_PREFIX = {"pretrain": "tokens"}
_MAX_NAMED = 8
"""Maximum number of partitions that an error lists, because a blend may have thousands."""


class ShardToBuild(Protocol):
    """Shard of a plan, of any stage: `TokenShard`, `SftShard`, `PairsShard` or `RlShard`."""

    @property
    def artifact(self) -> Artifact:
        """Artifact of the shard, with the plan's partition key."""
        ...

    @property
    def key(self) -> str:
        """Digest of everything that determines the shard's bytes."""
        ...

    @property
    def recipe(self) -> Recipe:
        """Named values whose digest is the key."""
        ...


@dataclass(frozen=True, kw_only=True)
class FinishedShard:
    """Built shard of the plan, with its receipt."""

    unit: PlannedUnit
    index: int
    artifact: Artifact
    receipt: Receipt

    @property
    def ledger(self) -> Ledger:
        """Ledger of the shard; empty if the receipt has none."""
        return self.receipt.ledger or Ledger()

    @property
    def tokens(self) -> int:
        """Number of tokens in the shard; 0 for RL."""
        return self.ledger.tokens

    @property
    def rows(self) -> int:
        """Number of rows in the shard's output (see `losses.count_output_rows`)."""
        return count_output_rows(self.receipt)

    @property
    def stem(self) -> str:
        """Name of the shard's files in the run, without suffix."""
        return f"datasets/{self.unit.name}/{self.unit.plan_hash}/shard_{self.index:06d}"


def load_finished_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[ShardToBuild]
) -> list[FinishedShard]:
    """Return every chosen shard of the plan with its receipt, in the plan's order.

    `blend` is the declaration, `store` contains the artifacts, and `shards` are all chosen shards of `plan`, in any
    order.

    Raises MissingArtifactError if shards are missing. Raises IntegrityError if shards were built from different inputs
    or settings, or if a dataset has no data.
    """
    by_partition = {shard.artifact.partition: shard for shard in shards}
    if unplanned := set(plan.partitions) ^ {str(p) for p in by_partition}:
        raise IntegrityError(
            f"{blend.dataset}: the shards do not match the plan: {', '.join(sorted(unplanned)[:_MAX_NAMED])}. "
            "Rebuild `blend_plan`"
        )
    chosen_shards = [by_partition[partition] for partition in plan.partitions]
    receipts = store.receipts([shard.artifact for shard in chosen_shards])
    missing = [str(s.artifact.partition) for s, r in zip(chosen_shards, receipts, strict=True) if r is None]
    if missing:
        raise MissingArtifactError(
            _describe_partitions(blend, missing, len(chosen_shards), ("is", "are"), "missing or failed")
        )
    stale_partitions = [
        str(s.artifact.partition) for s, r in zip(chosen_shards, receipts, strict=True) if r and r.key != s.key
    ]
    if stale_partitions:
        raise IntegrityError(
            _describe_partitions(
                blend, stale_partitions, len(chosen_shards), ("was", "were"), "built from different inputs or settings"
            )
        )
    complete_shards = []
    for shard, receipt in zip(chosen_shards, receipts, strict=True):
        assert receipt is not None
        unit, planned_shard = plan.find_shard(str(shard.artifact.partition))
        complete_shards.append(
            FinishedShard(unit=unit, index=planned_shard.index, artifact=shard.artifact, receipt=receipt)
        )
    for unit in plan.units:
        members = [shard.receipt for shard in complete_shards if shard.unit is unit]
        if not any(map(count_output_rows, members)):
            raise IntegrityError(
                f"{blend.dataset}: {unit.name}{describe_first_file(blend, unit)}: has a weight of "
                f"{unit.dataset.weight}, but "
                f"no data in any shard: {describe_missing_data(blend, members)}"
            )
    return complete_shards


def _describe_partitions(
    blend: BlendDeclaration, partitions: Sequence[str], total: int, verbs: tuple[str, str], state: str
) -> str:
    names = ", ".join(partitions[:_MAX_NAMED]) + (", …" if len(partitions) > _MAX_NAMED else "")
    return (
        f"{blend.dataset}: {len(partitions)} of {count_of(total, 'shard')} {verbs[len(partitions) > 1]} {state}: "
        f"{names}. Build these partitions first"
    )


def find_data_file(blend: BlendDeclaration, receipt: Receipt, suffix: str) -> FileRecord:
    """Return the record of a shard's data file in its `receipt`, by the file's suffix (see `list_suffixes`).

    Raises IntegrityError unless exactly one data file has the suffix.
    """
    prefix = _PREFIX.get(blend.stage, "")
    # The prefix is necessary for pretraining, because `document_ends.bin` has the same suffix as `tokens.bin`.
    records = [f for f in receipt.files if f.path.endswith(suffix) and f.path.startswith(prefix)]
    # Exclude the quarantine file, which has the same suffix as the JSON Lines files of RL records.
    records = [f for f in records if not f.path.startswith("quarantine")]
    if len(records) != 1:
        raise IntegrityError(
            f"{receipt.artifact}/{receipt.partition}: expected one file *{suffix}, found {len(records)}. Rebuild "
            "this partition"
        )
    return records[0]


def list_suffixes(blend: BlendDeclaration) -> tuple[str, ...]:
    """Return the suffixes of a shard's data files."""
    if blend.stage == "rl":
        return (".jsonl.zst",) if blend.rl_options.compression == "zstd" else (".jsonl",)
    return _SUFFIXES[blend.stage]
