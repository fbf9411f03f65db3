"""The table of a drill: for each kind of fault the number applied to each pipeline, and what detected them."""

from collections import Counter
from collections.abc import Sequence

from dataprep_assets_tests.tools.drill.campaign import Result

_WHO = {"verify": "verify", "proof": "check", "run": "run", "": "missed"}


def render(results: Sequence[Result]) -> str:
    """Return a Markdown table. `verify` runs first, then the checks; `run` counts faults refused or survived during a
    build.
    """
    pipelines = list(dict.fromkeys(result.pipeline for result in results))
    counts: Counter[tuple[str, str]] = Counter()
    for result in results:
        for kind in (result.kind, "all"):
            counts[kind, result.pipeline] += 1
            counts[kind, "applied"] += 1
            counts[kind, _WHO[result.by]] += 1
    columns = [*pipelines, "applied", *_WHO.values()]
    rows = [f"| fault | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    for kind in [*sorted({result.kind for result in results}), "all"]:
        rows.append(f"| {kind} | {' | '.join(f'{counts[kind, column]:,}' for column in columns)} |")
    return "\n".join(rows) + "\n"


def share(results: Sequence[Result]) -> float:
    """Return the share of detected faults; 1 without any."""
    return sum(bool(result.by) for result in results) / len(results) if results else 1.0
