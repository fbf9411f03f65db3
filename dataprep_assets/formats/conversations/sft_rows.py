"""Conversations with labels as a `datasets` folder, which Hugging Face trainers read.

    dataset_dict.json                          the splits
    <split>/data-<i:05d>-of-<n:05d>.arrow      rows, as an Arrow stream of record batches
    <split>/state.json, dataset_info.json      the list of these files, and a fingerprint of their content
    README.md                                  the same files, for `load_dataset`

The layout equals `DatasetDict.save_to_disk` (`datasets` 5.2.0, `arrow_dataset.py`), so `load_from_disk` maps the
files into memory without a copy. The split `valid` is called `validation`, as in `datasets` and LLaMA-Factory.
`dataset_info.json` has no features, because `datasets` 3 and 4 write them differently; both infer them from the files.
The fingerprint changes with the content, so that `Dataset.map` does not reuse a cache of different rows.

Labels are aligned to `input_ids`: `labels[i]` is `input_ids[i]` if that token is trained, otherwise -100. Models in
transformers shift them. In contrast, the loss mask of packed rows (`packed_rows.py`) is already shifted: its position
`i` is for token `i + 1` of the same sequence.

A row is a sequence, or with `is_packed` a packed row. Packed rows have no `attention_mask`, because a mask of ones
would let the sequences of a row attend to each other. Each file has the rows of one packed file, and each record batch
has the rows of one of its row groups, so memory use does not grow with the files. The same rows give the same bytes
with the same version of pyarrow.

Entry points: `write_file`, `write_sidecars`; `read_sequences`, `find_row_defects`, `find_sidecar_defects`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml  # type: ignore[import-untyped]
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.conversations.labeled_tokens import UNTRAINED, LabeledTokens, compute_labels
from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets.stores.files import create_durably, digest_value

if TYPE_CHECKING:
    import pyarrow as pa

IDS, LABELS, LENGTH = "input_ids", "labels", "length"
SEQUENCE_COLUMNS = {
    IDS: "list<int32>",
    LABELS: "list<int32>",
    "attention_mask": "list<int8>",
    "assistant_masks": "list<int8>",
    "loss_mask": "list<int8>",
    LENGTH: "int32",
}
"""Value type of each column of rows of one sequence."""
PACKED_COLUMNS = {
    IDS: "list<int32>",
    LABELS: "list<int32>",
    "assistant_masks": "list<int8>",
    "position_ids": "list<int32>",
    "seq_lengths": "list<int32>",
    LENGTH: "int32",
}
"""Value type of each column of packed rows."""
COLUMN_DESCRIPTIONS = {
    IDS: "Token ids of the row.",
    LABELS: "Label of each position: its token id, or -100 if the token is not trained.",
    "attention_mask": "1 for each token.",
    "assistant_masks": "1 if the token is trained, else 0.",
    "loss_mask": "1 if the token is trained, else 0.",
    "position_ids": "Position of each token in its sequence, from 0.",
    "seq_lengths": "Number of tokens of each sequence in the row.",
    LENGTH: "Number of tokens of the row.",
}
"""Column → a sentence about it."""
_DICT, _STATE, _INFO, CARD = "dataset_dict.json", "state.json", "dataset_info.json", "README.md"


def split_name(split: str) -> str:
    """Return the name of a split in the files of views; `datasets` calls the validation split `validation`."""
    return "validation" if split in ("valid", "val") else split


def build_file_name(split: str, number: int, count: int) -> str:
    """Return the path of file `number` of the `count` files of a split."""
    return f"{split_name(split)}/data-{number:05d}-of-{count:05d}.arrow"


def _build_schema(is_packed: bool) -> "pa.Schema":
    import pyarrow as pa

    def find_type(name: str) -> "pa.DataType":
        item = name.removeprefix("list<").removesuffix(">")
        value = pa.type_for_alias(item)
        return value if item == name else pa.list_(value)

    types = PACKED_COLUMNS if is_packed else SEQUENCE_COLUMNS
    return pa.schema([(name, find_type(type_name)) for name, type_name in types.items()])


def _build_columns(
    tokens: LabeledTokens, rows: NDArray[np.int64], *, is_packed: bool
) -> dict[str, tuple[NDArray[Any], NDArray[np.int64] | None]]:
    """Return the values of each column, with the position of each row's first value if the column has lists.

    `rows` has the number of the first sequence of each row, followed by the number of sequences.
    """
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens.lengths)])
    starts = ends[rows]
    is_trained = (tokens.labels != UNTRAINED).astype(np.int8)
    columns: dict[str, tuple[NDArray[Any], NDArray[np.int64] | None]] = {
        IDS: (tokens.ids, starts),
        LABELS: (tokens.labels, starts),
        "assistant_masks": (is_trained, starts),
        LENGTH: (np.diff(starts).astype(np.int32), None),
    }
    if is_packed:
        positions = np.arange(len(tokens.ids)) - np.repeat(ends[:-1], tokens.lengths)
        columns["position_ids"] = positions.astype(np.int32), starts
        columns["seq_lengths"] = tokens.lengths.astype(np.int32), rows
    else:
        columns["attention_mask"] = np.ones(len(tokens.ids), np.int8), starts
        columns["loss_mask"] = is_trained, starts
    return columns


def write_file(path: Path, blocks: Iterable[PackedRowBlock], *, is_packed: bool) -> None:
    """Write the rows of a packed file as the new Arrow file `path`, one record batch per block.

    Raises FormatError if a loss mask is invalid.
    """
    import pyarrow as pa

    schema = _build_schema(is_packed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with create_durably(path) as file, pa.ipc.new_stream(file, schema) as writer:
        for block in blocks:
            tokens = LabeledTokens(ids=block.tokens, labels=compute_labels(block), lengths=block.lengths)
            rows = block.heads if is_packed else np.arange(len(block.starts) + 1)
            columns = _build_columns(tokens, rows, is_packed=is_packed)
            arrays = [_build_array(*columns[column.name], column.type) for column in schema]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _build_array(values: NDArray[Any], starts: NDArray[np.int64] | None, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    array = pa.array(values)
    return array if starts is None else pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), array, type=kind)


def _format_columns(schema: "pa.Schema") -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _read_batches(path: Path, *, is_packed: bool) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            if not reader.schema.equals(_build_schema(is_packed)):
                raise FormatError(
                    f"{path}: its columns must be {_format_columns(_build_schema(is_packed))}, not "
                    f"{_format_columns(reader.schema)}. Rebuild the artifact"
                )
            for batch in reader:
                batch.validate(full=True)
                if any(column.null_count for column in batch.columns):
                    raise FormatError(f"{path}: a column of a row is null. Rebuild the artifact")
                yield batch
            if extra_bytes := file.size() - file.tell():
                raise FormatError(f"{path}: {count_of(extra_bytes, 'extra byte')} after the rows. Rebuild the artifact")
    except pa.ArrowException as error:
        raise FormatError(f"{path}: not an Arrow stream: {error}. Rebuild the artifact") from error


def _read_tokens(batch: "pa.RecordBatch", *, is_packed: bool) -> LabeledTokens:
    lengths = batch.column("seq_lengths").flatten() if is_packed else batch.column(LENGTH)
    ids, labels = (batch.column(name).flatten().to_numpy() for name in (IDS, LABELS))
    return LabeledTokens(ids=ids, labels=labels, lengths=lengths.to_numpy().astype(np.int64))


def read_sequences(path: Path, *, is_packed: bool) -> Iterator[LabeledTokens]:
    """Yield the sequences of each record batch of a file; raise FormatError if it cannot be read."""
    for batch in _read_batches(path, is_packed=is_packed):
        tokens = _read_tokens(batch, is_packed=is_packed)
        if defect := _find_length_defect(tokens):
            raise FormatError(f"{path}: {defect}. Rebuild it")
        yield tokens


def _find_length_defect(tokens: LabeledTokens) -> str:
    is_valid = int(tokens.lengths.sum()) == len(tokens.ids) and not (tokens.lengths < 1).any()
    return "" if is_valid else "the sequence lengths do not add up to the number of tokens"


def find_row_defects(path: Path, *, is_packed: bool) -> Iterator[str]:
    """Yield a sentence for each column of a file that does not follow from its ids, labels and lengths."""
    first_row = 0
    for batch in _read_batches(path, is_packed=is_packed):
        rows = np.arange(len(batch) + 1)
        if is_packed:
            rows = np.concatenate([rows[:1], np.cumsum(batch.column("seq_lengths").value_lengths().to_numpy())])
        tokens = _read_tokens(batch, is_packed=is_packed)
        if defect := _find_length_defect(tokens):
            yield f"{path}: from row {first_row} on, {defect}"
            return
        for name, (values, starts) in _build_columns(tokens, rows, is_packed=is_packed).items():
            column = batch.column(name)
            if starts is None:
                is_equal = np.array_equal(column.to_numpy(), values)
            else:
                is_equal = np.array_equal(column.value_lengths().to_numpy(), np.diff(starts)) and np.array_equal(
                    column.flatten().to_numpy(), values
                )
            if not is_equal:
                yield f"{path}: from row {first_row} on, {name} does not match the labels"
        first_row += len(batch)


def _build_sidecars(files: Mapping[str, Mapping[str, str]], name: str, text: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each sidecar; `files` has the digest of each file by split."""
    splits = {split_name(split): digests for split, digests in files.items()}
    yield _DICT, json.dumps({"splits": list(splits)}).encode()
    for split, digests in splits.items():
        state: dict[str, Any] = {
            "_data_files": [{"filename": path.rpartition("/")[2]} for path in digests],
            "_fingerprint": digest_value(digests)[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
        yield f"{split}/{_STATE}", json.dumps(state, indent=2).encode()
        info = {"citation": "", "description": "", "homepage": "", "license": ""}
        yield f"{split}/{_INFO}", json.dumps(info, indent=2).encode()
    front = {
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"{split}/*.arrow"} for split in splits],
            }
        ],
        # Include a digest of the files, because `load_dataset` caches rows under a hash that does not cover their
        # contents.
        "dataset_info": {"config_name": "default", "description": f"sha256:{digest_value(splits)}"},
    }
    yield CARD, f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {name}\n\n{text}\n".encode()


def write_sidecars(directory: Path, files: Mapping[str, Mapping[str, str]], name: str, text: str) -> None:
    """Write the sidecars of a folder.

    Args:
        directory: The folder.
        files: Split → path → digest of each of its files, in order.
        name: Heading of the card.
        text: Text of the card.
    """
    for path, content in _build_sidecars(files, name, text):
        with create_durably(directory / path) as file:
            file.write(content)


def find_sidecar_defects(
    directory: Path, files: Mapping[str, Mapping[str, str]], name: str, text: str, all_paths: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each sidecar or file that differs from `write_sidecars` with these arguments.

    `all_paths` are the paths of all files of the folder.
    """
    sidecars = dict(_build_sidecars(files, name, text))
    for path, content in sidecars.items():
        if (directory / path).read_bytes() != content:
            yield f"{directory / path}: does not match the data files in this folder"
    for path in sorted({*all_paths} - {*sidecars} - {path for digests in files.values() for path in digests}):
        yield f"{directory / path}: belongs to no split"
