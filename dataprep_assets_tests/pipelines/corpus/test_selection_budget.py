"""What counts as over a budget: sources of few documents together, and nothing that is retracted."""

from typing import Any

from dataprep_assets.curation.budgets.budget import MIN_SOURCE_DOCUMENTS, BudgetedPart, find_over_budget
from dataprep_assets.pipelines.corpus.curation.selection_budget import build_budgeted_split
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration


def train(**budget: Any) -> BudgetedPart:
    return build_budgeted_split(sample_declaration(drop={"short": "bytes < 9"}, budget=budget), "train")


def test_a_source_of_one_document_is_over_no_budget_and_many_of_them_are_compared_as_one() -> None:
    half = train(per_source=0.5)
    large, one = {"books": (100, 100)}, {"short": (1, 1)}
    assert list(find_over_budget(half, {**large, "memo": (1, 1)}, {"memo": one})) == []
    few = {f"memo{number}": (1, 1) for number in range(MIN_SOURCE_DOCUMENTS)}
    assert list(find_over_budget(half, {**large, **few}, {"memo1": one})) == []
    ((names, _),) = find_over_budget(half, {**large, **few}, dict.fromkeys(few, one))
    assert list(names) == sorted(few)


def test_what_is_retracted_is_no_rules_and_no_document_that_it_could_keep() -> None:
    sources = {"books": (100, 100)}
    dropped = {"books": {"retracted": (60, 60), "short": (10, 10)}}
    assert list(find_over_budget(train(per_source=0.3, per_rule={"short": 0.3}), sources, dropped)) == []
    assert len(list(find_over_budget(train(per_source=0.2, per_rule={"short": 0.2}), sources, dropped))) == 2
