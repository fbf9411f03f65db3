"""The largest clusters of documents that are alike, as a table to look at: with excerpts side by side, for people who
want to know what went. A sensitive dataset has no such table."""

from collections.abc import Sequence
from typing import Any

from dataprep_assets.documents.table import side_by_side
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.pipelines.corpus.removed_duplicates import DUPLICATES
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.sources.records import RecordFields
from dataprep_assets.stream.source import open_source
from dataprep_assets.stream.token_stream import SourcePart

CLUSTERS = "clusters.parquet"
_SHOWN, _CHARACTERS, _MOST_BYTES = 10, 120, 64 << 20
"""Clusters of the table; characters of an excerpt; bytes of a file that is read for one: to find a row it is read from
its beginning."""


def largest_clusters(corpus: CorpusDeclaration, store: ArtifactStore) -> Sequence[dict[str, Any]]:
    """A row for each of the largest clusters: the document that is kept, how many go, and the one least like it.

    The texts of both begin in `text` and `example_text`, where their files can be read and are small enough. Nothing is
    returned of a sensitive dataset.

    Args:
        corpus: The dataset.
        store: Where its duplicates are.
    """
    if corpus.sensitive:
        return []
    found = next(side_by_side([store.local(corpus.artifact(DUPLICATES), [CLUSTERS]) / CLUSTERS]), None)
    rows = [] if found is None else found.slice(0, _SHOWN).to_pylist()
    if not rows:
        return []
    entries = {entry.relpath: entry for entry in load_manifest(corpus, store).entries}
    access = open_source(corpus.source)
    for row in rows:
        for column, excerpt in (("representative", "text"), ("example", "example_text")):
            row[excerpt] = _excerpt(corpus, access, entries, row[column])
    return rows


def _excerpt(corpus: CorpusDeclaration, access: SourceAccess, entries: dict[str, ManifestEntry], name: str) -> str:
    """How the text of a row, `file:row`, begins; nothing if it cannot be read."""
    file, _, row = name.rpartition(":")
    try:
        entry = entries[file]
        if entry.size_bytes > _MOST_BYTES:
            return ""
        limit = corpus.bad_records.max_record_bytes
        part = SourcePart.of(entry, access.path(entry), "", max_record_bytes=limit, reading=corpus.reading)
        block = part.record_at(int(row), RecordFields(corpus.text_field, None))
    except (DataprepError, OSError, KeyError):
        return ""
    return " ".join(block.texts[0].split())[:_CHARACTERS] if block is not None and block.texts else ""
