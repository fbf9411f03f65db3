"""The keys of `defs.yaml` about documents: taggers, filter rules, duplicates and budgets.

The field descriptions are the YAML reference. Columns and types are known from the declaration, so rules are checked
before a run starts.
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
"""The name of a column of the document table, or of a rule."""


class DeclaredTagger(Declared):
    """A custom tagger: a function, a command or an asset."""

    function: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:function` of the project: called with a `pyarrow.Table` of documents; returns column → "
        "values.",
    )
    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Words of a command that reads the Parquet file `{input}` and writes `{output}`, called once "
        "per shard.",
    )
    asset: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Key of a Dagster asset whose latest materialization wrote Parquet files with `file`, `row` and "
        "the columns, for every document.",
    )
    columns: dict[ColumnName, ColumnType] = Field(
        min_length=1, description="Columns that the tagger writes: column → `string`, `integer`, `number` or `boolean`."
    )
    name: str | None = Field(
        None,
        pattern=NAME,
        description="Name of the tagger; default: the function's, or the last part of the asset's key. Required for a "
        "command.",
    )
    version: str | None = Field(
        None,
        description="Changing it rebuilds the tags. Default for a function: the digest of its code. Required for a "
        "command; an asset uses its files.",
    )
    files: tuple[str, ...] = Field(
        (),
        description="Files that the function or command reads, relative to this YAML, also as globs. Changing their "
        "contents rebuilds the tags.",
    )
    timeout: str | None = Field(
        None,
        description="Time limit of a command per shard: `90m`, `12h`; default: `1d`. The command is ended when it "
        "expires.",
    )

    @field_validator("version", mode="before")
    @classmethod
    def _as_text(cls, version: object) -> object:
        """Return a number as text, because Dagster reads `"1"` as 1."""
        return str(version) if isinstance(version, int | float) and not isinstance(version, bool) else version

    @field_validator("timeout")
    @classmethod
    def _a_duration(cls, timeout: str | None) -> str | None:
        if timeout is not None and not seconds_of(timeout):
            raise ValueError(f"{timeout!r} is not a duration. Use {DURATIONS}")
        return timeout

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.function, self.command, self.asset)) != 1:
            raise ValueError("exactly one of `function`, `command` and `asset` is required")
        if self.asset is not None and (self.version is not None or self.files):
            key = "files" if self.version is None else "version"
            raise ValueError(f"`{key}` cannot be set for an asset, whose tags depend on its files. Remove it")
        if self.command is None and self.timeout is not None:
            raise ValueError("`timeout` has no effect without a `command`. Remove it")
        if self.command is not None:
            if self.name is None or self.version is None:
                raise ValueError(
                    "a command needs a `name` and a `version`, because changing the version rebuilds its tags"
                )
            words = " ".join(self.command)
            if "{input}" not in words or "{output}" not in words:
                raise ValueError("its words must contain `{input}` and `{output}`, the files that it reads and writes")
        return self

    def tagger(self, folder: Path) -> Tagger:
        """Return the tagger. Files are relative to this folder, and a command runs in it."""
        # `abspath` also resolves `..` to paths outside the folder, without requiring that the glob exists.
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
    """Return the declared taggers, in declaration order.

    Raises ConfigError for an unknown tagger, and for names or columns that two taggers share.
    """
    taggers: list[Tagger] = []
    for item in tag:
        if isinstance(item, str) and ":" in item:
            raise ConfigError(
                f"tag: {item}: your own function must declare its columns: `- {{function: {item}, columns: {{quality: "
                "number}}`"
            )
        tagger = _built_in_tagger(item) if isinstance(item, str) else item.tagger(folder)
        for earlier_tagger in taggers:
            if earlier_tagger.name == tagger.name:
                raise ConfigError(f"tag: {tagger.name!r} is listed twice. Remove one, or set a different `name`")
            if common_columns := sorted(earlier_tagger.columns.keys() & tagger.columns.keys()):
                raise ConfigError(
                    f"tag: {earlier_tagger.name} and {tagger.name} both have a column {common_columns[0]!r}. Rename one"
                )
        if (tagger.name in TAGGERS and not isinstance(item, str)) or tagger.name == "rows":
            owner = "the file of the carried fields" if tagger.name == "rows" else "a built-in tagger"
            raise ConfigError(f"tag: {tagger.name!r} is the name of {owner}. Set a different `name`")
        taggers.append(tagger)
    return taggers


def _built_in_tagger(name: str) -> Tagger:
    try:
        return BuiltInTagger(name=name, columns=named_tagger(name).columns)
    except ConfigError as error:
        raise ConfigError(f"tag: {error}") from error


class PriorityColumn(Declared):
    """A column that decides which of two duplicates is kept."""

    column: str = Field(description="A column of the document table, carried or from a tagger.")
    order: Literal["highest", "lowest"] | tuple[str, ...] = Field(
        "highest",
        description="Order of preference: `highest`, `lowest`, or a list of strings in order, e.g., sources. Rows "
        "without a value or with an unlisted one come last.",
    )


class DuplicatesDeclaration(Declared):
    """Rules for which documents are duplicates, and which of them is kept."""

    kind: Kind = Field(
        "near",
        description="`near`: texts whose shingles overlap by at least `threshold`, found by MinHash and verified; "
        "`exact`: only equal texts.",
    )
    normalize: Normalization | None = Field(
        None,
        description="Text that is compared: `words` (words, signs and symbols, in one case and Unicode form), `space` "
        "(the text without white space), `none` (the unchanged text). Line ends and the Unicode form (NFC) "
        "never count. Default: `words`; for `exact`, `none`.",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Minimum Jaccard similarity of two texts' shingles to be near-duplicates; default 0.8.",
    )
    shingle: int | None = Field(None, ge=1, le=64, description="Words per shingle; default 5.")
    permutations: int | None = Field(
        None, ge=16, le=1024, description="Values of a MinHash signature, which is split into bands; default 128."
    )
    priority: Literal["oldest"] | PriorityColumn = Field(
        "oldest",
        description="Which of two near-duplicates is kept: the one that was added first (by run), or the first by a "
        "`column`. Ties are decided by their text.",
    )
    across_splits: AcrossSplits = Field(
        "block",
        description="Action for near-duplicates in different splits: `block` the run and show the pairs, `drop` from "
        "the split that is declared first (i.e., from train), or `ignore`.",
    )
    against: tuple[str, ...] = Field(
        (),
        description="Other corpora and releases in the same storage that declare `duplicates` with the same settings. "
        "Duplicates of a document that one of them keeps are dropped, whatever the priority.",
    )
    recall: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Smallest share of planted near-duplicates at or above the threshold that must be found; default: "
        "0.05 less than the MinHash bands predict.",
    )

    @field_validator("against")
    @classmethod
    def _refuse_repeated(cls, against: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in dict.fromkeys(against) if against.count(name) > 1]:
            raise ValueError(f"`{twice[0]}` is listed twice. Remove one")
        return against

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.kind == "exact":
            near_keys = [n for n in ("threshold", "shingle", "permutations", "recall") if getattr(self, n) is not None]
            if near_keys:
                raise ValueError(f"`{near_keys[0]}` has no effect with `kind: exact`. Remove it, or set `kind: near`")
        elif float(self.banding.match_probability(self.similarity)) < PROMISED:
            raise ValueError(
                f"{self.permutations} permutations find {float(self.banding.match_probability(self.similarity)):.0%} "
                f"of the pairs at the threshold {self.similarity}. Raise `permutations` or `threshold`"
            )
        return self

    @property
    def similarity(self) -> float:
        """The Jaccard similarity at or above which two documents are near-duplicates."""
        return 1.0 if self.kind == "exact" else 0.8 if self.threshold is None else self.threshold

    @property
    def normalization(self) -> Normalization:
        """Normalization of texts before they are compared."""
        return self.normalize or ("none" if self.kind == "exact" else "words")

    @property
    def banding(self) -> Banding:
        """The split of signatures into bands."""
        return banding_for(self.similarity, self.permutations or 128)

    def signing(self, key: bytes | None, key_digest: str | None) -> SignatureSettings:
        """Return the values that determine signatures.

        Args:
            key: The secret of keyed hashes, if any.
            key_digest: Digest that represents the secret in artifact keys.
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
        """Raise ConfigError if the column of the priority does not exist or cannot be ordered as declared."""
        if self.priority == "oldest":
            return
        name, is_list = self.priority.column, not isinstance(self.priority.order, str)
        if name not in columns:
            raise ConfigError(
                f"duplicates.priority.column: unknown column {name!r}. Available: {', '.join(sorted(columns))}"
            )
        if is_list != (columns[name] == "string"):
            expected_order = "a list of its values in `order`" if columns[name] == "string" else "`highest` or `lowest`"
            raise ConfigError(f"duplicates.priority.order: {name} is a {columns[name]}, so it must be {expected_order}")


