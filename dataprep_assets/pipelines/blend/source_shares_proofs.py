"""Proof that the sources of a blend are those of its plan; if not, it says how the shares changed.

A weight is chosen for the data at the time. If a source has grown or shrunk since, the same weight reads it less or
more often, and its share of the rows changes. Nothing is wrong with the blend run; its owner may want to know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from dataprep_assets.errors import SourceError, TransferError
from dataprep_assets.graph.finding import Finding, Row, judged, verdict
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.discovery import Discovered, open_place
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit
from dataprep_assets.pipelines.blend.planner import refound, relisted
from dataprep_assets.pipelines.blend.runs import RunFacts
from dataprep_assets.planning.blend import outlook, requested_shares


@dataclass(frozen=True, kw_only=True)
class _Source:
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


def _sources(blend: BlendDeclaration, plan: BlendPlan) -> Iterator[_Source]:
    reachable = True
    for unit in plan.units:
        is_mirrored = open_place(unit.dataset, blend.sources).access.mirrored
        if is_mirrored and not reachable:
            yield _Source(unit=unit, now=None)
            continue
        try:
            now = relisted(blend, unit)
        except TransferError:
            reachable = False  # wait only once for a hub that does not answer, not for each dataset
            yield _Source(unit=unit, now=None)
            continue
        except SourceError:
            # a folder whose files are gone has none; a hub or bucket that refuses to list its own says nothing of them
            now = None if is_mirrored else _without_files(unit)
        yield _Source(unit=unit, now=now if now is not None or is_mirrored else _without_files(unit))


def _without_files(unit: PlannedUnit) -> Discovered:
    found = refound(unit)
    return Discovered(unit=found.unit, entries=(), commit=None)


def _rows(blend: BlendDeclaration, facts: RunFacts, split: str, sources: Sequence[_Source]) -> Iterator[Row]:
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
