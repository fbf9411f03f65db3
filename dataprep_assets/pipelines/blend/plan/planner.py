"""Planning of a blend: the files, or row ranges of files, of each shard of each dataset.

Files stay whole if there are at least as many files as shards. Otherwise they are divided into row ranges. Their rows
must then be counted once (Parquet files have the number in their footer), so mirrored files are downloaded here.

Entry points: `plan_blend`, `collect_stage_identity`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.pipelines.blend.data_blend import DataBlend, Unit
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, HeldOut
from dataprep_assets.pipelines.blend.plan.discovery import (
    RL_SPLITS,
    DiscoveredDataset,
    discover_dataset,
    discover_splits,
    open_place,
)
from dataprep_assets.pipelines.blend.plan.plan import VERSION, BlendPlan, PlannedBlendShard, PlannedPart, PlannedUnit
from dataprep_assets.pipelines.blend.rl.transforms import build_fingerprint
from dataprep_assets.pipelines.blend.screening.row_rules import load_row_rules
from dataprep_assets.pipelines.blend.screening.row_screen import load_row_screen
from dataprep_assets.pipelines.blend.sft.declared_template import load_declared_template
from dataprep_assets.pipelines.blend.stream import find_bos, find_separator
from dataprep_assets.planning.blend import assign_by_size, divide_shards_by_size, sample_shards
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.sources.readers.read_options import ReadOptions, RowRange
from dataprep_assets.sources.readers.rows import count_rows, split_rows
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.tokenizer import load_declared_tokenizer

_Rows = Callable[[ManifestEntry], int]
"""Function that returns the number of rows of a file."""
TARGET_BYTES = 256 << 20
MAX_SHARDS = 4000
"""Maximum default number of shards per dataset, because Dagster is slow to show assets with more partitions."""


def collect_stage_identity(blend: BlendDeclaration) -> dict[str, Any]:
    """Return all values that determine the shards' bytes, except the sources.

    These are the options and rules, and digests of the tokenizer, the template, the transforms and the benchmarks.
    """
    identity: dict[str, Any] = {
        "stage": blend.stage,
        # Exclude the budget, because a finished shard within a larger budget has the same bytes.
        "bad_records": blend.bad_records.model_dump(exclude={"budget"}),
        "max_rows": blend.max_rows,
        "force": blend.force,
    }
    if blend.stage == "pretrain":
        # Exclude `sample_rate`, which affects only the comparison with the reference engine, and `sequence_length`,
        # which affects only the preview.
        identity["options"] = blend.pretrain_options.model_dump(exclude={"sample_rate", "sequence_length"})
    elif blend.stage == "sft":
        options = blend.sft_options
        template = load_declared_template(options, blend.required_tokenizer)
        identity["options"] = {
            **options.identity(),
            "template_kwargs": dict(options.template_kwargs),
            "choices": options.choices.changes,
        }
        identity["template"] = template.digest
    elif blend.stage == "pairs":
        chat = blend.chat_options
        identity["options"] = {
            **blend.pairs_options.identity(),
            "template_kwargs": dict(chat.template_kwargs),
            "choices": chat.choices.changes,
        }
        identity["template"] = load_declared_template(chat, blend.required_tokenizer).digest
    else:
        identity["options"] = blend.rl_options.identity
        identity["transforms"] = build_fingerprint(blend.rl_options.transforms, blend.sources, blend.source_digests())
    if (rules := load_row_rules(blend)) is not None:
        identity |= rules.key_parts()
    if (screen := load_row_screen(blend)) is not None:
        identity |= screen.key_parts()
    if (rewriting := blend.rewriting) is not None:
        identity["rewrite"] = rewriting.version
    if (duplicates := blend.duplicates) is not None:
        from dataprep_assets.pipelines.blend.duplicates.signing import load_signing

        priority = None if duplicates.priority is None else duplicates.priority.model_dump(mode="json")
        identity["duplicates"] = {**load_signing(blend).key_parts, **duplicates.key_parts(), "priority": priority}
    if blend.tokenizer is not None:
        identity["tokenizer"] = load_declared_tokenizer(blend.tokenizer).digest
    return identity


def plan_blend(blend: BlendDeclaration, frozen: BlendPlan | None = None, *, relist: bool = False) -> BlendPlan:
    """List every source of `blend` and plan its shards. Only files whose rows must be counted are downloaded.

    With a `frozen` plan, the rows of unchanged datasets are not counted again. Without `relist`, mirrored datasets with
    an unchanged declaration are not listed again and stay at the frozen revision.

    Raises ConfigError if two datasets would have the same name, or if shards cannot be held out because a dataset has
    too few shards or its own split. Raises SourceError if a source cannot be listed.
    """
    if blend.stage == "pretrain":
        # Report an invalid separator or BOS token now, because the build would report it only after the downloads.
        bundle = load_declared_tokenizer(blend.required_tokenizer)
        find_separator(blend, bundle)
        find_bos(blend, bundle)
    identity = collect_stage_identity(blend)
    units_by_name = {unit.name: unit for unit in frozen.units} if frozen else {}
    units = [
        _plan_unit(dataset_files, blend, identity, units_by_name.get(dataset_files.unit.name))
        for dataset_files in discover_datasets(blend, {} if relist else units_by_name)
    ]
    # The dataset `web` in the list `train` becomes `web__train`, which may also be the declared name of a dataset.
    names = [unit.name for unit in units]
    if repeated_names := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"blend: two datasets would have the name {repeated_names[0]}. Rename one")
    if blend.held_out is not None:
        _refuse_held_out(blend.held_out, units)
    return BlendPlan(run_hash=_compute_run_hash(blend, units), units=tuple(units))


def _refuse_held_out(held_out: HeldOut, units: Sequence[PlannedUnit]) -> None:
    """Raise ConfigError if a dataset has a split other than `train`, or if no shard would be left for training."""
    for unit in units:
        if unit.home != "train":
            raise ConfigError(
                f"held_out: {unit.dataset.name} has its own files for `{unit.home}`. Remove `held_out`, or restrict "
                "`path` to the training files"
            )
        if held_out.valid + held_out.test >= len(unit.chosen):
            raise ConfigError(
                f"held_out: {unit.name} has {count_of(len(unit.chosen), 'shard')}, but {held_out.valid} for valid and "
                f"{held_out.test} for test leave none for training. Raise `num_shards`, or hold out fewer"
            )


def rediscover_dataset(blend: BlendDeclaration, unit: PlannedUnit) -> DiscoveredDataset | None:
    """Return a planned dataset with its current files; None if no file belongs to the RL split of the dataset.

    Local files are read to compute their digests, and no file is downloaded. A dataset that is pinned to a commit
    cannot change and is not listed again. Raises SourceError if the source cannot be listed.

    Args:
        blend: The declaration.
        unit: A dataset of the blend's plan.
    """
    if unit.commit is not None and unit.dataset.path.rstrip("/").endswith(f"@{unit.commit}"):
        return restore_planned_dataset(unit)
    declared_unit = next(
        (u for u in blend.load_data_blend().list_units() if u.dataset.unattributed == unit.dataset.unattributed), None
    )
    if declared_unit is None:  # the declaration has changed, which `plan_is_current` reports
        return restore_planned_dataset(unit)
    if blend.stage == "rl" and declared_unit.split is None and unit.dataset.split is None:
        return discover_splits(declared_unit, blend.sources, blend.source_digests()).get(unit.name.rpartition("__")[2])
    unit_to_list = Unit(name=unit.name, dataset=unit.dataset, split=unit.split)
    return discover_dataset(unit_to_list, blend.sources, blend.source_digests())


def discover_datasets(blend: BlendDeclaration, previous_units: dict[str, PlannedUnit]) -> list[DiscoveredDataset]:
    """Return the datasets of a blend with their files; mirrored datasets in `previous_units` keep the planned files."""
    datasets: list[DiscoveredDataset] = []
    data: DataBlend = blend.load_data_blend()
    digests = blend.source_digests()
    for unit in data.list_units():
        by_rl_split = blend.stage == "rl" and unit.split is None
        planned_units = [
            b
            for b in previous_units.values()
            if b.dataset.unattributed == unit.dataset.unattributed
            and (b.split in RL_SPLITS if by_rl_split else b.name == unit.name)
        ]
        if planned_units and open_place(unit.dataset, blend.sources).access.mirrored:
            datasets += [restore_planned_dataset(b) for b in planned_units]
        elif by_rl_split and unit.dataset.split is None:
            datasets += discover_splits(unit, blend.sources, digests).values()
        elif by_rl_split:
            # Use `train` if `split` is not the name of a split, because such a value only selects files (for example
            # `math` in Skywork's dataset).
            split = next((s for s, names in RL_SPLITS.items() if unit.dataset.split in names), "train")
            of_split = Unit(name=f"{unit.name}__{split}", dataset=unit.dataset, split=split)
            datasets.append(discover_dataset(of_split, blend.sources, digests))
        else:
            datasets.append(discover_dataset(unit, blend.sources, digests))
    return datasets


def restore_planned_dataset(unit: PlannedUnit) -> DiscoveredDataset:
    """Return a planned dataset with the files of the frozen plan."""
    return DiscoveredDataset(
        unit=Unit(name=unit.name, dataset=unit.dataset, split=unit.split), entries=unit.entries, commit=unit.commit
    )


def _plan_unit(
    discovered_dataset: DiscoveredDataset,
    blend: BlendDeclaration,
    identity: dict[str, Any],
    previous_unit: PlannedUnit | None,
) -> PlannedUnit:
    """Divide a dataset into shards and choose the sampled shards. If nothing has changed, reuse the previous shards."""
    total = sum(entry.size_bytes for entry in discovered_dataset.entries)
    count = blend.num_shards or max(1, min(MAX_SHARDS, -(-total // TARGET_BYTES)))
    dataset = discovered_dataset.unit.dataset
    fields: dict[str, str | None] = {
        "text_field": dataset.text_field,
        "messages": dataset.messages_field,
        "tools": dataset.tools_field,
    }
    if dataset.format:
        fields["format"] = dataset.format
    # `settings` omits default options, so that a new option changes only the plans of datasets that set it.
    for entry in discovered_dataset.entries:
        fields |= dataset.reading.settings(entry.format)
    plan_hash = digest_value(
        ["blend_plan", VERSION, discovered_dataset.unit.name, count, discovered_dataset.identities, fields, identity],
    )[:16]
    # Reuse the shards, so that no rows are counted again. Also compare the entries, because they contain locations,
    # which the hash does not cover. A source that was moved is divided again, with the same result.
    if (
        previous_unit is not None
        and previous_unit.plan_hash == plan_hash
        and previous_unit.entries == discovered_dataset.entries
    ):
        shards = previous_unit.shards
    else:
        rows = partial(_count_rows, open_place(dataset, blend.sources).access, dataset.reading)
        shards = _limit_rows(_cut_shards(discovered_dataset.entries, count, rows), blend.max_rows, rows)
    sample = blend.sample
    chosen_shards = sample_shards(
        count,
        dataset=discovered_dataset.unit.name,
        count=sample.count if sample else None,
        percent=sample.percent if sample else None,
        seed=sample.seed if sample else 42,
    )
    return PlannedUnit(
        name=discovered_dataset.unit.name,
        dataset=dataset,
        split=discovered_dataset.unit.split,
        plan_hash=plan_hash,
        commit=discovered_dataset.commit,
        entries=discovered_dataset.entries,
        shards=shards,
        chosen=tuple(chosen_shards),
    )


def _cut_shards(entries: Sequence[ManifestEntry], count: int, rows_of: _Rows) -> tuple[PlannedBlendShard, ...]:
    sizes = [(entry.relpath, entry.size_bytes) for entry in entries]
    if count <= len(entries):
        groups = [[PlannedPart(entry=entries[i]) for i in group] for group in assign_by_size(sizes, count)]
        weights = [sum(p.entry.size_bytes for p in group) for group in groups]
    else:
        groups, weights = [], []
        for entry, shares in zip(entries, divide_shards_by_size(sizes, count), strict=True):
            ranges = [None] if shares == 1 else split_rows(rows_of(entry), shares)
            groups += [[PlannedPart(entry=entry, rows=rows)] for rows in ranges]
            # Subtract cumulative sizes, so that the rounded sizes of the ranges add up to the size of the file.
            weights += [entry.size_bytes * (i + 1) // shares - entry.size_bytes * i // shares for i in range(shares)]
    return tuple(
        PlannedBlendShard(index=index, parts=tuple(group), total_bytes=size)
        for index, (group, size) in enumerate(zip(groups, weights, strict=True))
    )


def _limit_rows(
    shards: tuple[PlannedBlendShard, ...], max_rows: int | None, rows_of: _Rows
) -> tuple[PlannedBlendShard, ...]:
    return shards if max_rows is None else tuple(_limit_shard_rows(shard, max_rows, rows_of) for shard in shards)


def _limit_shard_rows(shard: PlannedBlendShard, limit: int, rows_of: _Rows) -> PlannedBlendShard:
    """Return the shard with only its first `limit` rows. Its size does not change, because whole files are read."""
    parts: list[PlannedPart] = []
    for part in shard.parts:
        if limit <= 0:
            break
        first_row = part.rows.first if part.rows else 1
        stop = part.rows.stop if part.rows and part.rows.stop is not None else rows_of(part.entry) + 1
        parts.append(part if stop - first_row <= limit else replace(part, rows=RowRange(first_row, first_row + limit)))
        # Subtract the rows of the whole part, even if the part was shortened: the limit is then not positive, and the
        # loop ends.
        limit -= stop - first_row
    return replace(shard, parts=tuple(parts))


def _count_rows(access: SourceAccess, reading: ReadOptions, entry: ManifestEntry) -> int:
    access.fetch([entry])
    return count_rows(
        access.path(entry),
        format=entry.format,
        compression=entry.compression,
        label=entry.relpath,
        reading=reading,
    )


def _compute_run_hash(blend: BlendDeclaration, units: Sequence[PlannedUnit]) -> str:
    return digest_value(
        [
            "blend_run",
            VERSION,
            [[u.name, u.split, u.dataset.weight, u.plan_hash, list(u.chosen)] for u in units],
            blend.held_out.model_dump() if blend.held_out else None,
        ]
    )[:16]


def compute_source_digest(unit: PlannedUnit) -> str:
    """Return a digest of the paths, sizes and digests (or listed ETags) of a dataset's files."""
    return digest_value(restore_planned_dataset(unit).identities)
