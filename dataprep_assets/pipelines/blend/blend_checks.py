"""Checks of a finished blend run: its files, shards, splits and shares, and its current sources.

`blend_run_intact` lays the run out again, without copying the shards' bytes, and compares the result with the stored
run. This verifies that the entry files list every used shard exactly once, and nothing else.

`blend_sources_unchanged` compares the current sources with the plan, because a weight is chosen for the data at
planning time. If a source has grown or shrunk since, the same weight reads it less or more often, and its share of the
rows changes. The blend run is still valid, so the check only warns.

`splits_disjoint` also compares content, because splits without shared files may still contain duplicates of each other.
It compares 64-bit hashes of documents (`pretrain`), sequences (`sft`), prompts (`pairs`) or lines (`rl`).

Entry points: `CHECKS`, `OpenedRun`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import (
    Check,
    Finding,
    OpenedArtifact,
    Row,
    build_verdict,
    join_first,
    require_ledger,
)
from dataprep_assets.errors import SourceError, TransferError, count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.conversations.preference_rows import read_preferences
from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, find_damage
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.finished_shards import FinishedShard, ShardToBuild, load_finished_shards
from dataprep_assets.pipelines.blend.pairs.lengths import build_length_rows, find_length_bias
from dataprep_assets.pipelines.blend.pairs.shard import PAIRS_FILE
from dataprep_assets.pipelines.blend.plan.discovery import DiscoveredDataset, open_place
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, PlannedUnit, format_partition_key, load_blend_plan
from dataprep_assets.pipelines.blend.plan.planner import rediscover_dataset, restore_planned_dataset
from dataprep_assets.pipelines.blend.rl.rl_jsonl import read_shard_lines
from dataprep_assets.pipelines.blend.runs import RUNS, RunFacts, find_contradicted_claims
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackedSftFacts
from dataprep_assets.pipelines.blend.stage_shards import prepare_stage_shards
from dataprep_assets.planning.blend import compute_outlooks, compute_record_shares, measure_drift, normalize_weights
from dataprep_assets.sources.readers.rows import count_rows
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenBinsFacts
from dataprep_assets.table import format_share


@dataclass(frozen=True)
class OpenedRun(OpenedArtifact):
    """A blend run that is opened for checks, with its plan and all chosen shards."""

    blend: BlendDeclaration
    plan: BlendPlan
    shards: Sequence[ShardToBuild]

    @classmethod
    def open(cls, blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str] = ()) -> Self:
        """Open the run of the committed plan. Raises MissingArtifactError if the plan or a snapshot is missing."""
        plan = load_blend_plan(blend, store)
        return cls(blend.artifact(RUNS, plan.run_hash), store, blend, plan, prepare_stage_shards(blend, store, plan))

    @cached_property
    def facts(self) -> RunFacts:
        """Facts in the run's receipt. Raises IntegrityError if a fact is missing."""
        return RunFacts.from_receipt(self.receipt)

    @cached_property
    def finished(self) -> Sequence[FinishedShard]:
        """Built shards, with their receipts. Raises MissingArtifactError if a shard is not built."""
        return load_finished_shards(self.blend, self.store, self.plan, self.shards)

    @cached_property
    def receipts(self) -> Mapping[str, Receipt | None]:
        """Receipt of each chosen shard, by partition; None for a shard that is not built."""
        partitions = [str(shard.artifact.partition) for shard in self.shards]
        return dict(zip(partitions, self.store.receipts([shard.artifact for shard in self.shards]), strict=True))

    def describe_shared_content(self) -> list[str]:
        """Return a sentence for each pair of the run's splits that share content, with the amount."""
        artifacts = {str(shard.artifact.partition): shard.artifact for shard in self.shards}
        splits = {
            split: [(self.store.local(artifacts[p]), self.store.require(artifacts[p])) for p in names]
            for split, names in self.facts.used.items()
        }
        return describe_shared_content(self.blend.stage, splits)


Hashes = NDArray[np.uint64]
_NOUNS: Mapping[Stage, str] = {"pretrain": "document", "sft": "sequence", "pairs": "prompt", "rl": "record"}


