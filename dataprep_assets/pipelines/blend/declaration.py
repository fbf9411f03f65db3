"""The declaration of a training blend, validated once.

`DataBlend` is the JSON that users of Nemotron's `data_prep` have (`blend.py`), inline in the YAML or in a file. What
that one let pass is refused here by name: unknown keys, a key or a dataset twice, weights that are negative or no
numbers, empty lists, both modes at once. Its field descriptions are the YAML reference.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.declaration import Attributed, DatasetDeclaration, Declared, resolved
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.pipelines.corpus.declaration import BadRecordPolicy, TokenizerDeclaration
from dataprep_assets.planning.blend import SPLITS
from dataprep_assets.tokenization.chat.rendering import Turns
from dataprep_assets.tokenization.chat.template import BUNDLED

Stage = Literal["pretrain", "sft", "rl"]
RESOLVE = "resolve_hf_placeholders"
"""The transform of RL records that reads other datasets."""


class BlendDataset(Attributed):
    """One dataset of a blend."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="Its name in partitions, tables and files.")
    path: str = Field(
        min_length=1,
        description="`hf://organization/name[@revision]`, `s3://…`, `gs://…`, a file, a folder, or a glob.",
    )
    weight: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Share of the blend, relative; RL: how often its records are read, relative; 0 leaves it out.",
    )
    split: str | None = Field(
        None,
        min_length=1,
        description="Only files with this as a whole part of their path; if there is none, as the beginning of one.",
    )
    subset: str | None = Field(None, min_length=1, description="The same, applied before `split`.")
    text_field: str = Field("text", description="Pretraining: key or column of the text.")
    messages_field: str | None = Field(None, description="SFT: key of the messages, instead of the stage's.")
    tools_field: str | None = Field(None, description="SFT: key of the tools, instead of the stage's.")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A dataset in its place in a blend. `name` is the dataset's, with the split's in per-split mode: `code__valid`."""

    name: str
    dataset: BlendDataset
    split: str | None

    @property
    def home(self) -> str:
        """The split that its shards belong to, unless shards are held out."""
        return self.split or "train"


class DataBlend(Declared):
    """Either `datasets`, or one or more of `train`, `valid` and `test`."""

    datasets: tuple[BlendDataset, ...] | None = Field(None, description="All datasets; one blend to train on.")
    train: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the training split.")
    valid: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the validation split.")
    test: tuple[BlendDataset, ...] | None = Field(None, description="Datasets of the test split.")

    @model_validator(mode="after")
    def _one_mode(self) -> Self:
        given = {name: value for name in ("datasets", *SPLITS) if (value := getattr(self, name)) is not None}
        if not given:
            raise ValueError("give `datasets`, or one or more of `train`, `valid`, `test`")
        if "datasets" in given and len(given) > 1:
            raise ValueError(f"`datasets` and {sorted({*given} - {'datasets'})} together: a blend has one mode")
        for key, members in given.items():
            if not members:
                raise ValueError(f"`{key}` is empty: leave it out, or name its datasets")
            names = [member.name for member in members]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"`{key}` names {twice} twice: their shards would overwrite each other")
            if not any(member.weight for member in members):
                raise ValueError(f"`{key}`: every weight is 0: nothing would be read")
        return self

    @classmethod
    def load(cls, path: Path) -> "DataBlend":
        """The blend in a JSON file; local paths in it are relative to its folder. ConfigError names file and key."""
        try:
            value = json.loads(path.read_bytes(), object_pairs_hook=_unique, parse_constant=_no_constant)
        except OSError as error:
            raise ConfigError(f"blend: {path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"blend: {path}: not the JSON of a blend: {error}") from error
        try:
            return cls.model_validate(value).located(path.parent)
        except ValidationError as error:
            raise ConfigError(f"{path}: " + "; ".join(_told(error))) from error

    @property
    def per_split(self) -> bool:
        """Whether it lists its splits itself."""
        return self.datasets is None

    def units(self) -> list[Unit]:
        """Its datasets in declared order, each with its place; those of weight 0 are left out."""
        if self.datasets is not None:
            found = [Unit(name=d.name, dataset=d, split=None) for d in self.datasets]
        else:
            found = [
                Unit(name=f"{d.name}__{split}", dataset=d, split=split)
                for split in SPLITS
                for d in getattr(self, split) or ()
            ]
        return [unit for unit in found if unit.dataset.weight > 0]

    def located(self, folder: Path) -> Self:
        """The same blend with relative local paths resolved against `folder`."""
        changes = {
            key: tuple(_located(d, folder) for d in members)
            for key in ("datasets", *SPLITS)
            if (members := getattr(self, key)) is not None
        }
        return self.model_copy(update=changes)


def _located(dataset: BlendDataset, folder: Path) -> BlendDataset:
    if "://" in dataset.path:
        return dataset
    return dataset.model_copy(update={"path": str(resolved(Path(dataset.path), folder))})


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _told(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
        given = "" if detail["type"] in ("missing", "value_error") else f" (it is {detail['input']!r})"
        yield f"{where or 'blend'}: {detail['msg']}{given}"


class PretrainOptions(Declared):
    """Megatron's `.bin` and `.idx`."""

    dtype: Literal["auto", "int32", "uint16"] = Field(
        "auto", description="`auto`: as Megatron, uint16 below 65,500 ids."
    )
    add_bos: bool = Field(False, description="The tokenizer's BOS before every document.")
    add_eos: bool = Field(True, description="`separator` after every document.")
    separator: str = Field("auto", description="The token that ends a document; `auto`: the tokenizer's own.")
    special_tokens: Literal["text", "match"] = Field("text", description="Literal special tokens in documents.")
    min_doc_chars: int | None = Field(None, ge=1, description="Documents of fewer characters are left out, counted.")
    max_doc_tokens: int | None = Field(None, ge=3, description="Longer documents are cut; BOS and separator stay.")
    sequence_length: int = Field(4096, ge=1, description="Tokens of a training sample, for the preview's rounding.")
    sample_rate: float = Field(0.0005, ge=0, le=1, description="Share of documents re-encoded by the reference engine.")


