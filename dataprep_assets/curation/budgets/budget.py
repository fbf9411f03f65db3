"""Comparison of dropped documents with `budget`: all drops per source, and the drops of each rule.

Retracted documents count neither as dropped nor as documents, because rules do not decide on them. Shares of few
documents are not significant, so sources with fewer than `MIN_SOURCE_DOCUMENTS` documents are compared together.

Entry points: `BudgetedPart`; the checks `check_budget` and `check_kept_sources`; `find_over_budget` for drops that are
only predicted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.curation.budgets.counts import (
    NOTHING,
    Counts,
    add_counts,
    build_source_rows,
    compute_percent,
    count_by_source,
    select_counts,
    sum_counts,
    sum_drop_facts,
    sum_totals,
)
from dataprep_assets.curation.declaration import BudgetDeclaration
from dataprep_assets.engine.checks.check import Finding, Row, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.table import format_share

_NEARLY_ALL = 0.95
"""Share of a source that a rule without a budget may drop without a warning; no published filter drops more."""
_MAX_EXAMPLE_SOURCES = 3
"""Maximum number of sources over their budget for which examples are shown."""
MIN_SOURCE_DOCUMENTS = 20
"""Minimum number of documents for comparing a source on its own, because shares of fewer are not significant."""
CountsByRule = Mapping[str, Counts]


@dataclass(frozen=True, kw_only=True)
class BudgetedPart:
    """The documents of a dataset to which a budget applies together.

    Attributes:
        dataset: The dataset.
        name: Name of the part in sentences: a split, or `the blend`.
        title: Name of the part as a whole: `the split train`, or `the blend`.
        budget: The declared budget.
        rules: Names of the declared rules.
    """

    dataset: str
    name: str
    title: str
    budget: BudgetDeclaration
    rules: Collection[str]


def check_budget(
    part: BudgetedPart, receipts: Sequence[Receipt], find_examples: Callable[[Sequence[str]], Sequence[Row]]
) -> Finding:
    """Check that rules drop no more than the budget.

    Args:
        part: The documents that are compared with the budget.
        receipts: Receipts with the counts of their current shards (`DropFacts`).
        find_examples: Returns examples of dropped documents, given some sources.
    """
    totals, by_rule = sum_totals(receipts)
    drops = sum_counts(counts for rule, counts in by_rule.items() if rule != RETRACTED)
    facts: dict[str, int | float | str] = {
        "documents": totals[0],
        "dropped": drops[0],
        "dropped_%": compute_percent(*select_counts(drops, totals, 0)),
        "dropped_bytes_%": compute_percent(*select_counts(drops, totals, 1)),
        **{
            f"dropped_by_{rule}_%": compute_percent(*select_counts(counts, totals, 0))
            for rule, counts in sorted(by_rule.items())
        },
    }
    excesses = list(find_over_budget(part, *count_by_source(receipts)))
    examples = find_examples([source for sources, _ in excesses for source in sources][:_MAX_EXAMPLE_SOURCES])
    return build_verdict(
        [*_check_not_empty(part, totals, by_rule), *(sentence for _, sentence in excesses)],
        f"Rules drop {drops[0]:,} of {count_of(totals[0], 'document')} in {part.name}; no source and no rule exceeds "
        "its budget.",
        f"Run `dataprep documents {part.dataset}`, correct the rule, or raise its budget",
        facts=facts,
        table=[*build_source_rows(receipts), *examples],
    )


def _check_not_empty(part: BudgetedPart, all_counts: Counts, by_rule: CountsByRule) -> Iterator[str]:
    """Yield a sentence if rules drop all documents, unless a budget allows it."""
    budget = part.budget
    is_allowed = budget.per_source == 1 or 1 in budget.per_rule.values()
    rules = {rule: counts for rule, counts in by_rule.items() if rule != RETRACTED}
    remaining = _subtract_counts(all_counts, by_rule.get(RETRACTED, NOTHING))
    if remaining[0] and not is_allowed and sum_counts(rules.values())[0] == remaining[0]:
        names = ", ".join(sorted(rules, key=lambda rule: -rules[rule][0]))
        yield (
            f"no document of {part.name} is left: rules drop all of them ({names}). If this is intended, set "
            "`budget.per_source` to 1"
        )


def check_kept_sources(part: BudgetedPart, receipts: Sequence[Receipt]) -> Finding:
    """Check that no rule without a budget drops nearly all documents, or nearly all of a source or a language.

    Duplicates are not counted, because a source that copies another source is expected to be dropped.
    """
    limited_rules = set(part.rules if part.budget.per_source is not None else part.budget.per_rule)
    unlimited_rules = set(part.rules) - limited_rules
    sums = sum_drop_facts(receipts)
    wholes = {part.title: sum_totals(receipts)}
    for noun, groups, drop_counts in (
        ("source", sums.sources, sums.by_rule),
        ("language", sums.languages, sums.by_rule_of_language),
    ):
        if len(groups) > 1:
            wholes |= {f"the {noun} {name}": (groups[name], drop_counts.get(name, {})) for name in groups}
    return build_verdict(
        [
            f"the rule {rule} drops {counts[rule][0]:,} of {count_of(totals[0], 'document')} in {name} "
            f"({format_share(counts[rule][0] / totals[0])})"
            for name, (totals, counts) in wholes.items()
            for rule in sorted(unlimited_rules & counts.keys())
            if totals[0] >= MIN_SOURCE_DOCUMENTS and counts[rule][0] >= _NEARLY_ALL * totals[0]
        ],
        f"No rule without a budget drops {format_share(_NEARLY_ALL)} of a source or language in {part.name}.",
        f"Run `dataprep documents {part.dataset}`, correct the rule, or declare `budget.per_rule`",
        facts={"sources": len(sums.sources)},
        warning=True,
    )


def find_over_budget(
    part: BudgetedPart, sources: Mapping[str, Counts], dropped_counts: Mapping[str, CountsByRule]
) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the source names and a sentence for each rule and source over its budget; a rule has no source names.

    Args:
        part: The documents that are compared with the budget.
        sources: Source → its counts.
        dropped_counts: Source → reason → dropped counts.
    """
    retracted_counts = {source: by_rule.get(RETRACTED, NOTHING) for source, by_rule in dropped_counts.items()}
    # Exclude retracted documents, because they are dropped regardless of the rules.
    remaining = {
        source: _subtract_counts(counts, retracted_counts.get(source, NOTHING)) for source, counts in sources.items()
    }
    by_rules = {
        source: {rule: counts for rule, counts in by_rule.items() if rule != RETRACTED}
        for source, by_rule in dropped_counts.items()
    }
    yield from (((), sentence) for sentence in _find_rules_over_budget(part, sum_counts(remaining.values()), by_rules))
    yield from _find_sources_over_budget(part, remaining, by_rules)


