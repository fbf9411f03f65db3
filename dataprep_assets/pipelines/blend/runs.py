"""The blend run: the finished shards in the trainer's layout, below `runs/<run_hash>/`.

    config.json       the settings behind the run hash
    datasets/         the shards (`run_layout.py`)
    realised.json     requested and realized shares, one row per dataset and split (`realized_shares.py`)

The run also contains the trainer's entry files (`trainer_entry.py`). Its data files are the shards' files under
different names, as links if the store supports links. A missing, stale or damaged shard raises an error that names it.
A shard without data is recorded as empty in the receipt, and is not in the trainer's entry files.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.integrity.scratch import create_scratch
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.finished_shards import (
    FinishedShard,
    ShardToBuild,
    find_data_file,
    load_finished_shards,
)
from dataprep_assets.pipelines.blend.output.realized_shares import RealizedShare, compute_shares, list_used_shards
from dataprep_assets.pipelines.blend.output.run_layout import RunLayout, is_equivalent, write_datasets
from dataprep_assets.pipelines.blend.output.trainer_entry import write_entry
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.plan.planner import collect_stage_identity
from dataprep_assets.stores.files import digest_value

VERSIONS: dict[Stage, int] = {"pretrain": 2, "sft": 2, "pairs": 1, "rl": 3}
"""Stage → version of a run's layout."""
RUNS = "runs"
CONFIG = "config.json"
REALIZED = "realised.json"
_BLOCK = 1 << 20


class RunFacts(Facts):
    """Facts of a run. `root` is the location at which the trainer finds it. `used` maps splits to partition keys.

    `empty` are the partition keys of shards without data.
    """

    run_hash: str
    stage: Stage
    root: str
    shards: int
    empty: tuple[str, ...]
    used: dict[str, tuple[str, ...]]
    realised: tuple[RealizedShare, ...]


