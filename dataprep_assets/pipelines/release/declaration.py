"""The declaration of a release: a tokenized corpus, the settings of its npy shards, and their public location.

This is the schema of `type: dataprep_assets.components.ShardRelease`: all keys of a tokenized corpus, and `release`.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import resolve_path
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration, View
from dataprep_assets.stores.connect import place_of


class ReleaseOptions(Declared):
    """Order of the stream, its shards, and their publication."""

    sequence_length: int = Field(2048, ge=2, description="Tokens per training sample.")
    tokens_per_shard: int = Field(
        ge=2, description="Tokens of every shard except a split's last: a multiple of `sequence_length`."
    )
    shuffle_seed: int | None = Field(
        0, ge=0, description="Seed for the order of documents; `null` keeps the order of the source."
    )
    mix: int = Field(
        8, ge=1, description="Source shards whose documents are shuffled together; determines the memory use."
    )
    tail: Literal["drop", "pad"] = Field(
        "drop", description="Tokens after a split's last whole sequence: `drop` them, or `pad` with the separator."
    )
    expected_repeats: float = Field(
        0.001, ge=0, le=1, description="Share of samples that may be repeats before a check warns."
    )
    publish: str | None = Field(
        None, description="Location of the published shards: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`."
    )

    @field_validator("publish")
    @classmethod
    def _is_a_place(cls, publish: str | None) -> str | None:
        # A URL with credentials is left to `located`, because an error raised here would repeat them.
        if publish is not None and "@" not in publish:
            try:
                place_of(publish, {})
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return publish

    @model_validator(mode="after")
    def _whole_sequences(self) -> Self:
        if self.tokens_per_shard % self.sequence_length:
            below = self.tokens_per_shard // self.sequence_length * self.sequence_length
            raise ValueError(
                f"`tokens_per_shard` {self.tokens_per_shard} is not a multiple of `sequence_length` "
                f"{self.sequence_length}, so readers would reject the shards. Use {below or self.sequence_length}"
            )
        return self


class ReleaseDeclaration(CorpusDeclaration):
    """A release of npy shards, from its source to the published files."""

    views: tuple[View, ...] = Field((), description="Other trainer formats of the same tokens.")
    release: ReleaseOptions = Field(description="Samples and shards of the release, and its published location.")

    @property
    def combines(self) -> bool:
        """True only with views: a release uses the shards, and joining them as well would double its size."""
        return bool(self.views)

    def located(self, folder: Path) -> Self:
        declaration = super().located(folder)
        target = self.release.publish
        if target is None:
            return declaration
        if "://" in target:
            place_of(target, {})
            return declaration
        release = self.release.model_copy(update={"publish": str(resolve_path(Path(target), folder))})
        return declaration.model_copy(update={"release": release})
