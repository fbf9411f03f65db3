"""Examples of what a source loses that is over its budget: a row, and for a duplicate the one that stays.

People decide by them whether a rule is wrong or the source is. A sensitive dataset shows none.
"""

from collections.abc import Iterator, Sequence

from dataprep_assets.documents.ruled_out import DROPPED
from dataprep_assets.documents.table import side_by_side
from dataprep_assets.graph.finding import Row
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.excerpts import Excerpts
from dataprep_assets.pipelines.corpus.selection_counts import SELECTION
from dataprep_assets.pipelines.corpus.tagged_shard import ROWS, TAGS

_EACH = 3
"""Examples of a source."""


def examples_of(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str], sources: Sequence[str]
) -> list[Row]:
    """Rows that are dropped of some sources, those of the first source first; the text of each begins beside its name.

    Args:
        corpus: The dataset.
        store: Where its tags and selections are.
        partitions: The shards that are looked through.
        sources: The sources.
    """
    if corpus.sensitive or not sources:
        return []
    found: dict[str, list[Row]] = {source: [] for source in sources}
    excerpts = Excerpts(corpus, store)
    for partition in partitions:
        for source, row in _dropped(corpus, store, partition, excerpts, found):
            found[source].append(row)
        # the files of a shard are opened, or fetched, only while an example is wanted
        if all(len(rows) == _EACH for rows in found.values()):
            break
    return [row for rows in found.values() for row in rows]


def _dropped(
    corpus: CorpusDeclaration, store: ArtifactStore, partition: str, excerpts: Excerpts, found: dict[str, list[Row]]
) -> Iterator[tuple[str, Row]]:
    """The first dropped rows of a shard, of sources of which more examples are wanted."""
    selection = corpus.artifact(SELECTION, partition)
    if store.receipt(selection) is None:
        return
    dropped = {
        (one["file"], one["row"]): one
        for piece in side_by_side([store.local(selection, [DROPPED]) / DROPPED])
        for one in piece.to_pylist()
    }
    rows = store.local(corpus.artifact(TAGS, partition), [ROWS]) / ROWS
    for piece in side_by_side([rows], ["file", "row", "source"]):
        for one in piece.to_pylist():
            there, source = dropped.get((one["file"], one["row"])), one["source"]
            if there is None or source not in found or len(found[source]) == _EACH:
                continue
            name, stands = f"{one['file']}:{one['row']}", there.get("representative") or ""
            yield (
                source,
                {
                    "source": source,
                    "dropped_as": there["reason"],
                    "example": name,
                    "example_text": excerpts.of(name),
                    "stays": stands,
                    "stays_text": excerpts.of(stands) if stands else "",
                },
            )