def describe_shared_content(stage: Stage, splits: Mapping[str, Sequence[tuple[Path, Receipt]]]) -> list[str]:
    """Return a sentence for each pair of splits that share content, with the amount.

    `splits` contains the directory and receipt of every shard that a split uses. If only one split has shards, nothing
    is read.
    """
    used_splits = {split: shards for split, shards in splits.items() if shards}
    if len(used_splits) < 2:
        return []
    # Read the largest split last, because its hashes are not kept in memory: each of its shards is compared with the
    # hashes of the other splits.
    order = sorted(used_splits, key=lambda split: sum(receipt.total_bytes for _, receipt in used_splits[split]))
    hashes = {
        split: _merge_hashes([_hash_contents(stage, *shard) for shard in used_splits[split]]) for split in order[:-1]
    }
    sentences = []
    for index, split in enumerate(order):
        for other_split in order[:index]:
            blocks = (
                [hashes[split]] if split in hashes else (_hash_contents(stage, *shard) for shard in used_splits[split])
            )
            shared_count = _merge_hashes([block[np.isin(block, hashes[other_split])] for block in blocks]).size
            if shared_count:
                noun = _NOUNS[stage]
                share = f"{format_share(shared_count / hashes[other_split].size)} of that split"
                sentences.append(f"{count_of(shared_count, noun)} of {other_split} ({share}) are also in {split}")
    return sentences


def _merge_hashes(blocks: Sequence[Hashes]) -> Hashes:
    return np.unique(np.concatenate([*blocks, np.zeros(0, np.uint64)]))


def _hash_contents(stage: Stage, directory: Path, receipt: Receipt) -> Hashes:
    contents = {"pretrain": _read_documents, "sft": _read_sequences, "pairs": _read_prompts, "rl": read_shard_lines}[
        stage
    ](directory, receipt)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, contents), np.uint64)


def _read_prompts(directory: Path, receipt: Receipt) -> Iterator[Any]:
    """Yield the token ids of each pair's prompt, because pairs with equal prompts share content."""
    for rows in read_preferences(directory / PAIRS_FILE):
        yield from (np.ascontiguousarray(row.prompt_ids).data for row in rows)


def _read_documents(directory: Path, receipt: Receipt) -> Iterator[Any]:
    tokens = flat_bins.open_tokens(directory / TOKENS, TokenBinsFacts.from_receipt(receipt).dtype)
    ends = document_ends.open_ends(directory / ENDS)
    yield from (tokens[start:stop].data for start, stop in pairwise([0, *ends.tolist()]))


