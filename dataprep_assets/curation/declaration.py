"""What a `defs.yaml` says about documents: its taggers, what is looked at, which are kept, how much may go.

The field descriptions are the YAML reference. Columns and types are known from the declaration alone, so a rule is
checked before anything runs.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.curation.asset_tagger import AssetTagger
from dataprep_assets.curation.command_tagger import CommandTagger
from dataprep_assets.curation.duplicates.banding import PROMISED, Banding, banding_for
from dataprep_assets.curation.duplicates.kept_set import AcrossSplits
from dataprep_assets.curation.duplicates.signatures import Kind, SignatureSettings
from dataprep_assets.curation.duplicates.words import Normalization
from dataprep_assets.curation.function_tagger import FunctionTagger
from dataprep_assets.curation.rules import Rule, parse
from dataprep_assets.curation.selection import RESERVED
from dataprep_assets.curation.table import ColumnType
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.tagging import BuiltInTagger, Tagger, named_tagger
from dataprep_assets.engine.yaml.automation import DURATIONS, seconds_of
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError

DAY = "1d"
NAME = r"^[a-z][a-z0-9_]*$"
ColumnName = Annotated[str, Field(pattern=NAME)]
"""The name of a column of the table, or of a rule."""


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


class PriorityColumn(Declared):
    """A column that decides which of two documents that are alike is kept."""

    column: str = Field(description="A column of the table of documents, carried or of a tagger.")
    order: Literal["highest", "lowest"] | tuple[str, ...] = Field(
        "highest",
        description="Which value is kept first: `highest`, `lowest`, or a list of texts in their order, such as "
        "sources. A row without a value, or with one that is not listed, comes last.",
    )


class DuplicatesDeclaration(Declared):
    """Which documents are alike, and which of them is kept."""

    kind: Kind = Field(
        "near",
        description="`near`: texts whose shingles overlap by `threshold` or more, found by MinHash and verified; "
        "`exact`: only equal texts.",
    )
    normalize: Normalization | None = Field(
        None,
        description="What is compared: `words` (words, signs and symbols, in one case and Unicode form), `space` (the "
        "text except white space), `none` (the text). Line ends and Unicode's form (NFC) never count. Default: "
        "`words`; of `exact`, `none`.",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Jaccard similarity of two texts' shingles from which on they are alike; default 0.8.",
    )
    shingle: int | None = Field(None, ge=1, le=64, description="Words of a shingle; default 5.")
    permutations: int | None = Field(
        None, ge=16, le=1024, description="Values of a MinHash signature, which is cut into bands; default 128."
    )
    priority: Literal["oldest"] | PriorityColumn = Field(
        "oldest",
        description="Which of two is kept: that which was there before, by the runs that brought their files, or by a "
        "`column`. Ties are decided by what they say.",
    )
    across_splits: AcrossSplits = Field(
        "block",
        description="Documents of different splits that are alike: `block` the run, with the pairs; `drop` from the "
        "split that is declared first, so from train; `ignore`.",
    )
    against: tuple[str, ...] = Field(
        (),
        description="Other corpora and releases of the same storage that declare `duplicates` with the same settings: "
        "what is like a document that one of them keeps goes, whatever the priority.",
    )
    recall: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Smallest share of planted near-duplicates, of those at or above the threshold, that has to be "
        "found; default: 0.05 less than the bands promise.",
    )

    @field_validator("against")
    @classmethod
    def _once(cls, against: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in dict.fromkeys(against) if against.count(name) > 1]:
            raise ValueError(f"`{twice[0]}` is given twice; leave one out")
        return against

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.kind == "exact":
            given = [n for n in ("threshold", "shingle", "permutations", "recall") if getattr(self, n) is not None]
            if given:
                raise ValueError(f"`{given[0]}` has no effect on `kind: exact`; leave it out, or give `kind: near`")
        elif float(self.banding.chance(self.similarity)) < PROMISED:
            raise ValueError(
                f"{self.permutations} permutations find "
                f"{float(self.banding.chance(self.similarity)):.0%} of the pairs "
                f"at the threshold {self.similarity}; give more of them, or a higher threshold"
            )
        return self

    @property
    def similarity(self) -> float:
        """The Jaccard similarity from which on two documents are alike."""
        return 1.0 if self.kind == "exact" else 0.8 if self.threshold is None else self.threshold

    @property
    def normalization(self) -> Normalization:
        """What texts are compared by."""
        return self.normalize or ("none" if self.kind == "exact" else "words")

    @property
    def banding(self) -> Banding:
        """How signatures are cut into bands."""
        return banding_for(self.similarity, self.permutations or 128)

    def signing(self, key: bytes | None, key_digest: str | None) -> SignatureSettings:
        """What decides signatures.

        Args:
            key: The secret of keyed hashes, if any.
            key_digest: What stands for it in keys.
        """
        return SignatureSettings(
            kind=self.kind,
            normalization=self.normalization,
            shingle=self.shingle or 5,
            banding=self.banding,
            key=key,
            key_digest=key_digest,
        )

    def check_column(self, columns: Mapping[str, ColumnType]) -> None:
        """Raise ConfigError if the column of the priority is not there, or has no such order."""
        if self.priority == "oldest":
            return
        name, listed = self.priority.column, not isinstance(self.priority.order, str)
        if name not in columns:
            raise ConfigError(
                f"duplicates.priority.column: there is no column {name!r}. Columns: {', '.join(sorted(columns))}"
            )
        if listed != (columns[name] == "string"):
            wanted = "a list of its values in `order`" if columns[name] == "string" else "`highest` or `lowest`"
            raise ConfigError(f"duplicates.priority.order: {name} is a {columns[name]}: give {wanted}")


class BudgetDeclaration(Declared):
    """How much rules may drop: more than that is a blocking check, before anything is tokenized."""

    per_source: float | None = Field(
        None, ge=0, le=1, description="Largest share that rules drop of a source; those of under 20 documents are one."
    )
    per_rule: dict[ColumnName, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        description="Rule → the largest share of all documents, and of all bytes, that it drops; `duplicate` counts as "
        "one.",
    )


class FloorDeclaration(Declared):
    """The least that a tagger has to find of cases of which the truth is known: less is a blocking check."""

    recall: float = Field(0.9, ge=0, le=1, description="Least share of the planted cases that it finds, of each kind.")
    precision: float = Field(
        0.9, ge=0, le=1, description="Least share of cases among what it finds in them and in the hard negatives."
    )


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
