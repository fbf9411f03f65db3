"""Verdict on the kept texts of a dataset: none contains a benchmark item, and the search finds planted items.

Entry points: `judge_kept_texts`, `KeptTexts`.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from dataprep_assets.curation.benchmarks.benchmarks import Benchmarks
from dataprep_assets.curation.benchmarks.coverage import describe_unsearched_sets, find_uncovered_sets
from dataprep_assets.curation.benchmarks.decontamination import DecontaminateDeclaration
from dataprep_assets.curation.duplicates.words import split_words
from dataprep_assets.curation.planted.benchmarks import build_look_alikes, render_item, rewrite_text
from dataprep_assets.engine.checks.check import Finding, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.table import format_share

_MAX_PLANTED = 200
"""Maximum number of planted items, and of planted texts of items."""
_T = TypeVar("_T")
_MIN_RECALL = 0.95
"""Minimum share of planted texts that must be found, per form. The rest is the maximum share of flagged look-alikes."""

Hosts = tuple[tuple[str, Callable[[str], Sequence[str]]], ...]
"""Places in a row that may contain an item: the name, and a function from a text to the row's texts with it.

Callers must pass the same functions for each shard, because results are cached by them.
"""


@dataclass(kw_only=True)
class KeptTexts:
    """Results of the search in the kept documents or rows of a dataset.

    Attributes:
        contaminated: A sentence for each of the first kept documents that contain an item.
        contaminated_kept: Number of kept documents that contain an item.
        dropped_count: Number of documents that were dropped because they contain an item.
        phrases: Number of documents that contain less of an item than `containment`.
    """

    contaminated: list[str] = field(default_factory=list)
    contaminated_kept: int = 0
    dropped_count: int = 0
    phrases: int = 0


def judge_kept_texts(
    benchmarks: Benchmarks,
    decontamination: DecontaminateDeclaration,
    kept_texts: KeptTexts,
    *,
    noun: str,
    remedy: str,
    hosts: Hosts = (),
) -> Finding:
    """Return the finding on kept documents or rows.

    Args:
        benchmarks: The items.
        decontamination: The declaration.
        kept_texts: The results of the search.
        noun: Singular noun for a document or row.
        remedy: What to do if a kept document contains an item.
        hosts: Places in a row in which items are planted, in addition to the forms of a text.
    """
    recalls, false_matches = _measure_accuracy(benchmarks, decontamination.share, hosts)
    uncovered_items = list(find_uncovered_sets(benchmarks.coverage, decontamination.least_covered))
    defects = [*kept_texts.contaminated, *uncovered_items, *_describe_failed_forms(recalls, false_matches)]
    coverages = benchmarks.coverage.values()
    if uncovered_items and not kept_texts.contaminated:
        remedy = "Lower `min_words`, declare other `fields`, or lower `decontaminate.coverage` if that is good enough"
    notes = list(describe_unsearched_sets(benchmarks.coverage))
    return build_verdict(
        defects,
        f"No kept {noun} contains any of {count_of(sum(one.looked_for for one in coverages), 'item')} from "
        f"{count_of(len(decontamination.sets), 'benchmark')}; planted items are found in {len(recalls)} forms."
        + "".join(f" {note}." for note in notes),
        remedy,
        facts={
            "contaminated_kept": kept_texts.contaminated_kept,
            "dropped": kept_texts.dropped_count,
            "common_phrases_only": kept_texts.phrases,
            "common_ngrams_left_out": benchmarks.common,
            **{f"items_{name}": one.items for name, one in benchmarks.coverage.items()},
            **{f"not_searched_{name}": one.items - one.looked_for for name, one in benchmarks.coverage.items()},
            **{f"detected_{_format_fact_name(name)}_%": round(100 * share, 2) for name, share in recalls.items()},
            **{
                f"false_matches_{_format_fact_name(name)}_%": round(100 * share, 2)
                for name, share in false_matches.items()
            },
        },
        # If documents are contaminated, pass no table, so that the default table lists the defects.
        table=None if kept_texts.contaminated else _build_table(benchmarks, recalls, false_matches),
    )


# Cache the accuracy, because it depends only on the items, but each shard of a dataset is checked.
@lru_cache(maxsize=2)
def _measure_accuracy(
    benchmarks: Benchmarks, containment: float, hosts: Hosts
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the share of planted texts that are found per form, and of look-alikes that are reported per kind."""
    return _measure_recall(benchmarks, containment, hosts), _measure_false_matches(benchmarks, containment)


