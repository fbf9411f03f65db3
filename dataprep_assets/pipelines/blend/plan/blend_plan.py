"""The blend plan (`<dataset>/blend_plan`): the files, or row ranges of files, of each shard.

The build of the plan adds the shards' partitions. A blend's artifacts are `<dataset>/blend_plan → blend_preview →
blend_snapshot, engine_certificate → indexed_bins | packed_sft | pairs | rl_jsonl → blend`, in a group named after the
dataset. `plan.py` defines the plan, and `planner.py` computes it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import Markdown, ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import (
    ArtifactSpec,
    FindRetracted,
    Partitions,
    SourceIdentity,
    SourceWatch,
    identify_listing,
    join_counts,
    read_modification_time,
)
from dataprep_assets.engine.checks.check import Check, Finding, build_verdict
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.data_blend import DESCRIPTIVE_FIELDS, BlendDataset, Unit, format_notes
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import (
    SourceLocation,
    list_dataset_files,
    list_upstream_assets,
    open_place,
)
from dataprep_assets.pipelines.blend.plan.plan import (
    BLEND_PLAN,
    PLAN,
    VERSION,
    BlendPlan,
    PlannedUnit,
    compute_plan_key,
    has_blend_plan,
    load_blend_plan,
)
from dataprep_assets.pipelines.blend.plan.planner import collect_stage_identity, compute_source_digest, plan_blend
from dataprep_assets.planning.manifest import SourceFile
from dataprep_assets.sources.access import HubMirror, LocalTree
from dataprep_assets.sources.hub_cache import COMMIT
from dataprep_assets.sources.upstream import UpstreamPartitions


def build_blend_watch(blend: BlendDeclaration) -> SourceWatch:
    """Return the functions that detect changes in the datasets of a blend."""
    return SourceWatch(identity=partial(_compute_identity, blend), changes=partial(_describe_changes, blend))


def _compute_identity(blend: BlendDeclaration, _: ArtifactStore) -> SourceIdentity:
    listing: list[list[str | int | None]] = []
    stamps: list[list[str | int]] = []
    for unit in blend.load_data_blend().list_units():
        source = open_place(unit.dataset, blend.sources, patient=False)
        if isinstance(source.access, HubMirror):
            listing.append([unit.name, _find_commit(source.access)])
            continue
        files = list_dataset_files(source, unit.dataset)[1]
        listing += [[unit.name, file.relpath, file.size_bytes, file.etag] for file in files]
        # A folder's listing has no versions, so only the modification time reveals an edit that keeps the size.
        if isinstance(access := source.access, LocalTree | UpstreamPartitions) and not access.mirrored:
            stamps += [[unit.name, f.relpath, read_modification_time(access.path(f), f.relpath)] for f in files]
    return identify_listing(listing, stamps)


def _find_commit(access: HubMirror) -> str:
    """Return the current commit of the declared revision. If the revision is itself a commit, no request is sent."""
    revision = access.repo.revision
    return revision if COMMIT.fullmatch(revision) else access.repo.resolve_commit()


def _describe_changes(blend: BlendDeclaration, store: ArtifactStore) -> str:
    """Return a phrase with the numbers of files and datasets that have changed since the current plan."""
    units = blend.load_data_blend().list_units()
    if not has_blend_plan(blend, store):
        return join_counts([(len(units), "dataset", "not planned yet")])
    planned_units = load_blend_plan(blend, store).units
    selections = {_encode_selection(unit.dataset) for unit in units}
    counts = {"new": 0, "gone": len({_encode_selection(p.dataset) for p in planned_units} - selections)}
    files = {"added": 0, "removed": 0, "changed": 0}
    for unit in units:
        matching_units = [p for p in planned_units if _encode_selection(p.dataset) == _encode_selection(unit.dataset)]
        if not matching_units:
            counts["new"] += 1
        for verb, count in _count_file_changes(blend, unit, matching_units).items() if matching_units else ():
            files[verb] += count
    return join_counts(
        [
            *((count, "file", verb) for verb, count in files.items()),
            *((count, "dataset", verb) for verb, count in counts.items()),
        ]
    )


def _encode_selection(dataset: BlendDataset) -> str:
    """Return a declared dataset's name and the keys that select its files, as JSON."""
    return dataset.unattributed.model_dump_json(include={"name", "path", "split", "subset"})


