"""The blend itself: datasets and weights, inline in YAML or in a separate JSON file.

`DataBlend` has the JSON format of Nemotron's `data_prep` (`blend.py`). It rejects mistakes that Nemotron accepts:
unknown keys, duplicate keys or datasets, negative or non-numeric weights, empty lists, and `datasets` together with
lists per split. Keys that begin with `_` are the author's notes: they are kept and shown, and have no effect.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.engine.yaml.declaration import ATTRIBUTION, Attribution, ReadingDeclaration, resolve_path
from dataprep_assets.engine.yaml.declaration_model import PARTITION, DeclarationModel
from dataprep_assets.engine.yaml.mistakes import describe_mistakes, wrap_json
from dataprep_assets.engine.yaml.remark import build_mistakes_error
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.planning.blend import SPLITS
from dataprep_assets.sources.readers.contents import BOM, detect_non_text
from dataprep_assets.stores.files import expand_path
from dataprep_assets.tokenization.chat.row_forms import Format

_MARK = "_"
"""First character of keys that are notes, not settings."""
_MAX_BYTES = 8 << 20
_MAX_DATASETS = 10_000
"""Limits of a blend file. A file with the maximum number of datasets has about a quarter of the maximum bytes."""


def format_notes(notes: Mapping[str, Any]) -> list[str]:
    """Return a line of text for each note; values other than strings are formatted as JSON."""
    return [
        f"{key.lstrip(_MARK)}: {note if isinstance(note, str) else json.dumps(note, ensure_ascii=False)}"
        for key, note in notes.items()
    ]


class _AnnotatedPart(DeclarationModel):
    """A part of a blend that may have notes: keys that begin with `_`, written for its readers."""

    notes: dict[str, Any] = Field(
        default_factory=dict,
        description="Notes for readers, which dataprep only displays. Keys that begin with `_` are added to them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gather_notes(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not any(str(key).startswith(_MARK) for key in value):
            return value
        marked_notes = {key: entry for key, entry in value.items() if str(key).startswith(_MARK)}
        # Pass on `notes` unchanged if they are not a mapping, so that validation reports them.
        notes = value.get("notes", {})
        fields = {key: entry for key, entry in value.items() if key not in marked_notes}
        return {**fields, "notes": {**notes, **marked_notes} if isinstance(notes, dict) else notes}


class BlendDataset(ReadingDeclaration, _AnnotatedPart, Attribution):
    """One dataset of a blend."""

    name: str = Field(pattern=PARTITION, description="Name of the dataset in partitions, tables and files.")
    path: str = Field(
        min_length=1,
        description=(
            "Location of the data: a file, folder or glob, `hf://organization/name[@revision]`, `s3://…`, "
            "`gs://…`, or the key of a Dagster asset as `asset://key/of/an/asset`."
        ),
    )
    weight: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description=(
            "Weight of the dataset relative to the others. For `rl`, it sets how often the records are read. 0 "
            "leaves the dataset out."
        ),
    )
    split: str | None = Field(
        None,
        min_length=1,
        description=(
            "Reads only files whose path has a part with this name (`data/train/a.jsonl`) or, if there are none, a "
            "part that begins with it (`train-0.jsonl`). Default: all files."
        ),
    )
    subset: str | None = Field(
        None,
        min_length=1,
        description="Selects files in the same way as `split`, and is applied first. Default: all files.",
    )
    text_field: str = Field(
        "text",
        description=(
            "JSON key or table column with the text, only for `pretrain`. A dot selects a nested key (`data.text`)."
        ),
    )
    messages_field: str | None = Field(
        None, description="Key of the messages, only for `sft` and `pairs`. Default: `messages_field` of the stage."
    )
    tools_field: str | None = Field(
        None, description="Key of the tools, only for `sft` and `pairs`. Default: `tools_field` of the stage."
    )
    format: Format | None = Field(
        None, description="Form of the rows, only for `sft` and `pairs`. Default: `format` of the stage."
    )
    category: str | None = Field(
        None, description="Category of the dataset, such as `code`, which is only displayed. Default: none."
    )

    @field_validator("path")
    @classmethod
    def _validate_path(cls, path: str) -> str:
        # Check the path in a validator, because errors of validators are reported with the key and the line.
        try:
            expand_path(path)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return path

    @property
    def unattributed(self) -> Self:
        """A copy without descriptive keys, so that datasets that read the same data compare equal."""
        return self.model_copy(update={**dict.fromkeys(DESCRIPTIVE_FIELDS), "notes": {}})


DESCRIPTIVE_FIELDS = ATTRIBUTION | {"category", "notes"}
"""Keys of a dataset that do not change the output. Plans and artifact keys therefore do not contain them."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A dataset of a blend, and its split. If the blend has lists per split, `name` includes it: `code__valid`."""

    name: str
    dataset: BlendDataset
    split: str | None

    @property
    def home(self) -> str:
        """The split to which the dataset's shards belong, unless shards are held out."""
        return self.split or "train"


