"""A token stream as Parquet for `datasets.load_dataset`: one row per document, and a dataset card.

``data/<split>-<i:05d>-of-<n:05d>.parquet`` has one column, ``input_ids`` (list of int32). ``README.md`` has YAML front
matter with the files of each split, the column's type, and each split's rows and bytes. Sources: Hugging Face Hub,
"Dataset Cards" and "Manual Configuration". `datasets` reads both and refuses different counts.

`datasets` caches a loaded dataset under a hash of the card's `dataset_info` and of the files' *patterns*, not of the
files themselves (`load.py`, ``LocalDatasetModuleFactory``). It drops unknown fields of `dataset_info`. The
`description` therefore contains the digest of the files, so that changed files are not read from the old cache.

Files and row groups end at a limit of rows or of tokens, whichever comes first. Readers and writers therefore need
memory for only one row group, even if documents are long. A file depends only on its own documents, so any number of
threads can write files. The same stream gives the same bytes with the same version of pyarrow.

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
from dataprep_assets.formats.parquet_rows import open_reader, open_writer, require_schema
from dataprep_assets.stores.files import create_durably, digest_value, sha256_file

COLUMN = "input_ids"
_TYPE = "int32"
COLUMN_TYPES = {COLUMN: f"list<{_TYPE}>"}
"""Value type of each column."""
CARD = "README.md"
ROWS_PER_FILE, TOKENS_PER_FILE = 1 << 20, 1 << 28
"""Upper limits per file. 2**28 tokens are about 400 MB on disk, the file size that the Hub recommends."""
# A reader needs 32 MiB for the 2**23 tokens (int32) of one row group. For short documents, the limit of 2**14
# documents applies first.
_ROW_GROUP, _ROW_GROUP_TOKENS = 1 << 14, 1 << 23
# Arrow list offsets are int32, which limits the tokens of one list array.
_MAX_DOCUMENT_TOKENS = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """Rows and tokens of a split, and SHA-256 by file, relative to the dataset's folder."""

    rows: int
    tokens: int
    digests: Mapping[str, str]

    @property
    def bytes(self) -> int:
        """Bytes in memory as `datasets` counts them: an int32 and a validity bit per id, and an int32 offset per row.

        The sum that `datasets` computes can be larger by one byte per row group, because it rounds the bits up in each
        batch that it reads.
        """
        return 4 * (self.tokens + self.rows) + -(-self.tokens // 8)

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.digests)


def _build_schema() -> Any:
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
) -> SplitSummary:
    """Write a token stream as the files of one split below ``directory/data`` and return a summary.

    ``tokens``: integer ids, shape ``(tokens,)``. ``ends``: end of each document in the stream, uint64, shape
    ``(documents,)``. ``split`` is the first part of the file names.

    A file ends after ``rows_per_file`` documents, or before the document that would exceed ``tokens_per_file``. Each
    file has at least one document, except for a split without documents, which is one file without rows. ``threads``
    files are written concurrently, and the bytes do not depend on it. ``resume`` keeps the files of an interrupted call
    with the same arguments, because every file with its final name is complete.

    Raises FormatError if the ends do not match the stream, for an id of 2**31 or more, and for a document of 2**31
    tokens or more. Raises FileExistsError if a file exists and ``resume`` is false.
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
    return SplitSummary(rows=len(ends), tokens=len(tokens), digests=dict(zip(names, digests, strict=True)))


def _cut_spans(
    ends: npt.NDArray[np.uint64], first: int, last: int, rows: int, tokens: int
) -> Iterator[tuple[int, int]]:
    """Cut documents `first` to `last` into spans of at most `rows` and `tokens`.

    A document longer than `tokens` is a span by itself.
    """
    while first < last:
        candidate_ends = ends[first : min(first + rows, last)]
        # Use the dtype of `ends` for the limit, because NumPy would otherwise convert the whole array.
        limit = np.uint64(_find_first_token(ends, first) + tokens)
        stop = first + max(1, int(np.searchsorted(candidate_ends, limit, side="right")))
        yield first, stop
        first = stop


def _find_first_token(ends: npt.NDArray[np.uint64], document: int) -> int:
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
    """Write one file of these documents unless it exists and is kept, and return its SHA-256."""
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

    with create_durably(path) as file, open_writer(file, _build_schema()) as writer:
        for first_document, stop in _cut_spans(ends, *span, _ROW_GROUP, _ROW_GROUP_TOKENS):
            begin = _find_first_token(ends, first_document)
            ids = np.asarray(tokens[begin : int(ends[stop - 1])])
            if len(ids) > _MAX_DOCUMENT_TOKENS:
                raise FormatError(
                    f"{split}: document {first_document} has {count_of(len(ids), 'token')}, more than a Parquet list "
                    "allows. Split the document"
                )
            if len(ids) and int(ids.max()) >= 1 << 31:
                raise FormatError(f"{split}: id {int(ids.max())} does not fit int32")
            offsets = np.concatenate([[0], np.asarray(ends[first_document:stop]).astype(np.int64) - begin])
            lists = pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(ids.astype(np.int32)))
            # The cast only renames the list's child field, which pyarrow calls `item`.
            writer.write_table(pa.table([lists.cast(_build_schema().field(0).type)], schema=_build_schema()))


def write_card(directory: Path, name: str, splits: Mapping[str, SplitSummary], text: str = "") -> None:
    """Write the dataset card ``README.md`` into ``directory``, replacing an existing card.

    ``name`` is the heading. ``splits`` maps each split, in the order of the card, to the result of `write_split`.
    ``text`` is the last paragraph.
    """
    with create_durably(directory / CARD) as file:
        file.write(encode_card(name, splits, text))


def encode_card(name: str, splits: Mapping[str, SplitSummary], text: str = "") -> bytes:
    """Return the bytes of the dataset card; for the arguments see `write_card`."""
    paragraphs = ["Token ids, a document a row.", *([text] if text else [])]
    card = (
        f"---\n{yaml.safe_dump(_build_front_matter(splits), sort_keys=False)}---\n\n# {name}\n\n"
        + "\n\n".join(paragraphs)
        + "\n"
    )
    return card.encode()


def _build_front_matter(splits: Mapping[str, SplitSummary]) -> dict[str, Any]:
    """Return the card's front matter: the files, columns, rows and bytes of each split."""
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


