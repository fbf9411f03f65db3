"""The contract of a task: the files of its folder, the form of a row, and what the trainer's loader does with it.

Contracts are data: one YAML file per task in `contracts/`, so that a new task needs a few lines to get its migration
and its checks. A declaration may add contracts of its own; one with `like: Copa` starts from a shipped contract and
changes what it names.

The shipped contracts follow the loaders of Rongite/Synthetic_Data_for_ZO, `PromptZO/MeZO/large_models/tasks.py`, and
the data that they read (docs/formats/task-folders.md#files, docs/formats/task-folders.md#loader). The loader takes the
task from the last component of the path, in lower case.

Entry points: `TaskContract`, `shipped_contracts`, `contract_from`.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.declared import Declared

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Scalar = StrictBool | StrictInt | StrictStr
_FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
_FOLDER = Path(__file__).parent / "contracts"


class FileSpec(Declared):
    """One split's file."""

    name: str = Field(pattern=_FILE_NAME, description="Exact name; the loader's file system distinguishes case.")
    required: bool = Field(True, description="Whether the loader needs it.")
    rows: tuple[int, ...] = Field((), description="Row counts of the reference; any of them is right. Empty: unknown.")

    @field_validator("rows", mode="before")
    @classmethod
    def _one_or_many(cls, rows: Any) -> Any:
        return (rows,) if isinstance(rows, int) else rows