def _count_file_changes(blend: BlendDeclaration, unit: Unit, units: Iterable[PlannedUnit]) -> dict[str, int]:
    """Return the numbers of added, removed and changed files of a dataset since it was planned."""
    source = open_place(unit.dataset, blend.sources, patient=False)
    units = list(units)
    # Do not list the files if the commit is unchanged, because equal commits have the same files.
    if isinstance(source.access, HubMirror) and _find_commit(source.access) == units[0].commit:
        return {}
    # Compare local files only by size, because the listing of a folder has no digests.
    current_files = {
        file.relpath: _identify_version(source, file) for file in list_dataset_files(source, unit.dataset)[1]
    }
    planned_files = {
        entry.relpath: _identify_version(
            source,
            SourceFile(relpath=entry.relpath, size_bytes=entry.size_bytes, sha256=entry.sha256, etag=entry.etag),
        )
        for planned_unit in units
        for entry in planned_unit.entries
    }
    return {
        "added": len(current_files.keys() - planned_files.keys()),
        "removed": len(planned_files.keys() - current_files.keys()),
        "changed": sum(
            planned_files[path] != current_files[path] for path in planned_files.keys() & current_files.keys()
        ),
    }


def _identify_version(place: SourceLocation, file: SourceFile) -> tuple[int, str | None]:
    """Return values that identify the version of a listed file: its size and, if mirrored, its digest or ETag."""
    return file.size_bytes, (file.sha256 or file.etag) if place.access.mirrored else None


_REPLAN = "Rebuild `blend_plan`"


def plan_covers_sources(plan: BlendPlan, max_rows: int | None = None) -> Finding:
    """Check that each file is in exactly one shard, or divided into consecutive row ranges from row 1 to the end.

    With `max_rows`, files and rows may be left out, but none may be in two shards.
    """
    range_count = sum(part.rows is not None for unit in plan.units for shard in unit.shards for part in shard.parts)
    return build_verdict(
        (defect for unit in plan.units for defect in _find_unit_defects(unit, max_rows)),
        f"{count_of(sum(len(u.entries) for u in plan.units), 'file is', 'files are')} in "
        f"{count_of(sum(len(u.shards) for u in plan.units), 'shard')}; no row is in two shards.",
        _REPLAN,
        facts={
            "datasets": len(plan.units),
            "shards": sum(len(u.shards) for u in plan.units),
            "row_ranges": range_count,
        },
    )


def _find_unit_defects(unit: PlannedUnit, max_rows: int | None) -> Iterator[str]:
    """Yield a sentence for each invalid shard number, chosen shard, file or row range of a planned dataset."""
    if [shard.index for shard in unit.shards] != list(range(len(unit.shards))):
        yield (
            f"{unit.name}: its shards are numbered {', '.join(str(s.index) for s in unit.shards)}, not 0 to "
            f"{len(unit.shards) - 1}"
        )
    if not set(unit.chosen) <= set(range(len(unit.shards))) or len(set(unit.chosen)) != len(unit.chosen):
        yield (
            f"{unit.name}: the chosen shards ({', '.join(map(str, unit.chosen))}) must be distinct and among its "
            f"{count_of(len(unit.shards), 'shard')}"
        )
    ranges_of_file: dict[str, list[tuple[int, int | None]]] = {}
    for shard in unit.shards:
        for part in shard.parts:
            rows = (part.rows.first, part.rows.stop) if part.rows else (1, None)
            ranges_of_file.setdefault(part.entry.relpath, []).append(rows)
    for entry in unit.entries:
        # Sort None after all numbers, because a `stop` of None means the end of the file.
        ranges = sorted(ranges_of_file.pop(entry.relpath, []), key=lambda r: (r[0], r[1] is None, r[1] or 0))
        if not ranges and max_rows is None:
            yield f"{unit.name}: {entry.relpath} is in no shard"
        # Expect row 1 first. None means that the previous range reaches the end of the file.
        next_expected: int | None = 1
        for first_row, stop in ranges:
            if next_expected is None or first_row < next_expected:
                yield f"{unit.name}: rows of {entry.relpath} from {first_row} on are in two shards"
            elif first_row > next_expected and max_rows is None:
                yield f"{unit.name}: rows {next_expected} to {first_row - 1} of {entry.relpath} are in no shard"
            next_expected = stop
        if ranges and next_expected is not None and max_rows is None:
            yield f"{unit.name}: rows of {entry.relpath} from {next_expected} on are in no shard"
    for path in ranges_of_file:
        yield f"{unit.name}: {path} is in a shard, but not in the dataset"


