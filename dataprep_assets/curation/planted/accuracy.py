"""Accuracy on planted cases, for findings of checks.

Entry points: `list_accuracy`, `find_inaccurate`, `build_accuracy_row`.
"""

from collections.abc import Iterator, Mapping

from dataprep_assets.curation.declaration import FloorDeclaration
from dataprep_assets.curation.planted import PlantedCounts, sum_by_kind
from dataprep_assets.errors import count_of
from dataprep_assets.table import format_share


def list_accuracy(counts_by_kind: Mapping[str, PlantedCounts]) -> dict[str, float]:
    """Return the recall and the precision of each kind of case as facts of a finding."""
    return {
        f"{measure}_{kind}": round(value, 4)
        for kind, counts in sum_by_kind(counts_by_kind).items()
        for measure, value in (("recall", counts.recall), ("precision", counts.precision))
    }


def find_inaccurate(
    counts_by_kind: Mapping[str, PlantedCounts], declared_floor: FloorDeclaration | None, finds: str, flags: str
) -> Iterator[str]:
    """Yield a sentence for each kind of case whose recall or precision is below the floor.

    Args:
        counts_by_kind: The counts of each kind and form.
        declared_floor: The minimum accuracy; None for the default.
        finds: Beginning of a sentence about found cases.
        flags: Beginning of a sentence about look-alikes.
    """
    floor = declared_floor or FloorDeclaration()
    for kind, counts in sum_by_kind(counts_by_kind).items():
        if counts.recall < floor.recall:
            share = f"{counts.found} of {counts.planted} {kind} ({format_share(counts.recall)})"
            yield f"{finds} {share}, less than {format_share(floor.recall)}"
        if counts.precision < floor.precision:
            share = f"{counts.mistaken} of {count_of(counts.negatives, 'text')} that only look like {kind}"
            yield (
                f"{flags} {share}: a precision of {format_share(counts.precision)}, less than "
                f"{format_share(floor.precision)}"
            )


def build_accuracy_row(counts: PlantedCounts) -> dict[str, int | float]:
    """Return the counts of a kind of case as cells of a table."""
    return {
        "planted": counts.planted,
        "found": counts.found,
        "recall_%": round(100 * counts.recall, 2),
        "look_alikes": counts.negatives,
        "mistaken_look_alikes": counts.mistaken,
        "precision_%": round(100 * counts.precision, 2),
    }
