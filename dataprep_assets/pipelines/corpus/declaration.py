"""The declaration of a tokenized corpus, validated once, and the names of its artifacts.

This is the schema of `type: dataprep_assets.components.TokenizedCorpus`: its field descriptions are the YAML
reference. Paths are resolved against the folder of the YAML, and no key contains one.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from dataprep_assets.curation.benchmarks.benchmarks import BENCHMARK, BenchmarkTagger
from dataprep_assets.curation.benchmarks.decontamination import DecontaminateDeclaration
from dataprep_assets.curation.declaration import (
    BudgetDeclaration,
    ColumnName,
    DuplicatesDeclaration,
    FloorDeclaration,
    Tag,
    rules_of,
    taggers_of,
)
from dataprep_assets.curation.duplicates.signatures import SignatureSettings
from dataprep_assets.curation.rules import Rule
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import DECIDED, OTHERS, CarriedFields, ColumnType, column_of
from dataprep_assets.curation.tagging import BuiltInTagger, Tagger, named_tagger
from dataprep_assets.engine.secret_key import EnvironmentKey
from dataprep_assets.engine.source_key import key_needed
from dataprep_assets.engine.yaml.declaration import MadeByEngine, ReadingDeclaration, resolve_path
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
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

_INSTEAD = {"id": "id_field", "source": "source_field"}
"""Column of the document table → the key that fills it from a field."""


class CorpusDocumentPolicy(DocumentPolicy):
    """Tokens around a document, special tokens in it, and the fields that identify it."""

    id_field: str | None = Field(
        None,
        min_length=1,
        description="Field of the document's id (a string or an integer), which the index uses to find it; written "
        "like `text_field`. Default: the text.",
    )
    id_key: EnvironmentKey | None = Field(
        None,
        description="Key for the hashes in the index; required for an index by id in a `sensitive` dataset. Digests of "
        "local source files also use it, so a `sensitive` dataset of a local folder needs it.",
    )
    keep_fields: dict[str, ColumnType] | None = Field(
        None,
        description="Fields to copy to the document table: field → `string`, `integer`, `number` or `boolean`. A dot "
        "selects a key of an object (`meta.lang`). CSV values are converted to the type. `{}` creates "
        "only the table.",
    )
    url_field: str | None = Field(
        None, min_length=1, description="Field with the document's URL; adds the column `host` to the table."
    )
    source_field: str | None = Field(
        None,
        min_length=1,
        description="Field with the document's source, for shares and budgets; default: the folder of its file.",
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        fields = {path: column_of(path) for path in self.keep_fields or ()}
        # functions and commands also get the text, under the name `text`, next to these columns
        own = {*CarriedFields(text="", ids=None, url=self.url_field).columns, *DECIDED, *OTHERS, "text"}
        for path, column in fields.items():
            if column in own:
                instead = _INSTEAD.get(column)
                instead = instead if instead and getattr(self, instead) is None else None
                raise ValueError(
                    f"keep_fields: {column!r} is already a column of the table. Remove {path}"
                    + (f", and set `document.{instead}: {path}`" if instead else "")
                )
            # `meta.lang` and `meta_lang` would collide, because a dot becomes `_`
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
    # the type lists the installed views, which a type checker cannot know
    View = Literal[tuple(VIEWS)]


class ShardPlanDeclaration(Declared):
    """Size or number of a split's shards, and how they change with added files."""

    target_bytes: int | None = Field(
        None, ge=1, description="Source bytes per shard; default 1 GiB, at most 4,000 shards."
    )
    count: int | None = Field(None, ge=1, description="Number of shards per split, instead of `target_bytes`.")
    on_change: Literal["append", "replan"] = Field(
        "append",
        description="How shards follow added or removed source files: `append` keeps the files of every shard and puts "
        "new files in new shards; `replan` plans all shards again.",
    )

    @model_validator(mode="after")
    def _one_size(self) -> "ShardPlanDeclaration":
        if self.target_bytes is not None and self.count is not None:
            raise ValueError("`target_bytes` cannot be combined with `count`. Remove one of them")
        return self

    @property
    def sizing(self) -> ShardSizing:
        """The declared sizing, in the shard plan's form."""
        return ShardSizing(target_bytes=self.target_bytes, count=self.count)


