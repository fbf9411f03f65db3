"""The settings of `stage: sft` in a blend's YAML.

`like` selects a preset (`tokenization/chat/choices.py`). Artifact keys contain only the choices that differ from the
default preset, so declaring a default explicitly changes nothing.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import resolve_path
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.tokenization.chat.choices import PRESETS, Answers, ChatChoices, Like
from dataprep_assets.tokenization.chat.lost_text import Feature
from dataprep_assets.tokenization.chat.rendering import Turns
from dataprep_assets.tokenization.chat.row_forms import Format
from dataprep_assets.tokenization.chat.template import is_template_path

# Artifact keys contain these settings in a different form, except `sample_rate`, which does not change the shards.
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


class HubTemplate(DeclarationModel):
    """A chat template in a repository on the Hugging Face Hub."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Name of the model repository, as `organization/name`.")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="Commit of the repository, as 40 hexadecimal digits.")
    file: str = Field("chat_template.jinja", min_length=1, description="Path of the template in the repository.")


class NamedTemplate(DeclarationModel):
    """One of several chat templates of the tokenizer."""

    name: str = Field(min_length=1, description="Name of the template, such as `tool_use` or `rag`.")


class ChatOptions(DeclarationModel):
    """Settings of conversations that a chat template renders, for every stage with conversations."""

    chat_template: str | HubTemplate | NamedTemplate = Field(
        "tokenizer",
        description=(
            "Chat template: `tokenizer` (its default template), `{name: …}` (another template of the tokenizer), "
            "`chatml_reasoning` (included), a path, a file on the Hub, or Jinja text."
        ),
    )
    template_date: date | None = Field(
        None,
        description=(
            "Date that `strftime_now` returns in the template, as YYYY-MM-DD. Required if the template calls it."
        ),
    )
    template_kwargs: dict[str, Any] = Field(
        {},
        description=(
            "Variables for the template, also passed together as `chat_template_kwargs`. A row's own "
            "`chat_template_kwargs` override them. `enable_thinking` is not allowed, because each conversation "
            "sets it. Default: none."
        ),
    )
    stop: str = Field(
        "auto", description="Token that ends an answer. `auto`: the token that the template writes there."
    )
    allow_loss: tuple[Feature, ...] = Field(
        (),
        description=(
            "Parts of rows that the template may leave out. A row that loses any other part is a bad record. "
            "Default: no parts."
        ),
    )
    roles: tuple[str, ...] | None = Field(
        None, min_length=1, description="Roles that messages may have. Default: `system`, `user`, `assistant`, `tool`."
    )
    join_text_parts: bool = Field(
        False,
        description=(
            "Whether a message whose content is a list of texts is accepted. The texts are joined with newlines."
        ),
    )
    messages_field: str = Field(
        "messages", description="Key of the messages. A dot selects a nested key (`data.messages`)."
    )
    tools_field: str = Field("tools", description="Key of the tools. A dot selects a nested key.")
    used_in_filter: tuple[str, ...] = Field(
        (), description="Reads only rows with one of these values in `used_in_field`. Default: all rows."
    )
    used_in_field: str = Field(
        "used_in", description="Key that lists the uses of a row: a string, a comma-separated string or a list."
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] = Field(
        "zstd", description="Compression of the Parquet files."
    )
    sample_rate: float = Field(
        0.0005, ge=0, le=1, description="Share of texts that the reference engine also encodes, to compare the ids."
    )

    @field_validator("used_in_filter", mode="before")
    @classmethod
    def _convert_to_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def resolve_paths(self, folder: Path) -> Self:
        """Return a copy of these settings with the path of a template resolved against `folder`."""
        if not isinstance(self.chat_template, str) or not is_template_path(self.chat_template):
            return self
        return self.model_copy(update={"chat_template": str(resolve_path(Path(self.chat_template), folder))})


class SftOptions(ChatOptions):
    """Settings of the stage `sft`, which writes packed Parquet with a loss mask."""

    pack_size: int = Field(4096, ge=2, description="Tokens per packed row.")
    pad_to_multiple: int = Field(
        1,
        ge=1,
        description="Pads each sequence to a multiple of this number of labels. Use twice the context parallel size.",
    )
    algorithm: Algorithm = Field("first_fit_shuffle", description="Algorithm that packs sequences into rows.")
    seed: int = Field(42, ge=0, description="Seed for the shuffle before packing.")
    turns: Turns | Literal["auto"] = Field(
        "auto",
        description=(
            "When each user turn becomes a separate sequence. `reasoning`: only in rows with reasoning. "
            "`always`: in all rows. `auto`: `always` if the template renders earlier answers differently (as "
            "Qwen3's does), else `reasoning`."
        ),
    )
    like: Like = Field(
        "ours",
        description=(
            "Preset that decides which rows are accepted and which tokens are in the loss. `ours`: the defaults of "
            "the other keys. `nemotron`: the choices of Nemotron's `data_prep`."
        ),
    )
    answers: Answers = Field(
        "every",
        description=(
            "Which answers are in the loss. `every`: all answers. `last_turn`: only answers after the last user "
            "message."
        ),
    )
    roles: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description=(
            "Roles that messages may have. Default: `system`, `user`, `assistant`, `tool`; with `like: "
            "nemotron`, any role that the template accepts."
        ),
    )
    format: Format = Field(
        "auto",
        description=(
            "Form of the rows. `auto` recognizes messages, ShareGPT, Alpaca, and prompt with completion. `pairs` "
            "trains only on chosen answers, `kto` only on answers with `label: true`."
        ),
    )
    max_doc_tokens: int | None = Field(
        None,
        ge=2,
        description=(
            "Maximum length of a sequence in tokens. Longer sequences are truncated. Default: only the limit of "
            "`pack_size`."
        ),
    )
    too_long: Literal["truncate", "drop"] = Field(
        "truncate", description="Action for sequences longer than a packed row: `truncate` or `drop`."
    )
    row_group_size: int = Field(1000, ge=1, description="Number of packed rows per Parquet row group.")

    @model_validator(mode="after")
    def _require_fitting_padding(self) -> Self:
        if self.pack_size % self.pad_to_multiple:
            raise ValueError(
                f"`pack_size` ({self.pack_size}) must be a multiple of `pad_to_multiple` ({self.pad_to_multiple})"
            )
        return self

    @property
    def choices(self) -> ChatChoices:
        """The choices of the preset, which declared keys override."""
        preset = PRESETS[self.like]
        return replace(
            preset,
            answers=self.answers,
            allow_loss=tuple(sorted(self.allow_loss)),
            roles=self.roles or preset.roles,
            content="join_parts" if self.join_text_parts else preset.content,
        )

    def plan_settings(self) -> dict[str, Any]:
        """Return the arguments of `chat_plan` that are settings, by name."""
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
        """Return the settings that change the shards' bytes, except the template, `choices` and `template_kwargs`."""
        settings = self.model_dump(mode="json", exclude=_NOT_IN_KEYS)
        if self.pad_to_multiple == 1:
            del settings["pad_to_multiple"]
        # Use the fixed value `reasoning` for `auto`, because the result of `auto` depends only on the template, which
        # is also in the key.
        return settings | ({"turns": "reasoning"} if self.turns == "auto" else {})
