"""Recall of the rewriter `personal` on planted personal data, measured on rewritten texts.

A case is found if the rewriter replaces exactly its datum, and if the text of all rewriters together does not contain
the datum. A text that only looks like personal data must stay as it is.
"""

from collections.abc import Sequence

from dataprep_assets.curation.planted import PlantedCase, PlantedCounts, choose_carriers, plant
from dataprep_assets.curation.planted.personal import yield_cases
from dataprep_assets.curation.rewriters.personal_data import PersonalDataRewriter
from dataprep_assets.curation.rewriters.rewriting import Rewriting


def count_replaced(
    rewriter: PersonalDataRewriter, rewriting: Rewriting, documents: Sequence[str]
) -> dict[str, PlantedCounts]:
    """Return the counts of each kind of case that a rewriter replaces.

    Args:
        rewriter: One of the rewriters.
        rewriting: All rewriters.
        documents: Texts of the dataset, into which cases are inserted in turn; may be empty.
    """
    cases = [case for case in yield_cases() if _name_kind(case) in dict(rewriter.placeholders)]
    # Rewrite the carriers first, so that only the case is left to replace.
    carriers = [rewriter.rewrite(carrier) for carrier in choose_carriers(documents, len(cases))]
    planted_texts = [plant(carrier, case.text) for carrier, case in zip(carriers, cases, strict=True)]
    rewritten_texts = rewriting.rewrite_texts(planted_texts)
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
