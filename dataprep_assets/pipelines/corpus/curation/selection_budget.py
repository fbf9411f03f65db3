"""Comparison of dropped documents with `budget`: all drops per source, and the drops of each rule.

Retracted documents count neither as dropped nor as documents, because rules do not decide on them. Shares of few
documents are not significant, so sources with fewer than `MIN_SOURCE_DOCUMENTS` documents are compared together.

Examples help users judge whether a rule or a source is wrong. Sensitive datasets show no examples.

Entry points: the checks `check_budget`, `check_kept_sources` and `check_rule_sources`; `find_over_budget` for a
selection that is not built yet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dataprep_assets.curation.declaration import find_unknown_sources
from dataprep_assets.curation.dropped_rows import DROPPED
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.checks.check import Finding, Row, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.corpus.curation.excerpts import Excerpts
from dataprep_assets.pipelines.corpus.curation.selection_counts import (
    NOTHING,
    SELECTION,
    Counts,
    add_counts,
    build_source_rows,
    compute_percent,
    count_by_source,
    select_counts,
    sum_counts,
    sum_selections,
    sum_totals,
)
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.table import format_share

_EXAMPLES_PER_SOURCE = 3
"""Number of examples per source."""


def find_examples(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str], sources: Sequence[str]
) -> list[Row]:
    """Return examples of dropped rows, in the order of the sources, each with the beginning of its text.

    Args:
        corpus: The dataset.
        store: The store of its tags and selections.
        partitions: The shards to search.
        sources: The sources for which to find examples.
    """
    if corpus.sensitive or not sources:
        return []
    examples: dict[str, list[Row]] = {source: [] for source in sources}
    excerpts = Excerpts(corpus, store)
    for partition in partitions:
        for source, row in _find_dropped_rows(corpus, store, partition, excerpts, examples):
            examples[source].append(row)
        # Stop as soon as every source has enough examples, because opening another shard may download its files.
        if all(len(rows) == _EXAMPLES_PER_SOURCE for rows in examples.values()):
            break
    return [row for rows in examples.values() for row in rows]


def _find_dropped_rows(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, excerpts: Excerpts, examples: dict[str, list[Row]]
) -> Iterator[tuple[str, Row]]:
    """Yield the first dropped rows of a shard, for sources that need more examples."""
    selection = corpus.artifact(SELECTION, partition)
    if store.receipt(selection) is None:
        return
    dropped_rows = {
        (row["file"], row["row"]): row
        for piece in read_joined_tables([store.local(selection, [DROPPED]) / DROPPED])
        for row in piece.to_pylist()
    }
    rows = store.local(corpus.artifact(TAGS, partition), [ROWS]) / ROWS
    for piece in read_joined_tables([rows], ["file", "row", "source"]):
        for row in piece.to_pylist():
            dropped_row, source = dropped_rows.get((row["file"], row["row"])), row["source"]
            if dropped_row is None or source not in examples or len(examples[source]) == _EXAMPLES_PER_SOURCE:
                continue
            name, representative = f"{row['file']}:{row['row']}", dropped_row.get("representative") or ""
            yield (
                source,
                {
                    "source": source,
                    "dropped_as": dropped_row["reason"],
                    "example": name,
                    "example_text": excerpts.read_excerpt(name),
                    "stays": representative,
                    "stays_text": excerpts.read_excerpt(representative) if representative else "",
                },
            )


_NEARLY_ALL = 0.95
"""Share of a source that a rule without a budget may drop without a warning; no published filter drops more."""
_MAX_EXAMPLE_SOURCES = 3
"""Maximum number of sources over their budget for which examples are shown."""
MIN_SOURCE_DOCUMENTS = 20
"""Minimum number of documents for comparing a source on its own, because shares of fewer are not significant."""
CountsByRule = Mapping[str, Counts]


def check_budget(corpus: CorpusDeclaration, split: str, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that rules drop no more than the budget from the current shards of a split."""
    receipts = [one for one in store.receipts([corpus.artifact(SELECTION, p) for p in partitions]) if one is not None]
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
    excesses = list(find_over_budget(corpus, split, *count_by_source(receipts)))
    examples = find_examples(
        corpus, store, partitions, [one for names, _ in excesses for one in names][:_MAX_EXAMPLE_SOURCES]
    )
    return build_verdict(
        [*_check_not_empty(corpus, split, totals, by_rule), *(sentence for _, sentence in excesses)],
        f"Rules drop {drops[0]:,} of {count_of(totals[0], 'document')} in {split}; no source and no rule exceeds its "
        "budget.",
        f"Run `dataprep documents {corpus.dataset}`, correct the rule, or raise its budget",
        facts=facts,
        table=[*build_source_rows(receipts), *examples],
    )


def _check_not_empty(corpus: CorpusDeclaration, split: str, all_counts: Counts, by_rule: CountsByRule) -> Iterator[str]:
    """Yield a sentence if rules drop the whole split, unless a budget allows it."""
    budget = corpus.budget
    is_allowed = budget.per_source == 1 or 1 in budget.per_rule.values()
    rules = {rule: counts for rule, counts in by_rule.items() if rule != RETRACTED}
    remaining = _subtract_counts(all_counts, by_rule.get(RETRACTED, NOTHING))
    if remaining[0] and not is_allowed and sum_counts(rules.values())[0] == remaining[0]:
        names = ", ".join(sorted(rules, key=lambda rule: -rules[rule][0]))
        yield (
            f"no document of {split} is left: rules drop all of them ({names}). If this is intended, set "
            "`budget.per_source` to 1"
        )


