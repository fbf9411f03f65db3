"""Check that every byte of a Parquet file is used, which readers of its rows do not verify.

A file that pyarrow writes consists of a magic number, the contiguous column chunks of each row group, the footer, the
footer's length, and the magic number. Source: https://parquet.apache.org/docs/file-format/. Files of this package have
no page index and no Bloom filters, which would also precede the footer.

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
    """Raise FormatError unless the column chunks in the `footer` cover all bytes before it."""
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:  # readers do not check the magic number at the beginning
            raise FormatError(f"{path}: must begin with {_MAGIC.decode()}. Rebuild the artifact")
    position = len(_MAGIC)
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            chunk = footer.row_group(group).column(column)
            # A chunk's dictionary page precedes its data pages.
            begins = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            if begins != position:
                raise FormatError(f"{path}: its chunks are not contiguous at byte {position}. Rebuild the artifact")
            position += chunk.total_compressed_size
    # The file ends with the footer's length and the magic number.
    end = path.stat().st_size - footer.serialized_size - _LENGTH - len(_MAGIC)
    if position != end:
        raise FormatError(
            f"{path}: its rows end at byte {position}, but its footer begins at byte {end}. Rebuild the artifact"
        )
