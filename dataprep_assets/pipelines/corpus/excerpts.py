"""How the texts of rows begin, for tables that people look at; never of a sensitive dataset."""

from functools import cached_property

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.sources.records import RecordFields
from dataprep_assets.stream.source import open_source
from dataprep_assets.stream.token_stream import SourcePart

_CHARACTERS, _MOST_BYTES = 120, 64 << 20
"""Characters of an excerpt; bytes of a file that is read for one: to find a row it is read from its beginning."""


class Excerpts:
    """Reads the beginnings of texts from the present source files."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        """Take a dataset and where its manifest is; nothing is read yet."""
        self._corpus, self._store = corpus, store

    def of(self, name: str) -> str:
        """How the text of a row, `file:row`, begins; nothing if it cannot be read, or if the dataset is sensitive."""
        file, _, row = name.rpartition(":")
        if self._corpus.sensitive:
            return ""
        try:
            entry = self._entries[file]
            if entry.size_bytes > _MOST_BYTES:
                return ""
            part = SourcePart.of(
                entry,
                self._access.path(entry),
                "",
                max_record_bytes=self._corpus.bad_records.max_record_bytes,
                reading=self._corpus.reading,
            )
            block = part.record_at(int(row), RecordFields(self._corpus.text_field, None))
        except (DataprepError, OSError, KeyError):
            return ""
        return " ".join(block.texts[0].split())[:_CHARACTERS] if block is not None and block.texts else ""

    @cached_property
    def _entries(self) -> dict[str, ManifestEntry]:
        return {entry.relpath: entry for entry in load_manifest(self._corpus, self._store).entries}

    @cached_property
    def _access(self) -> SourceAccess:
        return open_source(self._corpus.source)
