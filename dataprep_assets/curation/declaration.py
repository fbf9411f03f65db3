"""The keys of `defs.yaml` about documents: taggers, filter rules and budgets.

The field descriptions are the YAML reference. Columns and types are known from the declaration, so rules are checked
before a run starts.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from dataprep_assets.curation.documents import TOP_FOLDER
from dataprep_assets.curation.languages.word_splitter import Language, SpacyLanguage
from dataprep_assets.curation.selection import RESERVED
from dataprep_assets.curation.table import DECIDED, OTHERS, ColumnType
from dataprep_assets.engine.yaml.automation import DURATIONS, parse_duration
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, SourceError

# Import these modules only where they are used, because most commands only validate the keys, and most corpora have no
# rules or taggers.
if TYPE_CHECKING:
    from dataprep_assets.curation.classifiers.model_files import ModelFiles
    from dataprep_assets.curation.rules import Rule
    from dataprep_assets.curation.tagging import Tagger

DAY = "1d"
_MAX_NAMES = 20
"""Maximum number of names to list in a message."""
NAME = r"^[a-z][a-z0-9_]*$"
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""A function of the user's project: `module:function`."""
ColumnName = Annotated[str, Field(pattern=NAME)]
"""The name of a column of the document table, or of a rule."""


def _convert_to_text(version: object) -> object:
    return str(version) if isinstance(version, int | float) and not isinstance(version, bool) else version


VersionText = Annotated[str, BeforeValidator(_convert_to_text)]
"""A version. Numbers are converted to text, because Dagster reads `"1"` as 1."""


