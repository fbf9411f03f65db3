"""Builds the run of a blend: its finished shards where a trainer expects them, below `runs/<run_hash>/`.

    config.json                              what the run hash stands for
    datasets/<name>/<plan_hash>/plan.json    the dataset's shard plan
    …/receipts/shard_000000.json             a shard's books
    …/shard_000000.bin .idx                  pretrain; sft .parquet; rl .jsonl or .jsonl.zst
    blend.json                               pretrain, sft: weights and prefixes of every split
    data_args.txt                            pretrain: the same of a blend of one split
    splits/<split>/<pos>__<name>__shard_<i>.parquet    sft: files in proportion to the weights, which the trainer reads
    manifest.json                            rl: every shard of every split, as often as the weights ask
    realised.json                            what was asked and what came of it, a row a dataset and split

The files are the shards' own bytes under other names (links where the store can). A missing, stale or damaged shard is
refused and named; a shard without data is declared empty in the receipt and listed nowhere.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.formats import blend_json
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Joined, Part
from dataprep_assets.integrity.digest import canonical_json, digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import FileRecord, Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit, stage_identity
from dataprep_assets.planning.blend import (
    held_out,
    outlook,
    record_repeats,
    record_shares,
    requested_shares,
    shard_weights,
    shards_for_shares,
)

VERSION = 2
ARTIFACT = "runs"
BLEND = "blend.json"
DATA_ARGS = "data_args.txt"
MANIFEST = "manifest.json"
REALISED = "realised.json"
_SUFFIXES = {"pretrain": (".bin", ".idx"), "sft": (".parquet",), "rl": (".jsonl", ".jsonl.zst")}
_PREFIX = {"pretrain": "tokens"}
_RL_KEYS = {"train": "train", "valid": "val", "val": "val", "test": "test"}


class Work(Protocol):
    """A shard to have, of whichever stage: `token_bins.ShardWork`, `rl_jsonl.RlWork` and their like."""

    @property
    def artifact(self) -> Artifact:
        """Where the shard goes; its partition is the plan's."""
        ...

    @property
    def key(self) -> str:
        """Digest of all that decides the shard's bytes."""
        ...


@dataclass(frozen=True, kw_only=True)
class FinishedShard:
    """A shard that is there and is the plan's. `rows` are documents, packed rows or records."""

    unit: PlannedUnit
    index: int
    artifact: Artifact
    receipt: Receipt

    @property
    def ledger(self) -> Ledger:
        """The shard's books."""
        return self.receipt.ledger or Ledger()

    @property
    def tokens(self) -> int:
        """Tokens written; 0 for RL."""
        return self.ledger.tokens

    @property
    def rows(self) -> int:
        """Rows of the output: documents, records, or the bins of packed SFT."""
        return int(self.receipt.facts.get("bins", self.ledger.documents))

    @property
    def stem(self) -> str:
        """Its files' name in the run, without suffix."""
        return f"datasets/{self.unit.name}/{self.unit.plan_hash}/shard_{self.index:06d}"


@dataclass(frozen=True, kw_only=True)
class Realised:
    """One row of the table of requests and results. Shares are of the split, `tokens` and `rows` of what is used.

    For RL a share is one of records: `requested` of those that the source has, each read as often as the weights say;
    `realised` of those that were written, as often as they are listed (`epochs`).
    """

    split: str
    name: str
    requested: float
    realised: float
    realisable: float
    epochs: float
    tokens: int
    rows: int
    shards: int


def finished_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, works: Sequence[Work]
) -> list[FinishedShard]:
    """Every chosen shard of the plan with its receipt, in order.

    `works` are those of all chosen shards. MissingArtifactError names the shards that are not there; IntegrityError
    those that were made of something else than the plan has now, and datasets that have no data at all.
    """
    by_partition = {work.artifact.partition: work for work in works}
    if unplanned := set(plan.partitions) ^ {str(p) for p in by_partition}:
        raise IntegrityError(f"{blend.dataset}: the plan and the works differ in the shards {sorted(unplanned)[:8]}")
    wanted = [by_partition[partition] for partition in plan.partitions]
    receipts = store.receipts([work.artifact for work in wanted])
    missing = [str(w.artifact.partition) for w, r in zip(wanted, receipts, strict=True) if r is None]
    if missing:
        raise MissingArtifactError(_named(blend, missing, len(wanted), "are missing or failed"))
    stale = [str(w.artifact.partition) for w, r in zip(wanted, receipts, strict=True) if r and r.key != w.key]
    if stale:
        raise IntegrityError(_named(blend, stale, len(wanted), "were made of other inputs or settings than now"))
    found = []
    for work, receipt in zip(wanted, receipts, strict=True):
        assert receipt is not None
        unit, shard = plan.find(str(work.artifact.partition))
        found.append(FinishedShard(unit=unit, index=shard.index, artifact=work.artifact, receipt=receipt))
    for unit in plan.units:
        if not any(shard.rows for shard in found if shard.unit is unit):
            raise IntegrityError(
                f"{blend.dataset}: {unit.name} has a weight of {unit.dataset.weight} and no data in any of its shards; "
                "set its weight to 0, or mend its source or filters"
            )
    return found


