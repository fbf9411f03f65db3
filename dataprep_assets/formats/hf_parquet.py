"""A token stream as Parquet that `datasets.load_dataset` reads: one row per document, and a dataset card.

``data/<split>-<i:05d>-of-<n:05d>.parquet`` with one column, ``input_ids`` (list of int32), and ``README.md`` whose YAML
front matter lists the configuration's files by split, the column's type and each split's rows and bytes (Hugging Face
Hub, "Dataset Cards" and "Manual Configuration"; `datasets` reads both, and refuses other counts).

`datasets` keeps what it has loaded under a hash of the card's `dataset_info` and of the *patterns* of the files, not
of the files themselves (`load.py`, ``LocalDatasetModuleFactory``), and of `dataset_info` it drops fields that it does
not know. So the digest of the files is the `description`: other content is not taken for what was loaded before.

Files and row groups end at a number of rows or of tokens, whichever comes first, so readers and writers need memory for
one row group only, whatever the length of documents. A file depends only on its own documents: any number of threads
can write files. The same stream gives the same bytes with the same version of pyarrow.

Entry points: `write_split`, `write_card`, `validate`, `read_blocks`.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml  # type: ignore[import-untyped]

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.parquet_extent import require_no_gaps
from dataprep_assets.stores.files import create_durably, digest_value, sha256_file

COLUMN = "input_ids"
_TYPE = "int32"
COLUMN_TYPES = {COLUMN: f"list<{_TYPE}>"}
"""Column → type of its values."""
CARD = "README.md"
ROWS_PER_FILE, TOKENS_PER_FILE = 1 << 20, 1 << 28
"""Upper limits of a file; 2**28 tokens are about 400 MB on disk, the file size that the Hub recommends."""
# 2**23 tokens are 32 MiB of int32, which a reader holds for one row group. 2**14 documents limit it if they are short.
_ROW_GROUP, _ROW_GROUP_TOKENS = 1 << 14, 1 << 23
# Offsets of an Arrow list are int32.
_LONGEST = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class SplitWritten:
    """Rows and tokens of a split, and SHA-256 by file, relative to the dataset's folder."""

    rows: int
    tokens: int
    digests: Mapping[str, str]

    @property
    def bytes(self) -> int:
        """Bytes in memory as `datasets` counts them: an int32 and a validity bit an id, an int32 offset a row.

        Its own sum can be a byte a row group more, because it rounds the bits up in each batch that it reads.
        """
        return 4 * (self.tokens + self.rows) + -(-self.tokens // 8)

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.digests)


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(COLUMN, pa.list_(pa.field("element", pa.type_for_alias(_TYPE))))])


def write_split(
    directory: Path,
    split: str,
    tokens: npt.NDArray[Any],
    ends: npt.NDArray[np.uint64],
    *,
    rows_per_file: int = ROWS_PER_FILE,
    tokens_per_file: int = TOKENS_PER_FILE,
    threads: int = 1,
    resume: bool = False,
) -> SplitWritten:
    """Write a token stream as the files of one split, below ``directory/data``; returns what was written.

    ``tokens``: ids, integers, shape ``(tokens,)``. ``ends``: where each document ends in them, uint64, shape
    ``(documents,)``. ``split`` is the first part of the files' names. A file ends after ``rows_per_file`` documents or
    before a document would take it beyond ``tokens_per_file``, and holds at least one; a split of no documents is one
    file of no rows. ``threads`` write as many files at once, and change no byte. ``resume`` keeps the files that a call
    with the same arguments left when it was killed; every one that has its name is complete.

    Raises FormatError when the ends are not the stream's, for an id of 2**31 or more, and for a document of 2**31
    tokens or more; raises FileExistsError when a file exists and nothing is to be resumed.
    """
    if (last_end := int(ends[-1]) if len(ends) else 0) != len(tokens):
        raise FormatError(
            f"{split}: the last document ends at token {last_end}, but the stream has {count_of(len(tokens), 'token')}"
        )
    (directory / "data").mkdir(parents=True, exist_ok=True)
    spans = list(_cut_spans(ends, 0, len(ends), rows_per_file, tokens_per_file)) or [(0, 0)]
    names = [f"data/{split}-{number:05d}-of-{len(spans):05d}.parquet" for number in range(len(spans))]
    with ThreadPoolExecutor(threads) as pool:
        digests = list(pool.map(partial(_ensure_file, directory, split, tokens, ends, resume), names, spans))
    return SplitWritten(rows=len(ends), tokens=len(tokens), digests=dict(zip(names, digests, strict=True)))


def _cut_spans(
    ends: npt.NDArray[np.uint64], first: int, last: int, rows: int, tokens: int
) -> Iterator[tuple[int, int]]:
    """Cut documents `first` to `last` into spans of at most `rows` and `tokens`; a longer document is a span alone."""
    while first < last:
        candidate_ends = ends[first : min(first + rows, last)]
        # a key of the same dtype: with any other, numpy would convert the whole of `ends`
        limit = np.uint64(_begin(ends, first) + tokens)
        stop = first + max(1, int(np.searchsorted(candidate_ends, limit, side="right")))
        yield first, stop
        first = stop


def _begin(ends: npt.NDArray[np.uint64], document: int) -> int:
    return int(ends[document - 1]) if document else 0


def _ensure_file(
    directory: Path,
    split: str,
    tokens: npt.NDArray[Any],
    ends: npt.NDArray[np.uint64],
    resume: bool,
    name: str,
    span: tuple[int, int],
) -> str:
    """Write one file of these documents, unless it is kept; its SHA-256."""
    path = directory / name
    if not path.exists():
        _write_file(path, split, tokens, ends, span)
    elif not resume:
        raise FileExistsError(path)
    return sha256_file(path)


