"""The declaration of a schedule, validated once: the schema of its YAML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import DatasetDeclaration, resolved
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.serving.sampler.training_schedule import Samples

REVISIONS = "revisions.json"


class ScheduleSource(Declared):
    """A split of a corpus, a release or a pretraining blend that is read."""

    dataset: str = Field(description="Name of a corpus, a release or a pretraining blend of the same storage.")
    blend: bool = Field(
        False, description="It is a blend: each of its datasets is a source of its own, in the weights of the blend."
    )
    split: str = Field("train", description="Its split.")
    name: str | None = Field(
        None, description="Its name in the schedule, under which its order goes on; default: the dataset's."
    )
    weight: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Its share of the samples, relative to the others; all sources have one, or none: tokens.",
    )
    epochs: int | None = Field(None, ge=1, description="How often all of it may be read; default: any number of times.")

    @property
    def called(self) -> str:
        """Its name in the schedule."""
        return self.name or self.dataset


class MegatronIndices(Declared):
    """The schedule as the index files that Megatron-Core's data sets look for."""

    random_seed: int = Field(1234, ge=0, description="Megatron-LM's `--seed`, which is part of the files' names.")
    # in its order, which decides the names, too
    tokenizer: Mapping[str, str | tuple[str, ...]] = Field(
        description="`unique_identifiers` of the trainer's tokenizer, which are part of the files' names: `tokenizer` "
        "in any `description.txt` that the trainer wrote."
    )
    artifacts: str | None = Field(
        None, description="Where the trainer sees the artifacts; default: where they are stored."
    )


class ScheduleDeclaration(DatasetDeclaration):
    """What a training run reads at each step."""

    sources: tuple[ScheduleSource, ...] = Field(description="What is read.")
    sequence_length: int = Field(ge=1, description="Tokens of a sample.")
    batch: int = Field(ge=1, description="Samples of a step, over all ranks.")
    steps: int | None = Field(None, ge=1, description="Steps of the whole run.")
    # a float, because YAML reads 5.0e+10 as one
    tokens: float | None = Field(
        None, ge=1, allow_inf_nan=False, description="Tokens of the whole run, instead of `steps`."
    )
    samples: Samples = Field(
        "windows",
        description="`windows`: consecutive tokens, the last of each shard as short as it comes. `documents`: whole "
        "documents packed together, longer ones cut.",
    )
    seed: int = Field(0, ge=0, description="What chooses the order of the samples.")
    revisions: Path | None = Field(
        None, description="The schedule as `dataprep schedule` changed it; default: `revisions.json` beside this YAML."
    )
    most_epochs: int = Field(4, ge=1, description="A source that is read more often by the end is warned of.")

    megatron: MegatronIndices | None = Field(
        None, description="Also make the schedule as the index files of Megatron-Core, over the view `megatron`."
    )

    @field_validator("sources")
    @classmethod
    def _weighed_alike(cls, sources: tuple[ScheduleSource, ...]) -> tuple[ScheduleSource, ...]:
        # not `min_length`, which also complains of a list whose only source is refused
        if not sources:
            raise ValueError("must not be empty. Name at least one source")
        if len({source.weight is None for source in sources}) > 1:
            raise ValueError("weights: all sources have one, or none has")
        names = [source.called for source in sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources are called {twice[0]}: give one of them another `name`")
        return sources

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.steps is not None and self.tokens is not None:
            raise ValueError("give `steps` or `tokens`, not both")
        if self.steps is None and self.tokens is None and all(source.epochs is None for source in self.sources):
            raise ValueError("the run never ends: give `steps` or `tokens`, or `epochs` of a source")
        if self.megatron is not None and self.samples != "windows":
            raise ValueError("megatron: says samples of consecutive tokens, not `samples: documents`; leave one out")
        if self.megatron is not None and (blends := [source.dataset for source in self.sources if source.blend]):
            raise ValueError(
                f"megatron: is over the view `megatron` of corpora, which the blend {blends[0]} has not. Declare its "
                "texts as corpora, each with its weight; or leave `megatron` out"
            )
        return self

    def located(self, folder: Path) -> Self:
        found = super().located(folder)
        return found.model_copy(update={"revisions": resolved(self.revisions or Path(REVISIONS), folder)})
