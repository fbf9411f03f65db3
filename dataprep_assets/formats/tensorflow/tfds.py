"""A TFDS dataset directory: names of shards, ``dataset_info.json``, ``features.json``, without TensorFlow.

A directory ``<root>/<name>/<x.y.z>/`` of shards and two JSON files is a dataset that ``tfds.builder`` finds and
``tfds.builder_from_directory`` reads (tensorflow-datasets, ``core/naming.py``, ``core/dataset_info.py``,
``core/features/features_dict.py``). The JSON files are byte-identical to the files that
``tfds.folder_dataset.write_metadata`` writes for the same facts.

TFDS trusts the metadata. It ignores stray shards, drops undeclared columns, and wraps ids in a narrow dtype. It accepts
wrong lengths of single shards if the sum is right, and slices then return wrong rows. The checks on a directory
therefore count every shard and compare every column.

Entry points: `DatasetInfo`, `Split`, `build_shard_name`; `write_metadata`, `read_metadata`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats import flat_bins
from dataprep_assets.formats.tensorflow.example import FeatureColumn

DATASET_INFO = "dataset_info.json"
FEATURES = "features.json"
FILE_FORMATS = ("tfrecord", "array_record")
"""``tfrecord`` is for ``as_dataset``, ``array_record`` for ``as_data_source``. Each reader accepts only its own format.
"""

_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
# TFDS pads both numbers of a shard's name to five digits (tensorflow-datasets, `core/naming.py`).
_DIGITS = 5
# TFDS converts CamelCase to snake_case before it looks a name up, so it finds only snake_case names.
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = r"(0|[1-9][0-9]*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")
_DECIMAL = re.compile(r"-?[0-9]+")
_FEATURES_DICT = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
_TENSOR = "tensorflow_datasets.core.features.tensor_feature.Tensor"
_SPLIT_FIELDS = frozenset({"filepathTemplate", "name", "numBytes", "shardLengths", "statistics"})
_WRITTEN_FIELDS = frozenset({"description", "fileFormat", "name", "splits", "version"})
# Other fields of TFDS's DatasetInfo message, which readers ignore because they do not describe the files.
_OTHER_FIELDS = frozenset(
    {"alternativeFileFormats", "citation", "configDescription", "configName", "configTags", "dataSourceAccesses"}
    | {"disableShuffling", "downloadChecksums", "downloadSize", "isBlocked", "location", "moduleName"}
    | {"nondeterministicOrder", "redistributionInfo", "releaseNotes", "sizeInBytes", "supervisedKeys"}
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split: rows of each shard, in shard order, and the bytes of all payloads without framing.

    Raises FormatError for a name that TFDS does not accept, an empty list of shards, or a negative number.
    """

    name: str
    shard_lengths: tuple[int, ...]
    num_bytes: int

    def __post_init__(self) -> None:
        _check_name("split", self.name)
        if not self.shard_lengths or min(self.shard_lengths) < 0 or self.num_bytes < 0:
            raise FormatError(
                f"split {self.name!r}: must have at least one shard and no negative numbers, not "
                f"{count_of(len(self.shard_lengths), 'shard')} and {count_of(self.num_bytes, 'byte')}"
            )

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(self.shard_lengths)


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The metadata of a directory. ``columns`` are the same for every split, sorted by name.

    Raises FormatError if TFDS would not read it, or would read it wrongly. Causes are a name that is not snake_case, a
    version that is not ``x.y.z`` without leading zeros, an unknown file format, no splits or columns, or duplicate
    names.
    """

    name: str
    version: str
    splits: tuple[Split, ...]
    columns: tuple[FeatureColumn, ...]
    file_format: str = "tfrecord"
    description: str = ""

    def __post_init__(self) -> None:
        _check_name("dataset", self.name)
        if not _VERSION.fullmatch(self.version):
            raise FormatError(f"version {self.version!r}: must be x.y.z without leading zeros for TFDS, e.g., 1.0.0")
        if self.file_format not in FILE_FORMATS:
            raise FormatError(f"unknown file format {self.file_format!r}. Available: {', '.join(FILE_FORMATS)}")
        for kind, names in (("splits", [s.name for s in self.splits]), ("columns", [c.name for c in self.columns])):
            if not names or len(set(names)) != len(names):
                raise FormatError(
                    f"dataset {self.name!r} must have {kind} with unique names, not {', '.join(names) or 'none'}"
                )
        object.__setattr__(self, "columns", tuple(sorted(self.columns, key=lambda c: c.name)))

    def list_shard_names(self, split: Split) -> list[str]:
        """Return the file names of a split, in shard order."""
        total = len(split.shard_lengths)
        return [build_shard_name(self.name, split.name, number, total, self.file_format) for number in range(total)]


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise FormatError(
            f"{kind} {name!r}: must begin with a letter and contain only lower-case letters, digits and _ for TFDS"
        )


def build_shard_name(dataset: str, split: str, index: int, total: int, file_format: str = "tfrecord") -> str:
    """Return the file name that TFDS gives a shard: ``<dataset>-<split>.<file_format>-<index>-of-<total>``.

    ``dataset`` and ``split`` are names, and ``index`` counts from 0. Both numbers have five digits, or as many as
    ``total`` has. ``file_format`` is one of `FILE_FORMATS`. Raises FormatError for an index that is not 0 to
    ``total - 1``. (tensorflow-datasets, ``core/naming.py``.)
    """
    if not 0 <= index < total:
        raise FormatError(
            f"{dataset}-{split}: invalid shard index {index} of {count_of(total, 'shard')} (the first is 0)"
        )
    digits = max(_DIGITS, len(str(total)))
    return f"{dataset}-{split}.{file_format}-{index:0{digits}d}-of-{total:0{digits}d}"


def write_metadata(directory: Path, info: DatasetInfo) -> None:
    """Write the two JSON files as new files into the directory ``directory``. Raises FileExistsError if one exists."""
    description_field = {"description": info.description} if info.description else {}
    splits = [
        {
            "filepathTemplate": _TEMPLATE,
            "name": split.name,
            "numBytes": str(split.num_bytes),
            "shardLengths": [str(length) for length in split.shard_lengths],
        }
        for split in info.splits
    ]
    dataset_info = description_field | {
        "fileFormat": info.file_format,
        "name": info.name,
        "splits": splits,
        "version": info.version,
    }
    with flat_bins.create_file(directory / FEATURES) as handle:
        handle.write(encode_features(info.columns))
    with flat_bins.create_file(directory / DATASET_INFO) as handle:
        handle.write(_encode_json(dataset_info, 2))


def encode_features(columns: Iterable[FeatureColumn]) -> bytes:
    """Return the bytes of `features.json` for these columns."""
    features = {column.name: _describe_feature(column) for column in columns}
    # Indent by 4 spaces, as TFDS does in features.json. In dataset_info.json, TFDS indents by 2.
    return _encode_json({"featuresDict": {"features": features}, "pythonClassName": _FEATURES_DICT}, 4)


def _describe_feature(column: FeatureColumn) -> dict[str, Any]:
    # TFDS writes an unknown dimension as -1.
    shape = {"dimensions": [str(-1 if column.length is None else column.length)]}
    return {"pythonClassName": _TENSOR, "tensor": {"dtype": column.dtype, "encoding": "none", "shape": shape}}


def _encode_json(value: Mapping[str, Any], indent: int) -> bytes:
    return json.dumps(value, indent=indent, sort_keys=True).encode()


def read_metadata(directory: Path) -> DatasetInfo:
    """Read the two JSON files of a directory; shards are not read.

    Raises FormatError, naming the file and the field, if a file is missing or not JSON, or if a field is unknown (TFDS
    also refuses it). Also raises it for a type or value that TFDS or this module does not accept, for a different
    template of file names, and for a column that is not a one-dimensional tensor of int32 or int64.
    """
    columns = _read_features(directory / FEATURES)
    path = directory / DATASET_INFO
    with _prefix_errors(path):
        fields = _load(path)
        if unknown := sorted(fields.keys() - _WRITTEN_FIELDS - _OTHER_FIELDS):
            raise FormatError(f"unknown fields {unknown}: TFDS's DatasetInfo message does not have them")
        return DatasetInfo(
            name=_read_text(fields, "name"),
            version=_read_text(fields, "version"),
            file_format=_read_text(fields, "fileFormat", "tfrecord"),
            description=_read_text(fields, "description", ""),
            splits=tuple(_read_split(split) for split in _read_list(fields, "splits")),
            columns=columns,
        )


def _read_split(value: object) -> Split:
    fields = _require_object(value, "a split")
    name = _read_text(fields, "name")
    with _prefix_errors(f"split {name!r}"):
        if unknown := sorted(fields.keys() - _SPLIT_FIELDS):
            raise FormatError(f"unknown fields {unknown}: TFDS's SplitInfo message does not have them")
        if _read_text(fields, "filepathTemplate", _TEMPLATE) != _TEMPLATE:
            raise FormatError(f"filepathTemplate must be {_TEMPLATE}")
        return Split(
            name=name,
            shard_lengths=tuple(
                _parse_integer(length, "a shard length") for length in _read_list(fields, "shardLengths")
            ),
            # A missing number is 0, because proto3 omits zeros.
            num_bytes=_parse_integer(fields.get("numBytes", 0), "numBytes"),
        )


def _read_features(path: Path) -> tuple[FeatureColumn, ...]:
    with _prefix_errors(path):
        fields = _load(path)
        if fields.get("pythonClassName") != _FEATURES_DICT:
            raise FormatError(f"pythonClassName must be {_FEATURES_DICT}")
        features = _require_object(fields.get("featuresDict"), "featuresDict")
        columns = _require_object(features.get("features"), "featuresDict.features")
        return tuple(_read_column(name, value) for name, value in columns.items())


def _read_column(name: str, value: object) -> FeatureColumn:
    with _prefix_errors(f"column {name!r}"):
        fields = _require_object(value, "it")
        if fields.get("pythonClassName") != _TENSOR:
            raise FormatError(f"pythonClassName must be {_TENSOR}")
        tensor = _require_object(fields.get("tensor"), "tensor")
        if _read_text(tensor, "encoding", "none") != "none":
            raise FormatError("encoding must be none")
        dimensions = _read_list(_require_object(tensor.get("shape"), "shape"), "dimensions")
        if len(dimensions) != 1:
            raise FormatError(f"must have one dimension, the row length, not {len(dimensions)}")
        length = _parse_integer(dimensions[0], "a dimension")
        return FeatureColumn(name=name, length=None if length == -1 else length, dtype=_read_text(tensor, "dtype"))


@contextmanager
def _prefix_errors(label: Path | str) -> Iterator[None]:
    """Prefix errors raised inside the block with `label`."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{label}: {error}") from error


def _load(path: Path) -> dict[str, Any]:
    try:
        return _require_object(
            load_untrusted_json(path.read_bytes(), object_pairs_hook=_require_unique_keys), "the file"
        )
    except FileNotFoundError:
        raise FormatError("missing. Write it with write_metadata after the last shard") from None
    except ValueError as error:
        raise FormatError(f"invalid JSON: {error}") from error


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Refuse duplicate names, because protobuf's parser, which TFDS uses, refuses them. Python's parser would keep the
    # last value.
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise FormatError(f"a field occurs twice: found {', '.join(sorted(fields))}")
    return fields


def _require_object(value: object, label: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{label} is {_describe_kind(value)}, expected an object")
    return value


def _read_list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise FormatError(f"{name} is {_describe_kind(value)}, expected a list")
    return value


def _read_text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise FormatError(f"{name} is {_describe_kind(value)}, expected a string")
    return value


def _parse_integer(value: object, label: str) -> int:
    """Parse an int64 of protobuf's JSON: a number, or, as TFDS writes it, a decimal string."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise FormatError(f"{label} is {_describe_kind(value)}, expected a whole number")


def _describe_kind(value: object) -> str:
    return "missing" if value is None else f"{type(value).__name__} {value!r:.60}"