def locate_run(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> str:
    """Return the location at which the trainer finds the run: below `trainer_root` if declared, else in the store."""
    artifact = blend.artifact(RUNS, plan.run_hash)
    if blend.trainer_root is not None:
        return f"{blend.trainer_root.rstrip('/')}/{artifact}"
    location = store.location(artifact)
    # Make the path absolute, because the trainer may start in a different folder.
    return location if "://" in location else str(Path(location).resolve())


def compute_run_key(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[FinishedShard]
) -> str:
    """Return the key of a run, which covers its run hash, its location, and the content and use of its shards.

    `blend` and `plan` determine the use of the `shards` (all shards of the plan, in order), and `store` determines the
    location.
    """
    # The key also covers the weights, the limits of tokens and epochs, and the run's location, because they determine
    # the run's files and facts. It does not cover the tolerance, which affects only a check.
    use = [
        blend.train_tokens,
        blend.max_epochs,
        locate_run(blend, store, plan),
        [[unit.name, unit.split, unit.dataset.weight] for unit in plan.units],
    ]
    content = [[str(shard.artifact.partition), shard.receipt.content] for shard in shards]
    return digest_value([RUNS, get_run_version(blend), plan.run_hash, use, content])


def get_run_version(blend: BlendDeclaration) -> int:
    """Return the layout version of the blend's stage."""
    return VERSIONS[blend.stage]


def build_run_recipe(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[FinishedShard]
) -> Recipe:
    """Return the current recipe of a blend run. The arguments are the same as for `compute_run_key`."""
    return Recipe(
        artifact=blend.artifact(RUNS, plan.run_hash),
        key=compute_run_key(blend, store, plan, shards),
        version=get_run_version(blend),
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
    """Lay out the finished shards of a plan as a run, with the trainer's entry files.

    `blend` is the declaration, `store` contains the shards and receives the run, `plan` is the committed plan, and
    `shards` are all its chosen shards. Returns the receipt, and whether the run was reused. Raises the errors of
    `load_finished_shards`.
    """
    finished = load_finished_shards(blend, store, plan, shards)

    def write(staged: Path) -> WrittenFiles:
        run = RunLayout(blend=blend, store=store, target=staged, root=locate_run(blend, store, plan))
        _lay_out(run, plan, finished)
        return WrittenFiles(
            inputs={str(shard.artifact.partition): shard.receipt.content for shard in finished},
            facts=_build_facts(blend, plan, finished, run.root),
            ledger=Ledger.total(shard.ledger for shard in finished).of_documents,
            joined=tuple(run.joined),
        )

    return ensure_built(build_run_recipe(blend, store, plan, finished), store, write, blend.verify)


def _lay_out(run: RunLayout, plan: BlendPlan, finished: Sequence[FinishedShard]) -> None:
    shards_by_split = list_used_shards(run.blend, finished)
    run.write(CONFIG, {"run_hash": plan.run_hash, **collect_stage_identity(run.blend)})
    run.write(REALIZED, [asdict(row) for row in compute_shares(run.blend, finished, shards_by_split)])
    write_datasets(run, plan, finished)
    write_entry(run, plan, shards_by_split)


@dataclass(frozen=True, kw_only=True)
class _RunDescription(RunLayout):
    """Layout of a run without the shards' data. `parts` maps each data file of the run to its shards' files."""

    parts: dict[str, list[FileRef]] = field(default_factory=dict)

    def link(self, shard: FinishedShard, suffix: str, name: str) -> None:
        """Record the shard's file under its name in the run."""
        self.join([shard], suffix, name)

    def join(self, shards: Sequence[FinishedShard], suffix: str, name: str) -> None:
        """Record the shards' files under the name of their joined file in the run."""
        self.parts[name] = [FileRef(s.artifact, find_data_file(self.blend, s.receipt, suffix)) for s in shards]


def _build_facts(blend: BlendDeclaration, plan: BlendPlan, finished: Sequence[FinishedShard], root: str) -> RunFacts:
    shards_by_split = list_used_shards(blend, finished)
    return RunFacts(
        run_hash=plan.run_hash,
        stage=blend.stage,
        root=root,
        shards=len(finished),
        empty=tuple(str(s.artifact.partition) for s in finished if not s.rows),
        used={split: tuple(str(s.artifact.partition) for s in members) for split, members in shards_by_split.items()},
        realised=tuple(compute_shares(blend, finished, shards_by_split)),
    )


def _find_file_defects(run: _RunDescription, directory: Path, receipt: Receipt) -> Iterator[str]:
    """Yield a sentence for each data file of the run in `directory` that does not match its shards' receipts."""
    digests = {record.path: record.sha256 for record in receipt.files}
    for name, parts in run.parts.items():
        # Do not read a file that comes from a single shard, because it is enough to compare the file's digests in the
        # receipts of the run and of the shard.
        if len(parts) == 1:
            shard_file, shard = parts[0].record, parts[0].artifact.partition
            if digests.get(name) != shard_file.sha256:
                yield f"{directory / name}: differs from {shard_file.path} of its shard {shard}"
        elif name not in digests or not _is_concatenation(directory / name, parts):
            yield f"{directory / name}: differs from the concatenated files of its {count_of(len(parts), 'shard')}"


def _is_concatenation(path: Path, parts: Sequence[FileRef]) -> bool:
    """Return whether a file is the concatenation of `parts`, whose sizes and digests are known."""
    with open(path, "rb") as file:
        # Digest each part at its expected position, so that the shards' files need not be read.
        for part in parts:
            digest, remaining = hashlib.sha256(), part.record.bytes
            while remaining and (block := file.read(min(remaining, _BLOCK))):
                digest.update(block)
                remaining -= len(block)
            if remaining or digest.hexdigest() != part.record.sha256:
                return False
        return not file.read(1)


def find_contradicted_claims(
    blend: BlendDeclaration,
    store: ArtifactStore,
    plan: BlendPlan,
    finished: Sequence[FinishedShard],
    directory: Path,
    receipt: Receipt,
) -> Iterator[str]:
    """Yield a sentence for each claim of a blend run that contradicts its plan or its shards.

    Args:
        blend: The declaration.
        store: Store of the shards.
        plan: The committed plan.
        finished: All chosen shards of the plan.
        directory: Directory of the run.
        receipt: Receipt of the run.
    """
    facts, expected_facts = (
        RunFacts.from_receipt(receipt),
        _build_facts(blend, plan, finished, locate_run(blend, store, plan)),
    )
    for name in RunFacts.model_fields:
        if getattr(facts, name) != getattr(expected_facts, name):
            yield f"{directory}: `{name}` in the receipt of the run does not match its shards"
    ledger = (receipt.ledger or Ledger()).of_documents
    if ledger != Ledger.total(shard.ledger for shard in finished).of_documents:
        yield f"{directory}: its ledger is not the sum of its shards' ledgers"
    # Lay out the run again without the shards' data. The run's JSON and text files must equal the new ones, and each
    # data file must match the shards' files that the new layout records for it.
    with create_scratch(store.root / blend.dataset) as folder:
        run = _RunDescription(blend=blend, store=store, target=folder, root=expected_facts.root)
        _lay_out(run, plan, finished)
        yield from _find_file_defects(run, directory, receipt)
        for path in sorted(run.target.rglob("*.*")):
            stored_path = directory / path.relative_to(run.target)
            if path.is_file() and not is_equivalent(path, stored_path):
                yield f"{stored_path}: does not match the plan and the shards"
