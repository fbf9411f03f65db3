"""YAML schema of a schedule's declaration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import DatasetDeclaration, resolve_path
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.serving.sampler.training_schedule import Samples

REVISIONS = "revisions.json"


class ScheduleSource(Declared):
    """A source of the schedule: a split of a corpus, a release or a pretraining blend."""

    dataset: str = Field(description="Name of a corpus, a release or a pretraining blend in the same storage.")
    blend: bool = Field(
        False, description="The source is a blend: each of its datasets becomes a source with its weight in the blend."
    )
    split: str = Field("train", description="Its split.")
    name: str | None = Field(
        None, description="Name in the schedule, which identifies its order; default: the dataset's."
    )
    weight: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Relative share of the samples. Either all sources have one or none (default: their tokens).",
    )
    epochs: int | None = Field(None, ge=1, description="How often all of it may be read; default: any number of times.")

    @property
    def called(self) -> str:
        """Name of the source in the schedule."""
        return self.name or self.dataset


class MegatronIndices(Declared):
    """Index files that let Megatron-Core's data sets read the schedule."""

    random_seed: int = Field(1234, ge=0, description="Megatron-LM's `--seed`, which is part of the file names.")
    # a mapping keeps the order of its keys, because the order also decides the files' names
    tokenizer: Mapping[str, str | tuple[str, ...]] = Field(
        description="`unique_identifiers` of the trainer's tokenizer, which are part of the file names: see "
        "`tokenizer` in any `description.txt` that the trainer wrote."
    )
    artifacts: str | None = Field(
        None, description="Location of the artifacts as the trainer sees it; default: the storage location."
    )


class ScheduleDeclaration(DatasetDeclaration):
    """The data that a training run reads at each step."""

    sources: tuple[ScheduleSource, ...] = Field(description="Sources of the run.")
    sequence_length: int = Field(ge=1, description="Tokens per sample.")
    batch: int = Field(ge=1, description="Samples per step, over all ranks.")
    steps: int | None = Field(None, ge=1, description="Steps of the whole run.")
    # the type is float, because YAML parses 5.0e+10 as a float
    tokens: float | None = Field(
        None, ge=1, allow_inf_nan=False, description="Tokens of the whole run, instead of `steps`."
    )
    samples: Samples = Field(
        "windows",
        description="`windows`: consecutive tokens, with a shorter last sample per shard. `documents`: whole documents "
        "packed together; longer ones are cut.",
    )
    seed: int = Field(0, ge=0, description="Seed for the order of the samples.")
    revisions: Path | None = Field(
        None,
        description="Revisions of the schedule, written by `dataprep schedule`; default: `revisions.json` next to this "
        "YAML.",
    )
    most_epochs: int = Field(
        4, ge=1, description="Warn if a source is read more often than this by the end of the run."
    )

    megatron: MegatronIndices | None = Field(
        None, description="Also write the schedule as Megatron-Core's index files, for the view `megatron`."
    )

    @field_validator("sources")
    @classmethod
    def _weighed_alike(cls, sources: tuple[ScheduleSource, ...]) -> tuple[ScheduleSource, ...]:
        # `min_length` would also report an error for a list whose only source is invalid
        if not sources:
            raise ValueError("must not be empty. Name at least one source")
        if len({source.weight is None for source in sources}) > 1:
            raise ValueError("weights: either all sources have one or none")
        names = [source.called for source in sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources have the name {twice[0]}. Set a different `name` for one of them")
        return sources

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.steps is not None and self.tokens is not None:
            raise ValueError("`steps` cannot be combined with `tokens`. Remove one of them")
        if self.steps is None and self.tokens is None and all(source.epochs is None for source in self.sources):
            raise ValueError("the run never ends. Set `steps` or `tokens`, or `epochs` of a source")
        if self.megatron is not None and self.samples != "windows":
            raise ValueError(
                "megatron: cannot be combined with `samples: documents`, because it needs consecutive tokens. "
                "Remove one of them"
            )
        if self.megatron is not None and (blends := [source.dataset for source in self.sources if source.blend]):
            raise ValueError(
                f"megatron: needs the view `megatron` of corpora, which the blend {blends[0]} does not have. Declare "
                "its texts as corpora, each with its weight, or remove `megatron`"
            )
        return self

    def located(self, folder: Path) -> Self:
        declaration = super().located(folder)
        return declaration.model_copy(update={"revisions": resolve_path(self.revisions or Path(REVISIONS), folder)})