def _build_table(
    benchmarks: Benchmarks, recalls: Mapping[str, float], false_matches: Mapping[str, float]
) -> Iterator[dict[str, str | int | float]]:
    """Yield a row for each planted form, and for each benchmark."""
    for name, share in recalls.items():
        yield {"planted": name, "detected_%": round(100 * share, 2)}
    for name, share in false_matches.items():
        yield {"planted": f"no item: {name}", "detected_%": round(100 * share, 2)}
    for name, coverage in benchmarks.coverage.items():
        yield {
            "benchmark": name,
            "items": coverage.items,
            "searched": coverage.looked_for,
            "too_short": coverage.short,
            "common": coverage.common,
            "empty": coverage.empty,
        }


def _format_fact_name(name: str) -> str:
    return name.replace(" ", "_")


def _measure_recall(benchmarks: Benchmarks, containment: float, hosts: Hosts) -> dict[str, float]:
    """Return the share of planted texts and items that are found, per form and per host."""
    forms: dict[str, list[Sequence[str]]] = defaultdict(list)
    for _, text in _sample_evenly(benchmarks.items):
        # Do not plant the upper-case form of a text if case folding cannot undo it (for example, with a Turkish dotless
        # i), because its words would differ from the words of the text.
        changed = {"case"} if text.upper().casefold() != text.casefold() else set()
        for rewrite, rewritten in rewrite_text(text).items():
            if rewrite not in changed:
                forms[rewrite].append([rewritten])
        for host, plant in hosts:
            forms[host].append(plant(text))
    for item in _sample_evenly(benchmarks.whole_items):
        for form, rendering in render_item(item.parts, item.name).items():
            forms[form].append([rendering])
    return _measure_found_shares(benchmarks, containment, forms)


def _measure_false_matches(benchmarks: Benchmarks, containment: float) -> dict[str, float]:
    """Return the share of look-alikes that are mistaken for an item, per kind of look-alike."""
    kinds: dict[str, list[Sequence[str]]] = defaultdict(list)
    for name, text in _sample_evenly(benchmarks.items):
        words = split_words(text)
        # Use the item's name as the seed, so that every run of the check plants the same texts.
        shuffled = random.Random(name).sample(words, len(words))
        if shuffled != words:
            kinds["shuffled"].append([" ".join(shuffled)])
    for item in _sample_evenly(benchmarks.whole_items):
        for kind, look_alike in build_look_alikes(item.parts, item.name).items():
            kinds[kind].append([look_alike])
    return _measure_found_shares(benchmarks, containment, kinds)


def _sample_evenly(values: Sequence[_T]) -> Sequence[_T]:
    # Choose from all values instead of the first ones, because the values are ordered by benchmark.
    count = min(len(values), _MAX_PLANTED)
    return [values[len(values) * number // count] for number in range(count)]


def _measure_found_shares(
    benchmarks: Benchmarks, containment: float, forms: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, float]:
    return {
        form: sum(item.share >= containment for item in benchmarks.find_best_items(rows)) / len(rows)
        for form, rows in forms.items()
    }


def _describe_failed_forms(recalls: Mapping[str, float], false_matches: Mapping[str, float]) -> Iterator[str]:
    for form, share in recalls.items():
        if share < _MIN_RECALL:
            floor = format_share(_MIN_RECALL)
            found_share = format_share(share)
            yield (
                f"{found_share} of the planted items are found in the form {form!r}, but at least {floor} must be found"
            )
    for kind, share in false_matches.items():
        if share > 1 - _MIN_RECALL:
            yield (
                f"{format_share(share)} of the look-alikes ({kind}) are reported as benchmark items, but at most "
                f"{format_share(1 - _MIN_RECALL)} may be"
            )
