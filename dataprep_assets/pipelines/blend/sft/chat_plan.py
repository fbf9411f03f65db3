"""The source files of a shard, and the plan that turns their conversations into token sequences with a loss mask.

`tokenization/chat` builds the mask: `rendering.py` decides which text is trained, `mask.py` which tokens.
Entry points: `chat_plan`, `load_conversation_renderer`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self

from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.row_ids import RowRetractions
from dataprep_assets.sources.readers.row_files import RowRange
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, select_key_parts
from dataprep_assets.tokenization.chat.answer_readings import compare_readings
from dataprep_assets.tokenization.chat.capabilities import Capabilities, find_capabilities
from dataprep_assets.tokenization.chat.choices import OURS, ChatChoices
from dataprep_assets.tokenization.chat.mask import check_cutting
from dataprep_assets.tokenization.chat.message_form import MessageForm, find_form
from dataprep_assets.tokenization.chat.messages import Conversation, ConversationFields, Refusal
from dataprep_assets.tokenization.chat.rendering import (
    GENERATION_MARKS,
    ConversationRenderer,
    RenderedConversation,
    Turns,
)
from dataprep_assets.tokenization.chat.stops import Stops, find_stops
from dataprep_assets.tokenization.chat.template import (
    ChatTemplate,
    Renderer,
    TemplateRenderError,
    compile_template,
    get_template_variables,
)
from dataprep_assets.tokenization.engines import ReferenceEngine

VERSION = 9
"""Version in every key downstream. Increase it when a change in `spool.py` or `tokenization/chat` can change a byte."""
TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})
"""Literals that stay tokens in answers and instructions, because they do not end a turn (`rendering.py`)."""

_FOR_CAPABILITIES = replace(OURS, roles="any")


@dataclass(frozen=True, kw_only=True)
class ChatSource(SourcePart):
    """A source file of a shard, or a range of its rows.

    `size` is in bytes and used only for progress. `ordinal` is the number of the source in the shard.
    """

    size: int
    rows: RowRange = field(default_factory=RowRange)

    @classmethod
    def from_part(cls, part: SourcePart, size: int) -> Self:
        """Return a planned part of a shard, with its `size`."""
        values = {part_field.name: getattr(part, part_field.name) for part_field in fields(SourcePart)}
        return cls(**values | {"rows": part.rows or RowRange(), "size": size})

    def key_parts(self) -> list[Any]:
        """Return the parts of the source that enter a key."""
        return [
            self.label,
            self.sha256,
            self.format,
            self.compression,
            self.rows.first,
            self.rows.stop,
            *self.limits.values(),
        ]


@dataclass(frozen=True, kw_only=True)
class ChatPlan:
    """The settings that decide the sequences of a source file and how they are checked. Picklable.

    `chat_plan` builds it and explains the settings. The remaining fields follow from them:

    Attributes:
        stops: The tokens that end an answer.
        form: The form in which the template reads a message.
        turn_end: The trained ids after a stop token.
        openings: The texts that the template may write between the beginning of a trained answer and its own text.
        structure: The tokens that the template writes although they are not flagged special.
        capabilities: The template's features.
        differences: Sentences on answers that `{% generation %}` and the generation prompt begin differently.
        retractions: The ids of rows, and the rows to leave out. Only the listed ids that a shard has read enter its
            key, so they are not in `key_parts`.
    """

    tokenizer: Path
    tokenizer_digest: str
    certificate: dict[str, Any]
    template: ChatTemplate
    template_date: date | None
    template_kwargs: dict[str, Any]
    choices: ChatChoices
    stops: Stops
    form: MessageForm
    fields: ConversationFields
    turns: Turns
    bad_rows: Literal["fail", "drop"]
    max_doc_tokens: int | None
    pack_size: int
    too_long: Literal["truncate", "drop"]
    sample_rate: float
    level: Level = SAMPLE
    max_loss: float = 0.01
    names_keys: bool = True
    turn_end: tuple[int, ...] = ()
    openings: tuple[str, ...] = ()
    structure: tuple[SpecialToken, ...] = ()
    capabilities: Capabilities = field(default_factory=Capabilities)
    differences: tuple[str, ...] = ()
    retractions: RowRetractions = field(default_factory=RowRetractions)

    @property
    def stop(self) -> SpecialToken:
        """The token that ends a plain answer."""
        return self.stops.plain_stop

    def key_parts(self) -> dict[str, Any]:
        """Return the parts of the plan that enter a key, without paths and the template's name."""
        return {
            # omit derived fields and settings that change no byte, such as `sample_rate` and `level`
            "spool": VERSION,
            "tokenizer": self.tokenizer_digest,
            **select_key_parts(self.certificate),
            "template": self.template.digest,
            "template_date": self.template_date.isoformat() if self.template_date else None,
            "stops": [token.id for token in self.stops.tokens],
            "fields": asdict(self.fields),
            "turns": self.turns,
            "bad_rows": self.bad_rows,
            "max_doc_tokens": self.max_doc_tokens,
            "pack_size": self.pack_size,
            "too_long": self.too_long,
            "template_kwargs": dict(self.template_kwargs),
            "choices": self.choices.changes,
            **self.retractions.key_parts(),
        }