def _named(blend: BlendDeclaration, partitions: Sequence[str], total: int, what: str) -> str:
    shown = ", ".join(partitions[:8]) + (", …" if len(partitions) > 8 else "")
    return f"{blend.dataset}: {len(partitions)} of {total} shards {what}: {shown}. Materialize these partitions first"


def used_shards(blend: BlendDeclaration, shards: Sequence[FinishedShard]) -> dict[str, list[FinishedShard]]:
    """Split → the shards with data that it uses, dataset by dataset.

    Splits are the blend's own lists, or come of `held_out`; packed SFT leaves shards out so that rows follow the
    weights.
    """
    by_split: dict[str, list[FinishedShard]] = {}
    units = {shard.unit.name: shard.unit for shard in shards}
    for name, unit in units.items():
        full = {shard.index: shard for shard in shards if shard.unit is unit and shard.rows}
        held = blend.held_out
        if held is None:
            places = {unit.home: list(full)}
        else:
            places = held_out(list(full), dataset=name, valid=held.valid, test=held.test, seed=held.seed)
        for split, indexes in places.items():
            by_split.setdefault(split, []).extend(full[index] for index in indexes)
    by_split = {split: members for split, members in by_split.items() if members}
    if blend.stage != "sft":
        return by_split
    return {split: _in_proportion(members) for split, members in by_split.items()}


def _in_proportion(members: Sequence[FinishedShard]) -> list[FinishedShard]:
    groups = _by_dataset(members)
    kept = shards_for_shares({n: [s.rows for s in group] for n, group in groups.items()}, _shares(members))
    return [groups[name][at] for name, indexes in kept.items() for at in indexes]


def _by_dataset(members: Sequence[FinishedShard]) -> dict[str, list[FinishedShard]]:
    groups: dict[str, list[FinishedShard]] = {}
    for shard in members:
        groups.setdefault(shard.unit.name, []).append(shard)
    return groups


def _shares(members: Sequence[FinishedShard]) -> dict[str, float]:
    return requested_shares(_weights(members))


def weighted(members: Sequence[FinishedShard]) -> list[tuple[float, FinishedShard]]:
    """Each shard of a split with its weight: the dataset's share, divided by the shards' tokens."""
    shares = _shares(members)
    return [
        pair
        for name, group in _by_dataset(members).items()
        for pair in zip(shard_weights(shares[name], [s.tokens for s in group]), group, strict=True)
    ]


def _weights(members: Sequence[FinishedShard]) -> dict[str, float]:
    return {shard.unit.name: shard.unit.dataset.weight for shard in members}


def realised(
    blend: BlendDeclaration, shards: Sequence[FinishedShard], used: Mapping[str, Sequence[FinishedShard]]
) -> list[Realised]:
    """What was asked and what came of it, of all shards of a plan and those that each split uses.

    Pretraining shares are of the weights as written, those of SFT of packed rows, those of RL of records.
    """
    if blend.stage == "rl":
        return [row for split, members in used.items() for row in _realised_records(blend, split, shards, members)]
    table = []
    for split, members in used.items():
        shares, groups = _shares(members), _by_dataset(members)
        if blend.stage == "pretrain":
            parts = dict.fromkeys(groups, 0.0)
            for weight, shard in weighted(members):
                parts[shard.unit.name] += float(f"{weight:.15g}")
        else:
            parts = {name: float(sum(s.rows for s in group)) for name, group in groups.items()}
        total = sum(parts.values())
        amounts = {name: sum(s.tokens for s in group) for name, group in groups.items()}
        for look in outlook(shares, amounts, train_tokens=blend.train_tokens, max_epochs=blend.max_epochs):
            once = blend.stage == "sft"  # packed files are read as they are
            share = parts[look.name] / total
            table.append(
                _realised(
                    split,
                    look.name,
                    groups[look.name],
                    requested=look.requested,
                    realised=share,
                    realisable=share if once else look.realisable,
                    epochs=1.0 if once else look.epochs,
                )
            )
    return table


