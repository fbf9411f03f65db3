"""Lookup of a row in the current source file: its bytes, or the reason why it is not a document.

A trace needs the source only for these details. A row's bytes are reported only if they match the document's hash in
the shard's index, because a file may have been edited without a change in size.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.curation.rewriters.changes import count_changed_characters
from dataprep_assets.curation.selection import Selection
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.trace.trace import SourceBytes, SourceText
from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError
from dataprep_assets.fields import value_at
from dataprep_assets.integrity.artifacts import ArtifactHandle, ArtifactStore
from dataprep_assets.pipelines.corpus.curation.corpus_documents import CorpusDocuments
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.corpus.source.source_parts import PresentFiles
from dataprep_assets.pipelines.corpus.view import artifact_name, load_corpus_view
from dataprep_assets.sources.readers.line_range import MAX_BYTES, explain_missing_lines, find_line_range
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.stream.stream_index import IndexedShard
from dataprep_assets.stream.stream_tracer import StreamTracer, list_traced_shards
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.document_ids import hash_id

_CHANGED = SourceBytes(absent="no byte range: the source file has changed since the build. Run the dataset")


class CorpusFiles:
    """Lookup of rows in the source files of a corpus."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        """Set a corpus whose manifest is in the store; files are read later."""
        self._corpus, self._store = corpus, store
        self._files = PresentFiles(corpus, store)

    def find_bytes(self, file: str, row: int, hashed: int | None) -> SourceBytes:
        """Return the byte range of a row of a source file, or the reason why it is unknown.

        Args:
            file: The source file, as in the manifest.
            row: The row, from 1.
            hashed: The hash of the row's document; None if the shard has no hashes, which skips the comparison.
        """
        entry = self._files.entries.get(file)
        if entry is None:
            return _CHANGED
        if entry.format != "jsonl":
            return SourceBytes(absent=f"no byte range: the source file is of format {entry.format}")
        path = self._files.path(entry)
        try:
            if path.stat().st_size != entry.size_bytes:
                return _CHANGED
            if (kind := explain_missing_lines(path, entry.compression)) is not None:
                return SourceBytes(absent=f"no byte range: the source file is {kind}")
            byte_range = find_line_range(path, row)
            # If the file is not longer than `MAX_BYTES`, the whole file was searched. A missing row therefore shows
            # that the file has changed since it was tokenized.
            if byte_range is None and entry.size_bytes <= MAX_BYTES:
                return _CHANGED
            if byte_range is None:
                return SourceBytes(absent=f"no byte range: the row is not in the first {MAX_BYTES >> 30} GiB")
            return (
                SourceBytes(start=byte_range[0], stop=byte_range[1])
                if self._record_matches(path, byte_range, hashed)
                else _CHANGED
            )
        except OSError as error:
            return SourceBytes(absent=f"no byte range: the source file cannot be read: {error.strerror}")

    def read_source_text(self, file: str, row: int, hashed: int | None) -> SourceText | None:
        """Return the text of a row before rewriting; None if texts are not rewritten, or if the file has changed.

        Args:
            file: The source file, as in the manifest.
            row: The row, from 1.
            hashed: The hash of the row's document; None if the shard has no hashes, which skips the comparison.
        """
        corpus, entry = self._corpus, self._files.entries.get(file)
        if corpus.rewriting is None or corpus.sensitive or entry is None:
            return None
        ids = corpus.document.ids(sensitive=corpus.sensitive)
        try:
            block = self._files.record_at(entry, row, corpus.carried.records)
        except (DataprepError, OSError):
            return None
        if block is None or not block.texts:
            return None
        hashes = FileDocuments.from_block(block, ids).ids
        if hashed is not None and hashes is not None and int(hashes[0]) != hashed:
            return None
        return SourceText(
            text=block.source_texts[0],
            changes={
                name: count_changed_characters(before[0], after[0])
                for name, before, after in block.list_rewritten_texts()
            },
        )

    def explain_refusal(self, file: str, row: int) -> str | None:
        """Explain why a row of a source file is not a document.

        Returns None if the row may be a document, is blank or does not exist, or if the file is unreadable, is larger
        than `MAX_BYTES` or has changed.

        Args:
            file: The source file, as in the manifest.
            row: The row, from 1.
        """
        # Look in the table first, because the source shows only bad and retracted records, but not rows dropped by
        # rules or as duplicates.
        if (reason := self._find_table_reason(file, row)) is not None:
            return reason
        entry, corpus = self._files.entries.get(file), self._corpus
        if entry is None or entry.size_bytes > MAX_BYTES or row < 1:
            return None
        ids = corpus.document.ids(sensitive=corpus.sensitive)
        fields = RecordFields(corpus.text_field, None if ids is None else ids.id_field)
        try:
            selection = Selection(ids=ids, retracted=read_retracted_ids(corpus.retractions, ids))
            path = self._files.path(entry)
            if path.stat().st_size != entry.size_bytes:
                return None
            block = self._files.record_at(entry, row, fields)
        except (DataprepError, OSError):
            return None
        return None if block is None else selection.explain_refusal(block)

    def explain_refusal_of_hash(self, hashed: int) -> str | None:
        """Explain why the first row with this document hash is not a document, with the row's location.

        Returns None if there is no document table.
        """
        if not self._corpus.has_table:
            return None
        with suppress(DataprepError):
            return self._documents.explain_drop_of_id(hashed)
        return None

    def _find_table_reason(self, file: str, row: int) -> str | None:
        """Return why the document table dropped a row; None if there is no table, or the row was not dropped."""
        if not self._corpus.has_table:
            return None
        with suppress(DataprepError):
            return self._documents.explain_drop(file, row)
        return None

    @cached_property
    def _documents(self) -> CorpusDocuments:
        return CorpusDocuments(self._corpus, self._store)

    def _record_matches(self, path: Path, span: tuple[int, int], hashed: int | None) -> bool:
        """Return whether this byte range of a file is a record with this hash."""
        ids = self._corpus.document.ids(sensitive=self._corpus.sensitive)
        if hashed is None or ids is None:
            return True
        with open(path, "rb") as file:
            file.seek(span[0])
            line = file.read(span[1] - span[0])
        try:
            value = value_at(load_untrusted_json(line), ids.id_field or self._corpus.text_field)
        except ValueError:
            return False
        return value is not None and hash_id(value, ids.key) == hashed


def open_corpus_splits(corpus: CorpusDeclaration, store: ArtifactStore) -> dict[str, list[IndexedShard]]:
    """Return the finished shards of every split of a corpus, in manifest order."""
    manifest = load_manifest(corpus, store)
    return {
        split: list_traced_shards(store, [corpus.artifact("token_bins", key) for key in manifest.partitions(split)])
        for split in corpus.splits
    }


def build_corpus_tracer(corpus: CorpusDeclaration, store: ArtifactStore, specs: Sequence[ArtifactSpec]) -> StreamTracer:
    """Return the tracer of a corpus.

    Args:
        corpus: The dataset.
        store: The store of its artifacts, with all its token bins.
        specs: Its artifacts.
    """
    rows = CorpusFiles(corpus, store)
    return StreamTracer(
        corpus,
        store,
        specs,
        open_corpus_splits(corpus, store),
        # Pass functions, so that the tokenizer and the ids are loaded only to show a text or to find a document by its
        # id or text.
        bundle=lambda: load_declared_tokenizer(corpus.tokenizer),
        ids=lambda: corpus.document.ids(sensitive=corpus.sensitive),
        samples=partial(_find_sample_ends, corpus, store),
        source_bytes=rows.find_bytes,
        source_text=rows.read_source_text,
        refusal=rows.explain_refusal,
        refusal_of=rows.explain_refusal_of_hash,
    )


def _find_sample_ends(corpus: CorpusDeclaration, store: ArtifactStore, view: str, split: str) -> Sequence[int]:
    if (samples := load_corpus_view(view).samples) is None:
        raise ConfigError(f"trace: the view {view} has no samples. Use `document` or `token`")
    artifact = corpus.artifact(artifact_name(view))
    if store.receipt(artifact) is None:
        raise MissingArtifactError(
            f"trace: {corpus.dataset} has no view {view!r}. Add it to `views` and run the dataset"
        )
    return samples(ArtifactHandle.from_store(store, artifact), split)
