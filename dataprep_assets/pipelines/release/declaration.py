"""The declaration of a release: a tokenized corpus, the settings of its npy shards, and where they are published.

It is the schema of `type: dataprep_assets.components.ShardRelease`: all keys of a tokenized corpus, and `release`.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import resolve_path
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration, View
from dataprep_assets.stores.connect import parse_place


class ReleaseOptions(DeclarationModel):
    """The order of the documents, the size of samples and shards, and their publication."""

    sequence_length: int = Field(2048, ge=2, description="Tokens per training sample.")
    tokens_per_shard: int = Field(
        ge=2,
        description=(
            "Tokens per shard: a multiple of `sequence_length`. Only the last shard of a split may have fewer."
        ),
    )
    shuffle_seed: int | None = Field(
        0, ge=0, description="Seed for shuffling the documents. `null` keeps the order of the source."
    )
    mix: int = Field(
        8, ge=1, description="Number of source shards whose documents are shuffled together. Memory use grows with it."
    )
    tail: Literal["drop", "pad"] = Field(
        "drop",
        description=(
            "Action for the tokens after a split's last complete sequence. `drop`: they are dropped and counted. "
            "`pad`: the sequence is filled with separators."
        ),
    )
    expected_repeats: float = Field(
        0.001,
        ge=0,
        le=1,
        description="Maximum share of samples with the same tokens as another sample. A check warns above it.",
    )
    publish: str | None = Field(
        None,
        description=(
            "Where the shards are published: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`. Default: "
            "they are not published."
        ),
    )

    @field_validator("publish")
    @classmethod
    def _require_place(cls, publish: str | None) -> str | None:
        # Skip a location with `@`, because it may be a URL with credentials, which an error raised here would show.
        # `resolve_paths` reports such a URL.
        if publish is not None and "@" not in publish:
            try:
                parse_place(publish, {})
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return publish

    @model_validator(mode="after")
    def _require_whole_sequences(self) -> Self:
        if self.tokens_per_shard % self.sequence_length:
            lower_size = self.tokens_per_shard // self.sequence_length * self.sequence_length
            raise ValueError(
                f"`tokens_per_shard` ({self.tokens_per_shard}) must be a multiple of `sequence_length` "
                f"({self.sequence_length}). Use {lower_size or self.sequence_length}"
            )
        return self


class ReleaseDeclaration(CorpusDeclaration):
    """A release of npy shards, from its source to the published files."""

    views: tuple[View, ...] = Field(
        (), description="Trainer formats to build in addition to the npy shards, with the same tokens. Default: none."
    )
    release: ReleaseOptions = Field(
        description="How the release is cut into samples and shards, and where it is published."
    )

    @property
    def combines(self) -> bool:
        """Whether token bins are combined, which only views need, because npy shards are cut from the token bins."""
        return bool(self.views)

    def resolve_paths(self, folder: Path) -> Self:
        declaration = super().resolve_paths(folder)
        target = self.release.publish
        if target is None:
            return declaration
        if "://" in target:
            parse_place(target, {})
            return declaration
        release = self.release.model_copy(update={"publish": str(resolve_path(Path(target), folder))})
        return declaration.model_copy(update={"release": release})