def _realised(split: str, name: str, group: Sequence[FinishedShard], **shares: float) -> Realised:
    tokens, rows = sum(s.tokens for s in group), sum(s.rows for s in group)
    return Realised(split=split, name=name, tokens=tokens, rows=rows, shards=len(group), **shares)


def _realised_records(
    blend: BlendDeclaration, split: str, shards: Sequence[FinishedShard], members: Sequence[FinishedShard]
) -> list[Realised]:
    weights, groups = _weights(members), _by_dataset(members)
    # a shard whose every record was left out is in no split; its records were asked for all the same
    asked = _by_dataset(members if blend.held_out else [s for s in shards if s.unit.name in groups])
    requested = record_shares({n: sum(s.ledger.rows_in for s in asked[n]) for n in groups}, weights)
    repeats = record_repeats(weights)
    written = record_shares({n: sum(s.rows for s in group) for n, group in groups.items()}, repeats)
    return [
        _realised(
            split,
            name,
            group,
            requested=requested[name],
            realised=written[name],
            realisable=written[name],
            epochs=float(repeats[name]),
        )
        for name, group in groups.items()
    ]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run under construction."""

    blend: BlendDeclaration
    store: ArtifactStore
    target: Path
    root: str
    joined: list[Joined] = field(default_factory=list)

    def link(self, shard: FinishedShard, suffix: str, name: str) -> None:
        """A file of a shard under another name; read and compared with its receipt where `verify` is full."""
        part = Part(shard.artifact, data_file(self.blend, shard.receipt, suffix))
        self.joined.append(self.store.join(self.target, name, [part], verify=self.blend.verify == "full"))

    def write(self, name: str, value: Any) -> None:
        """A JSON file of the run."""
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def data_file(blend: BlendDeclaration, receipt: Receipt, suffix: str) -> FileRecord:
    """A shard's data file with this suffix; IntegrityError unless there is exactly one."""
    prefix = _PREFIX.get(blend.stage, "")
    found = [f for f in receipt.files if f.path.endswith(suffix) and f.path.startswith(prefix)]
    found = [f for f in found if not f.path.startswith("quarantine")]
    if len(found) != 1:
        raise IntegrityError(f"{receipt.artifact}/{receipt.partition}: {len(found)} files *{suffix}; one was expected")
    return found[0]


def suffixes(blend: BlendDeclaration) -> tuple[str, ...]:
    """The suffixes of a shard's files."""
    if blend.stage == "rl":
        return (".jsonl.zst",) if blend.rl_options.compression == "zstd" else (".jsonl",)
    return _SUFFIXES[blend.stage]


