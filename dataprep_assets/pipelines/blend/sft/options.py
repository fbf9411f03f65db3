"""The settings of `stage: sft`, as a blend's YAML has them.

`like` chooses a preset (`tokenization/chat/choices.py`). Keys contain the resulting choices where they differ from the
default preset's, so declaring a default explicitly changes nothing.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from dataprep_assets.engine.yaml.declaration import resolve_path
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.tokenization.chat.choices import PRESETS, Answers, ChatChoices, Like
from dataprep_assets.tokenization.chat.lost_text import Feature
from dataprep_assets.tokenization.chat.rendering import Turns
from dataprep_assets.tokenization.chat.template import is_template_path

# in keys in other forms: the template's text, choices that are not the default's; `sample_rate` decides no byte
_NOT_IN_KEYS = {
    "chat_template",
    "sample_rate",
    "template_kwargs",
    "like",
    "answers",
    "roles",
    "join_text_parts",
    "allow_loss",
}


class HubTemplate(Declared):
    """A chat template in a repository of the hub."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository of a model, `organization/name`.")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="Commit of the repository, 40 hexadecimal digits.")
    file: str = Field("chat_template.jinja", min_length=1, description="File in the repository.")


class SftOptions(Declared):
    """Packed Parquet with a loss mask."""

    pack_size: int = Field(4096, ge=2, description="Tokens per packed row.")
    algorithm: Algorithm = Field("first_fit_shuffle", description="How sequences are packed.")
    seed: int = Field(42, ge=0, description="Seed of the packing's shuffle.")
    chat_template: str | HubTemplate = Field(
        "tokenizer",
        description="`tokenizer`: the tokenizer's own template; `chatml_reasoning`: included; a path; a file on the "
        "Hub; or Jinja text.",
    )
    template_date: date | None = Field(
        None, description="Date that `strftime_now` returns in a template; without it, such a template is rejected."
    )
    template_kwargs: dict[str, Any] = Field(
        {},
        description="Additional variables of the template, each by itself and together as `chat_template_kwargs`; not "
        "`enable_thinking`, which each conversation sets.",
    )
    turns: Turns | Literal["auto"] = Field(
        "auto",
        description="When each user turn becomes its own sequence: if a row has `reasoning`, or `always`; `auto`: as "
        "the template needs, i.e., `always` for one that writes earlier answers differently, such as "
        "Qwen3's.",
    )
    stop: str = Field("auto", description="The token that ends an answer; `auto`: found from the template.")
    like: Like = Field(
        "ours",
        description="Preset for accepted rows and trained tokens; `nemotron`: like Nemotron's data_prep.",
    )
    allow_loss: tuple[Feature, ...] = Field(
        (),
        description="Features of rows that the template may drop; rows with other features that it drops are bad "
        "records.",
    )
    answers: Answers = Field(
        "every", description="Answers in the loss: `every` answer, or `last_turn`, only those after the last question."
    )
    roles: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Allowed roles of messages; default for `ours`: system, user, assistant, tool; for `nemotron`: any "
        "that the template accepts.",
    )
    join_text_parts: bool = Field(
        False, description="Join the texts of a content that is a list of text parts with newlines."
    )
    messages_field: str = Field(
        "messages", description="Key of the messages. A dot selects a key of an object (`data.messages`)."
    )
    tools_field: str = Field("tools", description="Key of the tools.")
    used_in_filter: tuple[str, ...] = Field(
        (), description="Only rows whose `used_in_field` contains one of these values."
    )
    used_in_field: str = Field(
        "used_in", description="Key with the uses of a row: a string, a comma-separated list or a list."
    )
    max_doc_tokens: int | None = Field(None, ge=2, description="Longer sequences are truncated.")
    too_long: Literal["truncate", "drop"] = Field(
        "truncate", description="How sequences longer than a packed row are handled."
    )
    row_group_size: int = Field(1000, ge=1, description="Packed rows per Parquet row group.")
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
        """The preset, with the choices that have a key of their own."""
        preset = PRESETS[self.like]
        return replace(
            preset,
            answers=self.answers,
            allow_loss=tuple(sorted(self.allow_loss)),
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
        """Return a copy of these settings with the path of a template resolved against `folder`."""
        if isinstance(self.chat_template, HubTemplate) or not is_template_path(self.chat_template):
            return self
        return self.model_copy(update={"chat_template": str(resolve_path(Path(self.chat_template), folder))})
