"""YAML schema of a mixture of datasets of packed notes."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import Attribution, DatasetDeclaration
from dataprep_assets.pipelines.notes.declaration import VERSION_HELP, FileFormat, TfdsVersion, tfds_name


class ReplaySource(Attribution):
    """A source of the mixture: a dataset in the same storage."""

    dataset: str = Field(description="Name of a dataset of packed notes, or of a combined dataset.")
    weight: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Share of the rows, relative to the other sources' weights."
    )


class ReplayDeclaration(DatasetDeclaration):
    """Several datasets of packed rows as one, shard by shard, without copying data."""

    sensitive: bool = Field(True, description="No text and no identifier in any log, event, metadata or plot.")
    sources: tuple[ReplaySource, ...] = Field(min_length=1, description="The datasets, in order.")
    splits: tuple[str, ...] = Field(
        ("train",), min_length=1, description="Splits to combine; every source must have them."
    )
    mode: Literal["concat", "interleave", "weighted", "virtual"] = Field(
        "interleave",
        description="`concat`: one source after another. `interleave`: mixed in proportion, so that the first shards "
        "have the overall mixture. `weighted`: shards are repeated or left out to meet the weights, then "
        "mixed. `virtual`: no shards, only the files that configure a loader to mix them.",
    )
    seed: int = Field(0, ge=0, description="Seed for the order of each source's shards in `interleave` and `weighted`.")
    tolerance: float = Field(
        0.01, gt=0, le=1, description="`weighted`: largest allowed difference between a source's share and its weight."
    )
    format: FileFormat = Field("tfrecord", description="The sources' format to use.")
    tfds_version: TfdsVersion = Field("1.0.0", description=VERSION_HELP)

    @field_validator("dataset")
    @classmethod
    def _snake_case(cls, name: str) -> str:
        return tfds_name("dataset", name)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [source.dataset for source in self.sources]
        if len(set(names)) != len(names):
            raise ValueError("a source is listed twice. Raise its weight in mode `weighted` instead")
        if self.dataset in names:
            raise ValueError("a dataset cannot be its own source")
        if len(set(self.splits)) != len(self.splits):
            raise ValueError("a split is listed twice")
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and (self.mode not in ("weighted", "virtual") or not all(weighted)):
            raise ValueError("weights: in mode `weighted` or `virtual`, either all sources have one or none")
        if any(weighted) and self.mode == "virtual" and self.format == "tfrecord":
            raise ValueError(
                "weights: not supported by tfds.builder_from_directories. Set `format: array_record`, or use `mode: "
                "weighted`"
            )
        if self.mode == "weighted" and not all(weighted):
            raise ValueError("mode `weighted` needs the weight of every source")
        return self
