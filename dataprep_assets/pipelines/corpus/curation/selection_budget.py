"""The checks of a split's dropped documents against `budget`, with examples of dropped documents.

Examples help users judge whether a rule or a source is wrong. Sensitive datasets show no examples.

Entry points: `check_budget`, `check_kept_sources` and `check_rule_sources`; `build_budgeted_split`.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from dataprep_assets.curation.budgets import budget
from dataprep_assets.curation.budgets.budget import BudgetedPart
from dataprep_assets.curation.budgets.counts import sum_drop_facts
from dataprep_assets.curation.declaration import find_unknown_sources
from dataprep_assets.curation.dropped_rows import DROPPED
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.checks.check import Finding, Row, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.curation.excerpts import Excerpts
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

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


def build_budgeted_split(corpus: CorpusDeclaration, split: str) -> BudgetedPart:
    """Return a split as the documents to which the budget applies together."""
    return BudgetedPart(
        dataset=corpus.dataset, name=split, title=f"the split {split}", budget=corpus.budget, rules=corpus.rules.keys()
    )


def check_budget(corpus: CorpusDeclaration, split: str, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that rules drop no more than the budget from the current shards of a split."""
    return budget.check_budget(
        build_budgeted_split(corpus, split),
        _load_receipts(corpus, store, partitions),
        partial(find_examples, corpus, store, partitions),
    )


def check_kept_sources(
    corpus: CorpusDeclaration, split: str, store: ArtifactStore, partitions: Sequence[str]
) -> Finding:
    """Check that no rule without a budget drops nearly all of a source, a language or the current shards of a split."""
    return budget.check_kept_sources(build_budgeted_split(corpus, split), _load_receipts(corpus, store, partitions))


def check_rule_sources(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that the sources in rules exist; `partitions` are the shards of all splits."""
    receipts = _load_receipts(corpus, store, partitions)
    sources = sum_drop_facts(receipts).sources
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


def _load_receipts(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> list[Receipt]:
    receipts = store.receipts([corpus.artifact(SELECTION, partition) for partition in partitions])
    return [receipt for receipt in receipts if receipt is not None]
