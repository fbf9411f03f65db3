"""The blend itself: datasets and weights, inline in YAML or in a separate JSON file.

`DataBlend` is the JSON of Nemotron's `data_prep` (`blend.py`). It rejects mistakes that Nemotron accepts: unknown keys,
duplicate keys or datasets, negative or non-numeric weights, empty lists, both modes together. Keys that begin with `_`
are the author's notes: they are kept and shown, and have no effect.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from dataprep_assets.bounds import json_of
from dataprep_assets.engine.yaml.declaration import ATTRIBUTION, Attribution, ReadingDeclaration, resolve_path
from dataprep_assets.engine.yaml.declared_model import PARTITION, Declared
from dataprep_assets.engine.yaml.mistakes import mistakes, of_json
from dataprep_assets.engine.yaml.remark import mistakes_error
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.planning.blend import SPLITS
from dataprep_assets.sources.readers.contents import BOM, no_text
from dataprep_assets.stores.files import expanded

_MARK = "_"
"""First character of keys that are notes, not settings."""
_MOST_BYTES = 8 << 20
_MOST_DATASETS = 10_000
"""Limits of a blend file; the maximum number of datasets takes about a quarter of the bytes."""


def note_lines(notes: Mapping[str, Any]) -> list[str]:
    """Return notes as lines of text; values other than strings are shown as JSON."""
    return [
        f"{key.lstrip(_MARK)}: {note if isinstance(note, str) else json.dumps(note, ensure_ascii=False)}"
        for key, note in notes.items()
    ]


class _Noted(Declared):
    """A part of a blend that may have notes: keys that begin with `_`, written for its readers."""

    notes: dict[str, Any] = Field(
        default_factory=dict, description="Description of the blend; keys that begin with `_` are put here. Only shown."
    )

    @model_validator(mode="before")
    @classmethod
    def _gather_notes(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not any(str(key).startswith(_MARK) for key in value):
            return value
        marked_notes = {key: entry for key, entry in value.items() if str(key).startswith(_MARK)}
        # other types of `notes` are passed on unchanged, so that validation reports them
        notes = value.get("notes", {})
        fields = {key: entry for key, entry in value.items() if key not in marked_notes}
        return {**fields, "notes": {**notes, **marked_notes} if isinstance(notes, dict) else notes}


class BlendDataset(ReadingDeclaration, _Noted, Attribution):
    """One dataset of a blend."""

    name: str = Field(pattern=PARTITION, description="Its name in partitions, tables and files.")
    path: str = Field(
        min_length=1,
        description="`hf://organization/name[@revision]`, `s3://…`, `gs://…`, `asset://key/of/an/asset` of Dagster, a "
        "file, a folder, or a glob.",
    )
    weight: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Relative share of the blend; for RL, how often its records are read relative to the others. 0 "
        "excludes it.",
    )
    split: str | None = Field(
        None,
        min_length=1,
        description="Only files whose path has this as a whole part or, if there are none, as the beginning of a part.",
    )
    subset: str | None = Field(None, min_length=1, description="Like `split`, and applied before it.")
    text_field: str = Field(
        "text", description="Pretraining: key or column of the text. A dot selects a key of an object (`data.text`)."
    )
    messages_field: str | None = Field(None, description="SFT: key of the messages, overrides the stage's.")
    tools_field: str | None = Field(None, description="SFT: key of the tools, overrides the stage's.")
    category: str | None = Field(None, description="The part of the mixture that it belongs to. Only shown.")

    @field_validator("path")
    @classmethod
    def _is_possible(cls, path: str) -> str:
        # checked here, because the model's errors have the key and the line
        try:
            expanded(path)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return path

    @property
    def unattributed(self) -> Self:
        """A copy without keys that change no bytes, so that datasets that read the same data compare equal."""
        return self.model_copy(update={**dict.fromkeys(SAID), "notes": {}})


SAID = ATTRIBUTION | {"category", "notes"}
"""Keys of a dataset that change no bytes, so plans and keys do not contain them."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A dataset in its place in a blend. `name` is the dataset's, with the split's in per-split mode: `code__valid`."""

    name: str
    dataset: BlendDataset
    split: str | None

    @property
    def home(self) -> str:
        """The split that its shards belong to, unless shards are held out."""
        return self.split or "train"


