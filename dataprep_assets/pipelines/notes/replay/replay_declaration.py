"""YAML schema of a mixture of datasets of packed notes."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import Attribution, DatasetDeclaration
from dataprep_assets.pipelines.notes.declaration import VERSION_HELP, FileFormat, TfdsVersion, require_tfds_name


class MixtureSource(Attribution):
    """A dataset of the mixture, in the same storage."""

    dataset: str = Field(description="Name of a dataset of packed notes, or of a combined dataset.")
    weight: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description=(
            "Share of the rows, relative to the weights of the other sources. Required for `mode: weighted`. For "
            "`virtual`, set it for all sources or for none."
        ),
    )


class MixtureDeclaration(DatasetDeclaration):
    """Several datasets of packed rows, combined shard by shard without copying data."""

    sensitive: bool = Field(
        True,
        description=(
            "With `true`, logs, events, metadata and plots contain no texts or identifiers, and local files are "
            "private."
        ),
    )
    sources: tuple[MixtureSource, ...] = Field(min_length=1, description="Datasets to combine, in order.")
    splits: tuple[str, ...] = Field(
        ("train",), min_length=1, description="Splits to combine. Every source must have them."
    )
    mode: Literal["concat", "interleave", "weighted", "virtual"] = Field(
        "interleave",
        description=(
            "How the sources are combined. `concat`: one source after another. `interleave`: shards of all "
            "sources are mixed evenly. `weighted`: shards are repeated or left out to match the weights, then "
            "mixed. `virtual`: no shards, only files that configure a loader to mix the sources."
        ),
    )
    seed: int = Field(
        0, ge=0, description="Seed for the order of each source's shards, only for `interleave` and `weighted`."
    )
    tolerance: float = Field(
        0.01,
        gt=0,
        le=1,
        description=(
            "Maximum difference between a source's share and its weight, only for `weighted`. A blocking check "
            "fails above it."
        ),
    )
    format: FileFormat = Field(
        "tfrecord", description="File format of the shards to combine. Every source must have it."
    )
    tfds_version: TfdsVersion = Field("1.0.0", description=VERSION_HELP)

    @field_validator("dataset")
    @classmethod
    def _require_snake_case(cls, name: str) -> str:
        return require_tfds_name("dataset", name)

    @model_validator(mode="after")
    def _require_consistency(self) -> Self:
        names = [source.dataset for source in self.sources]
        if len(set(names)) != len(names):
            repeated_name = next(name for name in names if names.count(name) > 1)
            raise ValueError(
                f"sources: {repeated_name} is listed twice. Remove one, and raise its weight in mode `weighted`"
            )
        if self.dataset in names:
            raise ValueError(f"sources: {self.dataset} cannot be its own source. Remove it")
        if len(set(self.splits)) != len(self.splits):
            repeated_split = next(split for split in self.splits if self.splits.count(split) > 1)
            raise ValueError(f"splits: {repeated_split} is listed twice. Remove one")
        has_weight = [source.weight is not None for source in self.sources]
        if any(has_weight) and (self.mode not in ("weighted", "virtual") or not all(has_weight)):
            raise ValueError(
                "weights: set a weight for every source or for none, and only in mode `weighted` or `virtual`"
            )
        if any(has_weight) and self.mode == "virtual" and self.format == "tfrecord":
            raise ValueError(
                "weights: not supported by tfds.builder_from_directories. Set `format: array_record`, or use `mode: "
                "weighted`"
            )
        if self.mode == "weighted" and not all(has_weight):
            raise ValueError("mode `weighted` needs a weight for every source")
        return self
