"""The proof that rules and duplicates leave something of each split, and drop no more than `budget` allows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dataprep_assets.graph.finding import Finding, verdict
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.budget_examples import examples_of
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.selection_counts import (
    NOTHING,
    SELECTION,
    Counts,
    by_source,
    folded,
    pair,
    percent,
    source_rows,
    totals_of,
)

_EXAMPLES = 3
"""Sources over their budget of which examples are shown."""


def within_budget(corpus: CorpusDeclaration, split: str, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """The proof itself, of the shards of a split that are there."""
    receipts = [one for one in store.receipts([corpus.artifact(SELECTION, p) for p in partitions]) if one is not None]
    every, by_rule = totals_of(receipts)
    gone = folded(by_rule.values())
    facts: dict[str, int | float | str] = {
        "documents": every[0],
        "dropped": gone[0],
        "dropped_%": percent(*pair(gone, every, 0)),
        "dropped_bytes_%": percent(*pair(gone, every, 1)),
        **{f"dropped_by_{rule}_%": percent(*pair(counts, every, 0)) for rule, counts in sorted(by_rule.items())},
    }
    over = list(_sources_over(corpus, split, receipts))
    examples = examples_of(corpus, store, partitions, [name for name, _ in over[:_EXAMPLES]])
    return verdict(
        [*_emptied(corpus, split, every, by_rule), *_rules_over(corpus, receipts), *(told for _, told in over)],
        f"Rules drop {gone[0]:,} of {every[0]:,} documents of {split}; no source and no rule is over its budget.",
        f"Look at `dataprep documents {corpus.dataset}`, correct the rule, or raise its budget",
        facts=facts,
        table=[*source_rows(receipts), *examples],
    )


def _emptied(corpus: CorpusDeclaration, split: str, every: Counts, by_rule: Mapping[str, Counts]) -> Iterator[str]:
    """A sentence if nothing of a split is left, unless a budget says that all of something may go."""
    budget = corpus.budget
    may = budget.per_source == 1 or 1 in budget.per_rule.values()
    if every[0] and not may and folded(by_rule.values())[0] == every[0]:
        rules = ", ".join(sorted(by_rule, key=lambda rule: -by_rule[rule][0]))
        yield (
            f"no document of {split} is left: rules drop all of them ({rules}). If that is meant, set "
            "`budget.per_source` to 1"
        )


def _rules_over(corpus: CorpusDeclaration, receipts: Sequence[Receipt]) -> Iterator[str]:
    """A sentence for each rule that drops more than its budget."""
    budget = corpus.budget
    every, by_rule = totals_of(receipts)
    for rule, most in budget.per_rule.items():
        for noun, at in (("documents", 0), ("bytes", 1)):
            part, whole = pair(by_rule.get(rule, NOTHING), every, at)
            if whole and part / whole > most:
                yield f"the rule {rule} drops {part:,} of {whole:,} {noun} ({part / whole:.2%}), more than {most:.2%}"
                break


def _sources_over(corpus: CorpusDeclaration, split: str, receipts: Sequence[Receipt]) -> Iterator[tuple[str, str]]:
    """Each source of which more is dropped than its budget, and a sentence: that which loses most comes first."""
    most = corpus.budget.per_source
    if most is None:
        return
    sources, dropped = by_source(receipts)
    lost = []
    for source, counts in sources.items():
        gone = folded(dropped.get(source, {}).values())
        shares = [
            (part / whole if whole else 0.0, part, whole)
            for part, whole in (pair(gone, counts, 0), pair(gone, counts, 1))
        ]
        # told by its documents, and by its bytes only if these alone are over the budget
        at = 0 if shares[0][0] > most else 1
        if shares[at][0] > most:
            lost.append((max(share for share, _, _ in shares), source, at, shares[at]))
    for _, source, at, (share, part, whole) in sorted(lost, key=lambda one: (-one[0], one[1])):
        worst = Counter({rule: one[at] for rule, one in dropped[source].items()}).most_common(1)[0][0]
        yield (
            source,
            f"of the source {source} in {split} rules drop {part:,} of {whole:,} {('documents', 'bytes')[at]} "
            f"({share:.2%}), most of them {worst}; `budget.per_source` allows {most:.2%}",
        )