class DeclaredTagger(DeclarationModel):
    """Your own tagger: a function, a command or a Dagster asset."""

    function: str | None = Field(
        None,
        pattern=FUNCTION,
        description=(
            "Python function in the project, as `module:function`. It receives a `pyarrow.Table` of documents "
            "and returns a mapping from column to values."
        ),
    )
    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description=(
            "Command and its arguments as a list. It runs once per shard, reads the Parquet file `{input}` and "
            "writes `{output}`."
        ),
    )
    asset: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description=(
            "Key of a Dagster asset. Its latest materialization must have written Parquet files with `file`, "
            "`row` and the columns, for every document."
        ),
    )
    columns: dict[ColumnName, ColumnType] = Field(
        min_length=1, description="Columns that the tagger writes: column → `string`, `integer`, `number` or `boolean`."
    )
    name: str | None = Field(
        None,
        pattern=NAME,
        description=(
            "Name of the tagger. Default: the name of the function, or the last part of the asset's key. "
            "Required for a command."
        ),
    )
    version: VersionText | None = Field(
        None,
        description=(
            "Version of the tagger. Changing it rebuilds the tags. Required for a command. Default: a digest of "
            "the function's code, or of the asset's files."
        ),
    )
    files: tuple[str, ...] = Field(
        (),
        description=(
            "Files that the function or command reads: paths or globs, relative to this YAML. Changing their "
            "contents rebuilds the tags. Default: none."
        ),
    )
    timeout: str | None = Field(
        None,
        description=(
            "Maximum time of a command per shard, such as `90m` or `12h`. A command that takes longer is "
            "stopped, and the build fails. Default: `1d`."
        ),
    )

    @field_validator("timeout")
    @classmethod
    def _validate_duration(cls, timeout: str | None) -> str | None:
        if timeout is not None and not parse_duration(timeout):
            raise ValueError(f"{timeout!r} is not a duration. Use {DURATIONS}")
        return timeout

    @model_validator(mode="after")
    def _require_one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.function, self.command, self.asset)) != 1:
            raise ValueError("exactly one of `function`, `command` and `asset` is required")
        if self.asset is not None and (self.version is not None or self.files):
            key = "files" if self.version is None else "version"
            raise ValueError(f"`{key}` cannot be set for an asset, whose tags depend on its files. Remove it")
        if self.command is None and self.timeout is not None:
            raise ValueError("`timeout` has no effect without a `command`. Remove it")
        if self.command is not None:
            if self.name is None or self.version is None:
                raise ValueError("a `command` needs a `name` and a `version`. Change the version to rebuild the tags")
            words = " ".join(self.command)
            if "{input}" not in words or "{output}" not in words:
                raise ValueError(
                    "`command` must contain `{input}` and `{output}`, the files that the command reads and writes"
                )
        return self

    def build_tagger(self, folder: Path) -> "Tagger":
        """Return the tagger. Files are relative to this folder, and a command runs in it."""
        from dataprep_assets.curation.external_taggers.asset_tagger import AssetTagger
        from dataprep_assets.curation.external_taggers.command_tagger import CommandTagger
        from dataprep_assets.curation.function_tagger import FunctionTagger

        files = resolve_patterns(self.files, folder)
        if self.command is not None:
            assert self.name is not None
            assert self.version is not None
            return CommandTagger(
                name=self.name,
                columns=self.columns,
                command=self.command,
                declared=self.version,
                folder=folder,
                seconds=float(parse_duration(self.timeout or DAY) or 0),
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


def resolve_patterns(patterns: str | Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return paths and globs, which are relative to a folder, as absolute ones."""
    # Use `abspath`, because it removes `..` from a glob without looking for the path on disk.
    return tuple(os.path.abspath(folder / pattern) for pattern in _list_texts(patterns))


def _list_texts(texts: str | Sequence[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


class WordSettings(DeclarationModel):
    """Settings of a tagger that counts words."""

    words: Language | None = Field(
        None,
        description=(
            "Language whose usual library splits words: spaCy, jieba (`zh`), SudachiPy (`ja`), PyThaiNLP (`th`) or "
            "Kiwi (`ko`). Needs the extra `words`. Default: words are separated by white space."
        ),
    )


class GopherSettings(WordSettings):
    """Settings of the tagger `gopher`."""

    stop_words: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        None, min_length=1, description="Words that `stop_words` counts. Default: eight English words."
    )


class C4LineSettings(DeclarationModel):
    """Settings for the lines that C4 keeps."""

    punctuation: bool | None = Field(
        None, description="Whether kept lines must end with a punctuation mark. Default: true."
    )
    min_words: int | None = Field(None, ge=1, description="Minimum number of words of kept lines. Default: 3.")


class C4Settings(C4LineSettings):
    """Settings of the tagger `c4`."""

    sentences: SpacyLanguage | None = Field(
        None,
        description=(
            "Language whose rules in spaCy split sentences. Needs the extra `words`. Default: a sentence ends with a "
            "punctuation mark before white space."
        ),
    )


class FineWebSettings(WordSettings):
    """Settings of the tagger `fineweb`."""

    c4: C4LineSettings | None = Field(
        None,
        description=(
            "Measure only the lines that C4 keeps with these settings, as in FineWeb's pipeline. Default: all lines."
        ),
    )


def _check_model_location(location: str) -> str:
    # Import the module here, because most datasets have no models.
    from dataprep_assets.curation.classifiers.model_files import check_model_location

    return check_model_location(location)


ModelLocation = Annotated[str, Field(min_length=1), AfterValidator(_check_model_location)]
"""A path, or the address of a file or folder on the Hub."""


def _find_model(location: str, folder: Path, key: str) -> "ModelFiles":
    """Return the files of a model whose path is relative to a folder."""
    from dataprep_assets.curation.classifiers.model_files import ModelFiles

    # Use `abspath`, because it removes `..` without looking for the path on disk.
    return ModelFiles(location if "://" in location else os.path.abspath(folder / location), f"tag: {key}")


class FastTextSettings(DeclarationModel):
    """Your own fastText model, such as a classifier of quality or a language detector."""

    model: ModelLocation = Field(
        description=(
            "File of the model (`.bin` or `.ftz`), relative to this YAML, or "
            "`hf://organization/name@<40-digit commit>/file`."
        )
    )
    label: str = Field(min_length=1, description="Label whose probability is written, such as `__label__hq`.")
    column: ColumnName = Field(description="Column of the probability, from 0 to 1. Also the name of the tagger.")

    def build_tagger(self, folder: Path) -> "Tagger":
        """Return the tagger. The file is relative to this folder."""
        from dataprep_assets.curation.classifiers.fasttext_tagger import FastTextTagger

        model = _find_model(self.model, folder, "fasttext")
        return FastTextTagger(name=self.column, columns={self.column: "number"}, model=model, label=self.label)


class UrlListsSettings(DeclarationModel):
    """Lists of domains and URLs in which the URL of each document is looked up."""

    column: str = Field(
        "url",
        description=(
            "Column with the URL: a field of `document.keep_fields`. For lists of domains, `host` is enough. "
            "Default: `url`."
        ),
    )
    lists: dict[ColumnName, str | Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        min_length=1,
        description=(
            "Column → its files: a path or glob, or a list of them, relative to this YAML. Each line is a domain, "
            "which includes its subdomains, or a domain with a path, which includes the URLs below it. `#` begins a "
            "comment. The column is true for documents on the list, and null for documents without a URL."
        ),
    )

    def build_tagger(self, folder: Path) -> "Tagger":
        """Return the tagger. Files are relative to this folder."""
        from dataprep_assets.curation.web.url_lists import UrlListsTagger

        lists = {name: resolve_patterns(patterns, folder) for name, patterns in self.lists.items()}
        columns: dict[str, ColumnType] = dict.fromkeys(lists, "boolean")
        return UrlListsTagger(name="url_lists", columns=columns, column=self.column, lists=lists)


class RobotsSettings(DeclarationModel):
    """Texts of `robots.txt`, in which the URL of each document is looked up."""

    column: str = Field("url", description="Column with the URL: a field of `document.keep_fields`. Default: `url`.")
    files: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description=(
            "Files with the texts: a path or glob, or a list of them, relative to this YAML. `.parquet` and `.jsonl` "
            "have the columns `host`, `text` and, if texts have dates, `date`. A file `HOST.txt` is the text of a host."
        )
    )
    agent: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description="User agent, such as `GPTBot`, or a list of user agents that must all be allowed."
    )
    date_column: str | None = Field(
        None,
        description=(
            "Column with the crawl date, such as `2024-05-01T10:00:00Z`: a `string` field of `document.keep_fields`. "
            "The latest text that is not later than the crawl date decides. Default: the latest text of the host."
        ),
    )

    def build_tagger(self, folder: Path) -> "Tagger":
        """Return the tagger. Files are relative to this folder."""
        from dataprep_assets.curation.web.robots import COLUMNS, RobotsTagger

        return RobotsTagger(
            name="robots",
            columns=COLUMNS,
            column=self.column,
            date_column=self.date_column,
            agents=_list_texts(self.agent),
            files=resolve_patterns(self.files, folder),
        )


class OnnxSettings(DeclarationModel):
    """Your own text classifier in ONNX, or a sentence-transformer in ONNX with a linear layer."""

    model: ModelLocation = Field(
        description=(
            "Folder with `model.onnx` or `onnx/model.onnx`, and `tokenizer.json`, relative to this YAML, or "
            "`hf://organization/name@<40-digit commit>[/folder]`."
        )
    )
    head: Path | None = Field(
        None,
        description=(
            "File with the linear layer after a sentence-transformer, relative to this YAML: `weight` (labels × "
            "dimensions) and `bias` (labels), saved with `numpy.savez`. Default: the model is a classifier."
        ),
    )
    label: Annotated[int, Field(ge=0)] | str | None = Field(
        None,
        description=(
            "Label whose score is written: its number, or its name in `config.json`. Required for several labels."
        ),
    )
    column: ColumnName = Field(description="Column of the score. Also the name of the tagger.")
    activation: Literal["softmax", "sigmoid", "none"] = Field(
        "softmax", description="Function that turns the model's outputs into scores. `none`: a regression."
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description=(
            "Number of tokens of a text that are read. Default: 512, or less if the model's folder declares a lower "
            "limit."
        ),
    )
    batch: int = Field(8, ge=1, description="Texts per batch.")

    @model_validator(mode="after")
    def _require_number(self) -> Self:
        if self.head is not None and isinstance(self.label, str):
            raise ValueError("a `head` has no names of labels. Set `label` to a number")
        return self

    def build_tagger(self, folder: Path) -> "Tagger":
        """Return the tagger. The paths are relative to this folder."""
        from dataprep_assets.curation.classifiers.onnx_tagger import OnnxTagger

        return OnnxTagger(
            name=self.column,
            columns={self.column: "number"},
            model=_find_model(self.model, folder, "onnx"),
            head=None if self.head is None else Path(os.path.abspath(folder / self.head)),
            label=self.label,
            activation=self.activation,
            max_tokens=self.max_tokens,
            batch=self.batch,
        )


class ConfiguredTagger(DeclarationModel):
    """A built-in tagger with settings."""

    gopher: GopherSettings | None = Field(None, description="Settings of the tagger `gopher`.")
    repetition: WordSettings | None = Field(None, description="Settings of the tagger `repetition`.")
    c4: C4Settings | None = Field(None, description="Settings of the tagger `c4`.")
    fineweb: FineWebSettings | None = Field(None, description="Settings of the tagger `fineweb`.")
    url_lists: UrlListsSettings | None = Field(
        None, description="Lists of domains and URLs, such as blocklists and opt-outs, as boolean columns."
    )
    robots: RobotsSettings | None = Field(
        None,
        description=(
            "Texts of `robots.txt`. The column `robots_allowed` shows whether they allow the document's URL. It is "
            "null without a URL or a text. Needs the extra `robots`."
        ),
    )
    fasttext: FastTextSettings | None = Field(
        None, description="A fastText model. Needs the extra `fasttext`. Can be listed more than once."
    )

    onnx: OnnxSettings | None = Field(
        None, description="A text classifier in ONNX. Needs the extra `onnx`. Can be listed more than once."
    )

    @model_validator(mode="after")
    def _require_one_tagger(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError(
                f"a tagger with settings needs exactly one of the keys {', '.join(type(self).model_fields)}, with its "
                "settings below it"
            )
        return self

    def build_tagger(self, folder: Path) -> "Tagger":
        """Return the tagger. Files are relative to this folder."""
        if (settings_with_files := self.fasttext or self.onnx or self.url_lists or self.robots) is not None:
            return settings_with_files.build_tagger(folder)
        ((name, settings),) = self.model_dump(exclude_none=True).items()
        return _load_built_in_tagger(name, settings)


Tag = str | ConfiguredTagger | DeclaredTagger
Tags = tuple[Tag, ...]
DEFAULT = "default"
"""The key of the expression for all sources that a rule does not list."""
RuleText = str | Annotated[dict[str, str], Field(min_length=1)]
"""An expression, or source → its expression."""
KeepRules = Annotated[
    dict[ColumnName, RuleText],
    Field(
        description=(
            "Name of a rule → expression over columns. Documents, or rows of a blend, that do not match every rule are "
            "dropped, with the rule's name as the reason. Instead of an expression, a map from source to expression "
            "is allowed: `default` is for all other sources, which are kept without it."
        )
    ),
]
DropRules = Annotated[
    dict[ColumnName, RuleText],
    Field(
        description=(
            "Name of a rule → expression over columns. Documents, or rows of a blend, that match any rule are dropped, "
            "with the rule's name as the reason. Instead of an expression, a map from source to expression is "
            "allowed: `default` is for all other sources, which are kept without it."
        )
    ),
]


def build_taggers(tag: Sequence[Tag], folder: Path) -> "list[Tagger]":
    """Return the declared taggers, in declaration order.

    Raises ConfigError for an unknown tagger, and for names or columns that two taggers share.
    """
    taggers: list[Tagger] = []
    if not tag:
        return taggers
    from dataprep_assets.curation.taggers import TAGGERS
    from dataprep_assets.curation.tagging import BuiltInTagger

    for item in tag:
        if isinstance(item, str) and ":" in item:
            raise ConfigError(
                f"tag: {item}: the columns of your own function are missing. Declare them, e.g., `- {{function: "
                f"{item}, columns: {{quality: number}}}}`"
            )
        tagger = _load_built_in_tagger(item, {}) if isinstance(item, str) else item.build_tagger(folder)
        for earlier_tagger in taggers:
            if earlier_tagger.name == tagger.name:
                raise ConfigError(f"tag: {tagger.name!r} is listed twice. Remove one, or set a different `name`")
            if common_columns := sorted(earlier_tagger.columns.keys() & tagger.columns.keys()):
                raise ConfigError(
                    f"tag: {earlier_tagger.name} and {tagger.name} both have a column {common_columns[0]!r}. Rename "
                    "one of them"
                )
        if (tagger.name in TAGGERS and not isinstance(tagger, BuiltInTagger)) or tagger.name == "rows":
            owner = "the carried fields" if tagger.name == "rows" else "the built-in tagger"
            raise ConfigError(f"tag: {tagger.name!r} is reserved for {owner}. Set a different `name`")
        taggers.append(tagger)
    return taggers


def _load_built_in_tagger(name: str, settings: Mapping[str, Any]) -> "Tagger":
    from dataprep_assets.curation.tagging import BuiltInTagger, load_tagger

    try:
        return BuiltInTagger(name=name, columns=load_tagger(name).columns, settings=settings)
    except ConfigError as error:
        raise ConfigError(f"tag: {error}") from error


class BudgetDeclaration(DeclarationModel):
    """Limits on the share that rules may drop.

    Above a limit, a blocking check fails: a corpus is not tokenized, and the run of a blend is not built.
    """

    per_source: float | None = Field(
        None,
        ge=0,
        le=1,
        description=(
            "Maximum share of a source's documents that rules may drop; the sources of a blend are its datasets. "
            "Sources with fewer than 20 documents count as one source. Default: no limit."
        ),
    )
    per_rule: dict[ColumnName, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        description=(
            "Rule → the maximum share of all documents, and of all bytes, that it may drop. `duplicate` is the "
            "rule for duplicates. Default: no limits."
        ),
    )


class FloorDeclaration(DeclarationModel):
    """Minimum accuracy of a tagger on planted test cases. Below it, a blocking check fails."""

    recall: float = Field(
        0.9, ge=0, le=1, description="Minimum share of planted cases that the tagger must find, for each kind of case."
    )
    precision: float = Field(
        0.9,
        ge=0,
        le=1,
        description=(
            "Minimum share of true cases among all cases that the tagger reports. Some planted texts only look "
            "like cases."
        ),
    )


def find_text_taggers(tag: Sequence[Tag], taggers: "Sequence[Tagger]") -> list[str]:
    """Return the names of the taggers in `tag` that write text, except built-in ones; `taggers` begin with them."""
    pairs = zip(tag, taggers, strict=False)
    return [
        tagger.name
        for item, tagger in pairs
        if isinstance(item, DeclaredTagger) and "string" in tagger.columns.values()
    ]


def add_tagger_columns(columns: Mapping[str, ColumnType], taggers: "Sequence[Tagger]") -> dict[str, ColumnType]:
    """Return the columns that rules may name: the given ones, then the taggers' columns.

    Raises ConfigError for a column of a tagger that already exists or is reserved, and for a missing column that a
    tagger reads.
    """
    all_columns = dict(columns)
    for tagger in taggers:
        if duplicates := [name for name in tagger.columns if name in (*all_columns, *DECIDED, *OTHERS)]:
            raise ConfigError(
                f"tag: {tagger.name}: the table already has a column {duplicates[0]!r}. Rename the tagger's column"
            )
        for name, kind in tagger.reads.items():
            # Taggers get only the given columns, not the columns of other taggers.
            if columns.get(name) != kind:
                names = ", ".join(column for column, column_type in columns.items() if column_type == kind)
                raise ConfigError(
                    f"tag: {tagger.name}: no {kind} column {name!r}. Available: {names}. Use one of them, or set "
                    f"`document.keep_fields: {{{name}: {kind}}}` in a corpus"
                )
        all_columns |= tagger.columns
    return all_columns


def parse_rules(
    keep: Mapping[str, RuleText],
    drop: Mapping[str, RuleText],
    columns: Mapping[str, ColumnType],
    reserved: Collection[str] = RESERVED,
) -> "dict[str, tuple[bool, Rule]]":
    """Return, for each rule name, whether the rule is in `keep` and its expression, in the order of evaluation.

    Raises ConfigError for a name that is used twice or is already a reason (`reserved`), and the errors of
    `parse_rule`.
    """
    named_rules: dict[str, tuple[bool, Rule]] = {}
    if not (keep or drop):
        return named_rules
    for keeps, rules in ((True, keep), (False, drop)):
        for name, text in rules.items():
            rule_key = f"{'keep' if keeps else 'drop'}.{name}"
            if name in named_rules:
                raise ConfigError(
                    f"{rule_key}: `keep` has a rule with the same name. Rename one, because the name is the drop reason"
                )
            if name in reserved:
                raise ConfigError(f"{rule_key}: reserved as a drop reason in the ledger. Rename the rule")
            named_rules[name] = (keeps, _parse_rule_text(text, columns, rule_key, keeps=keeps))
    return named_rules


def _parse_rule_text(text: RuleText, columns: Mapping[str, ColumnType], rule_key: str, *, keeps: bool) -> "Rule":
    # Import the module here, because most commands only validate the keys, and most corpora have no rules.
    from dataprep_assets.curation.rules import combine_by_source, parse_rule

    if isinstance(text, str):
        return parse_rule(text, columns, rule_key)
    texts = {DEFAULT: "true" if keeps else "false", **text}
    rules = {source: parse_rule(rule_text, columns, f"{rule_key}.{source}") for source, rule_text in texts.items()}
    other_sources = rules.pop(DEFAULT)
    return combine_by_source(rules, other_sources) if rules else other_sources


def find_unknown_sources(
    keep: Mapping[str, RuleText], drop: Mapping[str, RuleText], sources: Collection[str], *, sensitive: bool
) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Yield the keys of each expression for a source that does not exist, and a sentence about it.

    Args:
        keep: The declared rules of this key.
        drop: The declared rules of this key.
        sources: The sources that exist.
        sensitive: Whether the sentence must not show these sources.
    """
    from dataprep_assets.engine.yaml.declared_keys import find_nearest

    for key, rules in (("keep", keep), ("drop", drop)):
        for name, text in rules.items():
            for source in () if isinstance(text, str) else text:
                if source == DEFAULT or source in sources:
                    continue
                nearest_name = find_nearest(source, [DEFAULT, *([] if sensitive else sources)])
                suggestion = f"; did you mean {nearest_name!r}?" if nearest_name else ""
                advice = "" if sensitive else f"{'' if suggestion else '.'} Available: {format_sources(sources)}"
                yield (key, name, source), f"{key}.{name}: unknown source {source!r}{suggestion}{advice}"


def format_sources(names: Collection[str]) -> str:
    """Return the first names of sources as text, with the number of further names."""
    texts = ["'.' (the files in the top folder)" if name == TOP_FOLDER else name for name in sorted(names)]
    text = ", ".join(texts[:_MAX_NAMES])
    return f"{text} and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else text or "none"


def find_tagger_remarks(taggers: "Sequence[Tagger]") -> Iterator[Remark]:
    """Yield remarks on missing libraries and files of the taggers in `tag`, which are in the order of the key."""
    for index, tagger in enumerate(taggers):
        try:
            # Read the property only because it raises an error if a library or a file is missing. Leave out models that
            # are not downloaded yet, because a check should not take minutes.
            if tagger.is_local:
                tagger.version  # noqa: B018
        except ConfigError as error:
            yield Remark(keys=("tag", index), sentence=str(error))
        except SourceError as error:  # the tagger's asset cannot be listed, e.g., because it was never materialized
            yield Remark(keys=("tag", index), sentence=str(error), of_source=True)
        if (sentence := tagger.explain_missing()) is not None:
            yield Remark(keys=("tag", index), sentence=sentence, hint=True)
