"""The settings of `stage: sft`, as a blend's YAML has them.

`like` chooses a preset (`tokenization/chat/choices.py`); a given key of `train_on` or `accept` takes precedence. Keys
contain the resulting choices, so declaring a default explicitly changes nothing.
"""

from datetime import date
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from dataprep_assets.graph.declaration import resolved
from dataprep_assets.graph.declared import Declared
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.tokenization.chat.choices import PRESETS, ChatChoices, Like
from dataprep_assets.tokenization.chat.rendering import Turns
from dataprep_assets.tokenization.chat.template import is_template_path

__all__ = ["AcceptOptions", "HubTemplate", "SftOptions", "TrainOnOptions"]

_NOT_IN_KEYS = {"chat_template", "sample_rate", "template_kwargs", "like", "train_on", "accept"}


class HubTemplate(Declared):
    """A chat template in a repository of the hub."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository of a model, `organization/name`.")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="Its commit, 40 hexadecimal digits.")
    file: str = Field("chat_template.jinja", min_length=1, description="The file in it.")


class TrainOnOptions(Declared):
    """Which tokens are trained. A key that is left out follows the preset `like`."""

    answers: Literal["every", "last_turn"] | None = Field(
        None, description="Of a sequence: `every` answer, or those after its last question. Both presets: `every`."
    )
    turn_end_newline: bool | None = Field(
        None, description="Also what the template writes behind the stop token. `ours`: no; `nemotron`: yes."
    )
    unprompted_header: bool | None = Field(
        None,
        description="Also the header of an answer that follows no question or result, such as a second answer in a "
        "row. `ours`: no, the header is the prompt's; `nemotron`: yes.",
    )


class AcceptOptions(Declared):
    """Which rows are taken as conversations, and how. A key that is left out follows the preset `like`."""

    roles: tuple[str, ...] | Literal["any"] | None = Field(
        None,
        description="Roles of messages. `ours`: system, user, assistant, tool; `nemotron`: `any`, which leaves it to "
        "the template.",
    )
    content: Literal["text", "join_parts", "as_given"] | None = Field(
        None,
        description="`text` alone; text parts too, joined by newlines (`join_parts`); or what the template makes of it "
        "(`as_given`). `ours`: `text`; `nemotron`: `as_given`, which may print a list as Python does.",
    )
    empty_answers: Literal["refuse", "train"] | None = Field(
        None, description="An answer that says nothing. `ours`: `refuse`; `nemotron`: `train`, its stop token."
    )
    tools: Literal["parse", "as_given"] | None = Field(
        None,
        description="`parse`: a list or its JSON text, an empty one is none (`ours`); `as_given`: a text is refused, "
        "an empty list reaches the template (`nemotron`).",
    )
    undeclared_calls: Literal["refuse", "keep"] | None = Field(
        None, description="Rows that call tools and declare none. `ours`: `refuse`; `nemotron`: `keep`."
    )
    call_text: Literal["declared", "heading"] | None = Field(
        None,
        description="`<tool_call>` in a text is allowed where tools are `declared` or under the heading `# Tools` "
        "(`ours`), or under the `heading` alone (`nemotron`).",
    )
    call_form: Literal["any", "openai"] | None = Field(
        None,
        description="`any`: also calls without `function` around them or without arguments (`ours`); `openai`: "
        "`function` with `name` and `arguments` (`nemotron`).",
    )
    special_literals: Literal["text", "special"] | None = Field(
        None, description="Special tokens that stand in a message. `ours`: `text`; `nemotron`: `special`."
    )
    inline_reasoning: Literal["train", "refuse"] | None = Field(
        None,
        description="An answer with its `<think>` in its text. `ours`: `train`, behind the prompt that fits it; "
        "`nemotron`: `refuse`, as its prompt is not the one for reasoning.",
    )
    blank_reasoning: Literal["none", "reasoning"] | None = Field(
        None,
        description="Blank reasoning is `none` (`ours`), or `reasoning`, and cuts a row into turns (`nemotron`).",
    )
    other_reasoning: Literal["as_given", "copied"] | None = Field(
        None,
        description="`reasoning` and `thinking` of a message reach the template `as_given` (both presets), or are also "
        "`copied` to its `reasoning_content`, as transformers 5 does; the prompt stays the one without reasoning.",
    )
    untrained: Literal["left_out", "kept"] | None = Field(
        None, description="A sequence in which nothing is trained. `ours`: `left_out`; `nemotron`: `kept`."
    )
    system_in_question: Literal["once", "twice"] | None = Field(
        None,
        description="A first question that holds the header of a system text, where there is none: its beginning is "
        "written `once` (`ours`) or `twice` (`nemotron`). It matters with `special_literals: special` alone.",
    )
    question_end: Literal["text", "prompt"] | None = Field(
        None,
        description="A question that something else than an answer follows, in a row with reasoning: its tokens end "
        "with its `text` (`ours`), or so many characters further as the `prompt` of an answer has (`nemotron`).",
    )


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
    turns: Turns = Field("reasoning", description="When each user turn is a sequence of its own.")
    stop: str = Field("auto", description="The token that ends an answer; `auto`: as the template ends it.")
    like: Like = Field("ours", description="Preset: sets the keys of `train_on` and `accept` that are not given.")
    train_on: TrainOnOptions = Field(TrainOnOptions(), description="Which tokens are trained.")
    accept: AcceptOptions = Field(AcceptOptions(), description="Which rows are taken as conversations, and how.")
    messages_field: str = Field("messages", description="Key of the messages.")
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
        """The preset with the given keys applied."""
        given = {**self.train_on.model_dump(exclude_none=True), **self.accept.model_dump(exclude_none=True)}
        return PRESETS[self.like].with_changes(given)

    def identity(self) -> dict[str, Any]:
        """The settings that decide bytes, except the template, `choices` and `template_kwargs`."""
        return self.model_dump(mode="json", exclude=_NOT_IN_KEYS)

    def located(self, folder: Path) -> Self:
        """The same settings with the path of a template resolved against `folder`."""
        if isinstance(self.chat_template, HubTemplate) or not is_template_path(self.chat_template):
            return self
        return self.model_copy(update={"chat_template": str(resolved(Path(self.chat_template), folder))})
