"""Proofs on a blend run: all its shards are there, each row was read once, and none of its files is damaged.

Entry points: `shards_complete`, `rows_read_once`, `run_intact`, `splits_disjoint`. What the trainer reads first is
proven in `trainer_entry_proofs.py`, the shares of the datasets in `realised_proofs.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dataprep_assets.graph.finding import Finding, first_of, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, damage
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.discovery import open_place
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild
from dataprep_assets.pipelines.blend.plan import BlendPlan, partition_key
from dataprep_assets.pipelines.blend.runs import RunFacts
from dataprep_assets.plural import count_of
from dataprep_assets.sources.rows import count_rows

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
