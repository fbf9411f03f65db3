"""The asset `<dataset>/blend`: the finished shards where their trainer expects them, and what it reads first.

On disk it is `runs/<run_hash>/`, which `runs.py` lays out. Its metadata has what Nemotron logs to W&B: `progress_table`
and `stage_table` (the plan's asset has `plan_table`); all three go to W&B itself if the declaration has `wandb`.
Beside them are the requested and the realised share of each dataset, as a table and as a plot.

The sources are compared with the plan's, because a weight is chosen for the data at the time. If a source has grown or
shrunk since, the same weight reads it less or more often, and its share of the rows changes. Nothing is wrong with the
blend run; its owner may want to know.

Splits that share no file may share what is in the files: rows that a source holds twice, or that another one copied.
Compared are 64-bit hashes of what trainers read, one for each document (`pretrain`), sequence (`sft`) or line (`rl`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from dataprep_assets.errors import SourceError, TransferError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import worker_count
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.packed_rows import open_packed
from dataprep_assets.graph.finding import Finding, Row, first_of, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.losses import Loss
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Location, Markdown, Shown, Table
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Proof, Proofs
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, damage
from dataprep_assets.pipelines.blend.blend_plan import plan_rows
from dataprep_assets.pipelines.blend.blend_snapshot import BLEND_SNAPSHOT, BlendSnapshotFacts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.discovery import Discovered, open_place
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild, finished_shards
from dataprep_assets.pipelines.blend.losses import unused_rows
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit, load_blend_plan, partition_key
from dataprep_assets.pipelines.blend.planner import refound, relisted, stage_identity
from dataprep_assets.pipelines.blend.realised_proofs import realised_as_requested
from dataprep_assets.pipelines.blend.rl.rl_jsonl_proofs import lines_of
from dataprep_assets.pipelines.blend.runs import (
    RUNS,
    RunFacts,
    build_blend_run,
    other_claims,
    run_recipe,
    run_version,
)
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackedSftFacts
from dataprep_assets.pipelines.blend.share_plot import plotted
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, stage_shards
from dataprep_assets.pipelines.blend.trainer_entry import trainer_lines
from dataprep_assets.pipelines.blend.trainer_entry_proofs import entry_lists_every_shard
from dataprep_assets.pipelines.blend.wandb_log import log_tables
from dataprep_assets.planning.blend import outlook, requested_shares
from dataprep_assets.plural import count_of
from dataprep_assets.sources.rows import count_rows
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts


def progress_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """The `progress_table`, a row for each dataset: shards fetched and built, tokens and sequences so far.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan.
    """
    rows = []
    for unit in plan.units:
        made = _there(blend, store, SHARDS[blend.stage].name, unit.partitions)
        done = len(made) == len(unit.partitions)
        rows.append(
            {
                "dataset_name": unit.name,
                "size": unit.size_bytes,
                "total_shards": len(unit.partitions),
                "downloaded": len(_there(blend, store, BLEND_SNAPSHOT, unit.partitions)),
                "processed": len(made),
                "total_tokens": sum(r.ledger.tokens for r in made if r.ledger),
                # a document or a record is one sequence; only a conversation may be several, which its shard counts
                "total_sequences": sum(int(r.facts.get("sequences", r.ledger.documents)) for r in made if r.ledger),
                "status": "completed" if done else "in_progress" if made else "pending",
            }
        )
    return rows


def stage_rows(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[dict[str, Any]]:
    """The `stage_table`, a row for each step of the pipeline: what it has done, from the receipts in `store`.

    `blend` is the declaration, `plan` the committed plan. `tasks` are artifacts, `queue_in` those that wait for the
    step and `queue_out` those that the next one has not taken; `rows` are rows read, `bytes` those of the artifacts, of
    a snapshot those of its source files. `worker_seconds` and `cpu_seconds` are empty for a step that does not measure
    them; `first` and `last` are when its first and its last artifact were finished.
    """
    total = len(plan.partitions)

    def single(name: str, stage: str, partition: str | None = None) -> dict[str, Any]:
        made = _there(blend, store, name, [partition])
        return _stage(stage, made, queue_in=1 - len(made))

    snapshots = _there(blend, store, BLEND_SNAPSHOT, plan.partitions)
    shards = _there(blend, store, SHARDS[blend.stage].name, plan.partitions)
    fetched = _stage(BLEND_SNAPSHOT, snapshots, total - len(snapshots), max(0, len(snapshots) - len(shards)))
    made = _stage(SHARDS[blend.stage].name, shards, total - len(shards), actors=worker_count(blend.workers))
    return [
        single("blend_plan", "blend_plan"),
        single("blend_preview", "blend_preview"),
        fetched | {"bytes": sum(BlendSnapshotFacts.of(receipt).source_bytes for receipt in snapshots)},
        *([single("engine_certificate", "engine_certificate")] if blend.stage != "rl" else []),
        made,
        single(RUNS, "blend", plan.run_hash),
    ]


def _stage(name: str, made: Sequence[Receipt], queue_in: int, queue_out: int = 0, actors: int = 1) -> dict[str, Any]:
    ledgers = [receipt.ledger for receipt in made if receipt.ledger]
    tokens = sum(ledger.tokens for ledger in ledgers)
    wall, cpu = (_measured(made, what) for what in ("wall_seconds", "cpu_seconds"))
    finished = sorted(str(receipt.measured["created"]) for receipt in made if "created" in receipt.measured)
    return {
        "stage": name,
        "tasks": len(made),
        "queue_in": queue_in,
        "queue_out": queue_out,
        "actors": actors,
        "rows": sum(ledger.rows_in for ledger in ledgers),
        "tokens": tokens,
        "bytes": sum(receipt.total_bytes for receipt in made),
        "worker_seconds": "" if wall is None else round(wall, 1),
        "cpu_seconds": "" if cpu is None else round(cpu, 1),
        "tokens_per_cpu_second": round(tokens / cpu, 1) if cpu else "",
        "first": finished[0] if finished else "",
        "last": finished[-1] if finished else "",
    }


def _measured(made: Sequence[Receipt], what: str) -> float | None:
    """The sum of a measurement over all receipts of a step; None unless every receipt has it."""
    found = [receipt.measured[what] for receipt in made if what in receipt.measured]
    return sum(found) if found and len(found) == len(made) else None


def _there(blend: BlendDeclaration, store: ArtifactStore, name: str, partitions: Sequence[str | None]) -> list[Receipt]:
    found = store.receipts([blend.artifact(name, partition) for partition in partitions])
    return [receipt for receipt in found if receipt is not None]


Hashes = NDArray[np.uint64]
_NOUNS: Mapping[Stage, str] = {"pretrain": "document", "sft": "sequence", "rl": "record"}


def shared_content(stage: Stage, splits: Mapping[str, Sequence[tuple[Path, Receipt]]]) -> list[str]:
    """A sentence for each split that holds content of another one, which names both and how much of it.

    `splits` has the directory and receipt of each shard that a split uses. Nothing is read of a single split.
    """
    used = {split: shards for split, shards in splits.items() if shards}
    if len(used) < 2:
        return []
    # the greatest is read last and never held: held-out splits are a small part of the data
    order = sorted(used, key=lambda split: sum(receipt.total_bytes for _, receipt in used[split]))
    held = {split: _unique([_hashes(stage, *shard) for shard in used[split]]) for split in order[:-1]}
    found = []
    for at, split in enumerate(order):
        for other in order[:at]:
            blocks = [held[split]] if split in held else (_hashes(stage, *shard) for shard in used[split])
            shared = _unique([block[np.isin(block, held[other])] for block in blocks]).size
            if shared:
                noun = _NOUNS[stage]
                share = f"{shared / held[other].size:.1%} of those of {other}"
                found.append(f"{count_of(shared, noun)} of {other} ({share}) are the same in {split}")
    return found


def _unique(blocks: Sequence[Hashes]) -> Hashes:
    return np.unique(np.concatenate([*blocks, np.zeros(0, np.uint64)]))


def _hashes(stage: Stage, directory: Path, receipt: Receipt) -> Hashes:
    contents = {"pretrain": _documents, "sft": _sequences, "rl": lines_of}[stage](directory, receipt)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, contents), np.uint64)


def _documents(directory: Path, receipt: Receipt) -> Iterator[Any]:
    tokens = flat_bins.open_tokens(directory / TOKENS, TokenBinsFacts.of(receipt).dtype)
    ends = document_ends.open_ends(directory / ENDS)
    yield from (tokens[start:stop].data for start, stop in pairwise([0, *ends.tolist()]))


def _sequences(directory: Path, receipt: Receipt) -> Iterator[Any]:
    if PackedSftFacts.of(receipt).empty:
        return
    for rows in open_packed(directory / PACKED):
        begins, ends = rows.bounds()
        yield from (rows.tokens[a:b].data for a, b in zip(begins.tolist(), ends.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class _BlendSource:
    """A dataset of the plan, and its present files; None if they could not be listed."""

    unit: PlannedUnit
    now: Discovered | None

    @property
    def bytes_now(self) -> int:
        """Bytes of its files now."""
        return self.unit.size_bytes if self.now is None else sum(entry.size_bytes for entry in self.now.entries)

    @property
    def changes(self) -> dict[str, int]:
        """How many files were added, removed and changed."""
        frozen, now = ({path: rest for path, *rest in _files(found)} for found in (refound(self.unit), self.now))
        return {
            "added": len(now.keys() - frozen.keys()),
            "removed": len(frozen.keys() - now.keys()),
            "changed": sum(now[path] != frozen[path] for path in now.keys() & frozen.keys()),
        }


def _files(found: Discovered | None) -> Sequence[Sequence[str | int | None]]:
    return [] if found is None else found.identities


@judged
def blend_sources_unchanged(blend: BlendDeclaration, facts: RunFacts, plan: BlendPlan) -> Finding:
    """Every dataset has the files of the plan; a warning names those that do not, and the consequences.

    Tokens of a changed source are estimated from its bytes.

    Args:
        blend: The declaration.
        facts: Those of the run, with the tokens and rows of each dataset.
        plan: The committed plan.
    """
    sources = list(_sources(blend, plan))
    unasked = [source for source in sources if source.now is None]
    rows = [row for split in dict.fromkeys(u.home for u in plan.units) for row in _rows(blend, facts, split, sources)]
    told = "" if not unasked else f" {len(unasked)} could not be asked: {unasked[0].unit.name}."
    return verdict(
        (_sentence(blend, row) for row in rows if row["changed_files"]),
        f"The sources of {len(sources) - len(unasked)} datasets are those of the plan {plan.run_hash}.{told}",
        "Run the blend again to read what is there now, and see whether its weights are still the wanted ones; or pin "
        "the sources",
        facts={"datasets": len(sources), "not_asked": len(unasked)},
        table=rows,
        warning=True,
    )


def _sources(blend: BlendDeclaration, plan: BlendPlan) -> Iterator[_BlendSource]:
    reachable = True
    for unit in plan.units:
        is_mirrored = open_place(unit.dataset, blend.sources).access.mirrored
        if is_mirrored and not reachable:
            yield _BlendSource(unit=unit, now=None)
            continue
        try:
            now = relisted(blend, unit)
        except TransferError:
            reachable = False  # wait only once for a hub that does not answer, not for each dataset
            yield _BlendSource(unit=unit, now=None)
            continue
        except SourceError:
            # a folder whose files are gone has none; a hub or bucket that refuses to list its own says nothing of them
            now = None if is_mirrored else _without_files(unit)
        yield _BlendSource(unit=unit, now=now if now is not None or is_mirrored else _without_files(unit))


def _without_files(unit: PlannedUnit) -> Discovered:
    found = refound(unit)
    return Discovered(unit=found.unit, entries=(), commit=None)


def _rows(blend: BlendDeclaration, facts: RunFacts, split: str, sources: Sequence[_BlendSource]) -> Iterator[Row]:
    """A row for each dataset of a split: what was planned, and what it is now."""
    own = [source for source in sources if source.unit.home == split]
    measure = "rows" if blend.stage == "rl" else "tokens"
    planned = {
        source.unit.name: sum(getattr(row, measure) for row in facts.realised if row.name == source.unit.name)
        for source in own
    }
    now = {
        source.unit.name: round(planned[source.unit.name] * source.bytes_now / source.unit.size_bytes)
        if source.unit.size_bytes
        else planned[source.unit.name]
        for source in own
    }
    weights = requested_shares({source.unit.name: source.unit.dataset.weight for source in own})
    # one budget for both: else a source that grew would seem to be read as often as before
    budget = blend.train_tokens or sum(planned.values())
    epochs = [
        {look.name: look.epochs for look in outlook(weights, amounts, train_tokens=budget)}
        for amounts in (planned, now)
    ]
    for source in own:
        name, changes = source.unit.name, {} if source.now is None else source.changes
        yield {
            "dataset": name,
            "split": split,
            "requested_share": round(weights[name], 6),
            f"planned_{measure}": planned[name],
            f"{measure}_now": now[name],
            "planned_share_of_data": _share(planned, name),
            "share_of_data_now": _share(now, name),
            "planned_epochs": _finite(epochs[0][name]),
            "epochs_now": _finite(epochs[1][name]),
            "changed_files": sum(changes.values()),
            **{f"files_{kind}": count for kind, count in changes.items()},
        }


def _share(amounts: dict[str, int], name: str) -> float:
    total = sum(amounts.values())
    return round(amounts[name] / total, 6) if total else 0.0


def _finite(epochs: float) -> float:
    return round(epochs, 4) if isfinite(epochs) else 0.0  # no data left to read


def _sentence(blend: BlendDeclaration, row: Row) -> str:
    counts = {kind: row[f"files_{kind}"] for kind in ("added", "removed", "changed")}
    files = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    measure = "records" if blend.stage == "rl" else "tokens"
    told = (
        f"{row['dataset']}: files {files} since the plan: it was {row['planned_share_of_data']:.2%} of the "
        f"{measure} of {row['split']} and is about {row['share_of_data_now']:.2%}"
    )
    if blend.stage != "pretrain":
        return told
    reads = f"{row['planned_epochs']:.2f} → {row['epochs_now']:.2f} times"
    return f"{told}; its weight of {row['requested_share']:.2%} reads it {reads}"


_REPLAN = "Materialize `blend_plan` again"
_REFINALIZE = "Materialize the run again"


@judged
def shards_complete(store: ArtifactStore, plan: BlendPlan, shards: Sequence[ShardToBuild]) -> Finding:
    """Every chosen shard is built and belongs to this plan, with data or declared empty.

    `store` holds the shards; `shards` are all chosen shards of `plan`.
    """
    by_partition = {str(shard.artifact.partition): shard for shard in shards}
    receipts = dict(zip(by_partition, store.receipts([s.artifact for s in by_partition.values()]), strict=True))
    missing = [p for p in plan.partitions if receipts.get(p) is None]
    stale = [p for p, r in receipts.items() if r is not None and r.key != by_partition[p].key]
    empty = [p for p, r in receipts.items() if r is not None and not ledger_of(r).documents]
    defects = (
        [(f"{len(missing)} of {len(plan.partitions)} shards are missing or failed: {first_of(missing)}")]
        if missing
        else []
    )
    if stale:
        defects.append(f"{len(stale)} shards were made of other inputs or settings: {first_of(stale)}")
    return verdict(
        defects,
        f"{count_of(len(plan.partitions), 'shard')} complete, {len(empty)} empty.",
        "Materialize these partitions",
        facts={"shards": len(plan.partitions), "missing": len(missing), "stale": len(stale), "empty": len(empty)},
    )


@judged
def rows_read_once(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, shards: Sequence[ShardToBuild]
) -> Finding:
    """The shards of a file that was cut by rows have together read as many rows as the file has now.

    `blend` is the declaration, `store` holds the shards; `shards` are all chosen shards of `plan`. Files with a shard
    that the sample leaves out are not counted; a blank line is a row of the file, but of no shard.
    """
    partitions = [str(shard.artifact.partition) for shard in shards]
    receipts = dict(zip(partitions, store.receipts([shard.artifact for shard in shards]), strict=True))
    defects: list[str] = []
    counted = 0
    for unit in plan.units:
        access = open_place(unit.dataset, blend.sources).access
        read: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        totals: dict[str, int] = {}
        for shard in unit.shards:
            key = partition_key(unit.name, shard.index)
            receipt = receipts.get(key)
            # A range of a cut file is alone in its shard, so all rows of the ledger are its own. The ledger of a shard
            # of several files, which `max_rows` may shorten, does not tell them apart.
            for part in shard.parts if receipt is not None and len(shard.parts) == 1 else ():
                if part.rows is None:
                    continue
                entry = part.entry
                if entry.relpath not in totals:
                    totals[entry.relpath] = count_rows(
                        access.path(entry),
                        format=entry.format,
                        compression=entry.compression,
                        label=entry.relpath,
                        reading=unit.dataset.reading,
                    )
                # rows count from 1; the last range has no end, and one of a file that shrank may begin behind its end
                end = totals[entry.relpath] + 1
                wanted[entry.relpath] += max(0, min(part.rows.stop or end, end) - part.rows.first)
                assert receipt is not None
                ledger = ledger_of(receipt)
                read[entry.relpath] += ledger.rows_in + ledger.blank_lines
        counted += len(totals)
        defects += [
            f"{unit.name}: {path}: its shards read {read[path]} rows of {wanted[path]}"
            for path in totals
            if read[path] != wanted[path]
        ]
    return verdict(
        defects,
        f"{count_of(counted, 'file')} cut by rows, read once, row by row.",
        f"The file changed, or a shard is of another plan. {_REPLAN}, then the shards",
        facts={"files_counted": counted},
    )


@judged
def run_intact(directory: Path, receipt: Receipt, plan: BlendPlan, others: Iterable[str] = ()) -> Finding:
    """Every file of the run has the digest of its receipt, there is no other file, and it is the run of this plan.

    `directory` is the run's, `receipt` its receipt, `plan` the committed plan, `others` are defects found elsewhere.
    """
    found = [f"{name_of(receipt)}: {defect}" for defect in damage(directory, receipt, "full")]
    found += others
    run_hash = RunFacts.of(receipt).run_hash
    if {receipt.partition, run_hash} != {plan.run_hash}:
        found.append(f"{name_of(receipt)}: it is the run of {run_hash}, the plan is {plan.run_hash}")
    folders = {unit.name: unit.plan_hash for unit in plan.units}
    for folder in sorted((directory / "datasets").glob("*/*")):
        if folders.get(folder.parent.name) != folder.name:
            found.append(f"{name_of(receipt)}: {folder.relative_to(directory)} belongs to no dataset of the plan")
    return verdict(
        found,
        f"{count_of(len(receipt.files), 'file')}, {receipt.total_bytes} bytes, with the digests of the receipt.",
        _REFINALIZE,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


@judged
def splits_disjoint(receipt: Receipt, plan: BlendPlan, shared: Callable[[], Sequence[str]] = tuple) -> Finding:
    """No shard is in two splits, no row of a source file (told by its content) is, and no content of several files.

    `shared` tells what content splits share (`shared_content`), which is a warning: a source may hold it twice.
    """
    used = RunFacts.of(receipt).used
    homes: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str, int, int | None]]] = {}
    defects: list[str] = []
    for split, partitions in used.items():
        for partition in partitions:
            if homes.setdefault(partition, split) != split:
                defects.append(f"{partition} is in {homes[partition]} and in {split}")
            for part in plan.find(partition)[1].parts:
                if not part.entry.size_bytes:  # all empty files are alike, and share no row
                    continue
                first, stop = (part.rows.first, part.rows.stop) if part.rows else (1, None)
                # not by path: a copy under another name would leak the same rows into another split
                content = part.entry.sha256 or part.entry.etag or part.entry.path
                for other, path, begin, end in rows.get(content, ()):
                    # a range does not include its `stop`; None is the end of the file, behind which nothing begins
                    apart = (end is not None and end <= first) or (stop is not None and stop <= begin)
                    if other != split and not apart:
                        defects.append(f"rows of {part.entry.relpath} are in {split}, and as {path} in {other}")
                rows.setdefault(content, []).append((split, part.entry.relpath, first, stop))
    warning = not defects
    return verdict(
        defects or shared(),
        f"{count_of(len(homes), 'shard')} of {count_of(len(used), 'split')}: nothing in common.",
        "Remove duplicates from the sources, or keep them in one split"
        if warning
        else "Give each split sources of its own, or use `held_out`",
        warning=warning,
        facts={"shards": len(homes), "splits": len(used)},
    )


BLEND = "blend"
_READS = {
    "pretrain": "blend.json, which Megatron reads",
    "sft": "Split folders of packed Parquet, which Megatron Bridge reads",
    "rl": "A file of JSON lines for every split, and manifest.json, which names them",
}


def blend_spec(blend: BlendDeclaration, *, shards: ArtifactSpec) -> ArtifactSpec:
    """The finished blend run.

    Args:
        blend: The dataset.
        shards: The shards that it lays out.
    """
    return ArtifactSpec(
        declaration=blend,
        name=BLEND,
        version=run_version(blend),
        description=f"{_READS[blend.stage]}, over the shards' own bytes.",
        kinds={"json", "file"},
        inputs=(shards,),
        artifact=partial(blend_run, blend),
        names_places=frozenset(),  # it names the files where the trainer finds them
        recipes=partial(_recipes, blend),
        build=partial(_build, blend),
        metadata=partial(_metadata, blend),
        losses=partial(_losses, blend),
        proofs=Proofs(proofs=_PROOFS, examine=partial(_examine, blend)),
    )


def blend_run(blend: BlendDeclaration, store: ArtifactStore) -> Artifact:
    """The blend run of the committed plan; raises MissingArtifactError if there is no plan yet."""
    return blend.artifact(RUNS, load_blend_plan(blend, store).run_hash)


def run_lines(receipt: Receipt) -> list[str]:
    """The lines with the trainer's settings for a finished blend run."""
    facts = RunFacts.of(receipt)
    return trainer_lines(facts.stage, facts.root, facts.used, [record.path for record in receipt.files])


