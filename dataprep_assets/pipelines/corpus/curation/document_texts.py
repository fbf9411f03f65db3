"""Texts of rows of the document table, read from the source files.

A file is read once for consecutive rows. A text is compared with the row's size and id, because a source file may have
been edited since the table was built. The table stores no digest of the file's single rows, so an edit is not noticed
if ids are declared by a field, and neither the sizes nor the id change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from dataprep_assets.engine.trace.document_table import build_changed_error, translate_read_errors
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.source_parts import PresentFiles, build_present_part
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.records import Block


def add_texts(
    corpus: CorpusDeclaration, store: ArtifactStore, rows: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield rows with their texts, as `DocumentTable.add_texts` describes."""
    files = PresentFiles(corpus, store)
    for file, rows_of_file in groupby(rows, key=lambda row: row["file"]):
        with translate_read_errors(file, corpus.dataset):
            yield from _add_texts_of_file(corpus, files, file, rows_of_file)


def _add_texts_of_file(
    corpus: CorpusDeclaration, files: PresentFiles, file: str, rows: Iterator[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    changed = build_changed_error(file, corpus.dataset)
    entry = files.entries.get(file)
    if entry is None:
        raise changed
    path, fields = files.path(entry), corpus.carried
    if path.stat().st_size != entry.size_bytes:
        raise changed
    present_part = build_present_part(corpus, entry, path)
    raw_rows = present_part.open_raw_rows()
    records: Iterator[tuple[int, str, str, str | None]] | None = None
    for row in rows:
        # A record without a size was rejected.
        if row["bytes"] is None:
            if (raw_row := raw_rows.find(row["row"])) is None:
                raise changed
            yield {**row, "text": raw_row.text, "text_byte": raw_row.byte}
            continue
        # Start at the first wanted row, and read on from there for the other rows.
        if records is None:
            part = replace(present_part, rows=RowRange(row["row"]))
            records = _iterate_records(part.read_records(fields.records))
        number, text, source_text, declared_id = next(
            (record for record in records if record[0] >= row["row"]), (0, "", "", None)
        )
        properties: dict[str, int | str] = {"row": number, "bytes": len(text.encode()), "characters": len(text)}
        if fields.ids is not None:
            hashed = fields.ids.hash_texts([source_text], None if declared_id is None else [declared_id])
            properties["id"] = f"{int(hashed[0]):016x}"
        if any(row[name] != value for name, value in properties.items()):
            raise changed
        yield {**row, "text": text}


def _iterate_records(blocks: Iterable[Block]) -> Iterator[tuple[int, str, str, str | None]]:
    """Yield the row, the text, the source text and the declared id of each good record."""
    for block in blocks:
        for index, (text, source_text) in enumerate(zip(block.texts, block.source_texts, strict=True)):
            yield block.row(index), text, source_text, None if block.ids is None else block.ids[index]
