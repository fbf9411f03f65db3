"""Check that no kept document contains a benchmark item, and that the search would find one."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from dataprep_assets.curation.benchmarks.benchmarks import BENCHMARK, OVERLAP, Benchmarks, BenchmarkTagger
from dataprep_assets.curation.dropped_rows import RuledOutRows, read_dropped
from dataprep_assets.curation.duplicates.words import words_of
from dataprep_assets.curation.planted.benchmarks import look_alikes, renderings, rewrites
from dataprep_assets.curation.table import read_joined
from dataprep_assets.engine.checks.check import SHOWN, Finding, verdict
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.benchmark_coverage import sets_not_searched, uncovered
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS, file_of
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

_PLANTED = 200
"""Maximum number of planted items, and of planted texts of items."""
_T = TypeVar("_T")
_FOUND = 0.95
"""Minimum share of planted texts to find, in each form. At most the remaining share of look-alikes may be flagged."""


def no_benchmark_contamination(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that no kept document in the present shards of a split contains a benchmark item."""
    decontamination = corpus.decontaminate
    assert decontamination is not None
    tagger = next(one for one in corpus.taggers if isinstance(one, BenchmarkTagger))
    kept_documents = _Kept(corpus, store, tagger, decontamination.share)
    contaminated = list(kept_documents.of(partitions))
    benchmarks = tagger.benchmarks
    shares, mistaken = (
        _share_planted_found(benchmarks, decontamination.share),
        _share_mistaken(benchmarks, decontamination.share),
    )
    below = list(uncovered(benchmarks.coverage, decontamination.least_covered))
    defects = [*contaminated, *below, *_find_missed(shares, mistaken)]
    coverages = benchmarks.coverage.values()
    if below and not contaminated:
        todo = "Lower `min_words`, declare other `fields`, or lower `decontaminate.coverage` if that is good enough"
    else:
        todo = (
            "Declare `decontaminate.action: drop`, or look at the pairs with `dataprep documents --where "
            f'"{OVERLAP} >= {decontamination.share}"`'
        )
    notes = list(sets_not_searched(benchmarks.coverage))
    return verdict(
        defects,
        f"No kept document contains one of {count_of(sum(one.looked_for for one in coverages), 'item')} of "
        f"{count_of(len(decontamination.sets), 'benchmark')}; planted items are found in {len(shares)} forms."
        + "".join(f" {note}." for note in notes),
        todo,
        facts={
            "left": kept_documents.left,
            "dropped": kept_documents.dropped,
            "common_phrases_only": kept_documents.phrases,
            "common_ngrams_left_out": benchmarks.common,
            **{f"items_{name}": one.items for name, one in benchmarks.coverage.items()},
            **{f"not_looked_for_{name}": one.items - one.looked_for for name, one in benchmarks.coverage.items()},
            **{f"found_{_fact(name)}_%": round(100 * share, 2) for name, share in shares.items()},
            **{f"mistaken_{_fact(name)}_%": round(100 * share, 2) for name, share in mistaken.items()},
        },
        # a table would replace the list of defects
        table=None if contaminated else _table(benchmarks, shares, mistaken),
    )


def _table(
    benchmarks: Benchmarks, found: Mapping[str, float], mistaken: Mapping[str, float]
) -> Iterator[dict[str, str | int | float]]:
    """Yield a row for each planted form, and for each benchmark."""
    for name, share in found.items():
        yield {"planted": name, "found_%": round(100 * share, 2)}
    for name, share in mistaken.items():
        yield {"planted": f"no item: {name}", "found_%": round(100 * share, 2)}
    for name, coverage in benchmarks.coverage.items():
        yield {
            "benchmark": name,
            "items": coverage.items,
            "looked_for": coverage.looked_for,
            "too_short": coverage.short,
            "common": coverage.common,
            "empty": coverage.empty,
        }


def _fact(name: str) -> str:
    return name.replace(" ", "_")