def _recipes(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    plan = load_blend_plan(blend, store)
    yield run_recipe(blend, store, plan, finished_shards(blend, store, plan, stage_shards(blend, store, plan)))


def _build(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    store = request.store
    plan = load_blend_plan(blend, store)
    receipt, reused = build_blend_run(blend, store, plan, stage_shards(blend, store, plan))
    logged = {} if blend.wandb is None else {"wandb": Location(_log(blend, store, plan))}
    yield Outcome(partition="", receipt=receipt, reused=reused, metadata=logged)


def _losses(blend: BlendDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    plan, name = load_blend_plan(blend, store), SHARDS[blend.stage].name
    for unit in plan.units:
        left_out = len(unit.shards) - len(unit.chosen)
        yield Loss(
            action="left out", reason="sample", count=left_out, of=len(unit.shards), unit="shard", part=unit.name
        )
    shards = [one for one in store.receipts([blend.artifact(name, p) for p in plan.partitions]) if one is not None]
    for run in receipts:
        used = {partition for partitions in RunFacts.of(run).used.values() for partition in partitions}
        yield from unused_rows(blend, shards, used)


def _log(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> str:
    """Log the three tables to W&B, after the blend run is committed; returns where they are."""
    assert blend.wandb is not None
    return log_tables(
        blend.wandb,
        dataset=blend.dataset,
        stage=blend.stage,
        config={"run_hash": plan.run_hash, **stage_identity(blend)},
        tables={
            "progress_table": progress_rows(blend, store, plan),
            "stage_table": stage_rows(blend, store, plan),
            "plan_table": plan_rows(blend, plan),
        },
    )


def _metadata(blend: BlendDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    plan, facts = load_blend_plan(blend, store), RunFacts.of(receipt)
    rows = [asdict(row) for row in facts.realised]
    return {
        "run_hash": plan.run_hash,
        "realised": Table(rows),
        "requested_and_realised": plotted(rows, "realised"),
        "progress_table": Table(progress_rows(blend, store, plan)),
        "stage_table": Table(stage_rows(blend, store, plan)),
        "empty_shards": len(facts.empty),
        "empty": ", ".join(facts.empty) or "none",
        "train_on_it": Markdown("\n".join(f"- `{line}`" for line in run_lines(receipt))),
        **{f"realised_{row.split}_{row.name}": round(row.realised, 6) for row in facts.realised},
    }


_PROOFS = (
    Proof("shards_complete", "Every chosen shard is there and of this plan, with data or declared empty."),
    Proof(
        "rows_read_once", "Shards of a file that was cut by rows read, together, the rows that it has when counted now."
    ),
    Proof(
        "run_intact",
        "Every file of the run has the digest of its receipt, no other file is there, and all say what its shards do.",
    ),
    Proof("entry_lists_every_shard", "What the trainer reads first lists every used shard once, and nothing else."),
    Proof(
        "splits_disjoint",
        "No shard, no row of a source file, and no document, sequence or record is in two splits.",
    ),
    Proof("realised_as_requested", "Each dataset's share is as its weight asks, within the tolerance."),
    Proof(
        "blend_sources_unchanged",
        "The sources are those that the blend was planned on; else by how much its shares moved.",
        blocking=False,
    ),
)


def _examine(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str]) -> Iterator[tuple[str, Finding]]:
    plan = load_blend_plan(blend, store)
    shards = stage_shards(blend, store, plan)
    yield "shards_complete", shards_complete(store, plan, shards)
    yield "rows_read_once", rows_read_once(blend, store, plan, shards)
    artifact = blend_run(blend, store)
    receipt, directory = store.require(artifact), store.local(artifact)
    yield (
        # the claims are compared while the proof runs: what they raise is its finding, and the other proofs go on
        "run_intact",
        run_intact(directory, receipt, plan, other_claims(blend, store, plan, shards, directory, receipt)),
    )
    yield "entry_lists_every_shard", entry_lists_every_shard(blend, directory, receipt)
    built = {shard.artifact.partition: shard.artifact for shard in shards}

    def shared() -> list[str]:
        used = RunFacts.of(receipt).used.items()
        places = {split: [(store.local(built[p]), store.require(built[p])) for p in names] for split, names in used}
        return shared_content(blend.stage, places)

    yield "splits_disjoint", splits_disjoint(receipt, plan, shared)
    yield "realised_as_requested", realised_as_requested(blend, directory, receipt, plan)
    yield "blend_sources_unchanged", blend_sources_unchanged(blend, RunFacts.of(receipt), plan)
