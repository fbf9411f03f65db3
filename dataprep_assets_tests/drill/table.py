"""The table of a drill: for each pipeline and kind of fault how many were applied, and who noticed them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from dataprep_assets_tests.drill.campaign import Result

__all__ = ["render", "share"]

_COLUMNS = ("applied", "verify", "check", "run", "missed")


def render(results: Sequence[Result]) -> str:
    """A table in Markdown. `verify` is asked first, then the checks; `run`: refused or survived while it was built."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for result in results:
        for pipeline, kind in ((result.pipeline, result.kind), (result.pipeline, "all"), ("all", "all")):
            counts[pipeline, kind, "applied"] += 1
            counts[pipeline, kind, {"proof": "check", "": "missed"}.get(result.by, result.by)] += 1
    rows = [f"| pipeline | fault | {' | '.join(_COLUMNS)} |", f"|---|---|{'--:|' * len(_COLUMNS)}"]
    for pipeline, kind in _rows(results):
        cells = " | ".join(f"{counts[pipeline, kind, column]:,}" for column in _COLUMNS)
        rows.append(f"| {pipeline} | {kind} | {cells} |")
    return "\n".join(rows) + "\n"


def _rows(results: Iterable[Result]) -> list[tuple[str, str]]:
    kinds = sorted({(result.pipeline, result.kind) for result in results})
    pipelines = dict.fromkeys(pipeline for pipeline, _ in kinds)
    found = [row for name in pipelines for row in [*(k for k in kinds if k[0] == name), (name, "all")]]
    return [*found, ("all", "all")]


def share(results: Sequence[Result]) -> float:
    """Which part of the faults was noticed; 1 without any."""
    return sum(bool(result.by) for result in results) / len(results) if results else 1.0