def chat_plan(
    bundle: TokenizerBundle,
    certificate: Certificate,
    template: ChatTemplate,
    *,
    pack_size: int,
    fields: ConversationFields | None = None,
    template_date: date | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    choices: ChatChoices = OURS,
    stop: str = "auto",
    turns: Turns | Literal["auto"] = "auto",
    bad_rows: Literal["fail", "drop"] = "fail",
    max_doc_tokens: int | None = None,
    too_long: Literal["truncate", "drop"] = "truncate",
    sample_rate: float = 0.0005,
    level: Level = SAMPLE,
    max_loss: float = 0.01,
    names_keys: bool = True,
    retractions: RowRetractions | None = None,
) -> ChatPlan:
    """Build a plan, and test its template and tokenizer together on invented conversations.

    Args:
        bundle: The tokenizer.
        certificate: The engine's certificate, for special tokens as `text`.
        template: The chat template.
        pack_size: Maximum tokens per sequence.
        fields: Names of the row's fields with messages and tools.
        template_date: The date that `strftime_now` returns; None rejects a template that uses it.
        template_kwargs: Additional variables of the template.
        choices: The choices on which tools for chat data differ.
        stop: The token that ends an answer; `auto` finds it from the template.
        turns: When each user turn becomes its own sequence. `auto` means `always` for a template that writes an answer
            differently once a later one follows, such as Qwen3's; otherwise `reasoning`.
        bad_rows: Whether a bad row fails the shard, or is dropped and counted.
        max_doc_tokens: Longer sequences are truncated to this many tokens before `pack_size` applies.
        too_long: Whether sequences longer than `pack_size` are truncated or dropped.
        sample_rate: Share of texts that the reference engine encodes again.
        level: How many sequences the checks rebuild.
        max_loss: Share of unknown tokens, and of characters without a token, above which a check warns.
        names_keys: Whether facts may name the rows' unread keys, whose names may be sensitive.
        retractions: The ids of rows, and the rows to leave out; by default, whole rows, and none.

    Raises ConfigError for a template that does not compile or whose answers end without a special token or can be read
    in two ways, and for sizes below 2; raises TokenizerError for a tokenizer that cannot be split at special tokens.
    """
    for name, value in (("pack_size", pack_size), ("max_doc_tokens", max_doc_tokens)):
        if value is not None and value < 2:
            raise ConfigError(f"{name} must be at least 2, not {value}, so that a sequence has trained tokens")
    renderer = compile_template(template, get_template_variables(bundle), template_date, template_kwargs)
    structure = _find_structure_tokens(bundle, template, renderer)
    form = find_form(renderer) if choices.content != "as_given" else MessageForm()
    plan = ChatPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        template=template,
        template_date=template_date,
        template_kwargs=dict(template_kwargs or {}),
        choices=choices,
        stops=find_stops(renderer, form, bundle.special_tokens, stop, structure),
        form=form,
        fields=fields or ConversationFields(),
        turns="reasoning" if turns == "auto" else turns,
        bad_rows=bad_rows,
        max_doc_tokens=max_doc_tokens,
        pack_size=pack_size,
        too_long=too_long,
        sample_rate=sample_rate,
        level=level,
        max_loss=max_loss,
        names_keys=names_keys,
        retractions=retractions or RowRetractions(),
        structure=structure,
    )
    trial = _render_trial(plan, bundle)
    # Qwen3's template, for one, writes an answer differently once a later one follows
    if turns == "auto" and isinstance(trial, RenderedConversation) and len(trial.sequences) > 1:
        plan = replace(plan, turns="always")
    # compare readings before the trial is refused, because an answer with two readings is the more exact error
    readings = compare_readings(
        load_conversation_renderer(plan, bundle),
        load_conversation_renderer(plan, bundle, is_marked=False),
        renderer,
        choices,
    )
    plan = replace(
        plan,
        turn_end=_turn_end(plan, bundle),
        openings=readings.openings,
        differences=readings.differences,
        # use our choices, because a renderer with Nemotron's does not look for lost texts
        capabilities=find_capabilities(load_conversation_renderer(replace(plan, choices=_FOR_CAPABILITIES), bundle)),
    )
    if isinstance(trial, Refusal):
        words = f", {trial.words}" if trial.words else ""
        raise ConfigError(
            f"chat_template {template.name}: cannot render two questions and two answers ({trial}{words}). Use a "
            "template that writes every text, and every answer after its generation prompt"
        )
    check_cutting(bundle, trial, plan.structure)
    # now refuse a tokenizer that cannot read these tokens as text, instead of at the first row with one
    replace(bundle, structure=tuple(token.content for token in plan.structure)).build_engine_json("text")
    return plan


