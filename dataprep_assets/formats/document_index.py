"""The index of a token stream's documents: the id and the source row of each document.

`document_ids.bin`: headerless little-endian uint64, one per document in stream order (`tokenization/document_ids.py`).

`document_rows.bin`: runs of consecutive rows, two little-endian uint64 each. Starting at document `document` of the
stream, documents are rows `row`, `row + 1`, … of their source file, until the next run or the file's last document. The
first documents of a file are the first rows of its range and need no run. A run begins after rows that were left out
(blank lines, bad records, filtered documents). A stream without runs does not have this file.
docs/formats/document-index.md.

Entry points: `open_ids`, `open_runs`, `concatenate_ids`, `concatenate_runs` and `RunWriter`, `SourceRowIndex`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.stores.files import concatenate, create_file

TOKEN_BINS = "token_bins"
"""The artifact of a stream's shards. The names below are its files."""
TOKENS = "tokens.bin"
ENDS = "document_ends.bin"
IDS = "document_ids.bin"
ROWS = "document_rows.bin"
_DTYPE = np.dtype("<u8")
_BLOCK = 1 << 17
"""Number of runs per block: 2 MiB."""


def open_ids(path: Path, documents: int) -> NDArray[np.uint64]:
    """Return the ids of the file ``path``: shape ``(documents,)``, uint64, read-only, memory-mapped.

    Raises FormatError if the file does not contain exactly ``documents`` ids.
    """
    ids = _map_columns(path, 1)
    if len(ids) != documents:
        raise FormatError(
            f"{path}: contains the ids of {count_of(len(ids), 'document')}, but the stream has {documents}. Rebuild "
            "the artifact"
        )
    return ids[:, 0]


def open_runs(path: Path) -> NDArray[np.uint64]:
    """Return the runs of the file ``path``: shape ``(runs, 2)``, columns document and row, uint64, memory-mapped.

    Raises FormatError if the file is truncated.
    """
    return _map_columns(path, 2)


def build_empty_runs() -> NDArray[np.uint64]:
    """Return the empty runs of a stream that contains all rows of its files."""
    return np.empty((0, 2), _DTYPE)


