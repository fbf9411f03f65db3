"""The declaration of a training blend. The YAML reference is generated from its field descriptions.

The blend itself, which may be in a separate file, is defined in `data_blend.py`, and the options of RL in
`rl/options.py`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.benchmarks.decontamination import RowDecontaminateDeclaration, TextChoice
from dataprep_assets.curation.declaration import (
    BudgetDeclaration,
    ColumnName,
    DropRules,
    KeepRules,
    Tags,
    add_tagger_columns,
    build_taggers,
    find_text_taggers,
    find_unknown_sources,
    parse_rules,
)
from dataprep_assets.curation.duplicates.declaration import RowDuplicatesDeclaration
from dataprep_assets.curation.rewriters.declaration import Rewrites, build_rewriting
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import DECIDED, OTHERS, ColumnType, name_column, name_rewritten_column
from dataprep_assets.engine.source_key import KeyedSources
from dataprep_assets.engine.yaml.declaration import (
    WandbDeclaration,
    WorkersDeclaration,
    require_unique_views,
    resolve_path,
)
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.extensions import Extensions
from dataprep_assets.pipelines.blend.data_blend import DataBlend
from dataprep_assets.pipelines.blend.pairs.options import PairsOptions
from dataprep_assets.pipelines.blend.pairs.views import VIEWS as PREFERENCE_VIEWS
from dataprep_assets.pipelines.blend.rl.options import RlOptions
from dataprep_assets.pipelines.blend.rl.views import VIEWS as RECORD_VIEWS
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.pipelines.blend.sft.views import VIEWS as CONVERSATION_VIEWS
from dataprep_assets.stores.connect import Access
from dataprep_assets.stream.declaration import RETRACTIONS, BadRecordPolicy, TokenizerDeclaration

# Import these modules only for type checking, because most blends have no taggers and rules.
if TYPE_CHECKING:
    from dataprep_assets.curation.rewriters.rewriting import Rewriting
    from dataprep_assets.curation.rules import Rule
    from dataprep_assets.curation.tagging import BatchTagger

Stage = Literal["pretrain", "sft", "pairs", "rl"]
STAGE_VIEWS: Mapping[str, Extensions] = {"sft": CONVERSATION_VIEWS, "pairs": PREFERENCE_VIEWS, "rl": RECORD_VIEWS}
"""Stage → the available views of its runs."""
if TYPE_CHECKING:
    View = str
else:
    # At run time, the type lists the installed views, which a type checker cannot know.
    View = Literal[tuple(name for views in STAGE_VIEWS.values() for name in views)]


class PretrainOptions(DeclarationModel):
    """Settings of the stage `pretrain`, which writes Megatron's `.bin` and `.idx` files."""

    dtype: Literal["auto", "int32", "uint16"] = Field(
        "auto",
        description=(
            "Data type of the token ids. `auto`: `uint16` for vocabularies below 65,500 tokens, else `int32`, as "
            "in Megatron."
        ),
    )
    add_bos: bool = Field(False, description="Whether every document begins with the tokenizer's BOS.")
    add_eos: bool = Field(True, description="Whether every document ends with `separator`.")
    separator: str = Field("auto", description="Token that ends a document. `auto`: the tokenizer's EOS.")
    special_tokens: Literal["text", "match"] = Field(
        "text",
        description=(
            "How the text of a special token in a document is encoded: as ordinary `text`, or as the special "
            "token's id (`match`)."
        ),
    )
    min_doc_chars: int | None = Field(
        None,
        ge=1,
        description=(
            "Minimum length of a document in characters. Shorter documents are dropped and counted. Default: no limit."
        ),
    )
    max_doc_tokens: int | None = Field(
        None,
        ge=3,
        description=(
            "Maximum length of a document in tokens, including BOS and separator. Longer documents are truncated "
            "before the separator. Default: no limit."
        ),
    )
    sequence_length: int = Field(
        4096, ge=1, description="Tokens per training sample, only for the estimates of the preview."
    )
    sample_rate: float = Field(
        0.0005, ge=0, le=1, description="Share of documents that the reference engine also encodes, to compare the ids."
    )