class DataBlend(_AnnotatedPart):
    """The datasets of a blend. Set either `datasets`, or one or more of `train`, `valid` and `test`."""

    datasets: tuple[BlendDataset, ...] | None = Field(
        None, description="Datasets of a blend that does not list its splits."
    )
    train: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the training split.")
    valid: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the validation split.")
    test: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the test split.")

    @model_validator(mode="after")
    def _require_one_mode(self) -> Self:
        lists = {name: value for name in ("datasets", *SPLITS) if (value := getattr(self, name)) is not None}
        if not lists:
            raise ValueError("`datasets`, or at least one of `train`, `valid` and `test`, is required")
        if "datasets" in lists and len(lists) > 1:
            raise ValueError(
                f"`datasets` cannot be combined with {', '.join(sorted({*lists} - {'datasets'}))}. Remove `datasets`, "
                "or the others"
            )
        for key, members in lists.items():
            if not members:
                raise ValueError(f"`{key}` is empty. Add datasets, or remove `{key}`")
            names = [member.name for member in members]
            if repeated_names := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(
                    f"`{key}` lists {', '.join(repeated_names)} twice. Remove one, or set a different `name`"
                )
            if not any(member.weight for member in members):
                raise ValueError(f"`{key}`: every weight is 0. Set at least one positive weight")
        return self

    @classmethod
    def load(cls, path: Path) -> "DataBlend":
        """Load a blend from a JSON file, with local paths relative to its folder.

        Raises ConfigError for an invalid file.
        """
        try:
            # Check the size first, so that a large data file given by mistake is not loaded into memory.
            if (size := path.stat().st_size) > _MAX_BYTES:
                raise ConfigError(
                    f"blend: {path}: not a blend file: has {count_of(size, 'byte')}, but at most {_MAX_BYTES:,} are "
                    "allowed. Correct the path"
                )
            if (kind := detect_non_text(path)) is not None:
                raise ConfigError(f"blend: {path}: not a blend file: {kind}")
            text = path.read_bytes().removeprefix(BOM).decode()
            value = load_untrusted_json(text, object_pairs_hook=_require_unique_keys, parse_constant=_refuse_constant)
        except OSError as error:
            raise ConfigError(f"blend: {path}: cannot be read: {error.strerror or error}. Correct the path") from error
        except json.JSONDecodeError as error:
            reason = f"{error.msg[:1].lower()}{error.msg[1:]}, at column {error.colno}"
            raise ConfigError(f"blend: {path}:{error.lineno}: not a blend file: {reason}. Correct the JSON") from error
        # JSONDecodeError is caught above. There is a different ValueError, for example, if the file is not UTF-8,
        # repeats a key, contains NaN or infinity, or is nested too deeply.
        except ValueError as error:
            raise ConfigError(f"blend: {path}: not a blend file: {error}") from error
        longest = (
            max((len(v) for v in value.values() if isinstance(v, list)), default=0) if isinstance(value, dict) else 0
        )
        # Limit the number of datasets, because the error message lists every invalid one.
        if longest > _MAX_DATASETS:
            raise ConfigError(
                f"blend: {path}: not a blend file: lists {longest:,} datasets, but at most {_MAX_DATASETS:,} are "
                "allowed. Divide the blend"
            )
        try:
            return cls.model_validate(value).resolve_paths(path.parent)
        except ValidationError as error:
            raise build_mistakes_error(describe_mistakes(error, cls, wrap_json(path, text, value))) from error

    @property
    def has_split_lists(self) -> bool:
        """Whether the blend lists its splits explicitly."""
        return self.datasets is None

    @property
    def dataset_names(self) -> set[str]:
        """The names of all datasets."""
        members = (getattr(self, key) for key in ("datasets", *SPLITS))
        return {dataset.name for datasets in members for dataset in datasets or ()}

    def list_units(self) -> list[Unit]:
        """Return the datasets with a positive weight in declared order, each with its split."""
        if self.datasets is not None:
            units = [Unit(name=d.name, dataset=d, split=None) for d in self.datasets]
        else:
            # Add the split to the name, because a dataset may be in the lists of several splits, whose shards need
            # different names.
            units = [
                Unit(name=f"{d.name}__{split}", dataset=d, split=split)
                for split in SPLITS
                for d in getattr(self, split) or ()
            ]
        return [unit for unit in units if unit.dataset.weight > 0]

    def resolve_paths(self, folder: Path) -> Self:
        """Return a copy of this blend with relative local paths resolved against `folder`."""
        changes = {
            key: tuple(_resolve_paths(d, folder) for d in members)
            for key in ("datasets", *SPLITS)
            if (members := getattr(self, key)) is not None
        }
        return self.model_copy(update=changes)


def _resolve_paths(dataset: BlendDataset, folder: Path) -> BlendDataset:
    if "://" in dataset.path:
        return dataset
    return dataset.model_copy(update={"path": str(resolve_path(Path(dataset.path), folder))})


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        # Refuse repeated keys, because json silently keeps only the last of two equal keys, so that one of two weights,
        # for example, would be ignored.
        if key in mapping:
            raise ValueError(f"the key {key!r} occurs twice. Remove one")
        mapping[key] = value
    return mapping


def _refuse_constant(name: str) -> float:
    # Python's parser accepts NaN and Infinity, which JSON does not allow.
    raise ValueError(f"{name} is not a valid JSON number")