def check_kept_sources(
    corpus: CorpusDeclaration, split: str, store: ArtifactStore, partitions: Sequence[str]
) -> Finding:
    """Check that no rule without a budget drops nearly all of a source, a language or the current shards of a split.

    Duplicates are not counted, because a source that copies another source is expected to be dropped.
    """
    receipts = [
        receipt
        for receipt in store.receipts([corpus.artifact(SELECTION, p) for p in partitions])
        if receipt is not None
    ]
    limited_rules = corpus.rules.keys() if corpus.budget.per_source is not None else corpus.budget.per_rule.keys()
    unlimited_rules = corpus.rules.keys() - limited_rules
    sums = sum_selections(receipts)
    wholes = {f"the split {split}": sum_totals(receipts)}
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
        f"No rule without a budget drops {format_share(_NEARLY_ALL)} of a source or language in {split}.",
        f"Run `dataprep documents {corpus.dataset}`, correct the rule, or declare `budget.per_rule`",
        facts={"sources": len(sums.sources)},
        warning=True,
    )


def check_rule_sources(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that the sources in rules exist; `partitions` are the shards of all splits."""
    artifacts = [corpus.artifact(SELECTION, partition) for partition in partitions]
    receipts = [receipt for receipt in store.receipts(artifacts) if receipt is not None]
    sources = sum_selections(receipts).sources
    is_complete = len(receipts) == len(partitions)
    # A shard that is not selected yet may have the source. The check of the last split then has all sources.
    unknown_sources = (
        find_unknown_sources(corpus.keep, corpus.drop, sources, sensitive=corpus.sensitive) if is_complete else ()
    )
    return build_verdict(
        (sentence for _, sentence in unknown_sources),
        f"Every source in a rule is one of the {count_of(len(sources), 'source')}."
        if is_complete
        else f"Only {len(receipts):,} of {count_of(len(partitions), 'shard')} are selected, so nothing is missing yet.",
        "Correct the name",
        facts={"sources": len(sources), "shards": len(receipts)},
    )


def find_over_budget(
    corpus: CorpusDeclaration, split: str, sources: Mapping[str, Counts], dropped_counts: Mapping[str, CountsByRule]
) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the source names and a sentence for each rule and source over its budget; a rule has no source names.

    Args:
        corpus: The dataset.
        split: The split of the counts.
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
    yield from (
        ((), sentence) for sentence in _find_rules_over_budget(corpus, sum_counts(remaining.values()), by_rules)
    )
    yield from _find_sources_over_budget(corpus, split, remaining, by_rules)


def _subtract_counts(counts: Counts, subtrahend: Counts) -> Counts:
    return counts[0] - subtrahend[0], counts[1] - subtrahend[1]


def _find_rules_over_budget(
    corpus: CorpusDeclaration, all_counts: Counts, dropped_by_source: Mapping[str, CountsByRule]
) -> Iterator[str]:
    """Yield a sentence for each rule that drops more than its budget."""
    for rule, limit in corpus.budget.per_rule.items():
        dropped_counts = sum_counts(by_rule.get(rule, NOTHING) for by_rule in dropped_by_source.values())
        for noun, unit in (("documents", 0), ("bytes", 1)):
            part, total = select_counts(dropped_counts, all_counts, unit)
            if total and part / total > limit:
                share, budget = format_share(part / total), format_share(limit)
                yield f"the rule {rule} drops {part:,} of {total:,} {noun} ({share}), more than {budget}"
                break


def _find_sources_over_budget(
    corpus: CorpusDeclaration, split: str, sources: Mapping[str, Counts], dropped_by_source: Mapping[str, CountsByRule]
) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the names and a sentence for each source, or group of small sources, over its budget; worst first."""
    limit = corpus.budget.per_source
    if limit is None:
        return
    excesses = []
    for names in _group_sources(sources):
        counts = sum_counts(sources[name] for name in names)
        by_rule = _sum_counts(dropped_by_source.get(name, {}) for name in names)
        dropped_counts = sum_counts(by_rule.values())
        shares = [
            (part / total if total else 0.0, part, total)
            for part, total in (select_counts(dropped_counts, counts, 0), select_counts(dropped_counts, counts, 1))
        ]
        # Report the share of documents, or the share of bytes if only that share exceeds the budget.
        unit = 0 if shares[0][0] > limit else 1
        if shares[unit][0] > limit:
            excesses.append((max(share for share, _, _ in shares), names, unit, shares[unit], by_rule))
    for _, names, unit, (share, part, total), by_rule in sorted(excesses, key=lambda one: (-one[0], one[1])):
        worst = Counter({rule: one[unit] for rule, one in by_rule.items()}).most_common(1)[0][0]
        few = f"{count_of(len(names), 'source')} of fewer than {MIN_SOURCE_DOCUMENTS} documents each"
        subject = f"the source {names[0]}" if len(names) == 1 else few
        yield (
            names,
            (
                f"rules drop {part:,} of {total:,} {('documents', 'bytes')[unit]} ({format_share(share)}) of {subject} "
                f"in {split}, mostly {worst}; `budget.per_source` allows {format_share(limit)}"
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
