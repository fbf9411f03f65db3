"""The settings of `stage: pairs` in a blend's YAML."""

from typing import Any, Literal

from pydantic import Field

from dataprep_assets.pipelines.blend.sft.options import ChatOptions, SftOptions


class PairsOptions(ChatOptions):
    """Settings of the stage `pairs`: a prompt with a chosen and a rejected answer, or with one labeled answer."""

    max_length: int = Field(
        4096,
        ge=2,
        description="Maximum length of a prompt with one answer, in tokens. Longer pairs are dropped and counted.",
    )
    format: Literal["auto", "pairs", "kto"] = Field(
        "auto",
        description=(
            "Form of the rows. `pairs`: `chosen` and `rejected` answers. `kto`: one answer with a boolean "
            "`label`. `auto` recognizes both."
        ),
    )
    messages_field: str = Field(
        "messages",
        description="Key of the prompt's messages in rows that have no `prompt`. `conversations` is also recognized.",
    )
    max_chosen_longer: float = Field(
        0.8,
        ge=0.5,
        le=1,
        description=(
            "Maximum share of a dataset's pairs in which the same side (chosen or rejected) is the longer one. A "
            "check warns above it."
        ),
    )
    row_group_size: int = Field(1000, ge=1, description="Number of pairs per Parquet row group.")

    @property
    def chat(self) -> SftOptions:
        """The chat settings of a prompt with its answer: one sequence of at most `max_length` tokens."""
        settings = {name: getattr(self, name) for name in ChatOptions.model_fields}
        return SftOptions(pack_size=self.max_length, too_long="drop", format=self.format, turns="reasoning", **settings)

    def identity(self) -> dict[str, Any]:
        """Return the settings that change the shards' bytes, except the template, `choices` and `template_kwargs`."""
        names = {"max_length", "format", "template_date", "stop", "messages_field", "tools_field", "used_in_filter"}
        return self.model_dump(mode="json", include=names | {"used_in_field", "row_group_size", "compression"})