class BudgetDeclaration(Declared):
    """Limits on the share that rules may drop. A blocking check fails above them, before tokenization."""

    per_source: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Largest share of a source that rules may drop. Sources of fewer than 20 documents count as one.",
    )
    per_rule: dict[ColumnName, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        description="Rule → the largest share of all documents, and of all bytes, that it may drop; `duplicate` counts "
        "as one.",
    )


class FloorDeclaration(Declared):
    """Minimum recall and precision of a tagger on cases with known results. A blocking check fails below them."""

    recall: float = Field(
        0.9, ge=0, le=1, description="Smallest share of the planted cases of each kind that must be found."
    )
    precision: float = Field(
        0.9,
        ge=0,
        le=1,
        description="Smallest share of true cases among all that are found in planted cases and hard negatives.",
    )


def rules_of(
    keep: Mapping[str, str], drop: Mapping[str, str], columns: Mapping[str, ColumnType]
) -> dict[str, tuple[bool, Rule]]:
    """Return, for each rule name, whether the rule is in `keep` and its expression, in the order of evaluation.

    Raises ConfigError for a name that is used twice or is already a reason, and the errors of `parse`.
    """
    named_rules = {}
    for keeps, rules in ((True, keep), (False, drop)):
        for name, text in rules.items():
            where = f"{'keep' if keeps else 'drop'}.{name}"
            if name in named_rules:
                raise ConfigError(f"{where}: `keep` has a rule of the same name, which is the drop reason. Rename one")
            if name in RESERVED:
                raise ConfigError(f"{where}: this name is a reason in the ledger. Rename the rule")
            named_rules[name] = (keeps, parse(text, columns, where))
    return named_rules
