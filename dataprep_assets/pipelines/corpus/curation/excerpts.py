"""Excerpts of texts for tables in reports; empty for a sensitive dataset."""

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.source_parts import PresentFiles
from dataprep_assets.sources.readers.records import RecordFields

_CHARACTERS, _MAX_BYTES = 120, 64 << 20
"""Length of an excerpt in characters, and maximum file size in bytes, because files are read from the beginning."""


class Excerpts:
    """Excerpts (beginnings of texts) from the current source files."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        """Set the dataset and the store of its manifest; files are read later."""
        self._sensitive, self._text_field = corpus.sensitive, corpus.text_field
        self._files = PresentFiles(corpus, store)

    def read_excerpt(self, name: str) -> str:
        """Return the beginning of a row's text (`file:row`); "" if it is unreadable or the dataset is sensitive."""
        # Split at the last colon, because a file name may contain colons.
        file, _, row = name.rpartition(":")
        if self._sensitive:
            return ""
        try:
            entry = self._files.entries[file]
            if entry.size_bytes > _MAX_BYTES:
                return ""
            block = self._files.record_at(entry, int(row), RecordFields(self._text_field, None))
        except (DataprepError, OSError, KeyError):
            return ""
        return " ".join(block.texts[0].split())[:_CHARACTERS] if block is not None and block.texts else ""