class SftOptions(Declared):
    """Packed Parquet with a loss mask."""

    pack_size: int = Field(4096, ge=2, description="Tokens of a packed row.")
    algorithm: Algorithm = Field("first_fit_shuffle", description="How sequences are packed.")
    seed: int = Field(42, ge=0, description="Of the packing's shuffle.")
    chat_template: str = Field("nano3", description="A bundled name, a path, or Jinja itself.")
    template_date: date | None = Field(None, description="What `strftime_now` of a template says; none: an error.")
    turns: Turns = Field("reasoning", description="When each user turn is a sequence of its own.")
    stop: str = Field("auto", description="The token that ends an answer; `auto`: as the template ends it.")
    messages_field: str = Field("messages", description="Key of the messages.")
    tools_field: str = Field("tools", description="Key of the tools.")
    used_in_filter: tuple[str, ...] = Field((), description="Only rows whose `used_in_field` names one of these.")
    used_in_field: str = Field("used_in", description="Key of what a row is used in: text, comma list or list.")
    max_doc_tokens: int | None = Field(None, ge=2, description="Longer sequences are cut.")
    too_long: Literal["truncate", "drop"] = Field("truncate", description="Of sequences longer than a packed row.")
    row_group_size: int = Field(1000, ge=1, description="Packed rows of a Parquet row group.")
    compression: Literal["zstd", "snappy", "gzip", "none"] = Field("zstd", description="Of the Parquet files.")
    sample_rate: float = Field(0.0005, ge=0, le=1, description="Share of texts re-encoded by the reference engine.")


class RlOptions(Declared):
    """JSON lines."""

    transforms: tuple[str | dict[str, Any], ...] = Field(
        ("passthrough",),
        min_length=1,
        description="Applied in order: a name, `name: {options}`, or `module:function`.",
    )
    compression: Literal["none", "zstd"] = Field("none", description="Of the output files.")