def validate(directory: Path, splits: Mapping[str, SplitSummary]) -> None:
    """Raise FormatError, naming the difference, unless the files and the card match these splits.

    Digests are compared only with the card, not with the files.
    """
    if (counts := read_counts(directory)) != (
        expected_counts := {split: summary.rows for split, summary in splits.items()}
    ):
        raise FormatError(
            f"{directory}: has {_format_counts(counts)} rows, expected {_format_counts(expected_counts)}. Rebuild "
            "the view"
        )
    try:
        front = yaml.safe_load((directory / CARD).read_text(encoding="utf-8").split("---\n")[1])
        card_fields = {**front["dataset_info"], "configs": front["configs"]}
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise FormatError(f"{directory / CARD}: not a dataset card: {error}. Rebuild the view") from error
    expected_fields = _build_front_matter(splits)
    for field, value in {**expected_fields["dataset_info"], "configs": expected_fields["configs"]}.items():
        if card_fields.get(field) != value:
            raise FormatError(f"{directory / CARD}: its {field} is {card_fields.get(field)!r}, but must be {value!r}")


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in counts.items()) or "no"


def read_counts(directory: Path) -> dict[str, int]:
    """Return the number of rows of each split, according to the footers of its files.

    Raises FormatError for a file that is missing, has a different schema, or has bytes that belong to no row.
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
            raise FormatError(f"{path}: not a Parquet file of a split: {error}. Rebuild the artifact") from error
        if not schema.equals(_build_schema()):
            raise FormatError(
                f"{path}: its columns are {', '.join(schema.names)} ({', '.join(map(str, schema.types))}), not "
                f"{COLUMN} (lists of int32). Rebuild the view"
            )
        require_no_gaps(path, metadata)
        counts[split] = counts.get(split, 0) + metadata.num_rows
    for split, file_numbers in numbers.items():
        if file_numbers != list(range(totals[split])):
            numbers_text = ", ".join(map(str, file_numbers))
            raise FormatError(
                f"{directory}: {split} must have {totals[split]} files, but has only the files {numbers_text}"
            )
    return counts


def read_blocks(directory: Path, split: str) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """Yield a split in order, one row group at a time: the ids (int32) and the lengths of its documents (int64).

    The files must be valid for `read_counts`. Raises FormatError if a page cannot be read or fails its checksum.
    """
    for path in sorted((directory / "data").glob(f"{split}-*.parquet")):
        with open_reader(path) as file:
            require_schema(path, file.schema_arrow, _build_schema())
            for group in range(file.num_row_groups):
                column = file.read_row_group(group, columns=[COLUMN], use_threads=False).column(0)
                for rows in column.chunks:
                    yield rows.flatten().to_numpy(), np.diff(rows.offsets.to_numpy().astype(np.int64))