def run_root(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> str:
    """Where the trainer finds the run: below `trainer_root`, or where the store has it."""
    artifact = blend.artifact(ARTIFACT, plan.run_hash)
    if blend.trainer_root is not None:
        return f"{blend.trainer_root.rstrip('/')}/{artifact}"
    place = store.location(artifact)
    return place if "://" in place else str(Path(place).resolve())


def run_key(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[FinishedShard]) -> str:
    """The key of a run: its hash, its shards' content, how they are used, and where the trainer finds them."""
    use = [
        blend.train_tokens,
        blend.max_epochs,
        run_root(blend, store, plan),
        [[unit.name, unit.split, unit.dataset.weight] for unit in plan.units],
    ]
    content = [[str(shard.artifact.partition), shard.receipt.content] for shard in shards]
    return digest_value([ARTIFACT, VERSION, plan.run_hash, use, content])


def build_blend_run(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, works: Sequence[Work]
) -> tuple[Receipt, bool]:
    """Lay out the finished shards of a plan as a run, with what its trainer reads first.

    Returns the receipt, and whether the run that was there is current. Its facts have the table (`realised`) and the
    partitions declared empty (`empty`).
    """
    shards = finished_shards(blend, store, plan, works)

    def write(staged: Path) -> Written:
        run = _Run(blend=blend, store=store, target=staged, root=run_root(blend, store, plan))
        used = used_shards(blend, shards)
        table = [asdict(row) for row in realised(blend, shards, used)]
        run.write("config.json", {"run_hash": plan.run_hash, **stage_identity(blend)})
        run.write(REALISED, table)
        _write_datasets(run, plan, shards)
        _ENTRY[blend.stage](run, plan, used)
        return Written(
            inputs={str(shard.artifact.partition): shard.receipt.content for shard in shards},
            facts={
                "run_hash": plan.run_hash,
                "stage": blend.stage,
                "root": run.root,
                "shards": len(shards),
                "empty": [str(s.artifact.partition) for s in shards if not s.rows],
                "used": {split: [str(s.artifact.partition) for s in members] for split, members in used.items()},
                "realised": table,
            },
            ledger=Ledger.total(shard.ledger for shard in shards),
            joined=tuple(run.joined),
        )

    artifact = blend.artifact(ARTIFACT, plan.run_hash)
    return ensure(artifact, store, run_key(blend, store, plan, shards), write, blend.verify)


def _write_datasets(run: _Run, plan: BlendPlan, shards: Sequence[FinishedShard]) -> None:
    by_name = {unit["name"]: unit for unit in plan.to_json()["datasets"]}
    for unit in plan.units:
        run.write(f"datasets/{unit.name}/{unit.plan_hash}/plan.json", by_name[unit.name])
    for shard in shards:
        receipt = shard.receipt
        folder = f"datasets/{shard.unit.name}/{shard.unit.plan_hash}"
        run.write(
            f"{folder}/receipts/shard_{shard.index:06d}.json",
            {
                "partition": receipt.partition,
                "status": "completed" if shard.rows else "empty",
                "plan_hash": shard.unit.plan_hash,
                "key": receipt.key,
                "content": receipt.content,
                "ledger": shard.ledger.to_json(),
                "files": [asdict(record) for record in receipt.files],
            },
        )
        if shard.rows:
            for suffix in suffixes(run.blend):
                run.link(shard, suffix, f"{shard.stem}{suffix}")


def _write_blend(run: _Run, used: Mapping[str, Sequence[FinishedShard]]) -> dict[str, list[blend_json.Entry]]:
    splits = {
        split: [blend_json.Entry(weight, f"{run.root}/{shard.stem}") for weight, shard in weighted(members)]
        for split, members in used.items()
    }
    blend_json.write_blend(run.target / BLEND, splits)
    return splits


def _write_pretrain(run: _Run, plan: BlendPlan, used: Mapping[str, Sequence[FinishedShard]]) -> None:
    splits = _write_blend(run, used)
    if len(splits) == 1 and not any(character.isspace() for character in run.root):
        (run.target / DATA_ARGS).write_text(blend_json.data_args(next(iter(splits.values()))))


def _write_sft(run: _Run, plan: BlendPlan, used: Mapping[str, Sequence[FinishedShard]]) -> None:
    """The split folders, and the `blend.json` that Nemotron's `stage1_sft/data_prep.py` makes them from."""
    _write_blend(run, used)
    for split, members in used.items():
        for position, shard in enumerate(members):
            name = f"splits/{split}/{position:06d}__{shard.unit.name}__shard_{shard.index:06d}.parquet"
            run.link(shard, ".parquet", name)


def _write_rl(run: _Run, plan: BlendPlan, used: Mapping[str, Sequence[FinishedShard]]) -> None:
    (suffix,) = suffixes(run.blend)
    listed: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    records: dict[str, int] = {}
    for split, members in used.items():
        key = _RL_KEYS.get(split, split)
        repeated = _repeated(members)
        listed.setdefault(key, []).extend(f"{run.root}/{s.stem}{suffix}" for s in repeated)
        records[key] = sum(s.rows for s in repeated)
    value = {
        **listed,
        "run_hash": plan.run_hash,
        "source_splits": sorted({unit.home for unit in plan.units}),
        "records": records,
    }
    (run.target / MANIFEST).write_bytes(canonical_json(value) + b"\n")


def _repeated(members: Sequence[FinishedShard]) -> list[FinishedShard]:
    """A split's shards as often as their weights ask: all of them first, then the repetitions, round by round."""
    repeats = record_repeats(_weights(members))
    rounds = range(max(repeats.values()))
    return [shard for turn in rounds for shard in members if repeats[shard.unit.name] > turn]


_ENTRY: Mapping[str, Callable[[_Run, BlendPlan, Mapping[str, Sequence[FinishedShard]]], None]] = {
    "pretrain": _write_pretrain,
    "sft": _write_sft,
    "rl": _write_rl,
}