class SampleDeclaration(Declared):
    """A trial run on some of each dataset's shards."""

    count: int | None = Field(None, ge=1, description="Shards of each dataset.")
    percent: float | None = Field(None, gt=0, le=100, description="Percent of each dataset's shards, at least one.")
    seed: int = Field(42, description="Of the choice.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.count is None) == (self.percent is None):
            raise ValueError("give exactly one of `count` (shards of each dataset) and `percent`")
        return self


class HeldOut(Declared):
    """Shards of each dataset that are not trained on. For blends without `train`, `valid` and `test` lists."""

    valid: int = Field(0, ge=0, description="Shards of each dataset for validation.")
    test: int = Field(0, ge=0, description="Shards of each dataset for testing.")
    seed: int = Field(42, description="Of the choice.")


class SourceAccessDeclaration(Declared):
    """How remote sources are reached. Credentials come from the clients' own chains alone."""

    hub_endpoint: str | None = Field(None, description="The hub's URL; default: HF_ENDPOINT or the public hub.")
    hub_cache: Path | None = Field(None, description="Cache folder; default: HF_HUB_CACHE, HF_HOME/hub or ~/.cache.")
    object_cache: Path | None = Field(None, description="Folder for what is fetched of s3:// and gs://; needed there.")
    s3_endpoint: str | None = Field(
        None, description="With s3://: the store's URL, never with credentials; default: as for the storage, else AWS."
    )
    s3_region: str = Field("auto", description="With s3://: region of the bucket.")
    follow_links: bool = Field(
        False,
        description="Whether links may lead out of local folders: whoever makes one chooses what is read.",
    )
    allow_http: bool = Field(
        False, description="Whether the servers may be http:// beyond this machine: keys travel in the clear."
    )


class WandbDeclaration(Declared):
    """A W&B project that gets the tables of a finished run. Its credentials come from wandb's own chain alone."""

    project: str = Field(min_length=1, description="The project.")
    entity: str | None = Field(None, min_length=1, description="User or team; default: the account's own.")
    mode: Literal["online", "offline"] | None = Field(
        None, description="`offline` writes below WANDB_DIR or `./wandb`, for `wandb sync`; default: WANDB_MODE."
    )


def _kind(value: Any) -> str:
    return "file" if isinstance(value, str | Path) else "inline"


class BlendDeclaration(DatasetDeclaration):
    """One training blend for one stage."""

    stage: Stage = Field(description="`pretrain`: bin/idx; `sft`: packed Parquet; `rl`: JSON lines.")
    blend: Annotated[
        Annotated[DataBlend, Tag("inline")] | Annotated[Path, Tag("file")],
        Discriminator(_kind),
    ] = Field(description="The blend itself, or the path of its JSON file.")
    tokenizer: TokenizerDeclaration | None = Field(None, description="Needed by `pretrain` and `sft`.")
    pretrain: PretrainOptions | None = Field(None, description="Settings of `stage: pretrain`.")
    sft: SftOptions | None = Field(None, description="Settings of `stage: sft`.")
    rl: RlOptions | None = Field(None, description="Settings of `stage: rl`.")
    num_shards: int | None = Field(
        None, ge=1, le=4000, description="Shards of each dataset; default: one for every 256 MiB of source."
    )
    max_rows: int | None = Field(None, ge=1, description="At most this many rows of each shard, the first ones.")
    sample: SampleDeclaration | None = Field(None, description="A trial on some shards of each dataset.")
    held_out: HeldOut | None = Field(None, description="Shards kept from training, for validation and test.")
    train_tokens: int | None = Field(None, ge=1, description="Tokens to train on; default: all there are, once.")
    max_epochs: float | None = Field(None, gt=0, description="A dataset that must be read more often fails a check.")
    tolerance: float = Field(0.01, ge=0, le=1, description="Largest difference of a realised share from its request.")
    bad_records: BadRecordPolicy = Field(BadRecordPolicy(), description="What happens to a record that cannot be used.")
    sources: SourceAccessDeclaration = Field(
        SourceAccessDeclaration(), description="How buckets and hubs of the blend are reached."
    )
    trainer_root: str | None = Field(
        None, description="The folder or URL under which the trainer finds `storage`; default: as it is here."
    )
    execution_mode: Literal["auto", "streaming", "batch"] = Field(
        "auto",
        description="How `dataprep run` launches the shards. `batch`: one run, all sources present before a shard is "
        "made; `streaming`: runs of a few shards, each fetching its own; `auto`: streaming where a source is remote.",
    )
    wandb: WandbDeclaration | None = Field(
        None, description="Where the finished run's tables are logged too; needs the extra `wandb`, never if sensitive."
    )
    force: str = Field("", description="Any text: another one makes everything again, under another run hash.")

    @model_validator(mode="after")
    def _fits_its_stage(self) -> Self:
        for stage in ("pretrain", "sft", "rl"):
            if stage != self.stage and getattr(self, stage) is not None:
                raise ValueError(f"`{stage}` are options of another stage than `stage: {self.stage}`")
        if (self.tokenizer is None) != (self.stage == "rl"):
            raise ValueError("`tokenizer` belongs to the stages `pretrain` and `sft`, which need it, and not to `rl`")
        if self.sensitive and self.wandb is not None:
            raise ValueError("`wandb` and `sensitive: true`: what is said of sensitive data stays here; leave one out")
        if self.stage == "rl" and self.train_tokens is not None:
            raise ValueError(
                "`train_tokens` belongs to the stages `pretrain` and `sft`: records of `rl` have no tokens"
            )
        if self.held_out is not None and isinstance(self.blend, DataBlend) and self.blend.per_split:
            raise ValueError("`held_out` and a blend with its own `train`, `valid`, `test` lists: give one of them")
        return self

    @property
    def pretrain_options(self) -> PretrainOptions:
        """The stage's options, or their defaults."""
        return self.pretrain or PretrainOptions()

    @property
    def sft_options(self) -> SftOptions:
        """The stage's options, or their defaults."""
        return self.sft or SftOptions()

    @property
    def rl_options(self) -> RlOptions:
        """The stage's options, or their defaults."""
        return self.rl or RlOptions()

    @property
    def required_tokenizer(self) -> TokenizerDeclaration:
        """The tokenizer of a stage that has one."""
        if self.tokenizer is None:
            raise ConfigError(f"{self.dataset}: stage {self.stage} has no tokenizer")
        return self.tokenizer

    def data_blend(self) -> DataBlend:
        """The blend itself, read from its file where it is in one; ConfigError names what is wrong with it."""
        if isinstance(self.blend, DataBlend):
            return self.blend
        found = DataBlend.load(self.blend)
        if self.held_out is not None and found.per_split:
            raise ConfigError(f"held_out: {self.blend} lists its splits itself: give one of them")
        return found

    def located(self, folder: Path) -> Self:
        changes: dict[str, Any] = {
            "blend": self.blend.located(folder) if isinstance(self.blend, DataBlend) else resolved(self.blend, folder),
            "sources": _located_sources(self.sources, folder),
            "tokenizer": self.tokenizer.located(folder) if self.tokenizer else None,
        }
        if self.sft is not None and _is_path(self.sft.chat_template):
            template = str(resolved(Path(self.sft.chat_template), folder))
            changes["sft"] = self.sft.model_copy(update={"chat_template": template})
        if self.rl is not None:
            transforms = tuple(_located_transform(entry, folder) for entry in self.rl.transforms)
            changes["rl"] = self.rl.model_copy(update={"transforms": transforms})
        return super().located(folder).model_copy(update=changes)


def _located_sources(sources: SourceAccessDeclaration, folder: Path) -> SourceAccessDeclaration:
    paths: Mapping[str, Path | None] = {"hub_cache": sources.hub_cache, "object_cache": sources.object_cache}
    return sources.model_copy(update={name: resolved(path, folder) for name, path in paths.items() if path is not None})


def _is_path(template: str) -> bool:
    """Whether a declared template is neither a bundled name nor Jinja itself (see `ChatTemplate.load`)."""
    return template not in BUNDLED and "{{" not in template and "{%" not in template


def _located_transform(entry: str | dict[str, Any], folder: Path) -> str | dict[str, Any]:
    """A transform with the paths of its placeholder sources located; what is wrong with one is told when it is used."""
    if not isinstance(entry, dict) or not isinstance(options := entry.get(RESOLVE), dict):
        return entry
    if not isinstance(sources := options.get("sources"), dict):
        return entry
    return {RESOLVE: {**options, "sources": {name: _located_source(given, folder) for name, given in sources.items()}}}


def _located_source(given: Any, folder: Path) -> Any:
    if isinstance(given, dict) and "path" in given:
        return {**given, "path": _located_source(given["path"], folder)}
    if not isinstance(given, str) or "://" in given:
        return given
    return str(resolved(Path(given), folder))
