"""How the texts of rows begin, for tables that people look at; never of a sensitive dataset."""

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.source_parts import PresentFiles
from dataprep_assets.sources.readers.records import RecordFields

_CHARACTERS, _MOST_BYTES = 120, 64 << 20
"""Characters of an excerpt; bytes of a file that is read for one: to find a row it is read from its beginning."""


class Excerpts:
    """Reads the beginnings of texts from the present source files."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        """Take a dataset and where its manifest is; nothing is read yet."""
        self._sensitive, self._text_field = corpus.sensitive, corpus.text_field
        self._files = PresentFiles(corpus, store)

    def excerpt(self, name: str) -> str:
        """Return how the text of a row, `file:row`, begins; nothing if it cannot be read, or if the dataset is
        sensitive."""
        # from the right, because the name of a file may have a colon
        file, _, row = name.rpartition(":")
        if self._sensitive:
            return ""
        try:
            entry = self._files.entries[file]
            if entry.size_bytes > _MOST_BYTES:
                return ""
            block = self._files.record_at(entry, int(row), RecordFields(self._text_field, None))
        except (DataprepError, OSError, KeyError):
            return ""
        return " ".join(block.texts[0].split())[:_CHARACTERS] if block is not None and block.texts else ""