def plan_is_current(blend: BlendDeclaration, store: ArtifactStore, other_datasets: Iterable[str] = ()) -> Finding:
    """Check that a new plan from the current sources, tokenizer, template and options equals the committed plan.

    `blend` is the declaration, `store` contains the plan, and `other_datasets` are defects found by other checks.
    """
    committed_plan = load_blend_plan(blend, store)
    new_plan = plan_blend(blend, committed_plan)
    old_hashes, new_hashes = ({unit.name: unit.plan_hash for unit in plan.units} for plan in (committed_plan, new_plan))
    defects = [
        f"{n}: the plan hash was {old_hashes.get(n)}, and is now {new_hashes.get(n)}"
        for n in sorted({*old_hashes, *new_hashes})
        if old_hashes.get(n) != new_hashes.get(n)
    ]
    if not defects and compute_plan_key(new_plan) != compute_plan_key(committed_plan):
        defects.append(f"{blend.dataset}: the run hash was {committed_plan.run_hash}, and is now {new_plan.run_hash}")
    # Omit the defects of the other checks if a plan hash or the run hash differs, because they are consequences that
    # would hide the cause.
    if not defects:
        defects += other_datasets
    return build_verdict(
        defects,
        f"The plan {committed_plan.run_hash} of {count_of(len(committed_plan.units), 'dataset')} matches the current "
        "sources and settings.",
        f"Sources or settings have changed. If this was intended, {_REPLAN[:1].lower()}{_REPLAN[1:]}",
        facts={"run_hash": committed_plan.run_hash, "datasets": len(committed_plan.units)},
    )


CONFIG = "config.json"


class PlannedDatasetFacts(Facts):
    """Facts of a planned dataset: its source files and their bytes, planned and chosen shards, and weight."""

    plan_hash: str
    commit: str | None
    files: int
    source_bytes: int
    shards: int
    chosen: int
    weight: float


class BlendPlanFacts(Facts):
    """Facts of a plan: its run hash, its stage, and its datasets by name."""

    run_hash: str
    stage: str
    datasets: dict[str, PlannedDatasetFacts]


def build_blend_plan_spec(blend: BlendDeclaration, *, plans: Partitions, find_retracted: FindRetracted) -> ArtifactSpec:
    """Return the spec of the plan.

    Args:
        blend: The declaration.
        plans: The partitions of the shards, which this artifact determines.
        find_retracted: The function that finds unplanned artifacts with removed rows.
    """
    return ArtifactSpec(
        declaration=blend,
        name=BLEND_PLAN,
        version=VERSION,
        description="All source files with their content digests, and the shards of each dataset.",
        kinds={"json"},
        inputs=list_upstream_assets(blend),
        plans=(plans,),
        watch=build_blend_watch(blend),
        find_retracted=find_retracted,
        pool="network",
        verification="full",
        # A lock must not compare the bytes of `plan.json`, because it contains the datasets' paths, which differ
        # between machines.
        names_places=frozenset(),
        recipes=partial(_build_recipes, blend),
        build=lambda request: [Outcome.from_receipt(*build_blend_plan(blend, request.store))],
        metadata=partial(_build_metadata, blend),
        check_groups=(WholeArtifactChecks(checks=CHECKS, open=lambda store, _: (blend, store)),),
    )