class SampleDeclaration(DeclarationModel):
    """Trial build of some shards of each dataset. Set `count` or `percent`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_row_count(cls, value: Any) -> Any:
        # Exclude booleans, which are ints in Python, because `sample: true` is a different mistake.
        if isinstance(value, int) and not isinstance(value, bool):
            raise ValueError(
                f"`sample: {value}` limits rows only in Nemotron's data_prep. Use `max_rows: {value}` (per shard), or "
                "`sample: {count: 1}` for a trial on some shards"
            )
        return value

    count: int | None = Field(None, ge=1, description="Number of shards per dataset. Required without `percent`.")
    percent: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Percentage of each dataset's shards, but at least one shard. Required without `count`.",
    )
    seed: int = Field(42, description="Seed for the selection of shards.")

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.count is None) == (self.percent is None):
            raise ValueError("exactly one of `count` (shards per dataset) and `percent` is required")
        return self


class HeldOut(DeclarationModel):
    """Shards of each dataset that are not trained on. Only for blends without `train`, `valid` and `test` lists."""

    valid: int = Field(0, ge=0, description="Number of shards per dataset for validation.")
    test: int = Field(0, ge=0, description="Number of shards per dataset for testing.")
    seed: int = Field(42, description="Seed for the selection of shards.")


class SourceAccessDeclaration(DeclarationModel):
    """Access to remote sources. Credentials come only from the environment and the clients' own configuration."""

    hub_endpoint: str | None = Field(None, description="URL of the Hub. Default: `HF_ENDPOINT`, else the public Hub.")
    hub_cache: Path | None = Field(
        None,
        description=(
            "Cache folder of the Hub. Default: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else the Hub's cache in "
            "`~/.cache`."
        ),
    )
    object_cache: Path | None = Field(
        None, description="Download folder for `s3://` and `gs://`. Required if the blend has such sources."
    )
    object_access: Access = Field(
        "keys",
        description=(
            "How requests to `s3://` and `gs://` are authenticated. `keys`: with credentials. `anonymous`: "
            "without, for public buckets. `requester_pays`: with credentials, and your account pays for the "
            "requests."
        ),
    )
    s3_endpoint: str | None = Field(
        None,
        description="URL of the object storage for `s3://`. Default: the same as for `storage`, else AWS.",
    )
    s3_region: str = Field(
        "auto",
        description=(
            "Region of the buckets for `s3://`. `auto` works for R2; for AWS, it means boto3's default region."
        ),
    )
    follow_links: bool = Field(
        False,
        description=(
            "Whether symbolic links may point outside the local folders. If so, anyone who can create links can "
            "make dataprep read any file."
        ),
    )
    allow_http: bool = Field(
        False, description="Whether servers on other machines may use `http://`, which sends credentials unencrypted."
    )


def _detect_kind(value: Any) -> str:
    # Select the form by type, because for a plain union, pydantic reports each mistake once per form.
    return "file" if isinstance(value, str | Path) else "inline"


