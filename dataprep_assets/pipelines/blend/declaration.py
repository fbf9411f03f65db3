"""The declaration of a training blend, validated once; its field descriptions are the YAML reference.

The blend itself, which may be in a separate file, is defined in `data_blend.py`, and the options of RL in
`rl/options.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from dataprep_assets.engine.source_key import KeyedSources
from dataprep_assets.engine.yaml.declaration import MadeByEngine, resolve_path
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.pipelines.blend.data_blend import DataBlend
from dataprep_assets.pipelines.blend.rl.options import RlOptions
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.stores.connect import Access
from dataprep_assets.stream.declaration import BadRecordPolicy, TokenizerDeclaration

Stage = Literal["pretrain", "sft", "rl"]


class PretrainOptions(Declared):
    """Options of `pretrain`: Megatron's `.bin` and `.idx` files."""

    dtype: Literal["auto", "int32", "uint16"] = Field(
        "auto", description="`auto`: like Megatron, uint16 below 65,500 ids."
    )
    add_bos: bool = Field(False, description="Put the tokenizer's BOS before every document.")
    add_eos: bool = Field(True, description="Put `separator` after every document.")
    separator: str = Field("auto", description="The token that ends a document; `auto`: the tokenizer's eos token.")
    special_tokens: Literal["text", "match"] = Field(
        "text", description="How special tokens written in documents are encoded."
    )
    min_doc_chars: int | None = Field(None, ge=1, description="Shorter documents are dropped and counted.")
    max_doc_tokens: int | None = Field(
        None, ge=3, description="Longer documents are truncated; BOS and separator stay."
    )
    sequence_length: int = Field(
        4096, ge=1, description="Tokens per training sample, used in the preview for rounding."
    )
    sample_rate: float = Field(0.0005, ge=0, le=1, description="Share of documents re-encoded by the reference engine.")


class SampleDeclaration(Declared):
    """A trial run on some of each dataset's shards."""

    @model_validator(mode="before")
    @classmethod
    def _a_number_of_rows(cls, value: Any) -> Any:
        # a bool is an int in Python, but `sample: true` is a different mistake
        if isinstance(value, int) and not isinstance(value, bool):
            raise ValueError(
                f"`sample: {value}` limits rows in Nemotron's data_prep. Here use `max_rows: {value}` (per shard), "
                "or `sample: {count: 1}` for a trial on some shards"
            )
        return value

    count: int | None = Field(None, ge=1, description="Shards per dataset.")
    percent: float | None = Field(None, gt=0, le=100, description="Percentage of each dataset's shards, at least one.")
    seed: int = Field(42, description="Seed of the selection.")

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.count is None) == (self.percent is None):
            raise ValueError("exactly one of `count` (shards per dataset) and `percent` is required")
        return self


class HeldOut(Declared):
    """Shards of each dataset that are not trained on. For blends without `train`, `valid` and `test` lists."""

    valid: int = Field(0, ge=0, description="Shards per dataset for validation.")
    test: int = Field(0, ge=0, description="Shards per dataset for testing.")
    seed: int = Field(42, description="Seed of the selection.")


class SourceAccessDeclaration(Declared):
    """Access to remote sources. Credentials come only from the clients' own configuration."""

    hub_endpoint: str | None = Field(None, description="URL of the hub; default: HF_ENDPOINT or the public Hub.")
    hub_cache: Path | None = Field(None, description="Cache folder; default: HF_HUB_CACHE, HF_HOME/hub or ~/.cache.")
    object_cache: Path | None = Field(None, description="Download folder for s3:// and gs://; required there.")
    object_access: Access = Field(
        "keys",
        description="For s3:// and gs://: `keys`, `anonymous` (public buckets) or `requester_pays` (the owner of the "
        "credentials pays for the requests).",
    )
    s3_endpoint: str | None = Field(
        None, description="For s3://: the store's URL, without credentials; default: as for the storage, else AWS."
    )
    s3_region: str = Field("auto", description="For s3://: region of the bucket.")
    follow_links: bool = Field(
        False,
        description="Whether links in local folders may point outside them. Anyone who can create a link then decides "
        "which files are read.",
    )
    allow_http: bool = Field(
        False, description="Whether remote servers may use http://. Credentials are then sent unencrypted."
    )


class WandbDeclaration(Declared):
    """A W&B project that receives the tables of a finished run. Credentials come only from wandb's configuration."""

    project: str = Field(min_length=1, description="The project.")
    entity: str | None = Field(None, min_length=1, description="User or team; default: the account's default.")
    mode: Literal["online", "offline"] | None = Field(
        None, description="`offline` writes to WANDB_DIR or `./wandb`, for `wandb sync`; default: WANDB_MODE."
    )


def _kind(value: Any) -> str:
    # chosen by type, because for a plain union pydantic reports each mistake once per form
    return "file" if isinstance(value, str | Path) else "inline"