def _read_sequences(directory: Path, receipt: Receipt) -> Iterator[Any]:
    if PackedSftFacts.from_receipt(receipt).empty:
        return
    for rows in open_packed_file(directory / PACKED).without_padding():
        begins, ends = rows.bounds()
        yield from (rows.tokens[a:b].data for a, b in zip(begins.tolist(), ends.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class _BlendSource:
    """A planned dataset, and its current files, which are None if they could not be listed."""

    unit: PlannedUnit
    current_files: DiscoveredDataset | None

    @property
    def current_bytes(self) -> int:
        """Current size of the dataset's files in bytes; the planned size if the files could not be listed."""
        return (
            self.unit.size_bytes
            if self.current_files is None
            else sum(entry.size_bytes for entry in self.current_files.entries)
        )

    @property
    def changes(self) -> dict[str, int]:
        """Numbers of files that were added, removed or changed since the plan."""
        planned_versions, current_versions = (
            {path: version for path, *version in _identify_files(dataset_files)}
            for dataset_files in (restore_planned_dataset(self.unit), self.current_files)
        )
        return {
            "added": len(current_versions.keys() - planned_versions.keys()),
            "removed": len(planned_versions.keys() - current_versions.keys()),
            "changed": sum(
                current_versions[path] != planned_versions[path]
                for path in current_versions.keys() & planned_versions.keys()
            ),
        }


def _identify_files(dataset: DiscoveredDataset | None) -> Sequence[Sequence[str | int | None]]:
    return [] if dataset is None else dataset.identities


def blend_sources_unchanged(run: OpenedRun) -> Finding:
    """Check that every dataset still has the files of the plan; warn about changed files and their effect on shares.

    The current tokens of a changed source are estimated from its size in bytes.
    """
    blend, facts, plan = run.blend, run.facts, run.plan
    sources = list(_list_sources(blend, plan))
    unlisted = [source for source in sources if source.current_files is None]
    rows = [
        row
        for split in dict.fromkeys(u.home for u in plan.units)
        for row in _build_source_rows(blend, facts, split, sources)
    ]
    note = (
        ""
        if not unlisted
        else f" {count_of(len(unlisted), 'dataset')} could not be checked: {join_first(s.unit.name for s in unlisted)}."
    )
    return build_verdict(
        (_describe_row(blend, row) for row in rows if row["changed_files"]),
        f"The sources of {count_of(len(sources) - len(unlisted), 'dataset')} are unchanged since the "
        f"plan {plan.run_hash} was built.{note}",
        "Run the blend again to read the current sources, and check whether its weights still fit; or pin the sources",
        facts={"datasets": len(sources), "unlisted_datasets": len(unlisted)},
        table=rows,
        warning=True,
    )


def _list_sources(blend: BlendDeclaration, plan: BlendPlan) -> Iterator[_BlendSource]:
    reachable = True
    for unit in plan.units:
        is_mirrored = open_place(unit.dataset, blend.sources).access.mirrored
        if is_mirrored and not reachable:
            yield _BlendSource(unit=unit, current_files=None)
            continue
        try:
            current_files = rediscover_dataset(blend, unit)
        except TransferError:
            reachable = False
            # Do not list further mirrored datasets, because each listing could again wait for a host that does not
            # respond.
            yield _BlendSource(unit=unit, current_files=None)
            continue
        except SourceError:
            # Treat a local dataset as empty, but the files of a mirrored dataset as unknown, because a hub or bucket
            # may refuse to list files that still exist.
            current_files = None if is_mirrored else _build_empty_dataset(unit)
        yield _BlendSource(
            unit=unit,
            current_files=current_files if current_files is not None or is_mirrored else _build_empty_dataset(unit),
        )


def _build_empty_dataset(unit: PlannedUnit) -> DiscoveredDataset:
    dataset_files = restore_planned_dataset(unit)
    return DiscoveredDataset(unit=dataset_files.unit, entries=(), commit=None)


def _build_source_rows(
    blend: BlendDeclaration, facts: RunFacts, split: str, sources: Sequence[_BlendSource]
) -> Iterator[Row]:
    """Yield a row for each dataset of a split, with its planned and current amounts, shares and epochs."""
    own_sources = [source for source in sources if source.unit.home == split]
    measure = "rows" if blend.stage == "rl" else "tokens"
    planned_amounts = {
        source.unit.name: sum(getattr(row, measure) for row in facts.realised if row.name == source.unit.name)
        for source in own_sources
    }
    current_amounts = {
        source.unit.name: round(planned_amounts[source.unit.name] * source.current_bytes / source.unit.size_bytes)
        if source.unit.size_bytes
        else planned_amounts[source.unit.name]
        for source in own_sources
    }
    weights = normalize_weights({source.unit.name: source.unit.dataset.weight for source in own_sources})
    # Use the same budget for the planned and the current amounts. A budget that grew with the sources would hide that a
    # larger dataset is read less often.
    budget = blend.train_tokens or sum(planned_amounts.values())
    epochs = [
        {outlook.name: outlook.epochs for outlook in compute_outlooks(weights, amounts, train_tokens=budget)}
        for amounts in (planned_amounts, current_amounts)
    ]
    for source in own_sources:
        name, changes = source.unit.name, {} if source.current_files is None else source.changes
        yield {
            "dataset": name,
            "split": split,
            "requested_share": round(weights[name], 6),
            f"planned_{measure}": planned_amounts[name],
            f"current_{measure}": current_amounts[name],
            "planned_share_of_data": _compute_share(planned_amounts, name),
            "current_share_of_data": _compute_share(current_amounts, name),
            "planned_epochs": _replace_infinity(epochs[0][name]),
            "current_epochs": _replace_infinity(epochs[1][name]),
            "changed_files": sum(changes.values()),
            **{f"files_{kind}": count for kind, count in changes.items()},
        }


def _compute_share(amounts: dict[str, int], name: str) -> float:
    total = sum(amounts.values())
    return round(amounts[name] / total, 6) if total else 0.0


def _replace_infinity(epochs: float) -> float:
    # A dataset without data has infinite epochs. Return 0 instead, because JSON cannot represent infinity.
    return round(epochs, 4) if isfinite(epochs) else 0.0


def _describe_row(blend: BlendDeclaration, row: Row) -> str:
    counts = {kind: int(row[f"files_{kind}"]) for kind in ("added", "removed", "changed")}
    files = ", ".join(f"{count_of(count, 'file')} {kind}" for kind, count in counts.items() if count)
    measure = "records" if blend.stage == "rl" else "tokens"
    planned_share, current_share = (
        format_share(float(row[key])) for key in ("planned_share_of_data", "current_share_of_data")
    )
    sentence = (
        f"{row['dataset']}: {files} since the plan was built. The dataset's share of the {measure} in {row['split']} "
        f"was {planned_share} and is now about {current_share}"
    )
    if blend.stage != "pretrain":
        return sentence
    reads = f"{row['current_epochs']:.2f} times instead of {row['planned_epochs']:.2f}"
    return f"{sentence}. With its weight of {format_share(float(row['requested_share']))}, it is read {reads}"


_REPLAN = "Rebuild `blend_plan`"
_REFINALIZE = "Rebuild the run"


def shards_complete(run: OpenedRun) -> Finding:
    """Check that every chosen shard is built and belongs to this plan, with data or declared empty."""
    plan, receipts = run.plan, run.receipts
    by_partition = {str(shard.artifact.partition): shard for shard in run.shards}
    missing = [p for p in plan.partitions if receipts.get(p) is None]
    stale_partitions = [p for p, r in receipts.items() if r is not None and r.key != by_partition[p].key]
    empty = [p for p, r in receipts.items() if r is not None and not require_ledger(r).documents]
    defects = (
        [
            (
                f"{len(missing):,} of {count_of(len(plan.partitions), 'shard')} {'is' if len(missing) == 1 else 'are'} "
                f"missing or failed: {join_first(missing)}"
            )
        ]
        if missing
        else []
    )
    if stale_partitions:
        defects.append(
            f"{count_of(len(stale_partitions), 'shard was', 'shards were')} built from different inputs or "
            f"settings: {join_first(stale_partitions)}"
        )
    return build_verdict(
        defects,
        f"{count_of(len(plan.partitions), 'shard is', 'shards are')} complete; {count_of(len(empty), 'is', 'are')} "
        "empty.",
        "Build these partitions",
        facts={
            "shards": len(plan.partitions),
            "missing": len(missing),
            "stale": len(stale_partitions),
            "empty": len(empty),
        },
    )


def rows_read_once(run: OpenedRun) -> Finding:
    """Check that the shards of each file that is divided by rows read as many rows as their ranges now contain.

    Row ranges of shards that are not built, or that the sample leaves out, are skipped. Blank lines count as rows.
    """
    blend, plan, receipts = run.blend, run.plan, run.receipts
    defects: list[str] = []
    file_count = 0
    for unit in plan.units:
        access = open_place(unit.dataset, blend.sources).access
        read_counts: Counter[str] = Counter()
        expected_rows: Counter[str] = Counter()
        totals: dict[str, int] = {}
        for shard in unit.shards:
            key = format_partition_key(unit.name, shard.index)
            receipt = receipts.get(key)
            # A row range of a divided file is the only part of its shard, so the shard's ledger counts exactly the rows
            # of this range. Skip shards with several parts, because their ledger does not count the rows of each part
            # separately.
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
                # Rows are numbered from 1, so `end` is one after the last row. The last range has no end, and a range
                # may begin after the end of a file that was shortened since the plan.
                end = totals[entry.relpath] + 1
                expected_rows[entry.relpath] += max(0, min(part.rows.stop or end, end) - part.rows.first)
                assert receipt is not None
                ledger = require_ledger(receipt)
                read_counts[entry.relpath] += ledger.rows_in + ledger.blank_lines
        file_count += len(totals)
        defects += [
            f"{unit.name}: {path}: the shards read {read_counts[path]} of {count_of(expected_rows[path], 'row')}"
            for path in totals
            if read_counts[path] != expected_rows[path]
        ]
    return build_verdict(
        defects,
        f"{count_of(file_count, 'file is', 'files are')} divided among shards, which read every row exactly once.",
        f"The file has changed, or a shard belongs to a different plan. {_REPLAN}, then the shards",
        facts={"files_counted": file_count},
    )


def blend_run_intact(run: OpenedRun) -> Finding:
    """Check that the run's files match its receipt, belong to the current plan, and equal the files of a new layout."""
    directory, receipt, plan = run.directory, run.receipt, run.plan
    defects = [f"{run.name}: {defect}" for defect in find_damage(directory, receipt, "full")]
    defects += find_contradicted_claims(run.blend, run.store, plan, run.finished, directory, receipt)
    run_hash = run.facts.run_hash
    if {receipt.partition, run_hash} != {plan.run_hash}:
        defects.append(f"{run.name}: belongs to the run {run_hash}, but the plan is {plan.run_hash}")
    folders = {unit.name: unit.plan_hash for unit in plan.units}
    for folder in sorted((directory / "datasets").glob("*/*")):
        if folders.get(folder.parent.name) != folder.name:
            defects.append(f"{run.name}: {folder.relative_to(directory)} belongs to no dataset of the plan")
    return build_verdict(
        defects,
        f"{count_of(len(receipt.files), 'file')} ({count_of(receipt.total_bytes, 'byte')}): all digests match the "
        "receipt.",
        _REFINALIZE,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


def splits_disjoint(run: OpenedRun) -> Finding:
    """Check that no shard, no source row (identified by the file's content) and no content is in two splits.

    Shared content is only a warning, because a source may contain duplicates.
    """
    used_shards, plan = run.facts.used, run.plan
    split_by_shard: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str, int, int | None]]] = {}
    defects: list[str] = []
    for split, partitions in used_shards.items():
        for partition in partitions:
            if split_by_shard.setdefault(partition, split) != split:
                defects.append(f"the shard {partition} is in {split_by_shard[partition]} and in {split}")
            for part in plan.find_shard(partition)[1].parts:
                if not part.entry.size_bytes:  # skip empty files, which all have the same digest but share no rows
                    continue
                first_row, stop = (part.rows.first, part.rows.stop) if part.rows else (1, None)
                # Compare files by digest or ETag if they have one, because a copy under a different path could put the
                # same rows into another split.
                content = part.entry.sha256 or part.entry.etag or part.entry.path
                for other_split, path, begin, end in rows.get(content, ()):
                    # `end` and `stop` are exclusive. None means that the range continues to the end of the file, so no
                    # other range begins after it.
                    is_disjoint = (end is not None and end <= first_row) or (stop is not None and stop <= begin)
                    if other_split != split and not is_disjoint:
                        defects.append(
                            f"rows of {part.entry.relpath} are in {split}, and as {path} also in {other_split}"
                        )
                rows.setdefault(content, []).append((split, part.entry.relpath, first_row, stop))
    warning = not defects
    return build_verdict(
        defects or run.describe_shared_content(),
        f"No content is in more than one split ({count_of(len(split_by_shard), 'shard')} in "
        f"{count_of(len(used_shards), 'split')}).",
        "Remove duplicates from the sources, or keep them in one split"
        if warning
        else "Give each split its own sources, or use `held_out`",
        warning=warning,
        facts={"shards": len(split_by_shard), "splits": len(used_shards)},
    )


