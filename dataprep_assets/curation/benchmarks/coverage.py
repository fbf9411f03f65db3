"""Coverage of benchmarks, as sentences for checks, `dataprep check`, `documents` and `show`.

Benchmark items are public, so their counts are also shown for sensitive datasets.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from dataprep_assets.curation.benchmarks.benchmarks import Benchmarks, BenchmarkTagger, Coverage
from dataprep_assets.curation.benchmarks.decontamination import DecontaminateDeclaration
from dataprep_assets.engine.yaml.remark import Remark, parse_error_keys
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.table import format_share

_SAMPLE_SIZE = 1000
"""Number of items that `dataprep check` examines first."""

RecordedCoverage = Mapping[str, Mapping[str, int]]
"""Benchmark → the fields of its `Coverage`, as a fact of a receipt."""


def record_coverage(tagger: BenchmarkTagger) -> dict[str, dict[str, int]]:
    """Return the coverage of a tagger's benchmarks as a fact of a receipt."""
    return {name: asdict(counts) for name, counts in tagger.benchmarks.coverage.items()}


def describe_recorded_coverage(recorded_coverage: RecordedCoverage) -> Iterator[str]:
    """Yield a line for each recorded set with items that are not searched for."""
    for sentence in describe_unsearched_sets({name: Coverage(**counts) for name, counts in recorded_coverage.items()}):
        yield f"benchmark {sentence}"


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


def find_benchmark_remarks(tagger: BenchmarkTagger, decontamination: DecontaminateDeclaration) -> Iterator[Remark]:
    """Yield remarks on sets that cannot be read, or whose items are not searched for."""
    try:
        tagger.version  # noqa: B018
    except ConfigError as error:  # the message begins with the path of the YAML key
        yield Remark(keys=parse_error_keys(error), sentence=str(error))
        return
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
        floor = decontamination.least_covered
        # Compare the share only if the set is smaller than the sample, because the share of a sample is only an
        # estimate.
        if total < _SAMPLE_SIZE and decontamination.action != "tag" and coverage.share < floor:
            for text in find_uncovered_sets({item_set.name: coverage}, floor):
                remedy = "Lower `min_words`, declare other `fields`, or lower `coverage`"
                yield Remark(keys=keys, sentence=f"{text}. {remedy}")
            continue
        for text in describe_unsearched_sets({item_set.name: coverage}):
            scope_text = "" if total < _SAMPLE_SIZE else "; only the first items were examined"
            yield Remark(keys=keys, sentence=f"decontaminate.sets.{text}{scope_text}", hint=True)
