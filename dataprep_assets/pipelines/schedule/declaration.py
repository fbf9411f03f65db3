"""YAML schema of a schedule's declaration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import DatasetDeclaration, resolve_path
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.pipelines.schedule.summary_declaration import TrainingSummaryDeclaration
from dataprep_assets.serving.sampler.training_schedule import Samples

REVISIONS = "revisions.json"


class ScheduleSource(DeclarationModel):
    """A source of the schedule: a split of a corpus or release, or a pretraining blend."""

    dataset: str = Field(description="Name of a corpus, a release or a pretraining blend in the same storage.")
    blend: bool = Field(
        False,
        description=(
            "Whether `dataset` is a blend. If so, each of the blend's datasets becomes a source, with its weight in "
            "the blend."
        ),
    )
    split: str = Field("train", description="Split to read.")
    name: str | None = Field(
        None,
        description=(
            "Name of the source in the schedule. It must not change, because it identifies the source's order. "
            "Default: the name of the dataset."
        ),
    )
    weight: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description=(
            "Share of the samples, relative to the weights of the other sources. Set it for all sources or for "
            "none. Default: the source's number of tokens."
        ),
    )
    epochs: int | None = Field(
        None, ge=1, description="Maximum number of times that the source is read. Default: no limit."
    )

    @property
    def schedule_name(self) -> str:
        """Name of the source in the schedule."""
        return self.name or self.dataset


class MegatronIndices(DeclarationModel):
    """Index files with which Megatron-Core's dataset classes read the schedule."""

    random_seed: int = Field(
        1234, ge=0, description="Value of Megatron-LM's `--seed`, which is part of the file names."
    )
    # Use a mapping, which keeps the order of its keys, because the order determines the names of the files.
    tokenizer: Mapping[str, str | tuple[str, ...]] = Field(
        description=(
            "`unique_identifiers` of the trainer's tokenizer, which are part of the file names. Copy them from "
            "`tokenizer` in a `description.txt` that the trainer wrote."
        )
    )
    artifacts: str | None = Field(
        None, description="Storage location on the trainer's machine. Default: the same location as on this machine."
    )


class ScheduleDeclaration(DatasetDeclaration):
    """The data that a training run reads at each step."""

    sources: tuple[ScheduleSource, ...] = Field(description="Datasets that the training run reads.")
    sequence_length: int = Field(ge=1, description="Tokens per sample.")
    batch: int = Field(ge=1, description="Samples per step, across all ranks.")
    steps: int | None = Field(None, ge=1, description="Number of steps of the whole run. Required without `tokens`.")
    # Allow a float, because YAML parses 5.0e+10 as a float.
    tokens: float | None = Field(
        None, ge=1, allow_inf_nan=False, description="Number of tokens of the whole run. Required without `steps`."
    )
    samples: Samples = Field(
        "windows",
        description=(
            "How samples are cut. `windows`: consecutive tokens; the last sample of a shard may be shorter. "
            "`documents`: whole documents packed together; documents longer than a sample are split."
        ),
    )
    seed: int = Field(0, ge=0, description="Seed for the order of the samples.")
    revisions: Path | None = Field(
        None,
        description=(
            "File with the schedule's revisions, which `dataprep schedule` writes. Default: `revisions.json` "
            "next to this YAML."
        ),
    )
    most_epochs: int = Field(
        4,
        ge=1,
        description="Maximum number of times that a source is read by the end of the run. A check warns above it.",
    )

    megatron: MegatronIndices | None = Field(
        None,
        description=(
            "Also writes the schedule as index files for Megatron-Core, which reads them with the view "
            "`megatron`. Default: no index files."
        ),
    )

    training_summary: TrainingSummaryDeclaration | None = Field(
        None,
        description=(
            "Also writes the European summary of training content, with these answers and the numbers of the schedule. "
            "Default: no summary."
        ),
    )

    @field_validator("sources")
    @classmethod
    def _require_equal_weighting(cls, sources: tuple[ScheduleSource, ...]) -> tuple[ScheduleSource, ...]:
        # Test for an empty list here, because `min_length` would also report a list whose only source is invalid.
        if not sources:
            raise ValueError("must not be empty. Name at least one source")
        if len({source.weight is None for source in sources}) > 1:
            raise ValueError("weights: set a weight for every source or for none")
        names = [source.schedule_name for source in sources]
        if repeated_names := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources have the name {repeated_names[0]}. Set a different `name` for one of them")
        return sources

    @model_validator(mode="after")
    def _require_consistency(self) -> Self:
        if self.publish is not None:
            raise ValueError(
                "`publish` is not allowed, because a schedule contains only positions in other datasets. Remove it, "
                "and publish the sources"
            )
        if self.steps is not None and self.tokens is not None:
            raise ValueError("`steps` cannot be combined with `tokens`. Remove one of them")
        if self.steps is None and self.tokens is None and all(source.epochs is None for source in self.sources):
            raise ValueError("the run never ends. Set `steps`, `tokens`, or `epochs` of a source")
        if self.megatron is not None and self.samples != "windows":
            raise ValueError(
                "megatron: cannot be combined with `samples: documents`, because it needs consecutive tokens. "
                "Remove one of them"
            )
        if self.megatron is not None and (blends := [source.dataset for source in self.sources if source.blend]):
            raise ValueError(
                f"megatron: the blend {blends[0]} has no view `megatron`. Declare "
                "its texts as corpora, each with its weight, or remove `megatron`"
            )
        if self.training_summary is not None and self.steps is not None:
            self.training_summary.choose_steps(self.steps)
        return self

    def resolve_paths(self, folder: Path) -> Self:
        declaration = super().resolve_paths(folder)
        return declaration.model_copy(update={"revisions": resolve_path(self.revisions or Path(REVISIONS), folder)})
