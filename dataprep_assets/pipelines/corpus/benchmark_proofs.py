"""The proof that no kept document contains an item of a benchmark, and that it would be seen if one did."""

import random
from collections.abc import Iterator, Sequence

from dataprep_assets.documents.benchmarks import BENCHMARK, OVERLAP, BenchmarkTagger, rewrites
from dataprep_assets.documents.duplicates.words import words_of
from dataprep_assets.documents.ruled_out import RuledOutRows, read_dropped
from dataprep_assets.documents.table import side_by_side
from dataprep_assets.graph.finding import SHOWN, Finding, judged, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.tagged_shard import ROWS, TAGS, file_of
from dataprep_assets.sentences import safe, sentence, typed

NO_BENCHMARK = Proof(
    "no_benchmark",
    "No kept document contains an item of a benchmark; items planted in six rewrites are found, and texts of the same "
    "words in another order are not.",
)
_PLANTED = 200
"""Texts of items that are planted."""
_FOUND = 0.95
"""Smallest share of the planted texts of each rewrite that has to be found."""


@judged
def no_benchmark(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """The proof itself, of the shards of a split that are there."""
    asked = corpus.decontaminate
    assert asked is not None
    tagger = next(one for one in corpus.taggers if isinstance(one, BenchmarkTagger))
    kept = _Kept(corpus, store, tagger, asked.share)
    left = list(kept.of(partitions))
    planted = _planted(tagger, asked.share)
    defects = [*left, *_missed(planted)]
    benchmarks = tagger.benchmarks
    return verdict(
        defects,
        f"No kept document contains one of {benchmarks.looked_for:,} texts of {len(asked.sets):,} benchmarks; planted "
        "ones are found in six rewrites.",
        "Declare `decontaminate.action: drop`, or look at the pairs with `dataprep documents --where "
        f'"{OVERLAP} >= {asked.share}"`',
        facts={
            "left": kept.left,
            "dropped": kept.dropped,
            "common_phrases_only": kept.phrases,
            "looked_for": benchmarks.looked_for,
            "too_short": benchmarks.short,
            "common_ngrams_left_out": benchmarks.common,
            **{f"found_{name.replace(' ', '_')}_%": round(100 * share, 2) for name, share in planted.items()},
        },
        # without a table the defects are listed
        table=None if left else [{"planted": name, "found_%": round(100 * one, 2)} for name, one in planted.items()],
    )


class _Kept:
    """Looks through the kept documents of shards, and counts."""

    def __init__(
        self, corpus: CorpusDeclaration, store: ArtifactStore, tagger: BenchmarkTagger, containment: float
    ) -> None:
        self.left = self.dropped = self.phrases = 0
        self._corpus, self._store, self._tagger, self._least = corpus, store, tagger, containment

    def of(self, partitions: Sequence[str]) -> Iterator[str]:
        """A sentence for each of the first kept documents that contain an item."""
        for partition in partitions:
            selection = self._corpus.artifact(SELECTION, partition)
            if self._store.receipt(selection) is None:
                continue
            dropped = read_dropped(self._store.local(selection))
            directory = self._store.local(self._corpus.artifact(TAGS, partition))
            columns = ["file", "row", BENCHMARK, OVERLAP]
            for piece in side_by_side([directory / ROWS, directory / file_of(self._tagger)], columns):
                for row in piece.filter(piece[BENCHMARK].is_valid()).to_pylist():
                    yield from self._looked_at(row, dropped)

    def _looked_at(self, row: dict[str, object], dropped: dict[str, RuledOutRows]) -> Iterator[str]:
        share = float(str(row[OVERLAP]))
        if share < self._least:
            self.phrases += 1
            return
        there = dropped.get(str(row["file"]))
        if there is not None and int(str(row["row"])) in there.rows:
            self.dropped += 1
            return
        self.left += 1
        if self.left <= SHOWN:
            where = "a document" if self._corpus.sensitive else sentence(f"{row['file']}: row {safe(row['row'])}")
            yield sentence(f"{typed(where)} contains {share:.0%} of {row[BENCHMARK]}")


def _planted(tagger: BenchmarkTagger, containment: float) -> dict[str, float]:
    """The way of rewriting → the share of items that are found; `shuffled` are no items any more."""
    benchmarks = tagger.benchmarks
    items = benchmarks.items
    # spread over the items, which are those of one set after the other
    step = max(1, len(items) // _PLANTED)
    ways: dict[str, list[str]] = {}
    for name, text in items[::step][:_PLANTED]:
        words = words_of(text)
        # upper case is no rewrite of some texts, as of a Turkish dotless i
        changed = {"case"} if text.upper().casefold() != text.casefold() else set()
        for way, rewritten in rewrites(text).items():
            if way not in changed:
                ways.setdefault(way, []).append(rewritten)
        # seeded by the item, so each examination plants the same texts
        shuffled = random.Random(name).sample(words, len(words))
        if shuffled != words:
            ways.setdefault("shuffled", []).append(" ".join(shuffled))
    return {way: sum(one >= containment for one in benchmarks.of(texts)[1]) / len(texts) for way, texts in ways.items()}


def _missed(planted: dict[str, float]) -> Iterator[str]:
    for way, share in planted.items():
        if way == "shuffled":
            if share > 1 - _FOUND:
                yield f"{share:.1%} of texts with the words of an item in another order are flagged as the item"
        elif share < _FOUND:
            yield f"{share:.1%} of planted items are found when rewritten by {way}, and {_FOUND:.0%} have to be"