def _subtract_counts(counts: Counts, subtrahend: Counts) -> Counts:
    return counts[0] - subtrahend[0], counts[1] - subtrahend[1]


def _find_rules_over_budget(
    part: BudgetedPart, all_counts: Counts, dropped_by_source: Mapping[str, CountsByRule]
) -> Iterator[str]:
    """Yield a sentence for each rule that drops more than its budget."""
    for rule, limit in part.budget.per_rule.items():
        dropped_counts = sum_counts(by_rule.get(rule, NOTHING) for by_rule in dropped_by_source.values())
        for noun, unit in (("documents", 0), ("bytes", 1)):
            count, total = select_counts(dropped_counts, all_counts, unit)
            if total and count / total > limit:
                share, budget = format_share(count / total), format_share(limit)
                yield f"the rule {rule} drops {count:,} of {total:,} {noun} ({share}), more than {budget}"
                break


def _find_sources_over_budget(
    part: BudgetedPart, sources: Mapping[str, Counts], dropped_by_source: Mapping[str, CountsByRule]
) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the names and a sentence for each source, or group of small sources, over its budget; worst first."""
    limit = part.budget.per_source
    if limit is None:
        return
    excesses = []
    for names in _group_sources(sources):
        counts = sum_counts(sources[name] for name in names)
        by_rule = _sum_counts(dropped_by_source.get(name, {}) for name in names)
        dropped_counts = sum_counts(by_rule.values())
        shares = [
            (count / total if total else 0.0, count, total)
            for count, total in (select_counts(dropped_counts, counts, 0), select_counts(dropped_counts, counts, 1))
        ]
        # Report the share of documents, or the share of bytes if only that share exceeds the budget.
        unit = 0 if shares[0][0] > limit else 1
        if shares[unit][0] > limit:
            excesses.append((max(share for share, _, _ in shares), names, unit, shares[unit], by_rule))
    for _, names, unit, (share, count, total), by_rule in sorted(excesses, key=lambda one: (-one[0], one[1])):
        worst = Counter({rule: one[unit] for rule, one in by_rule.items()}).most_common(1)[0][0]
        few = f"{count_of(len(names), 'source')} of fewer than {MIN_SOURCE_DOCUMENTS} documents each"
        subject = f"the source {names[0]}" if len(names) == 1 else few
        yield (
            names,
            (
                f"rules drop {count:,} of {total:,} {('documents', 'bytes')[unit]} ({format_share(share)}) of "
                f"{subject} in {part.name}, mostly {worst}; `budget.per_source` allows {format_share(limit)}"
            ),
        )


def _group_sources(sources: Mapping[str, Counts]) -> Iterator[tuple[str, ...]]:
    """Yield each source to compare on its own, then the small sources together if they have enough documents."""
    few = []
    for name, (documents, _) in sorted(sources.items()):
        if documents >= MIN_SOURCE_DOCUMENTS:
            yield (name,)
        else:
            few.append(name)
    if sum(sources[name][0] for name in few) >= MIN_SOURCE_DOCUMENTS:
        yield tuple(few)


def _sum_counts(counts_by_source: Iterator[CountsByRule]) -> dict[str, Counts]:
    sums: dict[str, Counts] = {}
    for by_rule in counts_by_source:
        for rule, counts in by_rule.items():
            sums[rule] = add_counts(sums.get(rule, NOTHING), counts)
    return sums