def _find_structure_tokens(
    bundle: TokenizerBundle, template: ChatTemplate, renderer: Renderer
) -> tuple[SpecialToken, ...]:
    """Return the added tokens without the special flag that a template's text or renderings contain.

    White space and words are left out, because a model also reads them as these tokens in messages.
    """
    texts = [*template.texts, *_render_roles(renderer)]
    tokens = [
        bundle.find_token(content, key="chat_template")
        for content in bundle.definition.added
        if len(content) > 1
        and any(not character.isalnum() and not character.isspace() for character in content)
        and any(content in text for text in texts)
    ]
    return tuple(sorted(tokens, key=lambda token: token.id))


def _render_roles(renderer: Renderer) -> Iterator[str]:
    """Render a conversation with each role, because a template may build a token from a role's name."""
    question, answer = {"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}
    for role in ("user", "system", "developer", "tool"):
        message = {"role": role, "content": "a text"}
        messages = [question, answer, message, answer] if role in ("user", "tool") else [message, question, answer]
        with suppress(TemplateRenderError):
            yield renderer.render(messages, None, prompt=False, thinking=True)


def _render_trial(plan: ChatPlan, bundle: TokenizerBundle) -> RenderedConversation | Refusal:
    """Render two questions and two answers."""
    # white space at the beginning and end of turns, because `check_cutting` looks for special tokens that would absorb
    # it
    messages = (("user", "Is it so?"), ("assistant", " Yes,\n it is. "), ("user", "\tWhy?"), ("assistant", "So."))
    conversation = Conversation([{"role": role, "content": text} for role, text in messages])
    return load_conversation_renderer(plan, bundle).render(conversation)


def find_unprompted_header(plan: ChatPlan, bundle: TokenizerBundle) -> str:
    """Return the text that is trained before each answer because the template writes no generation prompt.

    Empty for a template with a generation prompt.
    """
    renderer = compile_template(plan.template, get_template_variables(bundle), plan.template_date, plan.template_kwargs)
    question = [{"role": "user", "content": "a question"}]
    try:
        prompted, unprompted = (
            renderer.render(question, None, prompt=prompt, thinking=False) for prompt in (True, False)
        )
    except TemplateRenderError:  # the template refuses a question without an answer, or an answer without a prompt
        return ""
    return max(plan.openings, key=len, default="") if prompted == unprompted else ""


def _turn_end(plan: ChatPlan, bundle: TokenizerBundle) -> tuple[int, ...]:
    """Return the ids of the trained text that the template writes after an answer's stop token."""
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]
    rendered = load_conversation_renderer(plan, bundle).render(Conversation(messages))
    if isinstance(rendered, Refusal):
        return ()
    # match special tokens in the text after the last stop token, because this text comes from the template
    text = next((c.text for c in reversed(rendered.sequences[-1]) if c.trained), "").rpartition(plan.stop.content)[2]
    return tuple(ReferenceEngine(bundle, "match").encode([text])[0].tolist()) if text else ()


def load_conversation_renderer(plan: ChatPlan, bundle: TokenizerBundle, is_marked: bool = True) -> ConversationRenderer:
    """Return the renderer of a `plan` for the tokenizer `bundle`.

    Without `is_marked`, the renderer uses the generation prompt even if the template marks its answers.
    """
    # no marks for Nemotron, which ignores them
    is_marked = is_marked and plan.template.marks_answers and plan.choices.inline_reasoning == "train"
    marks = GENERATION_MARKS if is_marked else ("", "")
    return ConversationRenderer(
        compile_template(
            plan.template, get_template_variables(bundle), plan.template_date, plan.template_kwargs, marks
        ),
        (*bundle.special_tokens, *plan.structure),
        stops=plan.stops,
        turns=plan.turns,
        tags=TAGS,
        choices=plan.choices,
        form=plan.form,
        is_marked=is_marked,
    )