def _write_file(
    path: Path, split: str, tokens: npt.NDArray[Any], ends: npt.NDArray[np.uint64], span: tuple[int, int]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    options = {"compression": "zstd", "write_statistics": False, "write_page_checksum": True}
    with create_durably(path) as file, pq.ParquetWriter(file, _schema(), **options) as writer:
        for first_document, stop in _cut_spans(ends, *span, _ROW_GROUP, _ROW_GROUP_TOKENS):
            begin = _begin(ends, first_document)
            ids = np.asarray(tokens[begin : int(ends[stop - 1])])
            if len(ids) > _LONGEST:
                raise FormatError(
                    f"{split}: document {first_document} has {count_of(len(ids), 'token')}, more than a list allows"
                )
            if len(ids) and int(ids.max()) >= 1 << 31:
                raise FormatError(f"{split}: id {int(ids.max())} does not fit int32")
            offsets = np.concatenate([[0], np.asarray(ends[first_document:stop]).astype(np.int64) - begin])
            lists = pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(ids.astype(np.int32)))
            # cast for the name of the list's child alone: pyarrow calls it `item`
            writer.write_table(pa.table([lists.cast(_schema().field(0).type)], schema=_schema()))


def write_card(directory: Path, name: str, splits: Mapping[str, SplitWritten], text: str = "") -> None:
    """Write the dataset card ``README.md`` into ``directory``; one that exists is replaced.

    ``name`` is its heading, ``splits`` maps each split, in the order of the card, to what `write_split` returned, and
    ``text`` is its last paragraph.
    """
    with create_durably(directory / CARD) as file:
        file.write(card_bytes(name, splits, text))


def card_bytes(name: str, splits: Mapping[str, SplitWritten], text: str = "") -> bytes:
    """The bytes of the dataset card; the arguments are those of `write_card`."""
    about = ["Token ids, a document a row.", *([text] if text else [])]
    card = f"---\n{yaml.safe_dump(_front(splits), sort_keys=False)}---\n\n# {name}\n\n" + "\n\n".join(about) + "\n"
    return card.encode()


def _front(splits: Mapping[str, SplitWritten]) -> dict[str, Any]:
    """The card's front matter."""
    files = {name: digest for summary in splits.values() for name, digest in summary.digests.items()}
    return {
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"data/{split}-*.parquet"} for split in splits],
            }
        ],
        "dataset_info": {
            "config_name": "default",
            "description": f"sha256:{digest_value(files)}",
            "features": [{"name": COLUMN, "list": _TYPE}],
            "splits": [
                {"name": split, "num_bytes": summary.bytes, "num_examples": summary.rows}
                for split, summary in splits.items()
            ],
        },
    }


def validate(directory: Path, splits: Mapping[str, SplitWritten]) -> None:
    """Check that the files and the card are those of these splits; raises FormatError, naming what is wrong, if not.

    Digests are compared with the card's, not with the files.
    """
    if (counts := read_counts(directory)) != (
        expected_counts := {split: summary.rows for split, summary in splits.items()}
    ):
        raise FormatError(f"{directory}: {counts} rows for {expected_counts} documents")
    try:
        front = yaml.safe_load((directory / CARD).read_text(encoding="utf-8").split("---\n")[1])
        card_fields = {**front["dataset_info"], "configs": front["configs"]}
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise FormatError(f"{directory / CARD}: not a dataset card: {error}") from error
    true = _front(splits)
    for field, value in {**true["dataset_info"], "configs": true["configs"]}.items():
        if card_fields.get(field) != value:
            raise FormatError(
                f"{directory / CARD}: its {field} is {card_fields.get(field)!r}, but the files give {value!r}"
            )


def read_counts(directory: Path) -> dict[str, int]:
    """Rows of each split by its files' footers.

    Raises FormatError for a file that is missing, has another schema, or has bytes that belong to no row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    numbers: dict[str, list[int]] = {}
    totals: dict[str, int] = {}
    for path in sorted((directory / "data").iterdir()):
        split, _, numbering = path.stem.partition("-")
        number, _, total = numbering.partition("-of-")
        try:
            metadata, schema = pq.read_metadata(path), pq.read_schema(path)
            numbers.setdefault(split, []).append(int(number))
            totals[split] = int(total)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"{path}: not a Parquet file of a split: {error}") from error
        if not schema.equals(_schema()):
            raise FormatError(
                f"{path}: its columns are {', '.join(schema.names)} ({', '.join(map(str, schema.types))}), not "
                f"{COLUMN} (lists of int32)"
            )
        require_no_gaps(path, metadata)
        counts[split] = counts.get(split, 0) + metadata.num_rows
    for split, file_numbers in numbers.items():
        if file_numbers != list(range(totals[split])):
            raise FormatError(f"{directory}: {split} has the files {file_numbers} of {totals[split]}")
    return counts


def read_blocks(directory: Path, split: str) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """A split in order, a row group at a time: ids, int32, and lengths of its documents, int64.

    For files that `read_counts` accepts; raises FormatError for one whose pages cannot be read or fail their checksum.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in sorted((directory / "data").glob(f"{split}-*.parquet")):
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                if not file.schema_arrow.equals(_schema()):
                    raise FormatError(f"{path}: its only column must be {COLUMN} (lists of int32)")
                for group in range(file.num_row_groups):
                    column = file.read_row_group(group, columns=[COLUMN], use_threads=False).column(0)
                    for rows in column.chunks:
                        yield rows.flatten().to_numpy(), np.diff(rows.offsets.to_numpy().astype(np.int64))
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: invalid Parquet data: {error}") from error