def mixture_matches_weights(run: OpenedRun) -> Finding:
    """Check that realized shares are within the tolerance, and that epochs are within the limit.

    Held-out shards of SFT and pairs are not compared, because they are held out as a whole, and the trainer uses no
    weights for them.

    `blend_run_intact` verifies that the table of shares in the receipt matches the trainer's files.
    """
    blend, table = run.blend, run.facts.realised
    defects: list[str] = []
    worst = 0.0
    is_weighted = blend.held_out is None or blend.stage not in ("sft", "pairs")
    for split in dict.fromkeys(row.split for row in table if is_weighted or row.split == "train"):
        rows = [row for row in table if row.split == split]
        requested, realized = _compute_requested_shares(run, split), {row.name: row.realised for row in rows}
        worst = max(worst, measure_drift(requested, realized))
        differences = {name: abs(realized.get(name, 0.0) - share) for name, share in requested.items()}
        # List the largest difference first, because the finding shows only the first one.
        defects += [
            f"{split}: {name} should be {requested[name]:.4f} of the blend, but is {realized.get(name, 0.0):.4f}"
            for name, difference in sorted(differences.items(), key=lambda item: -item[1])
            if difference > blend.tolerance
        ]
        if split == "train" and blend.max_epochs is not None:
            defects += [
                f"{split}: {row.name} would be read {row.epochs:.2f} times, more than {blend.max_epochs:g}; it can "
                f"be at most {row.realisable:.4f} of the blend, not {row.requested:.4f}"
                for row in rows
                if row.epochs > blend.max_epochs
            ]
    return build_verdict(
        defects,
        f"Every dataset's share matches its weight within {blend.tolerance:g}.",
        _RL_ADVICE if blend.stage == "rl" else _ADVICE,
        # Store the tolerance as text, because Dagster plots numbers over time, and the tolerance is only a setting.
        facts={"largest_difference": worst, "tolerance": str(blend.tolerance)},
        table=[asdict(row) for row in table],
    )


