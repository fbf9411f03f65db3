"""Plain text: a file is one document, or several documents with a declared separator.

A document is exactly the UTF-8 text between two separators, including white space. A document of only white space is
blank. Rows count the documents. Fields are `text` and `path`, the file's path in its source.
"""

from collections.abc import Iterable, Iterator

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.contents import BOM, detect_carriage_returns
from dataprep_assets.sources.readers.input_format import FoundRow, InputFormat, SequentialReader
from dataprep_assets.sources.readers.read_options import TOO_LARGE
from dataprep_assets.sources.readers.row_files import BadRecord


class TextRows(SequentialReader):
    """Reader of the documents of a text file."""

    under = TextReader

    def _find_rows(self) -> Iterator[FoundRow]:
        file, row = self._file, 1
        separator = (file.reading.text_separator or "").encode()
        for byte, size, piece in cut_pieces(self._read_blocks(separator), separator, file.max_record_bytes):
            if piece is None:
                yield FoundRow(row, byte, size, BadRecord(row, byte, TOO_LARGE))
            elif not piece.strip():
                yield FoundRow(row, byte, size, None)
                continue
            else:
                try:
                    yield FoundRow(row, byte, size, {"text": piece.decode(), "path": file.label})
                except UnicodeDecodeError:
                    yield FoundRow(row, byte, size, BadRecord(row, byte, "invalid_utf8"))
            row += 1

    def _read_blocks(self, separator: bytes) -> Iterator[bytes]:
        """Yield the file's blocks.

        Raises CorruptSourceError if a separator with line feeds cannot match the file's line ends.
        """
        for number, block in enumerate(self._under):
            if not number and b"\n" in separator and (kind := detect_carriage_returns(block)) is not None:
                raise CorruptSourceError(f"{self._file.label}: {kind}")
            yield block


def cut_pieces(blocks: Iterable[bytes], separator: bytes, max_bytes: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield the byte offset, the length and the content of each piece between separators.

    The content is None if it is longer than `max_bytes`.

    With an empty separator, the whole file is one piece. A byte order mark at the start of the file is left out.
    """
    # `parts` has the parts of the piece at `byte` that cannot belong to a separator. It is empty if the piece is too
    # long.
    parts: list[bytes] = []
    byte = part_bytes = 0
    tail = b""
    for block in blocks:
        data = tail + block
        if not byte and not part_bytes and data.startswith(BOM):
            data, byte = data[len(BOM) :], len(BOM)
        *whole_pieces, last_piece = data.split(separator) if separator else [data]
        for piece in whole_pieces:
            size = part_bytes + len(piece)
            yield byte, size, b"".join([*parts, piece]) if size <= max_bytes else None
            byte, part_bytes, parts = byte + size + len(separator), 0, []
        # Keep the last bytes of a block, because a separator may begin in them.
        end = max(0, len(last_piece) - max(len(separator) - 1, 0))
        body, tail = last_piece[:end], last_piece[end:]
        # Keep only the length of a document beyond the limit, because its content could fill the memory.
        part_bytes += len(body)
        parts = [*parts, body] if part_bytes <= max_bytes else []
    size = part_bytes + len(tail)
    if size:  # an empty piece after the last separator is not a document
        yield byte, size, b"".join([*parts, tail]) if size <= max_bytes else None


FORMAT = InputFormat(rows=TextRows)
