"""Contract of a task: the files of its folder and the schema of their rows.

Contracts are data, with one YAML file per task in `contracts/`. A few lines are enough for the migration and the checks
of a new task. A declaration may also contain contracts. A contract with `like: Copa` starts from a shipped contract and
overrides some of its keys. Source: docs/formats/task-folders.md.

Entry points: `TaskContract`, `load_shipped_contracts`, `parse_contract`.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import Field, StrictBool, StrictInt, StrictStr, ValidationError, field_validator, model_validator
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Scalar = StrictBool | StrictInt | StrictStr
_FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
_FOLDER = Path(__file__).parent / "contracts"


class FileSpec(DeclarationModel):
    """The file of one split: its name, and whether the trainer requires it."""

    name: str = Field(pattern=_FILE_NAME, description="Exact file name (case-sensitive).")
    required: bool = Field(True, description="Whether the trainer requires the file.")
    rows: tuple[int, ...] = Field((), description="Allowed row counts. Empty: any.")

    @field_validator("rows", mode="before")
    @classmethod
    def _convert_to_list(cls, rows: Any) -> Any:
        return (rows,) if isinstance(rows, int) else rows


class KeySpec(DeclarationModel):
    """Type and allowed values of a row's key. The YAML may contain only the type: `premise: string`."""

    type: Literal["string", "integer", "boolean", "strings", "object"]
    one_of: tuple[Scalar, ...] = Field((), description="Allowed values. Empty: any value of the type.")
    keys: dict[str, "KeySpec"] = Field({}, description="Exact keys of the object, only for `object`.")

    @model_validator(mode="before")
    @classmethod
    def _expand_bare_type(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _require_keys_of_objects(self) -> "KeySpec":
        if (self.type == "object") != bool(self.keys):
            raise ValueError("`keys` are required for type `object`, and not allowed for others")
        return self


class ChoiceGroup(DeclarationModel):
    """The choices of a question: parallel lists of texts and labels, and the key of the correct label."""

    texts: str = Field(description="Path of the list of texts, e.g., `choices.text`.")
    labels: str = Field(description="Path of the list of labels, e.g., `choices.label`.")
    answer: str = Field(description="Key of the correct label.")
    least: int = Field(2, ge=1, description="Minimum number of choices.")
    most: int = Field(26, ge=1, description="Maximum number of choices.")


class TaskContract(DeclarationModel):
    """The contract of a task: its files, rows and keys (see the module)."""

    folder: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", description="Name of the task's folder.")
    files: dict[Split, FileSpec] = Field(description="The file of each split.")
    keys: dict[str, KeySpec] = Field(min_length=1, description="The keys of a row.")
    extra_keys: Literal["allowed", "warned", "refused"] = Field(
        "warned",
        description="Other keys in rows: `allowed` ignores them, `warned` lists them, `refused` blocks.",
    )
    id: str | None = Field(None, description="Key that identifies a row in a file. Default: the row's position.")
    label: str = Field(description="Key of the label or answer.")
    labels: dict[Split, tuple[Scalar, ...]] = Field({}, description="Labels allowed in each split.")
    text: tuple[str, ...] = Field(min_length=1, description="Paths that together give a row's text.")
    choices: ChoiceGroup | None = None

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of the task, in the order train, validation, test."""
        return tuple(s for s in SPLITS if s in self.files)

    @model_validator(mode="after")
    def _require_consistency(self) -> "TaskContract":
        for split in ("train", "validation"):
            if split not in self.files:
                raise ValueError(
                    f"files: {split} is missing. Declare it, because the trainer reads train and validation"
                )
        if len({f.name for f in self.files.values()}) < len(self.files):
            raise ValueError("files: two splits have the same file name. Use different names")
        for name, key in (("id", self.id), ("label", self.label)):
            if key is not None and key not in self.keys:
                raise ValueError(f"{name}: unknown key {key!r}. Available: {', '.join(sorted(self.keys))}")
        if self.labels and set(self.labels) != set(self.files):
            raise ValueError(f"labels: must be set for all of {', '.join(self.splits)}, or not at all")
        group = (self.choices.texts, self.choices.labels, self.choices.answer) if self.choices else ()
        for path in (*self.text, *group):
            if not self._has_key(path):
                raise ValueError(f"unknown key {path!r}. Available: {', '.join(sorted(self.keys))}")
        return self

    def build_row_validator(self, split: Split) -> SchemaValidator:
        """Return the validator of the split's rows."""
        labels = {"one_of": self.labels.get(split, ())}
        keys = self.keys | {self.label: self.keys[self.label].model_copy(update=labels)} if self.labels else self.keys
        return SchemaValidator(_build_object_schema(keys, self))

    def _has_key(self, path: str) -> bool:
        keys = self.keys
        for part in path.split("."):
            if part not in keys:
                return False
            keys = keys[part].keys
        return True


def _build_object_schema(keys: Mapping[str, KeySpec], contract: TaskContract, parent_path: str = "") -> CoreSchema:
    fields = {
        key: core_schema.typed_dict_field(_build_key_schema(spec, contract, parent_path + key))
        for key, spec in keys.items()
    }
    extra: Literal["ignore", "forbid"] = "ignore" if contract.extra_keys == "allowed" else "forbid"
    return core_schema.typed_dict_schema(fields, extra_behavior=extra, strict=True)


def _build_key_schema(spec: KeySpec, contract: TaskContract, path: str) -> CoreSchema:
    if spec.type == "object":
        return _build_object_schema(spec.keys, contract, f"{path}.")
    is_text = path in contract.text
    text = core_schema.str_schema(strict=True, strip_whitespace=is_text, min_length=1 if is_text else 0)
    types: dict[str, CoreSchema] = {
        "string": text,
        "strings": core_schema.list_schema(text, strict=True),
        "integer": core_schema.int_schema(strict=True),
        "boolean": core_schema.bool_schema(strict=True),
    }
    if not spec.one_of:
        return types[spec.type]
    # Check the type first, because a literal schema accepts `true` for 1.
    return core_schema.chain_schema([types[spec.type], core_schema.literal_schema(list(spec.one_of))])


@lru_cache(maxsize=1)
def load_shipped_contracts() -> Mapping[str, TaskContract]:
    """Return the contracts that the package includes, by folder name, sorted by name."""
    return {name: parse_contract(value, f"contracts/{name}.yaml") for name, value in _load_shipped_values().items()}


@lru_cache(maxsize=1)
def _load_shipped_values() -> Mapping[str, Mapping[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_bytes()) for path in sorted(_FOLDER.glob("*.yaml"))}


def parse_contract(value: Any, location: str) -> TaskContract:
    """Parse the YAML value of a contract, which may start from a shipped contract (`like: Copa`).

    Raises ConfigError with `location`, the key, the value and the allowed values.
    """
    if isinstance(value, Mapping) and "like" in value:
        if value["like"] not in _load_shipped_values():
            names = ", ".join(_load_shipped_values())
            raise ConfigError(f"{location}: like: unknown contract {value['like']!r}. Available: {names}")
        value = _merge_mappings(_load_shipped_values()[value["like"]], {k: v for k, v in value.items() if k != "like"})
    try:
        return TaskContract.model_validate(value)
    except ValidationError as error:
        lines = [
            f"{location}: {'.'.join(str(part) for part in fault['loc'])}: {fault['msg']} (got {fault['input']!r:.120})"
            for fault in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from error


def _merge_mappings(lower_values: Mapping[str, Any], upper_values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `upper_values` over `lower_values`: mappings key by key, other values as a whole."""
    mapping = dict(lower_values)
    for key, value in upper_values.items():
        old = mapping.get(key)
        mapping[key] = _merge_mappings(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return mapping