def _compute_requested_shares(run: OpenedRun, split: str) -> dict[str, float]:
    """Return the requested share of each dataset of a split, including datasets without data.

    RL shares are shares of the sources' records, each counted as often as the weights require. A shard whose records
    were all left out is in no split, but its records count unless shards are held out.
    """
    # With held-out shards, each split may have shards of every dataset, so no dataset belongs to only one split.
    is_whole = run.blend.held_out is None
    weights = {u.name: u.dataset.weight for u in run.plan.units if u.home == split or not is_whole}
    if run.blend.stage != "rl":
        return normalize_weights(weights)
    used_partitions, records = set(run.facts.used[split]), dict.fromkeys(weights, 0)
    for shard in run.finished:
        if shard.unit.name in records and (is_whole or str(shard.artifact.partition) in used_partitions):
            records[shard.unit.name] += shard.ledger.rows_in
    return compute_record_shares(records, weights)


def lengths_balanced(run: OpenedRun) -> Finding:
    """Check that neither chosen nor rejected answers are longer in nearly all pairs of a dataset.

    The finding's table has the lengths per dataset and split.
    """
    files: dict[tuple[str, str], list[Path]] = {}
    for split, partitions in run.facts.used.items():
        for partition in partitions:
            shard = next(shard for shard in run.finished if shard.artifact.partition == partition)
            path = run.store.local(shard.artifact, [PAIRS_FILE]) / PAIRS_FILE
            files.setdefault((split, shard.unit.name), []).append(path)
    return find_length_bias(build_length_rows(files), run.blend.pairs_options.max_chosen_longer)


