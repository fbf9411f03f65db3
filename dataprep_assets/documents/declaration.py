"""What a `defs.yaml` says about documents: what is looked at, which are kept, and how much may go.

The field descriptions are the YAML reference. Columns and types are known from the declaration alone, so a rule is
checked before anything runs.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from dataprep_assets.documents.asset_tagger import AssetTagger
from dataprep_assets.documents.rules import Rule, parse
from dataprep_assets.documents.selection import RESERVED
from dataprep_assets.documents.table import ColumnType
from dataprep_assets.documents.taggers import TAGGERS
from dataprep_assets.documents.tagging import (
    BuiltInTagger,
    CommandTagger,
    FunctionTagger,
    Tagger,
    named_tagger,
)
from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.declared import Declared

_NAME = r"^[a-z][a-z0-9_]*$"
RuleName = Annotated[str, Field(pattern=_NAME)]


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
    columns: dict[RuleName, ColumnType] = Field(
        min_length=1, description="What it gives: column → `string`, `integer`, `number` or `boolean`."
    )
    name: str | None = Field(
        None,
        pattern=_NAME,
        description="Its name; default: the function's, or the last part of the asset's key. A command needs one.",
    )
    version: str | None = Field(
        None,
        description="Tags are made again when it changes; default: for a function the content of its module's file. "
        "A command needs one; of an asset its files decide.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(one is not None for one in (self.function, self.command, self.asset)) != 1:
            raise ValueError("give exactly one of `function`, `command` and `asset`")
        if self.asset is not None and self.version is not None:
            raise ValueError("`version`: tags of an asset are made again when its files change")
        if self.command is not None:
            if self.name is None or self.version is None:
                raise ValueError("a command needs a `name` and a `version`: tags are made again when that changes")
            words = " ".join(self.command)
            if "{input}" not in words or "{output}" not in words:
                raise ValueError("its words have to name `{input}` and `{output}`, the files that it reads and writes")
        return self

    def tagger(self, folder: Path) -> Tagger:
        """The tagger; a command runs in this folder."""
        if self.command is not None:
            assert self.name is not None
            assert self.version is not None
            return CommandTagger(
                name=self.name, columns=self.columns, command=self.command, declared=self.version, folder=folder
            )
        if self.asset is not None:
            name = self.name or re.sub(r"\W", "_", self.asset[-1]).lower()
            return AssetTagger(name=name, columns=self.columns, key=self.asset)
        assert self.function is not None
        name = self.name or self.function.partition(":")[2].lower()
        return FunctionTagger(name=name, columns=self.columns, function=self.function, declared=self.version)


class BudgetDeclaration(Declared):
    """How much rules may drop: more than that is a blocking check, before anything is tokenized."""

    per_source: float | None = Field(
        None, ge=0, le=1, description="Largest share of the documents, and of the bytes, of a source that rules drop."
    )
    per_rule: dict[RuleName, float] = Field(
        default_factory=dict, description="Rule → the largest share of all documents, and of all bytes, that it drops."
    )


class FloorDeclaration(Declared):
    """The least that a tagger has to find of cases of which the truth is known: less is a blocking check."""

    recall: float = Field(0.9, ge=0, le=1, description="Least share of the planted cases that it finds, of each kind.")
    precision: float = Field(
        0.9, ge=0, le=1, description="Least share of cases among what it finds in them and in the hard negatives."
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
        tagger = (
            BuiltInTagger(name=one, columns=named_tagger(one).columns) if isinstance(one, str) else one.tagger(folder)
        )
        for other in found:
            if other.name == tagger.name:
                raise ConfigError(f"tag: {tagger.name!r} is given twice; leave one out, or give it another `name`")
            if both := sorted(other.columns.keys() & tagger.columns.keys()):
                raise ConfigError(f"tag: {other.name} and {tagger.name} both have a column {both[0]!r}; rename one")
        if tagger.name in TAGGERS and not isinstance(one, str):
            raise ConfigError(f"tag: {tagger.name!r} is the name of a tagger that is built in; give it another `name`")
        found.append(tagger)
    return found


def rules_of(
    keep: Mapping[str, str], drop: Mapping[str, str], columns: Mapping[str, ColumnType]
) -> dict[str, tuple[bool, Rule]]:
    """Name of each rule → whether it names what is kept, and its expression; in the order in which they are asked.

    Raises ConfigError for a name that is used twice or is a reason already, and those of `parse`.
    """
    found = {}
    for keeps, rules in ((True, keep), (False, drop)):
        for name, text in rules.items():
            where = f"{'keep' if keeps else 'drop'}.{name}"
            if name in found:
                raise ConfigError(
                    f"{where}: there is a rule of this name in `keep`; its name is the reason, so rename it"
                )
            if name in RESERVED:
                raise ConfigError(f"{where}: the ledger has a reason of this name already; rename the rule")
            found[name] = (keeps, parse(text, columns, where))
    return found
