"""The settings of `stage: sft`, as a blend's YAML has them.

`like` chooses a preset (`tokenization/chat/choices.py`). Keys contain the resulting choices where they differ from the
default preset's, so declaring a default explicitly changes nothing.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from dataprep_assets.engine.yaml.declaration import resolved
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.tokenization.chat.choices import PRESETS, Answers, ChatChoices, Like
from dataprep_assets.tokenization.chat.rendering import Turns
from dataprep_assets.tokenization.chat.template import is_template_path

# in keys in other forms: the template's text, choices that are not the default's; `sample_rate` decides no byte
_NOT_IN_KEYS = {"chat_template", "sample_rate", "template_kwargs", "like", "answers", "roles", "join_text_parts"}


class HubTemplate(Declared):
    """A chat template in a repository of the hub."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository of a model, `organization/name`.")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="Its commit, 40 hexadecimal digits.")
    file: str = Field("chat_template.jinja", min_length=1, description="The file in it.")


class SftOptions(Declared):
    """Packed Parquet with a loss mask."""

    pack_size: int = Field(4096, ge=2, description="Tokens in a packed row.")
    algorithm: Algorithm = Field("first_fit_shuffle", description="How sequences are packed.")
    seed: int = Field(42, ge=0, description="Seed of the packing's shuffle.")
    chat_template: str | HubTemplate = Field(
        "tokenizer",
        description="`tokenizer`: its own; `chatml_reasoning`: the one that ships; a path; a file on the hub; or Jinja "
        "itself.",
    )
    template_date: date | None = Field(
        None, description="Date that `strftime_now` gives in a template; without one, such a template is refused."
    )
    template_kwargs: dict[str, Any] = Field(
        {},
        description="Further variables of the template, each on its own and together as `chat_template_kwargs`; not "
        "`enable_thinking`, which each conversation decides.",
    )
    turns: Turns | Literal["auto"] = Field(
        "auto",
        description="When each user turn is a sequence of its own: if a row has `reasoning`, or `always`; `auto`: as "
        "the template wants it, `always` for one that writes earlier answers in another way, such as Qwen3's.",
    )
    stop: str = Field("auto", description="The token that ends an answer; `auto`: as the template ends it.")
    like: Like = Field(
        "ours",
        description="Preset: which rows are taken and which tokens trained; `nemotron`: as Nemotron's data_prep does.",
    )
    answers: Answers = Field(
        "every", description="Trained of a sequence: `every` answer, or `last_turn`, those after its last question."
    )
    roles: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Roles that messages may have; default of `ours`: system, user, assistant, tool; of `nemotron`: "
        "any that the template takes.",
    )
    join_text_parts: bool = Field(
        False, description="A content that is a list of text parts is their texts, joined by newlines."
    )
    messages_field: str = Field(
        "messages", description="Key of the messages; a dot leads into an object (`data.messages`)."
    )
    tools_field: str = Field("tools", description="Key of the tools.")
    used_in_filter: tuple[str, ...] = Field(
        (), description="Only rows whose `used_in_field` names one of these, or this one."
    )
    used_in_field: str = Field("used_in", description="Key of what a row is used in: text, comma list or list.")
    max_doc_tokens: int | None = Field(None, ge=2, description="Longer sequences are cut.")
    too_long: Literal["truncate", "drop"] = Field(
        "truncate", description="What happens to sequences longer than a packed row."
    )
    row_group_size: int = Field(1000, ge=1, description="Packed rows in a Parquet row group.")
    compression: Literal["zstd", "snappy", "gzip", "none"] = Field(
        "zstd", description="Compression of the Parquet files."
    )
    sample_rate: float = Field(0.0005, ge=0, le=1, description="Share of texts re-encoded by the reference engine.")

    @field_validator("used_in_filter", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def choices(self) -> ChatChoices:
        """The preset, with the three choices that have a key of their own."""
        preset = PRESETS[self.like]
        return replace(
            preset,
            answers=self.answers,
            roles=self.roles or preset.roles,
            content="join_parts" if self.join_text_parts else preset.content,
        )

    def plan_settings(self) -> dict[str, Any]:
        """The settings that `chat_plan` takes, by the names of its arguments."""
        names = (
            "pack_size",
            "template_date",
            "template_kwargs",
            "choices",
            "stop",
            "turns",
            "max_doc_tokens",
            "too_long",
            "sample_rate",
        )
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """The settings that decide bytes, except the template, `choices` and `template_kwargs`."""
        settings = self.model_dump(mode="json", exclude=_NOT_IN_KEYS)
        # what `auto` makes of a template follows from the template, which is in the key
        return settings | ({"turns": "reasoning"} if self.turns == "auto" else {})

    def located(self, folder: Path) -> Self:
        """The same settings with the path of a template resolved against `folder`."""
        if isinstance(self.chat_template, HubTemplate) or not is_template_path(self.chat_template):
            return self
        return self.model_copy(update={"chat_template": str(resolved(Path(self.chat_template), folder))})