def _map_columns(path: Path, columns: int) -> NDArray[np.uint64]:
    size, width = path.stat().st_size, columns * _DTYPE.itemsize
    if size % width:
        raise FormatError(
            f"{path}: its size, {count_of(size, 'byte')}, is not a multiple of {width}, so the file is truncated. "
            "Rebuild the artifact"
        )
    if not size:
        return np.empty((0, columns), _DTYPE)
    return np.memmap(path, dtype=_DTYPE, mode="r", shape=(size // width, columns))


class RunWriter:
    """Writer of one source file's runs while its documents are added."""

    def __init__(self, file: BinaryIO, first_row: int) -> None:
        """Start without documents.

        Args:
            file: The output file.
            first_row: The first row of the file's range. A first document in this row needs no run.
        """
        self._file = file
        # `_next` is the row that would continue the current run; `_documents` is the number of documents added so far.
        self._next, self._documents = first_row, 0

    def add(self, rows: NDArray[np.uint64]) -> None:
        """Add the rows of the next documents: shape ``(documents,)``, increasing."""
        if not len(rows):
            return
        # A run begins where a row does not directly follow the row of the previous document. For the first of these
        # rows, the previous document is from an earlier call.
        starts = np.flatnonzero(rows != np.concatenate([[np.uint64(self._next)], rows[:-1] + np.uint64(1)]))
        if len(starts):
            runs = np.stack([starts.astype(np.uint64) + np.uint64(self._documents), rows[starts]], axis=1)
            self._file.write(runs.astype(_DTYPE, copy=False).tobytes())
        self._documents += len(rows)
        self._next = int(rows[-1]) + 1


def concatenate_ids(parts: Sequence[Path], target: Path, documents: int) -> None:
    """Join the ids of source files into the new file ``target``.

    Raises FormatError if their number is not ``documents``.
    """
    count = concatenate(parts, target) // _DTYPE.itemsize
    if count != documents:
        raise FormatError(
            f"{target}: would contain the ids of {count_of(count, 'document')}, but the stream has {documents}"
        )


def concatenate_runs(parts: Sequence[tuple[Path, int]], target: Path) -> int:
    """Join the runs of source files into the new file ``target``, which is not created if the files have no runs.

    ``parts`` are ``(runs file, documents of its source file)`` in stream order. Returns the number of runs.
    """
    runs = 0
    if not any(path.stat().st_size for path, _ in parts):
        return runs
    with create_file(target) as file:
        end_before = 0
        for path, documents in parts:
            for block in _read_blocks(open_runs(path)):
                # Add the number of documents in earlier files to the first column, because documents are numbered
                # across all files. Rows are numbered within a file, so they stay unchanged.
                file.write((block + np.array([end_before, 0], _DTYPE)).astype(_DTYPE, copy=False).tobytes())
                runs += len(block)
            end_before += documents
    return runs


def _read_blocks(runs: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    for start in range(0, len(runs), _BLOCK):
        yield np.asarray(runs[start : start + _BLOCK])


@dataclass(frozen=True, slots=True)
class FileRows:
    """One source file of a stream: its number of documents, and the first row of its range (1-based)."""

    documents: int
    first_row: int = 1


class SourceRowIndex:
    """Mapping between the documents of a stream and the rows of its source files. Files are numbered from 0."""

    def __init__(self, files: Sequence[FileRows], runs: NDArray[np.uint64]) -> None:
        """Combine the files of a stream, in stream order, with the runs from `open_runs`."""
        self._files, self._runs = tuple(files), runs
        self._starts = np.array([0, *accumulate(file.documents for file in files)], np.uint64)

    @property
    def documents(self) -> int:
        """Number of documents in the stream."""
        return int(self._starts[-1])

    def locate(self, document: int) -> tuple[int, int]:
        """Return the file and the row of a document. Raises IndexError if the stream has no such document."""
        if not 0 <= document < self.documents:
            raise IndexError(
                f"document {document} is out of range: the stream has {count_of(self.documents, 'document')}, counted "
                "from 0"
            )
        file = int(np.searchsorted(self._starts, np.uint64(document), side="right")) - 1
        return file, int(self.find_rows(file, document, document + 1)[0])

    def find_rows(self, file: int, first: int, stop: int) -> NDArray[np.uint64]:
        """Return the rows of documents `first` to `stop` (exclusive), all of one file: shape ``(stop - first,)``."""
        documents = np.arange(first, stop, dtype=np.uint64)
        begin, row = self._starts[file], np.uint64(self._files[file].first_row)
        run_stops = np.searchsorted(self._runs[:, 0], documents, side="right")
        plain: NDArray[np.uint64] = documents - begin + row
        if not len(self._runs):
            return plain
        # Find the last run that begins at or before each document. If there is none, use the first run, whose result is
        # discarded below (`is_own`).
        run = self._runs[np.maximum(run_stops, 1) - 1]
        is_own = (run_stops > 0) & (run[:, 0] >= begin)  # a run of an earlier file does not apply
        return np.where(is_own, documents - run[:, 0] + run[:, 1], plain)

    def find_document(self, file: int, row: int) -> int | None:
        """Return the document of the stream that contains a row of a file, or None if the row is not in the stream."""
        # Rows are counted from 1. A user may type any number, and NumPy cannot convert a number of more than 64 bits to
        # uint64.
        if not 0 < row < 1 << 64:
            return None
        begin, stop = int(self._starts[file]), int(self._starts[file + 1])
        low, high = np.searchsorted(self._runs[:, 0], np.array([begin, stop], np.uint64), side="left")
        own_runs = self._runs[int(low) : int(high)]
        # Find the file's last run that begins at or before the row.
        run_stop = int(np.searchsorted(own_runs[:, 1], np.uint64(row), side="right"))
        if run_stop:
            first_document, first_row = (int(value) for value in own_runs[run_stop - 1])
        else:
            first_document, first_row = begin, self._files[file].first_row
        end = int(own_runs[run_stop, 0]) if run_stop < len(own_runs) else stop
        document = first_document + row - first_row
        # Rows between the last document of the run and the next run are not in the stream.
        return document if first_document <= document < end else None
