"""Declaration of a tokenized corpus, validated once, and the names of its artifacts.

This is the schema of `type: dataprep_assets.components.TokenizedCorpus`: its field descriptions are the YAML
reference. Paths are resolved against the folder of the YAML, and are not part of any artifact's key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.benchmarks.decontamination import DecontaminateDeclaration
from dataprep_assets.curation.declaration import (
    BudgetDeclaration,
    ColumnName,
    DropRules,
    FloorDeclaration,
    KeepRules,
    Tags,
    add_tagger_columns,
    build_taggers,
    find_text_taggers,
    parse_rules,
)
from dataprep_assets.curation.duplicates.declaration import DuplicatesDeclaration
from dataprep_assets.curation.rewriters.declaration import (
    EMPTY,
    PERSONAL,
    Rewrites,
    build_empty_rule,
    build_rewriting,
    replaces_personal_data,
)
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import (
    DECIDED,
    OTHERS,
    CarriedFields,
    ColumnType,
    name_column,
    name_rewritten_column,
)
from dataprep_assets.curation.tagging import describe_tagger_columns
from dataprep_assets.engine.secret_key import EnvironmentKey
from dataprep_assets.engine.source_key import describe_missing_key
from dataprep_assets.engine.yaml.declaration import (
    ReadingDeclaration,
    WorkersDeclaration,
    require_unique_views,
    resolve_path,
)
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.planning.manifest import ShardSizing
from dataprep_assets.stores.files import SourceDigests
from dataprep_assets.stream.declaration import (
    RETRACTIONS,
    AssetSource,
    BadRecordPolicy,
    DocumentPolicy,
    HubCacheSource,
    HubSource,
    LocalSource,
    ObjectStoreSource,
    Source,
    TokenizerDeclaration,
)
from dataprep_assets.tokenization.document_ids import DocumentIds

# Import these modules only for type checking, because most corpora have no tags, rules or duplicates.
if TYPE_CHECKING:
    from dataprep_assets.curation.benchmarks.items import BenchmarkSet
    from dataprep_assets.curation.duplicates.signatures import SignatureSettings
    from dataprep_assets.curation.rewriters.rewriting import Rewriting
    from dataprep_assets.curation.rules import Rule
    from dataprep_assets.curation.tagging import Tagger
    from dataprep_assets.curation.text_tagger import TextTagger

COMBINED_BINS = "combined_bins"
"""Name of the artifact with the joined token bins of a split."""
_FIELD_KEYS = {"id": "id_field", "source": "source_field"}
"""Column of the document table → the YAML key that names the field with its values."""


class CorpusDocumentPolicy(DocumentPolicy):
    """Tokens around each document, special tokens in its text, and the fields that identify it."""

    id_field: str | None = Field(
        None,
        min_length=1,
        description=(
            "Field with the document's id, a string or integer. A dot selects a nested key. `dataprep retract` "
            "finds documents by it. Default: documents are identified by their text."
        ),
    )
    id_key: EnvironmentKey | None = Field(
        None,
        description=(
            "Secret key for the hashes in the document index, and for digests of local source files. Without it, "
            "a `sensitive` dataset has no index. A `sensitive` dataset with local files or `duplicates` requires "
            "it."
        ),
    )
    keep_fields: dict[str, ColumnType] | None = Field(
        None,
        description=(
            "Fields to copy to the document table: field → `string`, `integer`, `number` or `boolean`. A dot "
            "selects a nested key (`meta.lang`). CSV values are converted. `{}` only creates the table."
        ),
    )
    url_field: str | None = Field(
        None,
        min_length=1,
        description=(
            "Field with the document's URL. Its host becomes the column `host` of the document table. Default: no "
            "column `host`."
        ),
    )
    license_field: str | None = Field(
        None,
        min_length=1,
        description=(
            "Field with the document's license. It becomes the column `license` of the document table, in lower case. "
            "A missing license, an empty one, and values such as `unknown` are null, and a check counts them. "
            "Default: no column `license`."
        ),
    )
    source_field: str | None = Field(
        None,
        min_length=1,
        description=(
            "Field with the name of the document's source, used for shares and budgets. Default: the folder of "
            "the document's file."
        ),
    )

    @model_validator(mode="after")
    def _require_different_columns(self) -> Self:
        fields = {path: name_column(path) for path in self.keep_fields or ()}
        # Reserve `text`, because functions and commands get the text in a column of this name.
        carried = CarriedFields(text="", ids=None, url=self.url_field, license=self.license_field)
        own_columns = {*carried.columns, *DECIDED, *OTHERS, "text"}
        for path, column in fields.items():
            if column in own_columns:
                instead = _FIELD_KEYS.get(column)
                instead = instead if instead and getattr(self, instead) is None else None
                raise ValueError(
                    f"keep_fields: {column!r} is already a column of the table. Remove {path}"
                    + (f", and set `document.{instead}: {path}`" if instead else "")
                )
            # Two fields can have the same column name, because dots become `_`, as in `meta.lang` and `meta_lang`.
            if [*fields.values()].count(column) > 1:
                raise ValueError(f"keep_fields: two fields would become the column {column!r}. Remove one")
        return self

    def ids(self, *, sensitive: bool) -> DocumentIds | None:
        """Return how the index identifies documents; None for a sensitive dataset without a key.

        Raises ConfigError if the key is not in the environment.
        """
        key = self.key()
        if key is None:
            return None if sensitive else DocumentIds(id_field=self.id_field)
        return DocumentIds(id_field=self.id_field, key=key)

    def key(self) -> bytes | None:
        """Return the declared key, if any; raise ConfigError if it is not in the environment."""
        return self.id_key.load("document.id_key") if self.id_key is not None else None


if TYPE_CHECKING:
    View = str
else:
    # At run time, the type lists the installed views, which a type checker cannot know.
    View = Literal[tuple(VIEWS)]


class ShardPlanDeclaration(DeclarationModel):
    """Size and number of a split's shards, and how they follow added or removed source files."""

    target_bytes: int | None = Field(
        None,
        ge=1,
        description=(
            "Target size of a shard, in bytes of source files. Default: 1 GiB, or more if a split would otherwise "
            "have more than 4,000 shards."
        ),
    )
    count: int | None = Field(
        None,
        ge=1,
        description="Number of shards per split, instead of `target_bytes`. Default: computed from `target_bytes`.",
    )
    on_change: Literal["append", "replan"] = Field(
        "append",
        description=(
            "How the plan reacts to added or removed source files. `append`: existing shards keep their files, and "
            "new files get new shards. `replan`: all shards are planned again."
        ),
    )

    @model_validator(mode="after")
    def _require_one_size(self) -> "ShardPlanDeclaration":
        if self.target_bytes is not None and self.count is not None:
            raise ValueError("`target_bytes` cannot be combined with `count`. Remove one of them")
        return self

    @property
    def sizing(self) -> ShardSizing:
        """The declared sizing, in the shard plan's form."""
        return ShardSizing(target_bytes=self.target_bytes, count=self.count)


