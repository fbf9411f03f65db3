"""Builds the blend run: its finished shards where a trainer expects them, below `runs/<run_hash>/`.

    config.json       what the run hash stands for
    datasets/         the shards (`run_layout.py`)
    realised.json     requested and realised shares, a row for each dataset of a split (`realised_shares.py`)

and what the trainer reads first (`trainer_entry.py`). The files are the shards' own bytes under other names (links
where the store can). A missing, stale or damaged shard is refused and named; a shard without data is declared empty in
the receipt and listed nowhere.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.integrity.scratch import scratch
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.finished_shards import (
    FinishedShard,
    ShardToBuild,
    data_file,
    finished_shards,
)
from dataprep_assets.pipelines.blend.output.realised_shares import Realised, compute_shares, used_shards
from dataprep_assets.pipelines.blend.output.run_layout import RunLayout, says_the_same, write_datasets
from dataprep_assets.pipelines.blend.output.trainer_entry import write_entry
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.plan.planner import stage_identity
from dataprep_assets.stores.files import digest_value

VERSIONS: dict[Stage, int] = {"pretrain": 2, "sft": 2, "rl": 3}
"""The version of the layout of a run, by stage."""
RUNS = "runs"
CONFIG = "config.json"
REALISED = "realised.json"
_BLOCK = 1 << 20


class RunFacts(Facts):
    """`root`: where the trainer finds the run; `empty`: partitions without data; `used`: split → its partitions."""

    run_hash: str
    stage: Stage
    root: str
    shards: int
    empty: tuple[str, ...]
    used: dict[str, tuple[str, ...]]
    realised: tuple[Realised, ...]


def run_root(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> str:
    """Return where the trainer finds the run: below `trainer_root`, or where the store has it."""
    artifact = blend.artifact(RUNS, plan.run_hash)
    if blend.trainer_root is not None:
        return f"{blend.trainer_root.rstrip('/')}/{artifact}"
    location = store.location(artifact)
    # absolute, because it is written into what a trainer reads, which starts in another folder
    return location if "://" in location else str(Path(location).resolve())


def run_key(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[FinishedShard]) -> str:
    """The key of a run: its hash, its shards' content, how they are used, and where the trainer finds them.

    `blend` and `plan` say how the `shards`, all of the plan in its order, are used; `store` says where the run will be.
    """
    # What the files of a run say besides the bytes of its shards: shares, epochs, and the paths of the trainer. The
    # tolerance is not in it: it decides a verdict and no file.
    use = [
        blend.train_tokens,
        blend.max_epochs,
        run_root(blend, store, plan),
        [[unit.name, unit.split, unit.dataset.weight] for unit in plan.units],
    ]
    content = [[str(shard.artifact.partition), shard.receipt.content] for shard in shards]
    return digest_value([RUNS, run_version(blend), plan.run_hash, use, content])


def run_version(blend: BlendDeclaration) -> int:
    """The version of the layout of a run, which is the stage's."""
    return VERSIONS[blend.stage]


def run_recipe(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[FinishedShard]
) -> Recipe:
    """The present recipe of a blend run.

    `blend` and `plan` say how the `shards`, all of the plan in its order, are used; `store` says where the run will be.
    """
    return Recipe(
        artifact=blend.artifact(RUNS, plan.run_hash),
        key=run_key(blend, store, plan, shards),
        version=run_version(blend),
        settings={
            "run_hash": plan.run_hash,
            "train_tokens": blend.train_tokens,
            "max_epochs": blend.max_epochs,
            "blend": {unit.name: {"split": unit.split, "weight": unit.dataset.weight} for unit in plan.units},
        },
        upstream={f"{shard.artifact.name}/{shard.artifact.partition}": shard.receipt.content for shard in shards},
        ledger=Ledger.total(shard.ledger for shard in shards).of_documents,
    )


def build_blend_run(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[ShardToBuild]
) -> tuple[Receipt, bool]:
    """Lay out the finished shards of a plan as a run, with what its trainer reads first.

    `blend` is the declaration, `store` holds the shards and gets the run, `plan` is the committed plan, `shards` are
    all its chosen shards. Returns the receipt and whether it was reused. Raises as `finished_shards` does.
    """
    finished = finished_shards(blend, store, plan, shards)

    def write(staged: Path) -> WrittenFiles:
        run = RunLayout(blend=blend, store=store, target=staged, root=run_root(blend, store, plan))
        _lay_out(run, plan, finished)
        return WrittenFiles(
            inputs={str(shard.artifact.partition): shard.receipt.content for shard in finished},
            facts=_facts(blend, plan, finished, run.root),
            ledger=Ledger.total(shard.ledger for shard in finished).of_documents,
            joined=tuple(run.joined),
        )

    return ensure(run_recipe(blend, store, plan, finished), store, write, blend.verify)


