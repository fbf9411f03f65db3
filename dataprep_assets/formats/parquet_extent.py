"""That every byte of a Parquet file belongs to something, which no reader of its rows asks.

Between its magic bytes a file as pyarrow writes it has the column chunks of each row group, each where the one before
ends, and then the footer, with its length behind it (https://parquet.apache.org/docs/file-format/). Ours have no page
index and no Bloom filters, which would lie before the footer, too.

Entry point: `require_no_gaps`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.errors import FormatError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_LENGTH = 4


def require_no_gaps(path: Path, footer: "pq.FileMetaData") -> None:
    """FormatError unless the chunks that the `footer` of this file of ours tells of are all that is before it."""
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:  # which no reader asks
            raise FormatError(f"{path}: does not begin with {_MAGIC.decode()}. Rebuild it")
    position = len(_MAGIC)
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            chunk = footer.row_group(group).column(column)
            # a chunk's dictionary lies before its data
            begins = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            if begins != position:
                raise FormatError(f"{path}: its chunks are not contiguous at byte {position}. Rebuild it")
            position += chunk.total_compressed_size
    # behind the footer: its length, and the magic once more
    end = path.stat().st_size - footer.serialized_size - _LENGTH - len(_MAGIC)
    if position != end:
        raise FormatError(f"{path}: its rows end at byte {position}, but its footer begins at byte {end}. Rebuild it")