class DataBlend(_Noted):
    """Either `datasets`, or one or more of `train`, `valid` and `test`."""

    datasets: tuple[BlendDataset, ...] | None = Field(None, description="All datasets of a blend without splits.")
    train: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the training split.")
    valid: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the validation split.")
    test: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the test split.")

    @model_validator(mode="after")
    def _one_mode(self) -> Self:
        lists = {name: value for name in ("datasets", *SPLITS) if (value := getattr(self, name)) is not None}
        if not lists:
            raise ValueError("`datasets`, or one or more of `train`, `valid`, `test`, is required")
        if "datasets" in lists and len(lists) > 1:
            raise ValueError(
                f"`datasets` cannot be combined with {', '.join(sorted({*lists} - {'datasets'}))}. Use one of them"
            )
        for key, members in lists.items():
            if not members:
                raise ValueError(f"`{key}` is empty. Add datasets, or remove `{key}`")
            names = [member.name for member in members]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"`{key}` lists {', '.join(twice)} twice, so their shards would overwrite each other")
            if not any(member.weight for member in members):
                raise ValueError(f"`{key}`: every weight is 0, so nothing would be read")
        return self

    @classmethod
    def load(cls, path: Path) -> "DataBlend":
        """Load a blend from a JSON file, with local paths relative to its folder; raise ConfigError for an invalid
        file."""
        try:
            # checked first, because a large data file named by mistake would be parsed into memory
            if (size := path.stat().st_size) > _MOST_BYTES:
                raise ConfigError(
                    f"blend: {path}: not a blend file: {count_of(size, 'byte')}, but a list of datasets has at most "
                    f"{_MOST_BYTES:,}"
                )
            if (kind := no_text(path)) is not None:
                raise ConfigError(f"blend: {path}: not a blend file: {kind}")
            text = path.read_bytes().removeprefix(BOM).decode()
            value = json_of(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        except OSError as error:
            raise ConfigError(f"blend: {path}: cannot be read: {error.strerror or error}") from error
        except json.JSONDecodeError as error:
            why = f"{error.msg[:1].lower()}{error.msg[1:]}, at column {error.colno}"
            raise ConfigError(f"blend: {path}:{error.lineno}: not a blend file: {why}") from error
        # the file is not UTF-8, repeats a key, has NaN or is nested too deeply; JSONDecodeError is also a ValueError
        except ValueError as error:
            raise ConfigError(f"blend: {path}: not a blend file: {error}") from error
        many = max((len(v) for v in value.values() if isinstance(v, list)), default=0) if isinstance(value, dict) else 0
        if many > _MOST_DATASETS:  # limited, because each invalid dataset would be reported
            raise ConfigError(
                f"blend: {path}: not a blend file: a list of {many:,} datasets, but at most {_MOST_DATASETS:,} are "
                "allowed"
            )
        try:
            return cls.model_validate(value).located(path.parent)
        except ValidationError as error:
            raise mistakes_error(mistakes(error, cls, of_json(path, text, value))) from error

    @property
    def per_split(self) -> bool:
        """Whether the blend lists its splits explicitly."""
        return self.datasets is None

    def units(self) -> list[Unit]:
        """Return the datasets with a positive weight in declared order, each with its place in the blend."""
        if self.datasets is not None:
            units = [Unit(name=d.name, dataset=d, split=None) for d in self.datasets]
        else:
            # a dataset may be in the lists of several splits, and its shards need different names
            units = [
                Unit(name=f"{d.name}__{split}", dataset=d, split=split)
                for split in SPLITS
                for d in getattr(self, split) or ()
            ]
        return [unit for unit in units if unit.dataset.weight > 0]

    def located(self, folder: Path) -> Self:
        """Return a copy of this blend with relative local paths resolved against `folder`."""
        changes = {
            key: tuple(_located(d, folder) for d in members)
            for key in ("datasets", *SPLITS)
            if (members := getattr(self, key)) is not None
        }
        return self.model_copy(update=changes)


def _located(dataset: BlendDataset, folder: Path) -> BlendDataset:
    if "://" in dataset.path:
        return dataset
    return dataset.model_copy(update={"path": str(resolve_path(Path(dataset.path), folder))})


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        # json silently keeps the last of two equal keys, so one of two weights would be ignored
        if key in mapping:
            raise ValueError(f"the key {key!r} occurs twice")
        mapping[key] = value
    return mapping


def _no_constant(name: str) -> float:
    # Python's parser accepts NaN and Infinity, which JSON does not allow
    raise ValueError(f"{name} is not a JSON number")