class KeySpec(Declared):
    """What a key of a row holds. The YAML may give the bare type: `premise: string`."""

    type: Literal["string", "integer", "boolean", "strings", "object"]
    one_of: tuple[Scalar, ...] = Field((), description="All values that are allowed; empty: any of the type.")
    keys: dict[str, "KeySpec"] = Field({}, description="With `object`: its exact keys.")

    @model_validator(mode="before")
    @classmethod
    def _bare_type(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _keys_of_objects(self) -> "KeySpec":
        if (self.type == "object") != bool(self.keys):
            raise ValueError("`keys` belong to type `object`, which needs them")
        return self


class ChoiceGroup(Declared):
    """Two parallel lists, the texts and the labels of a question's choices, and the key that names the right label."""

    texts: str = Field(description="Path of the list of texts, for example `choices.text`.")
    labels: str = Field(description="Path of the list of labels, for example `choices.label`.")
    answer: str = Field(description="Key that holds the right label.")
    least: int = Field(2, ge=1, description="Fewest choices.")
    most: int = Field(26, ge=1, description="Most choices.")


class ChoiceNumberAnswer(Declared):
    """The right text is under `<prefix><label + 1>`; a label that names no such key counts as a missing key."""

    rule: Literal["choice_number"]
    prefix: str


class TruthAnswer(Declared):
    """The label's Python truth value: any string that is not empty, `"False"` too, is true."""

    rule: Literal["truth"]


class ClassNumberAnswer(Declared):
    """A class number, or a class name in any case; rows with another label are dropped."""

    rule: Literal["class_number"]
    names: dict[str, int]


class MemberAnswer(Declared):
    """The label is one of some values; rows with another label, or none, are dropped."""

    rule: Literal["member"]
    values: tuple[Scalar, ...]


class IntegerAnswer(Declared):
    """The label goes through Python's `int`, which takes `"1"` and refuses `"positive"`."""

    rule: Literal["integer"]


class ChoiceTextAnswer(Declared):
    """The text beside the label that the answer names; an answer that is not a label stops the load."""

    rule: Literal["choice_text"]


class ChoiceLabelAnswer(Declared):
    """The answer as it is; one that is not a label is accepted."""

    rule: Literal["choice_label"]


AnswerRule = Annotated[
    ChoiceNumberAnswer
    | TruthAnswer
    | ClassNumberAnswer
    | MemberAnswer
    | IntegerAnswer
    | ChoiceTextAnswer
    | ChoiceLabelAnswer,
    Field(discriminator="rule"),
]


class LoaderRules(Declared):
    """What the trainer's loader of this task does, so that the silent part of it can be reported."""

    missing_file: Literal["stops", "no_samples"] = Field(description="A train or validation file that is not there.")
    missing_message: str = Field("", description="What the loader says of it, for people who search for the message.")
    blank_line: Literal["skipped", "stops"]
    bad_line: Literal["skipped", "stops"] = Field(description="A line that is not JSON.")
    missing_key: Literal["dropped", "empty_sample", "stops"] = Field(
        description="A row without a key that is read; `empty_sample` stays in the list and fails in training."
    )
    empty_train: Literal["accepted", "stops"]
    reads: tuple[str, ...] = Field((), description="Keys read while loading, besides the label or answer.")
    formatted: tuple[str, ...] = Field(
        (), description="Texts that the trainer puts into a prompt in whatever type they are: a number is its digits."
    )
    answer: AnswerRule


class TaskContract(Declared):
    """One task; see the module."""

    folder: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", description="Name of the task's folder.")
    files: dict[Split, FileSpec] = Field(description="The file of each split.")
    keys: dict[str, KeySpec] = Field(min_length=1, description="The keys of a row.")
    extra_keys: Literal["allowed", "warned", "refused"] = Field(
        "warned",
        description="Other keys of rows: `allowed` says nothing of them, `warned` names them, `refused` blocks.",
    )
    id: str | None = Field(None, description="Key that identifies a row in a file; none: its place does.")
    label: str = Field(description="Key of the label or answer.")
    labels: dict[Split, tuple[Scalar, ...]] = Field({}, description="Labels allowed in each split.")
    text: tuple[str, ...] = Field(min_length=1, description="Paths that together are a row's text.")
    choices: ChoiceGroup | None = None
    loader: LoaderRules

    @property
    def task(self) -> str:
        """The loader's name of the task: the folder's name in lower case."""
        return self.folder.lower()

    def file(self, split: Split) -> FileSpec:
        """The file of a split; raises KeyError if the contract does not have that split."""
        return self.files[split]

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that the task has, in the order train, validation, test."""
        return tuple(s for s in SPLITS if s in self.files)

    @property
    def prompted(self) -> tuple[str, ...]:
        """Paths of everything in a prompt: texts, and keys whose value selects its words."""
        return tuple(dict.fromkeys([*self.text, *self.loader.formatted, *(path for path, _ in domains(self.keys))]))

    @model_validator(mode="after")
    def _consistent(self) -> "TaskContract":
        for split in ("train", "validation"):
            if split not in self.files:
                raise ValueError(f"files: {split} is missing; the loader reads train and validation")
        if len({f.name for f in self.files.values()}) < len(self.files):
            raise ValueError("files: two splits have the same file name")
        for what, key in (("id", self.id), ("label", self.label)):
            if key is not None and key not in self.keys:
                raise ValueError(f"{what}: {key!r} is none of the keys {sorted(self.keys)}")
        if self.labels and set(self.labels) != set(self.files):
            raise ValueError(f"labels: give them for {list(self.splits)}, or not at all")
        group = (self.choices.texts, self.choices.labels, self.choices.answer) if self.choices else ()
        for path in (*self.text, *self.loader.reads, *self.loader.formatted, *group):
            if not self._has(path):
                raise ValueError(f"{path!r} is none of the keys {sorted(self.keys)}")
        if self.loader.answer.rule in ("choice_text", "choice_label") and self.choices is None:
            raise ValueError(f"loader.answer: {self.loader.answer.rule} needs `choices`")
        return self

    def _has(self, path: str) -> bool:
        keys = self.keys
        for part in path.split("."):
            if part not in keys:
                return False
            keys = keys[part].keys
        return True


def domains(keys: Mapping[str, KeySpec], above: str = "") -> Iterator[tuple[str, KeySpec]]:
    """Path and specification of every key with a fixed set of values."""
    for name, spec in keys.items():
        if spec.one_of:
            yield above + name, spec
        yield from domains(spec.keys, f"{above}{name}.")


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """The value under a dotted path of keys; None when there is none."""
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


@lru_cache(maxsize=1)
def shipped_contracts() -> Mapping[str, TaskContract]:
    """The contracts that come with the package, by folder name, in name order.

    Raises ConfigError if a contract does not have the name of its file.
    """
    found = {path.stem: contract_from(yaml.safe_load(path.read_bytes()), str(path.name)) for path in _shipped()}
    for name, contract in found.items():
        if contract.folder != name:
            raise ConfigError(f"contracts/{name}.yaml: folder: {contract.folder!r}: must be {name!r}, as the file")
    return found


def _shipped() -> list[Path]:
    return sorted(_FOLDER.glob("*.yaml"))


def contract_from(value: Any, where: str) -> TaskContract:
    """A contract from its YAML value, which may start from a shipped one (`like: Copa`).

    Raises ConfigError naming `where`, the key, the value and what is allowed.
    """
    if isinstance(value, Mapping) and "like" in value:
        value = _merged(_shipped_value(value["like"], where), {k: v for k, v in value.items() if k != "like"})
    try:
        return TaskContract.model_validate(value)
    except ValidationError as error:
        lines = [
            f"{where}: {'.'.join(str(part) for part in fault['loc'])}: {fault['msg']} (got {fault['input']!r:.120})"
            for fault in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from error


def _shipped_value(name: Any, where: str) -> Mapping[str, Any]:
    values = {path.stem: path for path in _shipped()}
    if name not in values:
        raise ConfigError(f"{where}: like: {name!r}: there is no such contract, only {', '.join(values)}")
    value: Mapping[str, Any] = yaml.safe_load(values[name].read_bytes())
    return value


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `above` over `below`: mappings key by key, other values as a whole."""
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        made[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made