class CorpusDeclaration(ReadingDeclaration, MadeByEngine):
    """A tokenized corpus, from its source to token files for trainers."""

    source: Source = Field(description="Source of the documents.")
    include: tuple[str, ...] = Field(
        ("**/*.jsonl.zst",),
        min_length=1,
        description="Globs of data files: `.jsonl`, `.parquet`, `.txt`, `.csv`, `.tsv`, `.arrow`, `.wet`, `.warc`; all "
        "except Parquet also with `.zst`, `.gz`, `.xz` or `.bz2`. `*` matches within one part of a path, "
        "`**/` any number of parts.",
    )
    splits: dict[str, tuple[str, ...]] = Field(
        min_length=1, description="Split name → globs of its files. A file belongs to one split."
    )
    text_field: str = Field(
        "text",
        description="Key (JSON) or column (Parquet, CSV, Arrow) of the document's text. A dot selects a key of an "
        "object or struct (`data.text`).",
    )
    tokenizer: TokenizerDeclaration = Field(description="The tokenizer, and the engine that runs it.")
    document: CorpusDocumentPolicy = Field(
        CorpusDocumentPolicy(), description="Tokens around a document, special tokens in it, and its id."
    )
    dtype: Literal["auto", "uint16", "uint32"] = Field("auto", description="`auto`: uint16 if every id fits.")
    shards: ShardPlanDeclaration = Field(ShardPlanDeclaration(), description="How each split is divided into shards.")
    bad_records: BadRecordPolicy = Field(
        BadRecordPolicy(),
        description="Records that cannot become documents: fail at the first one, or drop and count them.",
    )
    retractions: Path | None = Field(
        None,
        description="Retraction list (documents to remove), written by `dataprep retract`; default: `retracted.jsonl` "
        "next to this YAML.",
    )
    tag: tuple[Tag, ...] = Field(
        (),
        description="Taggers, which add columns to the document table: names of built-in taggers, functions, commands.",
    )
    keep: dict[ColumnName, str] = Field(
        default_factory=dict,
        description="Named filter rules over columns. A document is kept only if all of them match. The name is the "
        "drop reason.",
    )
    drop: dict[ColumnName, str] = Field(
        default_factory=dict,
        description="Named filter rules over columns. A document is dropped if any of them matches.",
    )
    duplicates: DuplicatesDeclaration | None = Field(
        None,
        description="Deduplication: one document of each group of near-duplicates is kept. `{}` uses the defaults.",
    )
    decontaminate: DecontaminateDeclaration | None = Field(
        None, description="Decontamination: benchmarks whose items must not be in the documents."
    )
    budget: BudgetDeclaration = Field(BudgetDeclaration(), description="Limits on the share that rules may drop.")
    floors: dict[ColumnName, FloorDeclaration] = Field(
        default_factory=dict,
        description="Tagger → the minimum accuracy on test cases planted into documents of the dataset; default: 0.9 "
        "for both. For `language`, `personal` and `repetition`, and for packages' taggers that have cases.",
    )
    views: tuple[View, ...] = Field(("nanogpt",), description="Trainer formats of the same tokens.")
    olmo_sequence_length: int = Field(2048, ge=2, description="Sequence length declared in the olmo view.")
    mds_sequence_length: int = Field(2048, ge=1, description="Tokens per sample in the mds view.")
    sample_rate: float = Field(0.0005, ge=0, le=1, description="Share of documents re-encoded by the reference engine.")
    # a private attribute, so that the serialized declaration does not contain the folder of the YAML
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @field_validator("splits")
    @classmethod
    def _split_names(cls, splits: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, globs in splits.items():
            if not (name.isascii() and name.isidentifier()):  # the name becomes part of the names of Dagster's assets
                raise ValueError(
                    f"split name {name!r}: only letters a to z, digits and '_' are allowed, e.g., train, val, test"
                )
            if not globs:
                raise ValueError(f"split {name!r} has no globs")
        return splits

    @field_validator("views")
    @classmethod
    def _usable_views(cls, views: tuple[View, ...]) -> tuple[View, ...]:
        from dataprep_assets.pipelines.corpus.view import view_named

        try:
            for name in views:
                view_named(name)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if twice := [name for name in dict.fromkeys(views) if views.count(name) > 1]:
            raise ValueError(f"`{twice[0]}` is listed twice. Remove one")
        return views

    @model_validator(mode="after")
    def _id_is_not_the_text(self) -> Self:
        if self.document.id_field == self.text_field:
            raise ValueError(
                "`document.id_field` is `text_field`. Remove it: without it, documents are found by their text"
            )
        return self

    @model_validator(mode="after")
    def _key_of_sensitive_data(self) -> Self:
        if self.sensitive and self._reads_local_files and self.document.id_key is None:
            raise ValueError(key_needed("document.id_key", "DOCUMENT_KEY"))
        return self

    @model_validator(mode="after")
    def _rules_fit(self) -> Self:
        try:
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
            raise ValueError(f"budget.per_rule: unknown rule {unknown[0]!r} (not in `keep` or `drop`)")
        if self.budget != BudgetDeclaration() and not reasons:
            raise ValueError("budget: has no effect without rules in `keep` or `drop`. Remove it")
        if unknown_floors := [name for name in self.floors if name not in self.with_cases]:
            names = ", ".join(self.with_cases) or "none"
            raise ValueError(
                f"floors.{unknown_floors[0]}: no tagger in `tag` with that name has test cases. Available: {names}"
            )
        return self

    @model_validator(mode="after")
    def _no_text_of_sensitive_data(self) -> Self:
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
        texts += [
            f"tag: {tagger.name}"
            for tagger in self.taggers
            if not isinstance(tagger, BuiltInTagger | BenchmarkTagger) and "string" in tagger.columns.values()
        ]
        field_of = {"url_field": document.url_field, "source_field": document.source_field}
        texts += [f"document.{key}: {field}" for key, field in field_of.items() if field is not None]
        if texts:
            raise ValueError(
                f"{texts[0]}: the document table of a `sensitive` dataset cannot contain text. Remove it, or declare "
                "numbers"
            )
        return self

    @property
    def has_table(self) -> bool:
        """Whether the dataset has a document table, because a declared key fills or needs one."""
        return bool(self.tag or self.decontaminate) or self.selects or self.document.keep_fields is not None

    @property
    def selects(self) -> bool:
        """Whether documents may be dropped for their content: by rules, as duplicates, or for benchmark items."""
        benchmarks = self.decontaminate is not None and self.decontaminate.action != "tag"
        return bool(self.keep or self.drop) or self.duplicates is not None or benchmarks

    @property
    def signing(self) -> SignatureSettings:
        """The settings that determine the signatures for duplicate detection.

        Raises ConfigError if the key of a sensitive dataset is not in the environment.
        """
        assert self.duplicates is not None
        ids = self.document.ids(sensitive=self.sensitive)
        return self.duplicates.signing(None if ids is None else ids.key, None if ids is None else ids.key_digest)

    @property
    def texts_alone(self) -> CarriedFields:
        """The settings that find the rows with a text, without any carried fields."""
        return CarriedFields(
            text=self.text_field,
            ids=self.document.ids(sensitive=self.sensitive),
            max_record_bytes=self.bad_records.max_record_bytes,
            sensitive=self.sensitive,
        )

    @property
    def carried(self) -> CarriedFields:
        """The columns of the document table that do not depend on the text."""
        return self._carried(self.document.ids(sensitive=self.sensitive))

    def _carried(self, ids: DocumentIds | None) -> CarriedFields:
        return CarriedFields(
            text=self.text_field,
            ids=ids,
            source=self.document.source_field,
            url=self.document.url_field,
            keep=tuple((self.document.keep_fields or {}).items()),
            max_record_bytes=self.bad_records.max_record_bytes,
            sensitive=self.sensitive,
        )

    @property
    def taggers(self) -> list[Tagger]:
        """The taggers, in their order."""
        taggers = taggers_of(self.tag, self._folder)
        if self.decontaminate is None:
            return taggers
        if any(tagger.name == BENCHMARK for tagger in taggers):
            raise ConfigError(f"tag: {BENCHMARK!r} is the tagger of `decontaminate`. Set a different `name`")
        return [*taggers, self.decontaminate.tagger(self._folder)]

    @property
    def with_cases(self) -> list[str]:
        """The names of the taggers that have test cases with known answers."""
        names = [tagger.name for tagger in self.taggers if isinstance(tagger, BuiltInTagger)]
        return [name for name in names if named_tagger(name).planted is not None]

    @property
    def columns(self) -> dict[str, ColumnType]:
        """The columns that rules may name: first the carried fields, then the taggers' columns."""
        # ids are left out, because checking a declaration must work without their key
        columns = {name: kind for name, kind in self._carried(None).columns.items() if name != "bad"}
        for tagger in self.taggers:
            if duplicates := [name for name in tagger.columns if name in (*columns, *DECIDED, *OTHERS)]:
                raise ConfigError(f"tag: {tagger.name}: the table already has a column {duplicates[0]!r}. Rename one")
            columns |= tagger.columns
        if self.duplicates is not None and "similarity" in columns:
            raise ConfigError("duplicates: adds a column 'similarity' to the table. Rename yours")
        return columns

    @property
    def rules(self) -> dict[str, tuple[bool, Rule]]:
        """The rules by name, in the order of evaluation; True marks a rule that keeps matching documents."""
        drop, decontamination = self.drop, self.decontaminate
        if decontamination is not None and decontamination.action == "drop":
            if BENCHMARK in {**self.keep, **drop}:
                key = "keep" if BENCHMARK in self.keep else "drop"
                raise ConfigError(f"{key}.{BENCHMARK}: reserved as the reason of `decontaminate`. Rename the rule")
            drop = {**drop, BENCHMARK: decontamination.rule}
        return rules_of(self.keep, drop, self.columns)

    def source_digests(self) -> SourceDigests:
        """Return how source files are digested: with a key if the dataset is sensitive and its files are local.

        Hubs and buckets list digests of their own, which the manifest must repeat. Raises ConfigError if the key is not
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

    def holding_retracted(self, store: ArtifactStore, unplanned: Iterable[Artifact]) -> list[Artifact]:
        from dataprep_assets.pipelines.corpus.combined_bins import retracted_left

        return retracted_left(self, store, unplanned)

    def located(self, folder: Path) -> Self:
        source: Any = self.source
        if isinstance(source, LocalSource | HubCacheSource):
            source = source.model_copy(update={"path": resolve_path(source.path, folder)})
        elif isinstance(source, AssetSource):
            source = source.located(folder)
        elif isinstance(source, ObjectStoreSource | HubSource) and source.cache_dir is not None:
            source = source.model_copy(update={"cache_dir": resolve_path(source.cache_dir, folder)})
        changed = {
            "source": source,
            "tokenizer": self.tokenizer.located(folder),
            "retractions": resolve_path(self.retractions or Path(RETRACTIONS), folder),
        }
        corpus = super().located(folder).model_copy(update=changed)
        corpus._folder = folder
        return corpus
