"""Recall of the rewriter `personal` on planted personal data, measured on rewritten texts.

A case is found if the rewriter replaces exactly its datum, and if the text of all rewriters together does not contain
the datum. A text that only looks like personal data must stay as it is. In rows with messages, cases are planted into
each location of a message that is rewritten.

Entry points: `PERSONAL_DATA_REPLACED`, `PlantedRewriting`; `count_replaced`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.curation.declaration import FloorDeclaration
from dataprep_assets.curation.planted import PlantedCase, PlantedCounts, choose_carriers, plant
from dataprep_assets.curation.planted.accuracy import build_accuracy_row, find_inaccurate, list_accuracy
from dataprep_assets.curation.planted.personal import yield_cases
from dataprep_assets.curation.rewriters.personal_data import PersonalDataRewriter
from dataprep_assets.curation.rewriters.rewriting import Rewriting
from dataprep_assets.engine.checks.check import Check, Finding, Row, build_verdict

Rewrite = Callable[[Sequence[str]], list[str]]
"""Function that puts texts into their location, rewrites them with all rewriters, and returns what is around them."""


@dataclass(frozen=True, kw_only=True)
class PlantedRewriting:
    """The rewriters of a dataset, and texts into which personal data is planted.

    Attributes:
        rewriting: The rewriters, including one of personal data.
        locations: Location of a text in a row → its function.
        documents: Texts of the dataset before rewriting; may be empty.
        floor: The declared minimum accuracy; None for the default.
    """

    rewriting: Rewriting
    locations: Mapping[str, Rewrite]
    documents: Sequence[str]
    floor: FloorDeclaration | None = None


def _check_rewriting(planted: PlantedRewriting) -> Finding:
    rows: list[Row] = []
    defects: list[str] = []
    facts: dict[str, int | float | str] = {"documents": len(planted.documents)}
    for rewriter in planted.rewriting.rewriters:
        if not isinstance(rewriter, PersonalDataRewriter):
            continue
        total_counts = dict[str, PlantedCounts]()
        for location, rewrite in planted.locations.items():
            counts_by_kind = count_replaced(rewriter, rewrite, planted.documents)
            rows += [
                {"rewriter": rewriter.name, "location": location, "kind": kind, **build_accuracy_row(counts)}
                for kind, counts in counts_by_kind.items()
            ]
            subject = rewriter.name if len(planted.locations) == 1 else f"{rewriter.name}, in {location},"
            defects += find_inaccurate(counts_by_kind, planted.floor, f"{subject} replaces", f"{subject} changes")
            for kind, counts in counts_by_kind.items():
                total_counts[kind] = total_counts.get(kind, PlantedCounts()) + counts
        facts |= list_accuracy(total_counts)
    return build_verdict(
        defects,
        "Planted personal data is replaced, and the text around it stays the same.",
        "Another rewriter may be the cause. Change their order",
        facts=facts,
        table=rows,
    )


PERSONAL_DATA_REPLACED: Check[PlantedRewriting] = Check(
    "personal_data_replaced",
    "Rewriters replace planted personal data with sufficient accuracy, and no text around it.",
    _check_rewriting,
)


def count_replaced(
    rewriter: PersonalDataRewriter, rewrite: Rewrite, documents: Sequence[str]
) -> dict[str, PlantedCounts]:
    """Return the counts of each kind of case that a rewriter replaces.

    Args:
        rewriter: One of the rewriters.
        rewrite: Rewrites texts with all rewriters.
        documents: Texts of the dataset, into which cases are inserted in turn; may be empty.
    """
    cases = [case for case in yield_cases() if _name_kind(case) in dict(rewriter.placeholders)]
    # Rewrite the carriers first, so that only the case is left to replace.
    carriers = [rewriter.rewrite(carrier) for carrier in choose_carriers(documents, len(cases))]
    planted_texts = [plant(carrier, case.text) for carrier, case in zip(carriers, cases, strict=True)]
    rewritten_texts = rewrite(planted_texts)
    counts: dict[str, PlantedCounts] = {}
    for case, carrier, planted, rewritten in zip(cases, carriers, planted_texts, rewritten_texts, strict=True):
        replaced = rewriter.rewrite(planted)
        if case.positive:
            placeholder = dict(rewriter.placeholders)[_name_kind(case)]
            expected_text = plant(carrier, case.text.replace(case.datum, placeholder))
            is_found = replaced == expected_text and case.datum not in rewritten
        else:
            is_found = replaced != planted
        counts[case.kind] = counts.get(case.kind, PlantedCounts()).add_case(case, is_found)
    return counts


def _name_kind(case: PlantedCase) -> str:
    return case.kind.partition(",")[0]
