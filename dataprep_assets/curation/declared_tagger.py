"""The taggers that a `defs.yaml` names: built in, of an installed package, or the user's own."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.curation.asset_tagger import AssetTagger
from dataprep_assets.curation.command_tagger import CommandTagger
from dataprep_assets.curation.function_tagger import FunctionTagger
from dataprep_assets.curation.table import ColumnType
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.tagging import BuiltInTagger, Tagger, named_tagger
from dataprep_assets.engine.yaml.automation import DURATIONS, seconds_of
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError

DAY = "1d"
NAME = r"^[a-z][a-z0-9_]*$"
ColumnName = Annotated[str, Field(pattern=NAME)]


class DeclaredTagger(Declared):
    """A tagger of one's own: a function, a command or an asset."""

    function: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:function` of the project: called with a `pyarrow.Table` of documents, returns column → "
        "values.",
    )
    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Words of a command that reads the Parquet file `{input}` and writes `{output}`, a shard a call.",
    )
    asset: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Key of a Dagster asset whose latest materialization left Parquet files with `file`, `row` and the "
        "columns of every document.",
    )
    columns: dict[ColumnName, ColumnType] = Field(
        min_length=1, description="What it gives: column → `string`, `integer`, `number` or `boolean`."
    )
    name: str | None = Field(
        None,
        pattern=NAME,
        description="Its name; default: the function's, or the last part of the asset's key. A command needs one.",
    )
    version: str | None = Field(
        None,
        description="Tags are built again when it changes; default: for a function the digest of its code. A command "
        "needs one; of an asset its files decide.",
    )
    files: tuple[str, ...] = Field(
        (),
        description="Files that a function or a command reads, relative to this YAML, also as globs; tags are built "
        "again when their contents change.",
    )
    timeout: str | None = Field(
        None, description="How long a command may take for a shard: `90m`, `12h`; default: `1d`. Then it is ended."
    )

    @field_validator("version", mode="before")
    @classmethod
    def _as_text(cls, version: object) -> object:
        """A number as its text: Dagster reads `"1"` as 1."""
        return str(version) if isinstance(version, int | float) and not isinstance(version, bool) else version

    @field_validator("timeout")
    @classmethod
    def _a_duration(cls, timeout: str | None) -> str | None:
        if timeout is not None and not seconds_of(timeout):
            raise ValueError(f"{timeout!r} is not a duration: give {DURATIONS}")
        return timeout

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(one is not None for one in (self.function, self.command, self.asset)) != 1:
            raise ValueError("give exactly one of `function`, `command` and `asset`")
        if self.asset is not None and (self.version is not None or self.files):
            key = "files" if self.version is None else "version"
            raise ValueError(f"`{key}`: tags of an asset are built again when its own files change; leave it out")
        if self.command is None and self.timeout is not None:
            raise ValueError("`timeout` has no effect without a `command`; leave it out")
        if self.command is not None:
            if self.name is None or self.version is None:
                raise ValueError("a command needs a `name` and a `version`: tags are made again when that changes")
            words = " ".join(self.command)
            if "{input}" not in words or "{output}" not in words:
                raise ValueError("its words have to name `{input}` and `{output}`, the files that it reads and writes")
        return self

    def tagger(self, folder: Path) -> Tagger:
        """The tagger; files are relative to this folder, and a command runs in it."""
        # `abspath`, which also leads out of the folder by `..`, because a glob may not be there yet
        files = tuple(os.path.abspath(folder / pattern) for pattern in self.files)
        if self.command is not None:
            assert self.name is not None
            assert self.version is not None
            return CommandTagger(
                name=self.name,
                columns=self.columns,
                command=self.command,
                declared=self.version,
                folder=folder,
                seconds=float(seconds_of(self.timeout or DAY) or 0),
                files=files,
            )
        if self.asset is not None:
            name = self.name or re.sub(r"\W", "_", self.asset[-1]).lower()
            return AssetTagger(name=name, columns=self.columns, key=self.asset)
        assert self.function is not None
        name = self.name or self.function.partition(":")[2].lower()
        return FunctionTagger(
            name=name, columns=self.columns, function=self.function, declared=self.version, files=files
        )


Tag = str | DeclaredTagger


def taggers_of(tag: Iterable[Tag], folder: Path) -> list[Tagger]:
    """The declared taggers, in their order.

    Raises ConfigError for a name that no tagger has, and for columns or names that two have.
    """
    found: list[Tagger] = []
    for one in tag:
        if isinstance(one, str) and ":" in one:
            raise ConfigError(
                f"tag: {one}: a function of your own says which columns it gives: "
                f"`- {{function: {one}, columns: {{quality: number}}}}`"
            )
        tagger = _built_in(one) if isinstance(one, str) else one.tagger(folder)
        for other in found:
            if other.name == tagger.name:
                raise ConfigError(f"tag: {tagger.name!r} is given twice; leave one out, or give it another `name`")
            if both := sorted(other.columns.keys() & tagger.columns.keys()):
                raise ConfigError(f"tag: {other.name} and {tagger.name} both have a column {both[0]!r}; rename one")
        if (tagger.name in TAGGERS and not isinstance(one, str)) or tagger.name == "rows":
            taken = "the file of the carried fields" if tagger.name == "rows" else "a tagger that is built in"
            raise ConfigError(f"tag: {tagger.name!r} is the name of {taken}; give it another `name`")
        found.append(tagger)
    return found


def _built_in(name: str) -> Tagger:
    try:
        return BuiltInTagger(name=name, columns=named_tagger(name).columns)
    except ConfigError as error:
        raise ConfigError(f"tag: {error}") from error