def _build_recipe(blend: BlendDeclaration, plan: BlendPlan) -> Recipe:
    settings = collect_stage_identity(blend)
    sources = {
        "tokenizer": settings.pop("tokenizer", None),
        "chat_template": settings.pop("template", None),
        **{unit.name: compute_source_digest(unit) for unit in plan.units},
    }
    settings |= {
        "held_out": blend.held_out.model_dump() if blend.held_out else None,
        "sample": blend.sample.model_dump() if blend.sample else None,
        "num_shards": blend.num_shards,
        "blend": {
            unit.name: unit.dataset.model_dump(exclude={"name", "path", *DESCRIPTIVE_FIELDS}) for unit in plan.units
        },
    }
    return Recipe(
        artifact=blend.artifact(BLEND_PLAN),
        key=compute_plan_key(plan),
        version=VERSION,
        # Convert tuples to lists, because receipts store settings as JSON, which has no tuples.
        settings=json.loads(json.dumps(settings)),
        sources={name: digest for name, digest in sources.items() if digest is not None},
    )


def _build_recipes(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    """Yield the recipe for the current sources; mirrored sources are assumed to be unchanged since the plan."""
    if has_blend_plan(blend, store):
        yield _build_recipe(blend, plan_blend(blend, load_blend_plan(blend, store)))
        return
    # Without a readable plan, do not list sources or count rows, because the plan must be rebuilt in any case.
    receipt = store.receipt(blend.artifact(BLEND_PLAN))
    yield Recipe(artifact=blend.artifact(BLEND_PLAN), key=receipt.key if receipt else "", version=VERSION)


def build_blend_plan(blend: BlendDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """List every source, compute the plan, and commit `plan.json` and `config.json`.

    Returns the receipt, and whether the committed plan was reused because nothing has changed.
    """
    # Pass the previous plan, so that the rows of unchanged files are not counted again.
    previous_plan = load_blend_plan(blend, store) if has_blend_plan(blend, store) else None
    new_plan = plan_blend(blend, previous_plan, relist=True)
    value = new_plan.to_json()

    def write(staged: Path) -> WrittenFiles:
        (staged / PLAN).write_bytes(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        (staged / CONFIG).write_text(_format_config(blend, new_plan), encoding="utf-8")
        return WrittenFiles(
            inputs={unit.name: compute_source_digest(unit) for unit in new_plan.units},
            facts=_build_facts(blend, new_plan),
        )

    return ensure_built(_build_recipe(blend, new_plan), store, write)


def _format_config(blend: BlendDeclaration, plan: BlendPlan) -> str:
    """Return the text of `config.json`."""
    config = {"run_hash": plan.run_hash, **collect_stage_identity(blend)}
    return json.dumps(config, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _build_facts(blend: BlendDeclaration, plan: BlendPlan) -> BlendPlanFacts:
    return BlendPlanFacts(
        run_hash=plan.run_hash,
        stage=blend.stage,
        datasets={
            unit.name: PlannedDatasetFacts(
                plan_hash=unit.plan_hash,
                commit=unit.commit,
                files=len(unit.entries),
                source_bytes=unit.size_bytes,
                shards=len(unit.shards),
                chosen=len(unit.chosen),
                weight=unit.dataset.weight,
            )
            for unit in plan.units
        },
    )


def _find_false_claims(blend: BlendDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Yield a sentence for each claim of `config.json` or the receipt that contradicts the plan."""
    plan, artifact = load_blend_plan(blend, store), blend.artifact(BLEND_PLAN)
    receipt, config = store.require(artifact), store.local(artifact) / CONFIG
    if config.read_bytes() != _format_config(blend, plan).encode():
        yield f"{config}: does not match the run hash {plan.run_hash}"
    if receipt.key != compute_plan_key(plan):
        yield f"{artifact}: its receipt belongs to a different plan"
    if BlendPlanFacts.from_receipt(receipt) != _build_facts(blend, plan):
        yield f"{artifact}: the counts in its receipt differ from the plan"


def _build_metadata(blend: BlendDeclaration, store: ArtifactStore, _: Receipt) -> Mapping[str, ShownValue]:
    plan, notes = load_blend_plan(blend, store), blend.load_data_blend().notes
    return {
        "run_hash": plan.run_hash,
        "datasets": len(plan.units),
        "shards": len(plan.partitions),
        "source_bytes": sum(unit.size_bytes for unit in plan.units),
        "plan_table": Table(build_plan_rows(blend, plan)),
        **({"notes": Markdown("\n".join(f"- {line}" for line in format_notes(notes)))} if notes else {}),
    }


def build_plan_rows(blend: BlendDeclaration, plan: BlendPlan) -> list[dict[str, str | int | float]]:
    """Return the rows of `plan_table`: one per dataset, with the columns of Nemotron's W&B table.

    If any dataset has a category or notes, the table also has these columns.
    """
    datasets = {unit.dataset.name: unit.dataset for unit in blend.load_data_blend().list_units()}
    descriptions = [_describe_dataset(datasets.get(unit.dataset.name)) for unit in plan.units]
    columns = [name for name in ("category", "notes") if any(name in description for description in descriptions)]
    return [
        _build_plan_row(blend, unit) | {name: description.get(name, "") for name in columns}
        for unit, description in zip(plan.units, descriptions, strict=True)
    ]


def _describe_dataset(dataset: BlendDataset | None) -> dict[str, str]:
    if dataset is None:  # the dataset is no longer declared
        return {}
    category = {} if dataset.category is None else {"category": dataset.category}
    return category | ({"notes": "; ".join(format_notes(dataset.notes))} if dataset.notes else {})


def _build_plan_row(blend: BlendDeclaration, unit: PlannedUnit) -> dict[str, str | int | float]:
    """Return a dataset's row in `plan_table`, with its files, its shards and the options of its stage."""
    dataset, sample = unit.dataset, blend.sample
    row: dict[str, Any] = {
        "dataset_name": unit.name,
        "path": dataset.path,
        "size": unit.size_bytes,
        "weight": dataset.weight,
        "split": dataset.split or unit.split,
        "subset": dataset.subset,
        "num_shards": len(unit.shards),
    }
    if blend.stage == "pretrain":
        pretrain = blend.pretrain_options
        row |= {"dtype": pretrain.dtype, "min_doc_chars": pretrain.min_doc_chars}
        row |= {"max_doc_tokens": pretrain.max_doc_tokens}
    elif blend.stage == "sft":
        sft = blend.sft_options
        row |= {"pack_size": sft.pack_size, "algorithm": sft.algorithm, "max_doc_tokens": sft.max_doc_tokens}
    elif blend.stage == "pairs":
        row |= {"max_length": blend.pairs_options.max_length}
    row |= {"max_rows": blend.max_rows, "sample": len(unit.chosen) if sample else None}
    row |= {"files": len(unit.entries), "commit": unit.commit, "plan_hash": unit.plan_hash, "status": "planned"}
    return {name: "" if value is None else value for name, value in row.items()}


CHECKS: tuple[Check[tuple[BlendDeclaration, ArtifactStore]], ...] = (
    Check(
        "plan_covers_sources",
        "Every source file belongs to one shard, or is split into consecutive row ranges without gaps.",
        lambda opened: plan_covers_sources(load_blend_plan(*opened), opened[0].max_rows),
    ),
    Check(
        "plan_is_current",
        (
            "The sources, tokenizer, chat template and options have not changed since the plan was built, and "
            "match its receipt."
        ),
        lambda opened: plan_is_current(*opened, _find_false_claims(*opened)),
    ),
)
