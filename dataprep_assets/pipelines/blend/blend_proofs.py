"""Proofs on a training blend: its plan takes every row once, its run is whole, and it is the blend that was asked for.

Entry points: `plan_covers_sources`, `plan_is_current`, `rows_read_once`, `nothing_rounds_to_zero`, `shards_complete`,
`run_intact`, `entry_lists_every_shard`, `realised_as_requested`, `splits_disjoint`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import blend_json
from dataprep_assets.graph.finding import Finding, Row, fact, first_of, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, damage
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.discovery import open_place
from dataprep_assets.pipelines.blend.finalize import BLEND, MANIFEST, Work, suffixes
from dataprep_assets.pipelines.blend.plan import (
    BlendPlan,
    PlannedUnit,
    load_blend_plan,
    partition_key,
    plan_blend,
    plan_key,
)
from dataprep_assets.planning.blend import drift, record_shares, requested_shares
from dataprep_assets.sources.rows import count_rows

__all__ = [
    "entry_lists_every_shard",
    "nothing_rounds_to_zero",
    "plan_covers_sources",
    "plan_is_current",
    "realised_as_requested",
    "rows_read_once",
    "run_intact",
    "shards_complete",
    "splits_disjoint",
]

_REPLAN = "Materialize `blend_plan` again"
_REFINALIZE = "Materialize the run again"


@judged
def plan_covers_sources(plan: BlendPlan, max_rows: int | None = None) -> Finding:
    """Each file of each dataset is in one shard, whole, or in consecutive rows that begin at 1 and have no end.

    With `max_rows` files and rows may be left out, and still none is there twice.
    """
    cut = sum(part.rows is not None for unit in plan.units for shard in unit.shards for part in shard.parts)
    return verdict(
        (defect for unit in plan.units for defect in _uncovered(unit, max_rows)),
        f"{sum(len(u.entries) for u in plan.units)} files are in {sum(len(u.shards) for u in plan.units)} shards, each "
        "row once.",
        _REPLAN,
        facts={"datasets": len(plan.units), "shards": sum(len(u.shards) for u in plan.units), "row_ranges": cut},
    )


def _uncovered(unit: PlannedUnit, max_rows: int | None) -> Iterator[str]:
    if [shard.index for shard in unit.shards] != list(range(len(unit.shards))):
        yield f"{unit.name}: its shards are numbered {[s.index for s in unit.shards]}, not 0 to {len(unit.shards) - 1}"
    if not set(unit.chosen) <= set(range(len(unit.shards))) or len(set(unit.chosen)) != len(unit.chosen):
        yield f"{unit.name}: the chosen shards {list(unit.chosen)} are not different ones of {len(unit.shards)}"
    taken: dict[str, list[tuple[int, int | None]]] = {}
    for shard in unit.shards:
        for part in shard.parts:
            rows = (part.rows.first, part.rows.stop) if part.rows else (1, None)
            taken.setdefault(part.entry.relpath, []).append(rows)
    for entry in unit.entries:
        ranges = sorted(taken.pop(entry.relpath, []), key=lambda r: (r[0], r[1] is None, r[1] or 0))
        if not ranges and max_rows is None:
            yield f"{unit.name}: {entry.relpath} is in no shard"
        reached: int | None = 1
        for first, stop in ranges:
            if reached is None or first < reached:
                yield f"{unit.name}: rows of {entry.relpath} from {first} on are in two shards"
            elif first > reached and max_rows is None:
                yield f"{unit.name}: rows {reached} to {first - 1} of {entry.relpath} are in no shard"
            reached = stop
        if ranges and reached is not None and max_rows is None:
            yield f"{unit.name}: rows of {entry.relpath} from {reached} on are in no shard"
    for path in taken:
        yield f"{unit.name}: {path} is in a shard and not in the dataset"


@judged
def plan_is_current(blend: BlendDeclaration, store: ArtifactStore) -> Finding:
    """A plan made now, of the sources, tokenizer bytes, template text and options as they are, is the frozen one."""
    frozen = load_blend_plan(blend, store)
    fresh = plan_blend(blend, frozen)
    old, new = ({unit.name: unit.plan_hash for unit in plan.units} for plan in (frozen, fresh))
    defects = [
        f"{n}: plan hash {old.get(n)}, now {new.get(n)}" for n in sorted({*old, *new}) if old.get(n) != new.get(n)
    ]
    if not defects and plan_key(fresh) != plan_key(frozen):
        defects = [f"{blend.dataset}: run hash {frozen.run_hash}, now {fresh.run_hash}"]
    return verdict(
        defects,
        f"The plan {frozen.run_hash} of {len(frozen.units)} datasets is what it would be now.",
        f"Sources or settings changed. {_REPLAN} if that was meant",
        facts={"run_hash": frozen.run_hash, "datasets": len(frozen.units)},
    )


@judged
def rows_read_once(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, works: Sequence[Work]) -> Finding:
    """The shards of a file that was cut by rows have, together, read as many rows as the file has when counted now.

    Files of which the sample leaves a shard out are not counted; a blank line is a row of the file and of no shard.
    """
    receipts = dict(
        zip([str(w.artifact.partition) for w in works], store.receipts([w.artifact for w in works]), strict=True)
    )
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
            for part in shard.parts if receipt is not None and len(shard.parts) == 1 else ():
                if part.rows is None:
                    continue
                entry = part.entry
                if entry.relpath not in totals:
                    totals[entry.relpath] = count_rows(
                        access.path(entry), format=entry.format, compression=entry.compression, label=entry.relpath
                    )
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
        f"{counted} files that are cut by rows were read once, row by row.",
        f"The file changed, or a shard is of another plan. {_REPLAN}, then the shards",
        facts={"files_counted": counted},
    )


@judged
def nothing_rounds_to_zero(preview: Receipt) -> Finding:
    """Every dataset with a weight has data, and its share of the training is at least one sample."""
    rows = fact(preview, "sources")
    zero = [row for row in rows if row["samples"] < 1]
    return verdict(
        (
            f"{row['name']}: a share of {row['requested']:.6f} is {row['samples']} samples of {row['tokens']} tokens"
            for row in zero
        ),
        f"Each of {len(rows)} datasets is at least one sample.",
        "Raise its weight, or `train_tokens`, or set its weight to 0",
        facts={"datasets": len(rows), "rounded_to_zero": len(zero)},
        table=[_shown(row) for row in rows],
    )


def _shown(row: dict[str, Any]) -> Row:
    names = ("split", "name", "rows", "tokens", "requested", "realisable", "epochs", "samples", "shards")
    return {name: row[name] for name in names}


@judged
def shards_complete(store: ArtifactStore, plan: BlendPlan, works: Sequence[Work]) -> Finding:
    """Every chosen shard is there and of this plan, with data or declared empty."""
    by_partition = {str(work.artifact.partition): work for work in works}
    receipts = dict(zip(by_partition, store.receipts([w.artifact for w in by_partition.values()]), strict=True))
    missing = [p for p in plan.partitions if receipts.get(p) is None]
    stale = [p for p, r in receipts.items() if r is not None and r.key != by_partition[p].key]
    empty = [p for p, r in receipts.items() if r is not None and not ledger_of(r).documents]
    defects = (
        [f"{len(missing)} of {len(plan.partitions)} shards are missing or failed: {first_of(missing)}"]
        if missing
        else []
    )
    if stale:
        defects.append(f"{len(stale)} shards were made of other inputs or settings: {first_of(stale)}")
    return verdict(
        defects,
        f"{len(plan.partitions)} shards are complete, {len(empty)} of them empty.",
        "Materialize these partitions",
        facts={"shards": len(plan.partitions), "missing": len(missing), "stale": len(stale), "empty": len(empty)},
    )


@judged
def run_intact(directory: Path, receipt: Receipt, plan: BlendPlan) -> Finding:
    """Every file of the run has the digest of its receipt, no other file is there, and it is the run of this plan."""
    found = [f"{name_of(receipt)}: {defect}" for defect in damage(directory, receipt, "full")]
    if {receipt.partition, fact(receipt, "run_hash")} != {plan.run_hash}:
        found.append(f"{name_of(receipt)}: it is the run of {fact(receipt, 'run_hash')}, the plan is {plan.run_hash}")
    folders = {unit.name: unit.plan_hash for unit in plan.units}
    for folder in sorted((directory / "datasets").glob("*/*")):
        if folders.get(folder.parent.name) != folder.name:
            found.append(f"{name_of(receipt)}: {folder.relative_to(directory)} is of no dataset of the plan")
    return verdict(
        found,
        f"{len(receipt.files)} files, {receipt.total_bytes} bytes, have the digests of the receipt.",
        _REFINALIZE,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


@judged
def entry_lists_every_shard(blend: BlendDeclaration, directory: Path, receipt: Receipt) -> Finding:
    """What the trainer reads first lists every shard that is used, once, under names that are there, and no other."""
    used = {split: len(partitions) for split, partitions in fact(receipt, "used").items()}
    empty = len(fact(receipt, "empty"))
    readers = {"pretrain": _blend_json_defects, "sft": _split_folder_defects, "rl": _rl_manifest_defects}
    return verdict(
        (f"{name_of(receipt)}: {defect}" for defect in readers[blend.stage](blend, directory, receipt)),
        f"{sum(used.values())} shards of {len(used)} splits are listed, each once; {empty} are empty.",
        _REFINALIZE,
        facts={**{f"listed_{split}": count for split, count in used.items()}, "empty": empty},
    )


def _stems(receipt: Receipt, split: str, plan_folders: dict[str, str]) -> list[str]:
    """`datasets/<name>/<plan_hash>/shard_000000` of each shard that a split uses."""
    found = []
    for partition in fact(receipt, "used").get(split, ()):
        name, _, index = partition.rpartition("-")
        found.append(f"datasets/{name}/{plan_folders.get(name, '?')}/shard_{int(index):06d}")
    return sorted(found)


def _plan_folders(directory: Path) -> dict[str, str]:
    return {path.parent.name: path.name for path in (directory / "datasets").glob("*/*")}


def _blend_json_defects(blend: BlendDeclaration, directory: Path, receipt: Receipt) -> Iterator[str]:
    root, files = f"{fact(receipt, 'root')}/", suffixes(blend)

    def exists(prefix: str) -> bool:
        place = directory / prefix.removeprefix(root)
        return prefix.startswith(root) and all(place.with_name(place.name + s).is_file() for s in files)

    found = blend_json.defects(directory / BLEND, lambda _: True)
    yield from found
    if found:
        return
    splits, folders = blend_json.read_blend(directory / BLEND), _plan_folders(directory)
    for split in blend_json.SPLITS:
        prefixes = [entry.prefix for entry in splits.get(split, ())]
        for prefix in prefixes:
            if not exists(prefix):
                yield f"{BLEND}: {prefix}: listed, but its {' and '.join(files)} are not all there"
        listed = sorted(prefix.removeprefix(root) for prefix in prefixes)
        if listed != (wanted := _stems(receipt, split, folders)):
            odd = sorted({*listed} ^ {*wanted})
            yield f"{BLEND}: {split} lists {len(listed)} shards, {len(wanted)} are used; they differ in {first_of(odd)}"


def _split_folder_defects(blend: BlendDeclaration, directory: Path, receipt: Receipt) -> Iterator[str]:
    yield from _blend_json_defects(blend, directory, receipt)
    folders = _plan_folders(directory)
    for split in fact(receipt, "used"):
        files = sorted((directory / "splits" / split).iterdir())
        found = []
        for position, path in enumerate(files):
            at, _, rest = path.stem.partition("__")
            name, _, shard = rest.rpartition("__shard_")
            if int(at) != position:
                yield f"splits/{split}: {path.name} is at position {position}"
            found.append(f"datasets/{name}/{folders.get(name, '?')}/shard_{shard}")
            target = directory / f"{found[-1]}.parquet"
            if path.is_symlink() or not target.is_file() or path.stat().st_size != target.stat().st_size:
                yield f"splits/{split}: {path.name} is not the shard that it names"
        if sorted(found) != _stems(receipt, split, folders):
            yield f"splits/{split}: its {len(found)} files are not the shards that are used"


def _rl_manifest_defects(blend: BlendDeclaration, directory: Path, receipt: Receipt) -> Iterator[str]:
    value = _object(directory / MANIFEST)
    root, folders, (suffix,) = f"{fact(receipt, 'root')}/", _plan_folders(directory), suffixes(blend)
    if value.get("run_hash") != fact(receipt, "run_hash"):
        yield f"{MANIFEST}: run hash {value.get('run_hash')}, the receipt says {fact(receipt, 'run_hash')}"
    repeats = {(row["split"], row["name"]): round(row["epochs"]) for row in fact(receipt, "realised")}
    for split in fact(receipt, "used"):
        listed = value.get(_manifest_key(split), [])
        wanted = [
            f"{stem}{suffix}"
            for stem in _stems(receipt, split, folders)
            for _ in range(repeats[split, PurePosixPath(stem).parts[1]])
        ]
        if sorted(path.removeprefix(root) for path in listed) != wanted:
            yield f"{MANIFEST}: {split} lists {len(listed)} files, it is to list {len(wanted)}"
        for path in dict.fromkeys(listed):
            if not (directory / path.removeprefix(root)).is_file():
                yield f"{MANIFEST}: {path}: listed and not there"


@judged
def realised_as_requested(blend: BlendDeclaration, directory: Path, receipt: Receipt, plan: BlendPlan) -> Finding:
    """Each dataset's realised share is within the declared tolerance of its request, and no epoch limit is crossed.

    Shares of pretraining are computed from `blend.json` itself, those of RL from `manifest.json` and the books of the
    shards that it lists, those of SFT are rows.
    """
    table: list[dict[str, Any]] = fact(receipt, "realised")
    defects: list[str] = []
    worst = 0.0
    for split in dict.fromkeys(row["split"] for row in table):
        rows = [row for row in table if row["split"] == split]
        is_whole = blend.held_out is None
        weights = {u.name: u.dataset.weight for u in plan.units if u.home == split or not is_whole}
        of_run = _SplitOfRun(directory=directory, receipt=receipt, split=split, weights=weights, is_whole=is_whole)
        requested, realised = _SHARES[blend.stage](of_run)
        worst = max(worst, drift(requested, realised))
        defects += [
            f"{split}: {name} was to be {want:.4f} of the blend and is {realised.get(name, 0.0):.4f}"
            for name, want in requested.items()
            if abs(realised.get(name, 0.0) - want) > blend.tolerance
        ]
        if split == "train" and blend.max_epochs is not None:
            defects += [
                f"{split}: {row['name']} would be read {row['epochs']:.2f} times, more than {blend.max_epochs:g}; it "
                f"can be {row['realisable']:.4f} of the blend, not {row['requested']:.4f}"
                for row in rows
                if row["epochs"] > blend.max_epochs
            ]
    return verdict(
        defects,
        f"Every dataset's share is as requested, within {blend.tolerance:g}.",
        _RL_ADVICE if blend.stage == "rl" else _ADVICE,
        facts={"largest_difference": worst, "tolerance": blend.tolerance},
        table=table,
    )


_ADVICE = "Change the weights to what can be had, add data, or raise `num_shards`, `max_epochs` or `tolerance`"
_RL_ADVICE = (
    "See in the shards' ledgers which transform left records out, make the weights whole multiples of the smallest, or "
    "raise `max_epochs` or `tolerance`"
)
_Shares = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class _SplitOfRun:
    """A split of a run: the weights of its datasets, and whether every shard of these is of this split."""

    directory: Path
    receipt: Receipt
    split: str
    weights: Mapping[str, float]
    is_whole: bool


def _pretrain_shares(at: _SplitOfRun) -> tuple[_Shares, _Shares]:
    return requested_shares(at.weights), _listed_shares(at.directory, at.receipt).get(at.split, {})


def _sft_shares(at: _SplitOfRun) -> tuple[_Shares, _Shares]:
    table = fact(at.receipt, "realised")
    return requested_shares(at.weights), {r["name"]: r["realised"] for r in table if r["split"] == at.split}


def _rl_shares(at: _SplitOfRun) -> tuple[_Shares, _Shares]:
    """Records of the sources, each as often as the weights say, and records in the files as often as they are listed.

    Records of shards without any (every one was left out) count where no split can have been chosen for them.
    """
    used, books = {*fact(at.receipt, "used")[at.split]}, _books(at.directory)
    asked = dict.fromkeys(at.weights, 0)
    for stem, ledger in books.items():
        name, _, shard = PurePosixPath(stem).parts
        is_used = partition_key(name, int(shard.removeprefix("shard_"))) in used
        if name in asked and (at.is_whole or is_used):
            asked[name] += ledger.rows_in
    root = f"{fact(at.receipt, 'root')}/datasets/"
    written = dict.fromkeys(at.weights, 0)
    for path in _object(at.directory / MANIFEST).get(_manifest_key(at.split), []):
        stem = path.removeprefix(root).removesuffix(".zst").removesuffix(".jsonl")
        if stem in books:  # another one is a defect of the manifest
            name = PurePosixPath(stem).parts[0]
            written[name] = written.get(name, 0) + books[stem].documents
    return record_shares(asked, at.weights), record_shares(written, dict.fromkeys(written, 1.0))


def _books(directory: Path) -> dict[str, Ledger]:
    """`<name>/<plan_hash>/shard_000000` → the ledger of each shard of a run."""
    found = {}
    for path in sorted((directory / "datasets").glob("*/*/receipts/shard_*.json")):
        stem = path.parent.parent.relative_to(directory / "datasets") / path.stem
        try:
            found[stem.as_posix()] = Ledger.from_json(_object(path)["ledger"])
        except (KeyError, TypeError) as error:
            raise FormatError(f"{path}: not the books of a shard: {error}") from error
    return found


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run; FormatError when there is none."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: not a JSON object")
    return value


_SHARES: Mapping[str, Callable[[_SplitOfRun], tuple[_Shares, _Shares]]] = {
    "pretrain": _pretrain_shares,
    "sft": _sft_shares,
    "rl": _rl_shares,
}


def _manifest_key(split: str) -> str:
    return "val" if split == "valid" else split


def _listed_shares(directory: Path, receipt: Receipt) -> dict[str, dict[str, float]]:
    root = f"{fact(receipt, 'root')}/datasets/"
    found: dict[str, dict[str, float]] = {}
    for split, entries in blend_json.read_blend(directory / BLEND).items():
        total = sum(entry.weight for entry in entries)
        shares = found.setdefault(split, {})
        for entry in entries:
            name = entry.prefix.removeprefix(root).partition("/")[0]
            shares[name] = shares.get(name, 0.0) + entry.weight / total
    return found


@judged
def splits_disjoint(receipt: Receipt, plan: BlendPlan) -> Finding:
    """No shard is in two splits, and no row of a source file (told by its content) is."""
    used: dict[str, list[str]] = fact(receipt, "used")
    homes: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str, int, int | None]]] = {}
    defects: list[str] = []
    for split, partitions in used.items():
        for partition in partitions:
            if homes.setdefault(partition, split) != split:
                defects.append(f"{partition} is in {homes[partition]} and in {split}")
            for part in plan.find(partition)[1].parts:
                first, stop = (part.rows.first, part.rows.stop) if part.rows else (1, None)
                content = part.entry.sha256 or part.entry.etag or part.entry.path
                for other, path, begin, end in rows.get(content, ()):
                    apart = (end is not None and end <= first) or (stop is not None and stop <= begin)
                    if other != split and not apart:
                        defects.append(f"rows of {part.entry.relpath} are in {split}, and as {path} in {other}")
                rows.setdefault(content, []).append((split, part.entry.relpath, first, stop))
    return verdict(
        defects,
        f"{len(homes)} shards of {len(used)} splits share nothing.",
        "Give each split sources of its own, or use `held_out`",
        facts={"shards": len(homes), "splits": len(used)},
    )
