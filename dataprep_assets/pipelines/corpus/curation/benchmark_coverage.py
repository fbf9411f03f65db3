"""Coverage of a corpus's benchmarks, as sentences for checks, `dataprep check`, `documents` and `show`.

Benchmark items are public, so their counts are also shown for sensitive datasets.
"""

from collections.abc import Iterator, Mapping

from dataprep_assets.curation.benchmarks.benchmarks import Benchmarks, BenchmarkTagger, Coverage
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS, TagsFacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.table import format_share

_SAMPLE_SIZE = 1000
"""Number of items that `dataprep check` examines first."""


def describe_unsearched_sets(coverage: Mapping[str, Coverage]) -> Iterator[str]:
    """Yield a sentence for each set with items that are not searched for."""
    for name, counts in coverage.items():
        total = counts.items + counts.empty
        if unsearched := total - counts.looked_for:
            yield (
                f"{name}: {unsearched:,} of {count_of(total, 'item')} {'is' if unsearched == 1 else 'are'} not "
                f"searched for ({_describe_reasons(counts)})"
            )


def _describe_reasons(coverage: Coverage) -> str:
    reasons = {"too short": coverage.short, "only common phrases": coverage.common, "empty": coverage.empty}
    return ", ".join((f"{count:,} {reason}" for reason, count in reasons.items() if count))


def find_uncovered_sets(coverage: Mapping[str, Coverage], floor: float) -> Iterator[str]:
    """Yield a sentence for each set whose searched share of items is below `floor`."""
    for name, counts in coverage.items():
        if counts.share < floor:
            yield (
                f"decontaminate.sets.{name}: {format_share(counts.share)} of its "
                f"{count_of(counts.items, 'item is', 'items are')} searched for, but "
                f"at least {format_share(floor)} must be; not searched for: {_describe_reasons(counts)}"
            )


def read_coverage(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, Coverage]:
    """Return the coverage recorded in the current tags; empty if there are no tags or benchmarks."""
    if corpus.decontaminate is None:
        return {}
    try:
        for partition in load_manifest(corpus, store).plan:
            if (receipt := store.receipt(corpus.artifact(TAGS, partition))) is not None:
                return {name: Coverage(**counts) for name, counts in TagsFacts.from_receipt(receipt).benchmarks.items()}
    except DataprepError:  # the coverage is only shown here, and a run reports the error
        pass
    return {}


def describe_coverage(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Yield a line for each set with items that are not searched for."""
    for sentence in describe_unsearched_sets(read_coverage(corpus, store)):
        yield f"benchmark {sentence}"


def find_benchmark_remarks(corpus: CorpusDeclaration) -> Iterator[Remark]:
    """Yield remarks on sets that cannot be read, or whose items are not searched for."""
    tagger = corpus.taggers[-1]
    assert corpus.decontaminate is not None
    assert isinstance(tagger, BenchmarkTagger), "it follows the taggers of `tag`"
    for item_set in tagger.sets:
        keys = ("decontaminate", "sets", item_set.name)
        try:
            sample = Benchmarks([item_set], tagger.ngram, tagger.min_words, first=_SAMPLE_SIZE)
            # Read all items if none of the first items is searchable, because later items may be.
            if not (coverage := sample.coverage[item_set.name]).looked_for:
                coverage = Benchmarks([item_set], tagger.ngram, tagger.min_words).coverage[item_set.name]
        except ConfigError as error:
            yield Remark(keys=keys, sentence=str(error))
            continue
        total = coverage.items + coverage.empty
        floor = corpus.decontaminate.least_covered
        # Compare the share only if the set is smaller than the sample, because the share of a sample is only an
        # estimate.
        if total < _SAMPLE_SIZE and corpus.decontaminate.action != "tag" and coverage.share < floor:
            for text in find_uncovered_sets({item_set.name: coverage}, floor):
                remedy = "Lower `min_words`, declare other `fields`, or lower `coverage`"
                yield Remark(keys=keys, sentence=f"{text}. {remedy}")
            continue
        for text in describe_unsearched_sets({item_set.name: coverage}):
            scope_text = "" if total < _SAMPLE_SIZE else "; only the first items were examined"
            yield Remark(keys=keys, sentence=f"decontaminate.sets.{text}{scope_text}", hint=True)