class BlendDeclaration(WorkersDeclaration, KeyedSources):
    """A weighted blend of datasets for one training stage."""

    stage: Stage = Field(
        description=(
            "Training stage and its output. `pretrain`: `.bin` and `.idx` files. `sft`: packed Parquet. `pairs`: "
            "preference pairs. `rl`: JSON Lines."
        )
    )
    blend: Annotated[
        Annotated[DataBlend, Tag("inline")] | Annotated[Path, Tag("file")],
        Discriminator(_detect_kind),
    ] = Field(description="The blend itself, or the path of its JSON file.")
    tokenizer: TokenizerDeclaration | None = Field(
        None, description="The tokenizer. Required for every stage except `rl`, where it is not allowed."
    )
    pretrain: PretrainOptions | None = Field(None, description="Settings of the stage `pretrain`.")
    sft: SftOptions | None = Field(None, description="Settings of the stage `sft`.")
    pairs: PairsOptions | None = Field(None, description="Settings of the stage `pairs`.")
    rl: RlOptions | None = Field(None, description="Settings of the stage `rl`.")
    views: Annotated[tuple[View, ...], AfterValidator(require_unique_views)] = Field(
        (),
        description=(
            "Additional trainer formats of the same data. The stage decides which formats are available. Default: none."
        ),
    )
    num_shards: int | None = Field(
        None, ge=1, le=4000, description="Number of shards per dataset. Default: one per 256 MiB of source."
    )
    max_rows: int | None = Field(
        None,
        ge=1,
        description="Maximum number of rows to read from the start of each shard, for a trial. Default: all rows.",
    )
    sample: SampleDeclaration | None = Field(
        None, description="Builds only some shards of each dataset, for a trial. Default: all shards."
    )
    held_out: HeldOut | None = Field(
        None,
        description="Shards of each dataset that are used for validation and test instead of training. Default: none.",
    )
    train_tokens: int | None = Field(
        None,
        ge=1,
        description=(
            "Number of tokens to train on, used to compute the epochs of each dataset. Default: the tokens of "
            "all datasets. Not for `rl`."
        ),
    )
    max_epochs: float | None = Field(
        None,
        gt=0,
        description=(
            "Maximum number of times that a dataset may be read. A blocking check fails above it. Default: no limit."
        ),
    )
    tolerance: float = Field(
        0.01,
        ge=0,
        le=1,
        description=(
            "Maximum difference between a dataset's share and its weight. A blocking check fails above it. Held-out "
            "shards of `sft` and `pairs` are not compared."
        ),
    )
    bad_records: BadRecordPolicy = Field(
        BadRecordPolicy(), description="How unusable records are handled. By default, the build fails at the first one."
    )
    tag: Tags = Field(
        (),
        description=(
            "Taggers, which add columns to the document table: names of built-in taggers, or functions. Columns "
            "without a tagger: `source` (the dataset), `bytes`, `characters`, `messages`, `turns` (messages of the "
            "user), `tool_calls`, `has_system`, `has_tools`, `has_tool_results`, `has_reasoning`, "
            "`question_characters`, `answer_characters`, `last_answer_characters` and `answer_question_ratio`. Not for "
            "`pretrain`. Default: none."
        ),
    )
    tag_text: dict[ColumnName, TextChoice] = Field(
        default_factory=dict,
        description=(
            "Tagger → the texts of a row that it reads: `all`, `questions`, `answers` or `first_question`. `answers` "
            "are the assistant's messages with their reasoning and tool calls, and both answers of a pair. `all` also "
            "includes tool results and declared tools. Default: `all`."
        ),
    )
    keep: KeepRules = Field(default_factory=dict)
    drop: DropRules = Field(default_factory=dict)
    budget: BudgetDeclaration = Field(
        BudgetDeclaration(),
        description=(
            "Maximum shares of rows that rules may drop, per dataset and per rule, or `duplicate` or `benchmark`. "
            "Default: no limits."
        ),
    )
    rewrite: Rewrites = Field(
        (),
        description=(
            "Rewriters, which change the texts of messages before anything else reads them: `ftfy`, placeholders for "
            "personal data, or your own functions. They rewrite contents, reasoning and arguments of tool calls, but "
            "no declared tools. Only for `sft` and `pairs`. Default: texts are not changed."
        ),
    )
    keep_fields: dict[str, ColumnType] | None = Field(
        None,
        description=(
            "Fields of the rows to copy to the document table: field → `string`, `integer`, `number` or `boolean`. A "
            "dot selects a nested key (`meta.lang`). Rules cannot use them. `{}` only creates the table. Not for "
            "`pretrain`. Default: no fields."
        ),
    )
    duplicates: RowDuplicatesDeclaration | None = Field(
        None,
        description=(
            "Deduplication: keeps one row of each group of near-duplicates in all datasets. `{}` uses the defaults. "
            "Rows that a rule drops, or that contain a benchmark item, are not compared. Rows that are too long or "
            "that the template refuses are compared, because this is known only later. Not for `pretrain`. Without "
            "this key, duplicates are kept."
        ),
    )
    decontaminate: RowDecontaminateDeclaration | None = Field(
        None,
        description=(
            "Decontamination: benchmarks whose items must not be in the rows. Not for `pretrain`. Without this key, "
            "rows are not searched."
        ),
    )
    id_field: str | None = Field(
        None,
        min_length=1,
        description="Field with the row's id, a string or integer. A dot selects a nested key (`meta.id`). `dataprep "
        "retract` finds rows by it. Default: rows are identified by their content (`pretrain`: by their text).",
    )
    retractions: Path | None = Field(
        None,
        description="Retraction list, which `dataprep retract` writes: the rows to remove. Default: `retracted.jsonl` "
        "next to this YAML.",
    )
    sources: SourceAccessDeclaration = Field(
        SourceAccessDeclaration(),
        description="How the blend's datasets are read from the Hub and from object storage.",
    )
    trainer_root: str | None = Field(
        None,
        description="Folder or URL of `storage` on the trainer's machine. Default: the same path as on this machine.",
    )
    execution_mode: Literal["auto", "streaming", "batch"] = Field(
        "auto",
        description=(
            "How `dataprep run` builds the shards. `batch`: one run, which first downloads all sources. "
            "`streaming`: runs of a few shards, which download only their own sources. `auto`: `streaming` if a "
            "source is remote, else `batch`."
        ),
    )
    wandb: WandbDeclaration | None = Field(
        None,
        description=(
            "Weights & Biases project for the tables of finished runs. Needs the extra `wandb`, and is not "
            "allowed with `sensitive`. Default: nothing is sent."
        ),
    )
    force: str = Field("", description="Any text. A change to this text rebuilds everything, under a new run hash.")
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @model_validator(mode="after")
    def _require_stage_keys(self) -> Self:
        """Raise ValueError for keys that the stage does not have, or that cannot be combined."""
        if self.views and self.stage not in STAGE_VIEWS:
            raise ValueError(
                f"`views` are only for `stage: sft`, `stage: pairs` and `stage: rl`, not for `stage: {self.stage}`. "
                "Remove them"
            )
        stage_views = STAGE_VIEWS.get(self.stage, ())
        if foreign_views := [view for view in self.views if view not in stage_views]:
            raise ValueError(
                f"`views`: `{foreign_views[0]}` is not a view of `stage: {self.stage}`. "
                f"Available: {', '.join(stage_views)}"
            )
        for stage in ("pretrain", "sft", "pairs", "rl"):
            if stage != self.stage and getattr(self, stage) is not None:
                raise ValueError(f"`{stage}` has no effect with `stage: {self.stage}`. Remove it")
        if self.tokenizer is None and self.stage != "rl":
            raise ValueError(f"`tokenizer` is required for `stage: {self.stage}`")
        if self.tokenizer is not None and self.stage == "rl":
            raise ValueError("`tokenizer` has no effect with `stage: rl`. Remove it")
        if self.sensitive and self.wandb is not None:
            raise ValueError(
                "`wandb` cannot be combined with `sensitive: true`: reports on sensitive data must stay local. "
                "Remove one of them"
            )
        if self.stage == "pretrain" and self.decontaminate is not None:
            raise ValueError(
                "`decontaminate` has no effect with `stage: pretrain`. Remove it, and declare it in a `TokenizedCorpus`"
            )
        if self.stage == "rl" and self.train_tokens is not None:
            raise ValueError("`train_tokens` has no effect with `stage: rl`, whose records have no tokens. Remove it")
        if self.held_out is not None and isinstance(self.blend, DataBlend) and self.blend.has_split_lists:
            raise ValueError(
                "`held_out` cannot be combined with a blend that has its own `train`, `valid` and `test` lists. "
                "Remove one of them"
            )
        if isinstance(self.blend, DataBlend) and (sentence := self._describe_unfit_blend(self.blend)) is not None:
            raise ValueError(sentence)
        # Check only declared numbers of shards; the plan checks the default number, which depends on the sources.
        counts = [self.num_shards, None if self.sample is None else self.sample.count]
        shards = min((count for count in counts if count), default=None)
        if self.held_out is not None and shards is not None and self.held_out.valid + self.held_out.test >= shards:
            raise ValueError(
                f"`held_out`: {count_of(self.held_out.valid, 'shard')} for valid and {self.held_out.test} for test "
                f"leave none of {shards} for training. Raise "
                f"`{'sample.count' if shards != self.num_shards else 'num_shards'}`, or hold out fewer"
            )
        return self

    @model_validator(mode="after")
    def _require_fitting_rules(self) -> Self:
        keys = [key for key in ("tag", "tag_text", "keep", "drop", "rewrite") if getattr(self, key)]
        keys += [name for name in ("keep_fields", "duplicates") if getattr(self, name) is not None]
        if keys and self.stage == "pretrain":
            raise ValueError(
                f"`{keys[0]}` has no effect with `stage: pretrain`. Remove it, and declare it in a `TokenizedCorpus`"
            )
        if self.rewrite and self.stage == "rl":
            raise ValueError("`rewrite` has no effect with `stage: rl`, whose records are not rendered. Remove it")
        try:
            taggers = self.taggers
            self.rewriting  # noqa: B018  # the property raises the errors of the rewriters
            self.rules  # noqa: B018  # the property raises the errors of the rules
            if self.duplicates is not None:
                self.duplicates.check_column(self.columns)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        self._require_new_columns(taggers)
        reasons = self.dropping_names
        if unknown_rules := [name for name in self.budget.per_rule if name not in reasons]:
            raise ValueError(
                f"budget.per_rule: unknown rule {unknown_rules[0]!r}. Available: {', '.join(reasons) or 'none'}"
            )
        if self.budget != BudgetDeclaration() and not reasons:
            raise ValueError("budget: has no effect without `keep`, `drop`, `duplicates` or `decontaminate`. Remove it")
        if self.sensitive and self.duplicates is not None and self.source_key is None:
            raise ValueError(
                "`sensitive: true` with `duplicates` needs `source_key: {env: SOURCE_KEY}`, the variable with the "
                "secret for the hashes of texts"
            )
        names = [tagger.name for tagger in taggers]
        if unknown_names := [name for name in self.tag_text if name not in names]:
            raise ValueError(f"tag_text: unknown tagger {unknown_names[0]!r}. Available: {', '.join(names) or 'none'}")
        if self.sensitive and (text_taggers := find_text_taggers(self.tag, taggers)):
            raise ValueError(
                f"tag: {text_taggers[0]}: the document table of a `sensitive` dataset cannot contain text. Remove it, "
                "or declare numbers"
            )
        return self

    def _require_new_columns(self, taggers: "Sequence[BatchTagger]") -> None:
        """Raise ValueError for a field of `keep_fields` that cannot be a column of the table."""
        from dataprep_assets.pipelines.blend.screening.conversation_columns import COLUMNS

        tagger_columns = (name for tagger in taggers for name in tagger.columns)
        rewritten_columns = () if self.rewriting is None else map(name_rewritten_column, self.rewriting.names)
        own_columns = {"file", "row", "id", "text", *COLUMNS, *tagger_columns, *rewritten_columns, *DECIDED, *OTHERS}
        columns = [name_column(path) for path in self.keep_fields or ()]
        for path, kind in (self.keep_fields or {}).items():
            if (column := name_column(path)) in own_columns:
                raise ValueError(f"keep_fields: {column!r} is already a column of the table. Remove {path}")
            # Two fields can have the same column name, because dots become `_`.
            if columns.count(column) > 1:
                raise ValueError(f"keep_fields: two fields would become the column {column!r}. Remove one")
            if self.sensitive and kind == "string":
                raise ValueError(
                    f"keep_fields: {path}: the document table of a `sensitive` dataset cannot contain text. Remove it, "
                    "or declare numbers"
                )

    @property
    def has_table(self) -> bool:
        """Whether the blend has a document table, because a declared key fills or needs one."""
        rules = self.keep or self.drop or self.duplicates or self.budget != BudgetDeclaration()
        return bool(self.tag or self.rewrite or rules) or self.keep_fields is not None

    @property
    def dropping_names(self) -> list[str]:
        """The reasons for dropping rows to which the budget applies: rules in order, `duplicate` and `benchmark`."""
        names = [*self.keep, *self.drop, *([] if self.duplicates is None else [DUPLICATE])]
        is_screened = self.decontaminate is not None and self.decontaminate.action == "drop"
        return [*names, BENCHMARK] if is_screened else names

    @property
    def has_row_ids(self) -> bool:
        """Whether rows have ids. Rows of a sensitive blend without a key have none."""
        return not self.sensitive or self.source_key is not None

    @property
    def taggers(self) -> "list[BatchTagger]":
        """The declared taggers, in order. Raises ConfigError for a command or an asset."""
        for index, tagger in enumerate(self.tag):
            for key in ("command", "asset"):
                if value := getattr(tagger, key, None):
                    raise ConfigError(
                        f"tag.{index}.{key}: {'/'.join(value)}: a tagger of a blend must be built in or a `function`, "
                        "not a command or an asset. Use a `function`"
                    )
        taggers = build_taggers(self.tag, self._folder)
        if not taggers:
            return []
        from dataprep_assets.curation.tagging import BatchTagger

        return [tagger for tagger in taggers if isinstance(tagger, BatchTagger)]

    @property
    def rewriting(self) -> "Rewriting | None":
        """The declared rewriters, in order; None if texts are not rewritten."""
        return build_rewriting(self.rewrite, self._folder, sensitive=self.sensitive) if self.rewrite else None

    @property
    def columns(self) -> dict[str, ColumnType]:
        """The columns that rules may name: first the columns of conversations, then the taggers' columns."""
        from dataprep_assets.pipelines.blend.screening.conversation_columns import COLUMNS

        return add_tagger_columns(COLUMNS, self.taggers)

    @property
    def rules(self) -> "dict[str, tuple[bool, Rule]]":
        """The rules by name, in order of evaluation: whether matching rows are kept, and the rule."""
        if not (self.keep or self.drop):
            return {}
        from dataprep_assets.pipelines.blend.screening.reasons import LEFT_OUT_BY, RESERVED

        transform_reasons = {name for name in (*self.keep, *self.drop) if name.startswith(LEFT_OUT_BY)}
        return parse_rules(self.keep, self.drop, self.columns, RESERVED | transform_reasons)

    @property
    def may_read_local_files(self) -> bool:
        """Whether the blend may read local files; true for a blend in a separate file, which can change at any time."""
        if not isinstance(self.blend, DataBlend):
            return True
        # Treat an asset's files as local, because only the asset's metadata shows where the files are.
        paths = [*(unit.dataset.path for unit in self.blend.list_units()), *self.rl_options.placeholder_paths]
        return any("://" not in path or path.startswith("asset://") for path in paths)

    @property
    def pretrain_options(self) -> PretrainOptions:
        """The options of the stage `pretrain`, or their defaults."""
        return self.pretrain or PretrainOptions()

    @property
    def sft_options(self) -> SftOptions:
        """The options of the stage `sft`, or their defaults."""
        return self.sft or SftOptions()

    @property
    def pairs_options(self) -> PairsOptions:
        """The options of the stage `pairs`, or their defaults."""
        return self.pairs or PairsOptions()

    @property
    def chat_options(self) -> SftOptions:
        """The options that decide how conversations are read and rendered, for the stages `sft` and `pairs`."""
        return self.pairs_options.chat if self.stage == "pairs" else self.sft_options

    @property
    def rl_options(self) -> RlOptions:
        """The options of the stage `rl`, or their defaults."""
        return self.rl or RlOptions()

    @property
    def record_locations(self) -> dict[str, str]:
        """The locations of the prompt and the expected answer in records of `rl`. The views' bytes depend on them."""
        return {"prompt": self.rl_options.prompt, "answer": self.rl_options.answer}

    @property
    def folder(self) -> Path:
        """The folder of the YAML, to which the paths of benchmarks are relative."""
        return self._folder

    @property
    def required_tokenizer(self) -> TokenizerDeclaration:
        """The tokenizer. Raises ConfigError if the stage has none."""
        if self.tokenizer is None:
            raise ConfigError(f"{self.dataset}: `stage: {self.stage}` has no tokenizer")
        return self.tokenizer

    def load_data_blend(self) -> DataBlend:
        """Return the blend, read from its file if it has one. Raises ConfigError for an invalid file."""
        if isinstance(self.blend, DataBlend):
            return self.blend
        blend = DataBlend.load(self.blend)
        # Repeat these checks of `_require_stage_keys`, which cannot check a blend in a separate file.
        if self.held_out is not None and blend.has_split_lists:
            raise ConfigError(
                f"`held_out` cannot be combined with a blend that has its own `train`, `valid` and `test` lists "
                f"({self.blend}). Remove one of them"
            )
        if (sentence := self._describe_unfit_blend(blend)) is not None:
            raise ConfigError(f"{self.blend}: {sentence}")
        return blend

    def _describe_unfit_blend(self, blend: DataBlend) -> str | None:
        """Return a sentence about a dataset whose `format` does not fit, or about a rule for an unknown dataset."""
        for unit in blend.list_units() if self.stage == "pairs" else ():
            if unit.dataset.format not in (None, "auto", "pairs", "kto"):
                return (
                    f"dataset {unit.dataset.name}: `format: {unit.dataset.format}` has no pairs. For `stage: pairs`, "
                    "use one of auto, pairs, kto"
                )
        unknown_sources = find_unknown_sources(self.keep, self.drop, blend.dataset_names, sensitive=False)
        return next((sentence for _, sentence in unknown_sources), None)

    def resolve_paths(self, folder: Path) -> Self:
        changes: dict[str, Any] = {
            "blend": self.blend.resolve_paths(folder)
            if isinstance(self.blend, DataBlend)
            else resolve_path(self.blend, folder),
            "sources": _resolve_source_paths(self.sources, folder),
            "tokenizer": self.tokenizer.resolve_paths(folder) if self.tokenizer else None,
            "retractions": resolve_path(self.retractions or Path(RETRACTIONS), folder),
        }
        if self.sft is not None:
            changes["sft"] = self.sft.resolve_paths(folder)
        if self.pairs is not None:
            changes["pairs"] = self.pairs.resolve_paths(folder)
        if self.rl is not None:
            changes["rl"] = self.rl.resolve_paths(folder)
        blend = super().resolve_paths(folder).model_copy(update=changes)
        blend._folder = folder
        return blend


def _resolve_source_paths(sources: SourceAccessDeclaration, folder: Path) -> SourceAccessDeclaration:
    paths: Mapping[str, Path | None] = {"hub_cache": sources.hub_cache, "object_cache": sources.object_cache}
    return sources.model_copy(
        update={name: resolve_path(path, folder) for name, path in paths.items() if path is not None}
    )