class BlendDeclaration(MadeByEngine, KeyedSources):
    """A training blend for one stage."""

    stage: Stage = Field(description="`pretrain`: bin/idx; `sft`: packed Parquet; `rl`: JSON Lines.")
    blend: Annotated[
        Annotated[DataBlend, Tag("inline")] | Annotated[Path, Tag("file")],
        Discriminator(_kind),
    ] = Field(description="The blend itself, or the path of its JSON file.")
    tokenizer: TokenizerDeclaration | None = Field(None, description="Required for `pretrain` and `sft`.")
    pretrain: PretrainOptions | None = Field(None, description="Settings for `stage: pretrain`.")
    sft: SftOptions | None = Field(None, description="Settings for `stage: sft`.")
    rl: RlOptions | None = Field(None, description="Settings for `stage: rl`.")
    num_shards: int | None = Field(
        None, ge=1, le=4000, description="Shards per dataset; default: one per 256 MiB of source."
    )
    max_rows: int | None = Field(None, ge=1, description="Read at most this many rows of each shard, from the first.")
    sample: SampleDeclaration | None = Field(None, description="A trial on some shards of each dataset.")
    held_out: HeldOut | None = Field(None, description="Shards held out from training, for validation and test.")
    train_tokens: int | None = Field(None, ge=1, description="Tokens to train on; default: all, once.")
    max_epochs: float | None = Field(None, gt=0, description="The check fails if a dataset must be read more often.")
    tolerance: float = Field(
        0.01, ge=0, le=1, description="Largest allowed difference between a realized and a requested share."
    )
    bad_records: BadRecordPolicy = Field(BadRecordPolicy(), description="How unusable records are handled.")
    sources: SourceAccessDeclaration = Field(
        SourceAccessDeclaration(), description="Access to the object storage and hubs of the blend."
    )
    trainer_root: str | None = Field(
        None, description="Folder or URL under which the trainer finds `storage`; default: the same as here."
    )
    execution_mode: Literal["auto", "streaming", "batch"] = Field(
        "auto",
        description="How `dataprep run` launches the shards. `batch`: one run, with all sources present before the "
        "first shard is built; `streaming`: runs of a few shards, each downloading its own; `auto`: "
        "streaming if a source is remote.",
    )
    wandb: WandbDeclaration | None = Field(
        None, description="Also log the finished run's tables here; needs the extra `wandb`, never if sensitive."
    )
    force: str = Field("", description="Any text. Changing it rebuilds everything under a new run hash.")

    @model_validator(mode="after")
    def _fits_its_stage(self) -> Self:
        for stage in ("pretrain", "sft", "rl"):
            if stage != self.stage and getattr(self, stage) is not None:
                raise ValueError(f"`{stage}` has options of a different stage than `stage: {self.stage}`. Remove it")
        if (self.tokenizer is None) != (self.stage == "rl"):
            raise ValueError("`tokenizer` is required for the stages `pretrain` and `sft`, and not allowed for `rl`")
        if self.sensitive and self.wandb is not None:
            raise ValueError(
                "`wandb` cannot be combined with `sensitive: true`: reports on sensitive data must stay local. "
                "Remove one of them"
            )
        if self.stage == "rl" and self.train_tokens is not None:
            raise ValueError(
                "`train_tokens` is only for the stages `pretrain` and `sft`, because records of `rl` have no tokens"
            )
        if self.held_out is not None and isinstance(self.blend, DataBlend) and self.blend.per_split:
            raise ValueError(
                "`held_out` cannot be combined with a blend that has its own `train`, `valid` and `test` lists. "
                "Remove one of them"
            )
        # this covers only declared numbers of shards; the plan knows the default number and checks again
        counts = [self.num_shards, None if self.sample is None else self.sample.count]
        shards = min((count for count in counts if count), default=None)
        if self.held_out is not None and shards is not None and self.held_out.valid + self.held_out.test >= shards:
            raise ValueError(
                f"`held_out`: {count_of(self.held_out.valid, 'shard')} for valid and {self.held_out.test} for test "
                f"leave none of {shards} for training. Raise "
                f"`{'sample.count' if shards != self.num_shards else 'num_shards'}`"
            )
        return self

    @property
    def may_read_local_files(self) -> bool:
        """Whether the blend may read local files; true for a blend in a separate file, which can change at any time."""
        if not isinstance(self.blend, DataBlend):
            return True
        # an asset's files may be local, which only its metadata shows
        paths = [*(unit.dataset.path for unit in self.blend.units()), *self.rl_options.placeholder_paths]
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
    def rl_options(self) -> RlOptions:
        """The options of the stage `rl`, or their defaults."""
        return self.rl or RlOptions()

    @property
    def required_tokenizer(self) -> TokenizerDeclaration:
        """The tokenizer; raises ConfigError if the stage has none."""
        if self.tokenizer is None:
            raise ConfigError(f"{self.dataset}: stage {self.stage} has no tokenizer")
        return self.tokenizer

    def data_blend(self) -> DataBlend:
        """Return the blend, read from its file if it has one; raise ConfigError for an invalid file."""
        if isinstance(self.blend, DataBlend):
            return self.blend
        blend = DataBlend.load(self.blend)
        # the model rejects this for inline blends, but a file is known only after reading it
        if self.held_out is not None and blend.per_split:
            raise ConfigError(f"held_out: {self.blend} lists its own splits. Remove one of them")
        return blend

    def located(self, folder: Path) -> Self:
        changes: dict[str, Any] = {
            "blend": self.blend.located(folder)
            if isinstance(self.blend, DataBlend)
            else resolve_path(self.blend, folder),
            "sources": _located_sources(self.sources, folder),
            "tokenizer": self.tokenizer.located(folder) if self.tokenizer else None,
        }
        if self.sft is not None:
            changes["sft"] = self.sft.located(folder)
        if self.rl is not None:
            changes["rl"] = self.rl.located(folder)
        return super().located(folder).model_copy(update=changes)


def _located_sources(sources: SourceAccessDeclaration, folder: Path) -> SourceAccessDeclaration:
    paths: Mapping[str, Path | None] = {"hub_cache": sources.hub_cache, "object_cache": sources.object_cache}
    return sources.model_copy(
        update={name: resolve_path(path, folder) for name, path in paths.items() if path is not None}
    )
