"""Check that no kept document contains a benchmark item, and that the search finds planted items."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from dataprep_assets.curation.benchmarks.benchmarks import Benchmarks, BenchmarkTagger
from dataprep_assets.curation.benchmarks.columns import BENCHMARK, OVERLAP
from dataprep_assets.curation.dropped_rows import DroppedFileRows, read_dropped_rows
from dataprep_assets.curation.duplicates.words import split_words
from dataprep_assets.curation.planted.benchmarks import build_look_alikes, render_item, rewrite_text
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.checks.check import SHOWN, Finding, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.benchmark_coverage import describe_unsearched_sets, find_uncovered_sets
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS, name_tagger_file
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.table import format_share

_MAX_PLANTED = 200
"""Maximum number of planted items, and of planted texts of items."""
_T = TypeVar("_T")
_MIN_RECALL = 0.95
"""Minimum share of planted texts that must be found, per form. The rest is the maximum share of flagged look-alikes."""


def check_contamination(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that no kept document in the current shards of a split contains a benchmark item."""
    decontamination = corpus.decontaminate
    assert decontamination is not None
    tagger = next(one for one in corpus.taggers if isinstance(one, BenchmarkTagger))
    search = _KeptSearch(corpus, store, tagger, decontamination.share)
    contaminated = list(search.find_in_partitions(partitions))
    benchmarks = tagger.benchmarks
    recalls, false_matches = (
        _measure_recall(benchmarks, decontamination.share),
        _measure_false_matches(benchmarks, decontamination.share),
    )
    uncovered_items = list(find_uncovered_sets(benchmarks.coverage, decontamination.least_covered))
    defects = [*contaminated, *uncovered_items, *_describe_failed_forms(recalls, false_matches)]
    coverages = benchmarks.coverage.values()
    if uncovered_items and not contaminated:
        remedy = "Lower `min_words`, declare other `fields`, or lower `decontaminate.coverage` if that is good enough"
    else:
        remedy = (
            "Declare `decontaminate.action: drop`, or look at the pairs with `dataprep documents --where "
            f'"{OVERLAP} >= {decontamination.share}"`'
        )
    notes = list(describe_unsearched_sets(benchmarks.coverage))
    return build_verdict(
        defects,
        f"No kept document contains any of {count_of(sum(one.looked_for for one in coverages), 'item')} from "
        f"{count_of(len(decontamination.sets), 'benchmark')}; planted items are found in {len(recalls)} forms."
        + "".join(f" {note}." for note in notes),
        remedy,
        facts={
            "contaminated_kept": search.contaminated_kept,
            "dropped": search.dropped,
            "common_phrases_only": search.phrases,
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
        table=None if contaminated else _build_table(benchmarks, recalls, false_matches),
    )


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


class _KeptSearch:
    """Search for items in the kept documents of shards, with counts of the results."""

    def __init__(
        self, corpus: CorpusDeclaration, store: ArtifactStore, tagger: BenchmarkTagger, containment: float
    ) -> None:
        self.contaminated_kept = self.dropped = self.phrases = 0
        self._corpus, self._store, self._tagger, self._min_share = corpus, store, tagger, containment

    def find_in_partitions(self, partitions: Sequence[str]) -> Iterator[str]:
        """Yield a sentence for each of the first kept documents that contain an item."""
        for partition in partitions:
            selection = self._corpus.artifact(SELECTION, partition)
            if self._store.receipt(selection) is None:
                continue
            dropped_rows = read_dropped_rows(self._store.local(selection))
            directory = self._store.local(self._corpus.artifact(TAGS, partition))
            columns = ["file", "row", BENCHMARK, OVERLAP]
            for piece in read_joined_tables([directory / ROWS, directory / name_tagger_file(self._tagger)], columns):
                for row in piece.filter(piece[BENCHMARK].is_valid()).to_pylist():
                    yield from self._search_row(row, dropped_rows)

    def _search_row(self, row: dict[str, object], dropped_rows: dict[str, DroppedFileRows]) -> Iterator[str]:
        share = float(str(row[OVERLAP]))
        if share < self._min_share:
            self.phrases += 1
            return
        file_rows = dropped_rows.get(str(row["file"]))
        if file_rows is not None and int(str(row["row"])) in file_rows.rows:
            self.dropped += 1
            return
        self.contaminated_kept += 1
        if self.contaminated_kept <= SHOWN:
            location = "a document" if self._corpus.sensitive else f"{row['file']}: row {row['row']}"
            yield f"{location} contains {format_share(share)} of {row[BENCHMARK]}"


def _measure_recall(benchmarks: Benchmarks, containment: float) -> dict[str, float]:
    """Return the share of planted texts and items that are found, per form."""
    forms: dict[str, list[str]] = defaultdict(list)
    for _, text in _sample_evenly(benchmarks.items):
        # Do not plant the upper-case form of a text if case folding cannot undo it (for example, with a Turkish dotless
        # i), because its words would differ from the words of the text.
        changed = {"case"} if text.upper().casefold() != text.casefold() else set()
        for rewrite, rewritten in rewrite_text(text).items():
            if rewrite not in changed:
                forms[rewrite].append(rewritten)
    for item in _sample_evenly(benchmarks.whole_items):
        for form, rendering in render_item(item.parts, item.name).items():
            forms[form].append(rendering)
    return _measure_found_shares(benchmarks, containment, forms)


def _measure_false_matches(benchmarks: Benchmarks, containment: float) -> dict[str, float]:
    """Return the share of look-alikes that are mistaken for an item, per kind of look-alike."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, text in _sample_evenly(benchmarks.items):
        words = split_words(text)
        # Use the item's name as the seed, so that every run of the check plants the same texts.
        shuffled = random.Random(name).sample(words, len(words))
        if shuffled != words:
            kinds["shuffled"].append(" ".join(shuffled))
    for item in _sample_evenly(benchmarks.whole_items):
        for kind, look_alike in build_look_alikes(item.parts, item.name).items():
            kinds[kind].append(look_alike)
    return _measure_found_shares(benchmarks, containment, kinds)


def _sample_evenly(values: Sequence[_T]) -> Sequence[_T]:
    # Choose from all values instead of the first ones, because the values are ordered by benchmark.
    count = min(len(values), _MAX_PLANTED)
    return [values[len(values) * number // count] for number in range(count)]


def _measure_found_shares(
    benchmarks: Benchmarks, containment: float, forms: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    return {
        form: sum(share >= containment for share in benchmarks.find_best_matches(texts)[1]) / len(texts)
        for form, texts in forms.items()
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
