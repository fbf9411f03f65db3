"""The proofs that rules and duplicates drop no more than `budget` allows, and without one not nearly everything."""

from collections import Counter
from collections.abc import Iterator, Sequence

from dataprep_assets.graph.finding import Finding, verdict
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.budget_examples import examples_of
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.selection_counts import (
    NOTHING,
    SELECTION,
    by_source,
    folded,
    pair,
    percent,
    source_rows,
    totals_of,
)

_NEARLY_ALL = 0.95
"""The share of a source of which a rule without a budget is warned of: no published filter drops as much of one."""
_FEWEST = 20
"""Fewest documents of a source whose shares are judged."""
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
        [*_rules_over(corpus, receipts), *(told for _, told in over)],
        f"Rules drop {gone[0]:,} of {every[0]:,} documents of {split}; no source and no rule is over its budget.",
        f"Look at `dataprep documents {corpus.dataset}`, correct the rule, or raise its budget",
        facts=facts,
        table=[*source_rows(receipts), *examples],
    )


def sources_kept(corpus: CorpusDeclaration, split: str, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """The proof that no rule without a budget drops nearly all of a source, or of all shards of a split that are there.

    Duplicates are no rule here: that a source is a copy of another is what they are looked for.
    """
    receipts = [one for one in store.receipts([corpus.artifact(SELECTION, p) for p in partitions]) if one is not None]
    limited = corpus.rules.keys() if corpus.budget.per_source is not None else corpus.budget.per_rule.keys()
    free = corpus.rules.keys() - limited
    sources, dropped = by_source(receipts)
    every, by_rule = totals_of(receipts)
    wholes = {f"the split {split}": (every, by_rule)}
    if len(sources) > 1:
        wholes |= {f"the source {name}": (sources[name], dropped.get(name, {})) for name in sources}
    return verdict(
        [
            f"of {name} the rule {rule} drops {counts[rule][0]:,} of {whole[0]:,} documents "
            f"({percent(*pair(counts[rule], whole, 0))} %)"
            for name, (whole, counts) in wholes.items()
            for rule in sorted(free & counts.keys())
            if whole[0] >= _FEWEST and counts[rule][0] >= _NEARLY_ALL * whole[0]
        ],
        f"No rule drops {_NEARLY_ALL:.0%} of a source of {split}, or it has a budget.",
        f"Look at `dataprep documents {corpus.dataset}`, correct the rule, or declare `budget.per_rule`",
        facts={"sources": len(sources)},
        warning=True,
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