class _Kept:
    """Search for items in the kept documents of shards, with counts of the results."""

    def __init__(
        self, corpus: CorpusDeclaration, store: ArtifactStore, tagger: BenchmarkTagger, containment: float
    ) -> None:
        self.left = self.dropped = self.phrases = 0
        self._corpus, self._store, self._tagger, self._least = corpus, store, tagger, containment

    def of(self, partitions: Sequence[str]) -> Iterator[str]:
        """Yield a sentence for each of the first kept documents that contain an item."""
        for partition in partitions:
            selection = self._corpus.artifact(SELECTION, partition)
            if self._store.receipt(selection) is None:
                continue
            dropped_rows = read_dropped(self._store.local(selection))
            directory = self._store.local(self._corpus.artifact(TAGS, partition))
            columns = ["file", "row", BENCHMARK, OVERLAP]
            for piece in read_joined([directory / ROWS, directory / file_of(self._tagger)], columns):
                for row in piece.filter(piece[BENCHMARK].is_valid()).to_pylist():
                    yield from self._looked_at(row, dropped_rows)

    def _looked_at(self, row: dict[str, object], dropped: dict[str, RuledOutRows]) -> Iterator[str]:
        share = float(str(row[OVERLAP]))
        if share < self._least:
            self.phrases += 1
            return
        file_rows = dropped.get(str(row["file"]))
        if file_rows is not None and int(str(row["row"])) in file_rows.rows:
            self.dropped += 1
            return
        self.left += 1
        if self.left <= SHOWN:
            where = "a document" if self._corpus.sensitive else f"{row['file']}: row {row['row']}"
            yield f"{where} contains {share:.0%} of {row[BENCHMARK]}"


def _share_planted_found(benchmarks: Benchmarks, containment: float) -> dict[str, float]:
    """Return, for each form, the share of planted texts and items that is found."""
    forms: dict[str, list[str]] = defaultdict(list)
    for _, text in _list_some(benchmarks.items):
        # upper case does not always round-trip, e.g., for a Turkish dotless i
        changed = {"case"} if text.upper().casefold() != text.casefold() else set()
        for rewrite, rewritten in rewrites(text).items():
            if rewrite not in changed:
                forms[rewrite].append(rewritten)
    for item in _list_some(benchmarks.wholes):
        for form, rendering in renderings(item.parts, item.name).items():
            forms[form].append(rendering)
    return _share_found_by_form(benchmarks, containment, forms)


def _share_mistaken(benchmarks: Benchmarks, containment: float) -> dict[str, float]:
    """Return, for each kind of look-alike, the share that is taken for an item."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, text in _list_some(benchmarks.items):
        words = words_of(text)
        # seeded by the item, so that every run of the check plants the same texts
        shuffled = random.Random(name).sample(words, len(words))
        if shuffled != words:
            kinds["shuffled"].append(" ".join(shuffled))
    for item in _list_some(benchmarks.wholes):
        for kind, look_alike in look_alikes(item.parts, item.name).items():
            kinds[kind].append(look_alike)
    return _share_found_by_form(benchmarks, containment, kinds)


def _list_some(every: Sequence[_T]) -> Sequence[_T]:
    # evenly spaced, because items are ordered by benchmark
    return every[:: max(1, len(every) // _PLANTED)][:_PLANTED]


def _share_found_by_form(
    benchmarks: Benchmarks, containment: float, forms: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    return {
        form: sum(share >= containment for share in benchmarks.best_matches(texts)[1]) / len(texts)
        for form, texts in forms.items()
    }


def _find_missed(found: Mapping[str, float], mistaken: Mapping[str, float]) -> Iterator[str]:
    for form, share in found.items():
        if share < _FOUND:
            yield f"{share:.1%} of planted items are found in the form {form!r}, but at least {_FOUND:.0%} must be"
    for kind, share in mistaken.items():
        if share > 1 - _FOUND:
            yield f"{share:.1%} of look-alikes of items ({kind}) are flagged as the item"