_ADVICE = "Change the weights, add data, or raise `max_epochs` or `tolerance`"
_RL_ADVICE = (
    "Look in the shards' ledgers for records that a transform dropped, use weights that are whole multiples of the "
    "smallest, or raise `max_epochs` or `tolerance`"
)
CHECKS = (
    Check(
        "shards_complete",
        "Every chosen shard exists, belongs to this plan, and has data or is declared empty.",
        shards_complete,
    ),
    Check(
        "rows_read_once",
        "If a file is divided among shards, the row ranges add up to the file's current row count.",
        rows_read_once,
    ),
    Check(
        "blend_run_intact",
        "The run's files and digests match its receipt and its shards. The entry file lists every shard in "
        "use exactly once.",
        blend_run_intact,
    ),
    Check(
        "splits_disjoint",
        "No shard, source row, document, sequence, prompt or record is in two splits.",
        splits_disjoint,
    ),
    Check(
        "mixture_matches_weights",
        "Each dataset's share matches its weight within the tolerance.",
        mixture_matches_weights,
        version=2,
    ),
    Check(
        "blend_sources_unchanged",
        "The sources have not changed since the blend was planned.",
        blend_sources_unchanged,
        blocking=False,
    ),
)
_LENGTHS_BALANCED = Check(
    "lengths_balanced",
    "In each dataset, neither the chosen nor the rejected answer is the longer one in more than "
    "`pairs.max_chosen_longer` of the pairs.",
    lengths_balanced,
    blocking=False,
)


def list_run_checks(blend: BlendDeclaration) -> tuple[Check[OpenedRun], ...]:
    """Return the checks of a blend's run: `CHECKS` and, for pairs, the check of their answers' lengths."""
    if blend.stage != "pairs":
        return CHECKS
    return (*CHECKS, replace(_LENGTHS_BALANCED, limit=blend.pairs_options.max_chosen_longer))
