"""Proofs on the plan of a blend: it uses every row once, and a plan made now would be the same.

Entry points: `plan_covers_sources`, `plan_is_current`.
"""

from collections.abc import Iterable, Iterator

from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit, load_blend_plan, plan_key
from dataprep_assets.pipelines.blend.planner import plan_blend

_REPLAN = "Materialize `blend_plan` again"


@judged
def plan_covers_sources(plan: BlendPlan, max_rows: int | None = None) -> Finding:
    """Each file of each dataset is in one shard, whole, or in consecutive rows that begin at 1 and have no end.

    With `max_rows` files and rows may be left out, but none may occur twice.
    """
    cut = sum(part.rows is not None for unit in plan.units for shard in unit.shards for part in shard.parts)
    return verdict(
        (defect for unit in plan.units for defect in _uncovered(unit, max_rows)),
        f"{sum(len(u.entries) for u in plan.units)} files are in {sum(len(u.shards) for u in plan.units)} "
        "shards, each row once.",
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
        # None, the end of the file, cannot be compared with a number: the flag puts it behind all of them
        ranges = sorted(taken.pop(entry.relpath, []), key=lambda r: (r[0], r[1] is None, r[1] or 0))
        if not ranges and max_rows is None:
            yield f"{unit.name}: {entry.relpath} is in no shard"
        # the first row that no range has taken yet; None behind a range without an end
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
def plan_is_current(blend: BlendDeclaration, store: ArtifactStore, others: Iterable[str] = ()) -> Finding:
    """A plan made now, from the present sources, tokenizer bytes, template text and options, equals the frozen one.

    `blend` is the declaration, `store` holds the plan, `others` are defects found elsewhere.
    """
    frozen = load_blend_plan(blend, store)
    fresh = plan_blend(blend, frozen)
    old, new = ({unit.name: unit.plan_hash for unit in plan.units} for plan in (frozen, fresh))
    defects = [
        f"{n}: plan hash {old.get(n)}, now {new.get(n)}" for n in sorted({*old, *new}) if old.get(n) != new.get(n)
    ]
    if not defects and plan_key(fresh) != plan_key(frozen):
        defects.append(f"{blend.dataset}: run hash {frozen.run_hash}, now {fresh.run_hash}")
    # under another plan hash the other claims differ, too, and would hide the cause
    if not defects:
        defects += others
    return verdict(
        defects,
        f"The plan {frozen.run_hash} of {len(frozen.units)} datasets is what it would be now.",
        f"Sources or settings changed. {_REPLAN} if that was meant",
        facts={"run_hash": frozen.run_hash, "datasets": len(frozen.units)},
    )
