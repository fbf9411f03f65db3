"""Check that no kept document of a corpus contains a benchmark item, and that the search finds planted items."""

from collections.abc import Sequence

from dataprep_assets.curation.benchmarks.benchmarks import BenchmarkTagger
from dataprep_assets.curation.benchmarks.columns import BENCHMARK, OVERLAP
from dataprep_assets.curation.benchmarks.verdict import KeptTexts, judge_kept_texts
from dataprep_assets.curation.dropped_rows import DroppedFileRows, read_dropped_rows
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.engine.checks.check import SHOWN, Finding
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS, name_tagger_file
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.table import format_share


def check_contamination(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> Finding:
    """Check that no kept document in the current shards of a split contains a benchmark item."""
    decontamination = corpus.decontaminate
    assert decontamination is not None
    tagger = next(one for one in corpus.taggers if isinstance(one, BenchmarkTagger))
    search = _KeptSearch(corpus, store, tagger, decontamination.share)
    for partition in partitions:
        search.search_partition(partition)
    return judge_kept_texts(
        tagger.benchmarks,
        decontamination,
        search.kept_texts,
        noun="document",
        remedy=(
            "Declare `decontaminate.action: drop`, or look at the pairs with `dataprep documents --where "
            f'"{OVERLAP} >= {decontamination.share}"`'
        ),
    )


class _KeptSearch:
    """Search for items in the kept documents of shards."""

    def __init__(
        self, corpus: CorpusDeclaration, store: ArtifactStore, tagger: BenchmarkTagger, containment: float
    ) -> None:
        self.kept_texts = KeptTexts()
        self._corpus, self._store, self._tagger, self._min_share = corpus, store, tagger, containment

    def search_partition(self, partition: str) -> None:
        """Add the results for a shard; a shard without a selection has none."""
        selection = self._corpus.artifact(SELECTION, partition)
        if self._store.receipt(selection) is None:
            return
        dropped_rows = read_dropped_rows(self._store.local(selection))
        directory = self._store.local(self._corpus.artifact(TAGS, partition))
        columns = ["file", "row", BENCHMARK, OVERLAP]
        for piece in read_joined_tables([directory / ROWS, directory / name_tagger_file(self._tagger)], columns):
            for row in piece.filter(piece[BENCHMARK].is_valid()).to_pylist():
                self._search_row(row, dropped_rows)

    def _search_row(self, row: dict[str, object], dropped_rows: dict[str, DroppedFileRows]) -> None:
        share, kept_texts = float(str(row[OVERLAP])), self.kept_texts
        if share < self._min_share:
            kept_texts.phrases += 1
            return
        file_rows = dropped_rows.get(str(row["file"]))
        if file_rows is not None and int(str(row["row"])) in file_rows.rows:
            kept_texts.dropped_count += 1
            return
        kept_texts.contaminated_kept += 1
        if kept_texts.contaminated_kept <= SHOWN:
            location = "a document" if self._corpus.sensitive else f"{row['file']}: row {row['row']}"
            kept_texts.contaminated.append(f"{location} contains {format_share(share)} of {row[BENCHMARK]}")