def _lay_out(run: RunLayout, plan: BlendPlan, finished: Sequence[FinishedShard]) -> None:
    used = used_shards(run.blend, finished)
    run.write(CONFIG, {"run_hash": plan.run_hash, **stage_identity(run.blend)})
    run.write(REALISED, [asdict(row) for row in compute_shares(run.blend, finished, used)])
    write_datasets(run, plan, finished)
    write_entry(run, plan, used)


@dataclass(frozen=True, kw_only=True)
class _Described(RunLayout):
    """A layout of everything except the shards' own bytes; `parts` says which of these each file of the run has."""

    parts: dict[str, list[FileRef]] = field(default_factory=dict)

    def link(self, shard: FinishedShard, suffix: str, name: str) -> None:
        """Note which file it is."""
        self.join([shard], suffix, name)

    def join(self, shards: Sequence[FinishedShard], suffix: str, name: str) -> None:
        """Note which files they are."""
        self.parts[name] = [FileRef(s.artifact, data_file(self.blend, s.receipt, suffix)) for s in shards]


def _facts(blend: BlendDeclaration, plan: BlendPlan, finished: Sequence[FinishedShard], root: str) -> RunFacts:
    used = used_shards(blend, finished)
    return RunFacts(
        run_hash=plan.run_hash,
        stage=blend.stage,
        root=root,
        shards=len(finished),
        empty=tuple(str(s.artifact.partition) for s in finished if not s.rows),
        used={split: tuple(str(s.artifact.partition) for s in members) for split, members in used.items()},
        realised=tuple(compute_shares(blend, finished, used)),
    )


def _other_bytes(run: _Described, directory: Path, receipt: Receipt) -> Iterator[str]:
    """Files of a run in `directory` that, by the receipts of its shards, are not their own."""
    digests = {record.path: record.sha256 for record in receipt.files}
    for name, parts in run.parts.items():
        # a file that is one shard's has that shard's digest: nothing has to be read
        if len(parts) == 1:
            shard_file, shard = parts[0].record, parts[0].artifact.partition
            if digests.get(name) != shard_file.sha256:
                yield f"{directory / name}: differs from {shard_file.path} of its shard {shard}"
        elif name not in digests or not _is_joined_of(directory / name, parts):
            yield f"{directory / name}: differs from the concatenated files of its {count_of(len(parts), 'shard')}"


def _is_joined_of(path: Path, parts: Sequence[FileRef]) -> bool:
    """Return whether a file is these files one after another, told by their digests."""
    with open(path, "rb") as file:
        # each part is digested where it should lie: one reading of the run, and none of its shards
        for part in parts:
            digest, remaining = hashlib.sha256(), part.record.bytes
            while remaining and (block := file.read(min(remaining, _BLOCK))):
                digest.update(block)
                remaining -= len(block)
            if remaining or digest.hexdigest() != part.record.sha256:
                return False
        return not file.read(1)


def other_claims(
    blend: BlendDeclaration,
    store: ArtifactStore,
    plan: BlendPlan,
    finished: Sequence[FinishedShard],
    directory: Path,
    receipt: Receipt,
) -> Iterator[str]:
    """Claims of a blend run that its plan and its shards contradict.

    Args:
        blend: The declaration.
        store: Where the shards are.
        plan: The committed plan.
        finished: All its chosen shards.
        directory: The run's.
        receipt: The run's.
    """
    facts, expected_facts = RunFacts.of(receipt), _facts(blend, plan, finished, run_root(blend, store, plan))
    for name in RunFacts.model_fields:
        if getattr(facts, name) != getattr(expected_facts, name):
            yield f"{directory}: {name}: the receipt of the run does not match its shards"
    ledger = (receipt.ledger or Ledger()).of_documents
    if ledger != Ledger.total(shard.ledger for shard in finished).of_documents:
        yield f"{directory}: its ledger is not the sum of its shards' ledgers"
    # Laid out once more, without the shards' bytes: each JSON file and list has to be what is written there, and
    # each file of bytes that of the shards that are noted for it.
    with scratch(store.root / blend.dataset) as folder:
        run = _Described(blend=blend, store=store, target=folder, root=expected_facts.root)
        _lay_out(run, plan, finished)
        yield from _other_bytes(run, directory, receipt)
        for path in sorted(run.target.rglob("*.*")):
            stored_path = directory / path.relative_to(run.target)
            if path.is_file() and not says_the_same(path, stored_path):
                yield f"{stored_path}: does not match the plan and the shards"