class CorpusDeclaration(ReadingDeclaration, WorkersDeclaration):
    """A tokenized corpus, from its source to token files for trainers."""

    source: Source = Field(
        description=(
            "Where the documents come from: a local folder, the Hugging Face Hub or its cache, object storage, "
            "or a Dagster asset."
        )
    )
    include: tuple[str, ...] = Field(
        ("**/*.jsonl.zst",),
        min_length=1,
        description=(
            "Globs of the data files: `.jsonl`, `.parquet`, `.txt`, `.csv`, `.tsv`, `.arrow`, `.wet`, `.warc`. "
            "All except Parquet may end in `.zst`, `.gz`, `.xz` or `.bz2`. `*` matches within one part of a "
            "path, `**/` any number of parts."
        ),
    )
    splits: dict[str, tuple[str, ...]] = Field(
        min_length=1, description="Split → globs of its files. Each file may belong to only one split."
    )
    text_field: str = Field(
        "text",
        description="JSON key or table column with the document's text. A dot selects a nested key (`data.text`).",
    )
    tokenizer: TokenizerDeclaration = Field(description="The tokenizer, and the engine that encodes text with it.")
    document: CorpusDocumentPolicy = Field(
        CorpusDocumentPolicy(),
        description="Tokens before and after each document, special tokens in its text, and fields that identify it.",
    )
    dtype: Literal["auto", "uint16", "uint32"] = Field(
        "auto", description="Data type of the token ids. `auto`: `uint16` if every id fits, else `uint32`."
    )
    shards: ShardPlanDeclaration = Field(ShardPlanDeclaration(), description="Number or size of each split's shards.")
    bad_records: BadRecordPolicy = Field(
        BadRecordPolicy(),
        description=(
            "How records that cannot become documents are handled. By default, the build fails at the first one."
        ),
    )
    retractions: Path | None = Field(
        None,
        description=(
            "Retraction list, which `dataprep retract` writes: the documents to remove. Default: "
            "`retracted.jsonl` next to this YAML."
        ),
    )
    rewrite: Rewrites = Field(
        (),
        description=(
            "Rewriters, which change the texts before anything else reads them, in this order: `ftfy`, `personal`, or "
            "your own functions. Default: none."
        ),
    )
    recipe: str | None = Field(
        None,
        min_length=1,
        description=(
            "Published set of taggers and rules: `gopher`, `c4`, `fineweb`, `dclm`, or `fineweb2/LANGUAGE`, such as "
            "`fineweb2/deu_Latn`. `tag`, `keep` and `drop` add to it. `dataprep show` lists its content. Default: none."
        ),
    )
    tag: Tags = Field(
        (),
        description=(
            "Taggers, which add columns to the document table: built-in taggers, or functions, commands and assets. "
            "Default: none."
        ),
    )
    keep: KeepRules = Field(default_factory=dict)
    drop: DropRules = Field(default_factory=dict)
    duplicates: DuplicatesDeclaration | None = Field(
        None,
        description=(
            "Deduplication: keeps one document of each group of near-duplicates. `{}` uses the defaults. Without "
            "this key, duplicates are kept."
        ),
    )
    decontaminate: DecontaminateDeclaration | None = Field(
        None,
        description=(
            "Decontamination: benchmarks whose items must not be in the documents. Without this key, documents "
            "are not searched."
        ),
    )
    budget: BudgetDeclaration = Field(
        BudgetDeclaration(), description="Maximum shares of documents that rules may drop. Default: no limits."
    )
    floors: dict[ColumnName, FloorDeclaration] = Field(
        default_factory=dict,
        description=(
            "Tagger → its minimum accuracy on planted test cases. Allowed for `language`, `personal`, "
            "`repetition`, and taggers of packages that have cases. Default: 0.9 for recall and precision."
        ),
    )
    views: Annotated[tuple[View, ...], AfterValidator(require_unique_views)] = Field(
        ("nanogpt",), description="Trainer formats to build from the token bins."
    )
    olmo_sequence_length: int = Field(
        2048, ge=2, description="Sequence length in tokens that the `olmo` view declares."
    )
    mds_sequence_length: int = Field(2048, ge=1, description="Tokens per sample in the `mds` view.")
    sample_rate: float = Field(
        0.0005, ge=0, le=1, description="Share of documents that the reference engine also encodes, to compare the ids."
    )
    # Use a private attribute, because the serialized declaration must not contain the folder of the YAML file.
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="before")
    @classmethod
    def _write_out_recipe(cls, keys: Any) -> Any:
        if not isinstance(keys, Mapping) or not isinstance(keys.get("recipe"), str):
            return keys
        from dataprep_assets.curation.filter_recipes.recipe import write_out_recipe

        try:
            return write_out_recipe(keys)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @field_validator("splits")
    @classmethod
    def _require_valid_split_names(cls, splits: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, globs in splits.items():
            # Allow only names that are valid in Dagster asset keys, because a split's name becomes part of such keys.
            if not (name.isascii() and name.isidentifier()):
                raise ValueError(
                    f"split name {name!r}: must be letters, digits and `_`, and must not begin with a digit, e.g., "
                    "train"
                )
            if not globs:
                raise ValueError(f"split {name!r} has no globs. List at least one")
        return splits

    @model_validator(mode="after")
    def _require_separate_id_field(self) -> Self:
        if self.document.id_field == self.text_field:
            raise ValueError(
                "`document.id_field` and `text_field` name the same field. Remove `document.id_field`: without it, "
                "documents are found by their text"
            )
        return self

    @model_validator(mode="after")
    def _require_key_of_sensitive_data(self) -> Self:
        if self.sensitive and self._reads_local_files and self.document.id_key is None:
            raise ValueError(describe_missing_key("document.id_key", "DOCUMENT_KEY"))
        return self

    @model_validator(mode="after")
    def _require_fitting_rules(self) -> Self:
        try:
            if self.recipe is not None:
                from dataprep_assets.curation.filter_recipes.recipe import load_recipe

                load_recipe(self.recipe).require_columns(self.columns)
            rules = self.rules
            if self.duplicates is not None:
                self.duplicates.check_column(self.columns)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        reasons = [*rules, *([] if self.duplicates is None else [DUPLICATE])]
        if self.duplicates is not None and self.dataset in self.duplicates.against:
            raise ValueError(
                f"duplicates.against: {self.dataset} is this dataset, whose documents are always compared. Remove it"
            )
        if self.duplicates is not None and DUPLICATE in rules:
            key = "keep" if DUPLICATE in self.keep else "drop"
            raise ValueError(f"{key}.{DUPLICATE}: reserved as the reason of `duplicates`. Rename the rule")
        if unknown := [name for name in self.budget.per_rule if name not in reasons]:
            raise ValueError(f"budget.per_rule: unknown rule {unknown[0]!r}. Available: {', '.join(reasons) or 'none'}")
        if self.budget != BudgetDeclaration() and not reasons:
            raise ValueError("budget: has no effect without rules in `keep` or `drop`. Remove it")
        tested_taggers = self.tested_taggers if self.floors else {}
        if unknown_floors := [name for name in self.floors if name not in tested_taggers]:
            names = ", ".join(tested_taggers) or "none"
            raise ValueError(
                f"floors.{unknown_floors[0]}: no tagger in `tag` with that name has test cases. Available: {names}"
            )
        return self

    @model_validator(mode="after")
    def _forbid_text_of_sensitive_data(self) -> Self:
        if not self.sensitive:
            return self
        if self.duplicates is not None and self.document.id_key is None:
            raise ValueError(
                "`sensitive: true` with `duplicates` needs `document.id_key: {env: DOCUMENT_KEY}`, the variable "
                "with a key of at least 32 characters. Without a key, words could be guessed from their hashes"
            )
        document = self.document
        texts = [
            f"document.keep_fields: {path}" for path, kind in (document.keep_fields or {}).items() if kind == "string"
        ]
        texts += [f"tag: {name}" for name in find_text_taggers(self.tag, self.taggers)]
        for key in ("url_field", "license_field", "source_field"):
            if (field := getattr(document, key)) is not None:
                texts.append(f"document.{key}: {field}")
        if texts:
            raise ValueError(
                f"{texts[0]}: the document table of a `sensitive` dataset cannot contain text. Remove it, or declare "
                "numbers"
            )
        return self

    @property
    def has_table(self) -> bool:
        """Whether the dataset has a document table, because a declared key fills or needs one."""
        carries_fields = self.document.keep_fields is not None or self.document.license_field is not None
        return bool(self.tag or self.decontaminate) or self.selects or carries_fields

    @property
    def selects(self) -> bool:
        """Whether documents may be dropped for their content.

        They are dropped by rules, as duplicates, for benchmark items, or because rewriting leaves no text.
        """
        benchmarks = self.decontaminate is not None and self.decontaminate.action != "tag"
        return bool(self.keep or self.drop or self.rewrite) or self.duplicates is not None or benchmarks

    @property
    def signing(self) -> "SignatureSettings":
        """The settings that determine the signatures for duplicate detection.

        Raises ConfigError if the key of a sensitive dataset is not in the environment.
        """
        assert self.duplicates is not None
        ids = self.document.ids(sensitive=self.sensitive)
        return self.duplicates.build_signature_settings(
            None if ids is None else ids.key, None if ids is None else ids.key_digest
        )

    @property
    def texts_only(self) -> CarriedFields:
        """Settings for reading only the texts of rows, without any carried fields."""
        return CarriedFields(
            text=self.text_field,
            ids=self.document.ids(sensitive=self.sensitive),
            max_record_bytes=self.bad_records.max_record_bytes,
            sensitive=self.sensitive,
        )

    @property
    def carried(self) -> CarriedFields:
        """The columns of the document table that do not depend on the text."""
        return self._build_carried_fields(self.document.ids(sensitive=self.sensitive))

    def _build_carried_fields(self, ids: DocumentIds | None) -> CarriedFields:
        return CarriedFields(
            text=self.text_field,
            ids=ids,
            source=self.document.source_field,
            url=self.document.url_field,
            license=self.document.license_field,
            keep=tuple((self.document.keep_fields or {}).items()),
            max_record_bytes=self.bad_records.max_record_bytes,
            sensitive=self.sensitive,
            rewriters=() if self.rewriting is None else self.rewriting.names,
        )

    @property
    def rewriting(self) -> "Rewriting | None":
        """The declared rewriters, in order; None if texts are not rewritten."""
        if not self.rewrite:
            return None
        return build_rewriting(self.rewrite, self._folder, sensitive=self.sensitive)

    @property
    def taggers(self) -> "list[Tagger]":
        """The declared taggers in order, and the tagger of `decontaminate` last."""
        taggers = build_taggers(self.tag, self._folder)
        if self.decontaminate is None:
            return taggers
        if any(tagger.name == BENCHMARK for tagger in taggers):
            raise ConfigError(f"tag: {BENCHMARK!r} is the tagger of `decontaminate`. Set a different `name`")
        return [*taggers, self.decontaminate.build_tagger(self._folder, self.rewriting)]

    @property
    def benchmark_sets(self) -> "list[BenchmarkSet]":
        """The benchmarks of `decontaminate`."""
        return [] if self.decontaminate is None else list(self.decontaminate.build_sets(self._folder, self.rewriting))

    @property
    def tested_taggers(self) -> "dict[str, TextTagger]":
        """The taggers that have test cases with known answers, or whose findings a rewriter replaces, by name."""
        from dataprep_assets.curation.tagging import BuiltInTagger, load_tagger

        taggers = {tagger.name: tagger.load() for tagger in self.taggers if isinstance(tagger, BuiltInTagger)}
        if replaces_personal_data(self.rewrite):
            taggers.setdefault(PERSONAL, load_tagger(PERSONAL))
        return {name: tagger for name, tagger in taggers.items() if tagger.planted is not None}

    @property
    def column_descriptions(self) -> dict[str, str]:
        """Column of the document table → a sentence about it."""
        return {**self._build_carried_fields(None).column_descriptions, **describe_tagger_columns(self.taggers)}

    @property
    def columns(self) -> dict[str, ColumnType]:
        """The columns that rules may name: first the carried fields, then the taggers' columns."""
        # Leave out the id column, because it needs the key of the ids, and a declaration is also checked on machines
        # without the key.
        fields = self._build_carried_fields(None)
        columns = {name: kind for name, kind in fields.columns.items() if name != "bad"}
        kept_columns = {name_column(path) for path, _ in fields.keep}
        for rewriter in fields.rewriters:
            if (column := name_rewritten_column(rewriter)) in kept_columns:
                raise ConfigError(
                    f"rewrite: {rewriter}: the table already has a column {column!r}. Remove it from "
                    "`document.keep_fields`"
                )
        columns = add_tagger_columns(columns, self.taggers)
        if self.duplicates is not None and "similarity" in columns:
            raise ConfigError("duplicates: the column 'similarity' is reserved for `duplicates`. Rename your column")
        return columns

    @property
    def rules(self) -> "dict[str, tuple[bool, Rule]]":
        """The rules by name, in order of evaluation: whether matching documents are kept, and the rule."""
        drop, decontamination = self.drop, self.decontaminate
        if decontamination is not None and decontamination.action == "drop":
            if BENCHMARK in {**self.keep, **drop}:
                key = "keep" if BENCHMARK in self.keep else "drop"
                raise ConfigError(f"{key}.{BENCHMARK}: reserved as the reason of `decontaminate`. Rename the rule")
            drop = {**drop, BENCHMARK: decontamination.rule}
        rules = parse_rules(self.keep, drop, self.columns)
        if (rewriting := self.rewriting) is None:
            return rules
        if EMPTY in rules:
            key = "keep" if EMPTY in self.keep else "drop"
            raise ConfigError(f"{key}.{EMPTY}: reserved as the reason of `rewrite`. Rename the rule")
        # Put this rule first, so that its count does not depend on the other rules.
        return {**parse_rules({}, {EMPTY: build_empty_rule(rewriting.names)}, self.columns), **rules}

    def source_digests(self) -> SourceDigests:
        """Return the settings for digests of source files: keyed if the dataset is sensitive and its files are local.

        Remote sources list their own digests, which the manifest must repeat. Raises ConfigError if the key is not
        in the environment.
        """
        keyed = self.sensitive and self._reads_local_files
        return SourceDigests(self.document.key() if keyed else None)

    @property
    def _reads_local_files(self) -> bool:
        source = self.source
        return isinstance(source, LocalSource) or (isinstance(source, AssetSource) and not source.mirrored)

    @property
    def combines(self) -> bool:
        """Whether the shards of each split are joined into one file."""
        return True

    def resolve_paths(self, folder: Path) -> Self:
        source: Any = self.source
        if isinstance(source, LocalSource | HubCacheSource):
            source = source.model_copy(update={"path": resolve_path(source.path, folder)})
        elif isinstance(source, AssetSource):
            source = source.resolve_paths(folder)
        elif isinstance(source, ObjectStoreSource | HubSource) and source.cache_dir is not None:
            source = source.model_copy(update={"cache_dir": resolve_path(source.cache_dir, folder)})
        changed = {
            "source": source,
            "tokenizer": self.tokenizer.resolve_paths(folder),
            "retractions": resolve_path(self.retractions or Path(RETRACTIONS), folder),
        }
        corpus = super().resolve_paths(folder).model_copy(update=changed)
        corpus._folder = folder
        return corpus
