"""What counts as over a budget: sources of few documents together, and nothing that is retracted."""

from typing import Any

from dataprep_assets.pipelines.corpus.curation.selection_budget import MIN_SOURCE_DOCUMENTS, find_over_budget
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration


def corpus(**budget: Any) -> CorpusDeclaration:
    return sample_declaration(drop={"short": "bytes < 9"}, budget=budget)


def test_a_source_of_one_document_is_over_no_budget_and_many_of_them_are_compared_as_one() -> None:
    half = corpus(per_source=0.5)
    large, one = {"books": (100, 100)}, {"short": (1, 1)}
    assert list(find_over_budget(half, "train", {**large, "memo": (1, 1)}, {"memo": one})) == []
    few = {f"memo{number}": (1, 1) for number in range(MIN_SOURCE_DOCUMENTS)}
    assert list(find_over_budget(half, "train", {**large, **few}, {"memo1": one})) == []
    ((names, _),) = find_over_budget(half, "train", {**large, **few}, dict.fromkeys(few, one))
    assert list(names) == sorted(few)


def test_what_is_retracted_is_no_rules_and_no_document_that_it_could_keep() -> None:
    sources = {"books": (100, 100)}
    dropped = {"books": {"retracted": (60, 60), "short": (10, 10)}}
    assert list(find_over_budget(corpus(per_source=0.3, per_rule={"short": 0.3}), "train", sources, dropped)) == []
    assert len(list(find_over_budget(corpus(per_source=0.2, per_rule={"short": 0.2}), "train", sources, dropped))) == 2
