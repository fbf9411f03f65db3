"""How conversations become sequences of tokens with a loss mask: the plan of a shard's source files, and the files.

The mask itself is made by `tokenization/chat`: `rendering.py` says which text is trained, `mask.py` which token.
Entry points: `chat_plan`, `conversation_renderer`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.errors import ConfigError
from dataprep_assets.sources.readers.row_files import RowRange
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, decisive
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
    template_variables,
)
from dataprep_assets.tokenization.engines import ReferenceEngine

VERSION = 5
"""Increase it when a change in `spool.py` or `tokenization/chat` can change a byte: every key downstream has it."""
TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})
"""Literals that are tokens in what a model or the instructions to it say, because they end no turn (`rendering`)."""

_FOR_CAPABILITIES = replace(OURS, roles="any")


@dataclass(frozen=True, kw_only=True)
class ChatSource(SourcePart):
    """A source file of a shard, or a range of its rows. `size` is in bytes, for progress; `ordinal` in the shard."""

    size: int
    rows: RowRange = field(default_factory=RowRange)

    def key_parts(self) -> list[Any]:
        """The parts of the source that enter a key."""
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
    """Everything that decides the sequences of a source file, and how they are proven. Picklable. Made by `chat_plan`,
    which explains the fields.

    These follow from others: `stops`, the tokens that end an answer; `form`, how the template reads a message;
    `turn_end`, the trained ids after a stop; `openings`, the texts that the template may write between the beginning of
    a trained answer and the answer's own text; `structure`, the tokens that the template writes although they are not
    flagged special; `capabilities`, the template's features; `differences`, sentences on where `{% generation %}` and
    the generation prompt begin an answer differently.
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
    turn_end: tuple[int, ...] = ()
    openings: tuple[str, ...] = ()
    structure: tuple[SpecialToken, ...] = ()
    capabilities: Capabilities = field(default_factory=Capabilities)
    differences: tuple[str, ...] = ()

    @property
    def stop(self) -> SpecialToken:
        """The token that ends a plain answer."""
        return self.stops.plain_stop

    def key_parts(self) -> dict[str, Any]:
        """The parts of the plan that enter a key: not the paths of tokenizer and template, nor the template's name."""
        return {
            # not here: `sample_rate` and `level`, which say how much is proven; what follows
            "spool": VERSION,
            "tokenizer": self.tokenizer_digest,
            **decisive(self.certificate),
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
) -> ChatPlan:
    """Make a plan, and try its template and tokenizer together on invented conversations.

    Args:
        bundle: the tokenizer.
        certificate: that of the engine, for special tokens as `text`.
        template: the chat template.
        pack_size: the longest sequence, in tokens.
        fields: where the messages and tools of a row are.
        template_date: the date that `strftime_now` of a template says; None makes such a template fail.
        template_kwargs: further variables of the template.
        choices: what is a conversation and which of its tokens are trained, where tools differ.
        stop: the token that ends an answer, or `auto`: as the template ends it.
        turns: when each user turn is a sequence of its own; `auto`: `always` for a template that writes an answer in
            another way once a later one follows, such as Qwen3's, else `reasoning`.
        bad_rows: whether a bad row fails the shard, or is dropped and counted.
        max_doc_tokens: longer sequences are cut to this many tokens before `pack_size` applies.
        too_long: whether sequences longer than `pack_size` are cut or dropped.
        sample_rate: the share of texts that the reference engine encodes again.
        level: how many sequences the proofs make again.
        max_loss: the share of unknown tokens and of characters without a token above which a check warns.

    Raises ConfigError for a template that does not compile, whose answers end with no special token or can be read in
    two ways, and for sizes below 2; raises TokenizerError for a tokenizer that cannot be cut at its special tokens.
    """
    for name, value in (("pack_size", pack_size), ("max_doc_tokens", max_doc_tokens)):
        if value is not None and value < 2:
            raise ConfigError(f"{name}: {value}: a sequence with trained tokens has at least 2 tokens")
    renderer = compile_template(template, template_variables(bundle), template_date, template_kwargs)
    structure = _structure(bundle, template, renderer)
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
        structure=structure,
    )
    trial = _render_trial(plan, bundle)
    # Qwen3's template, for one, writes an answer differently once a later one follows
    if turns == "auto" and isinstance(trial, RenderedConversation) and len(trial.sequences) > 1:
        plan = replace(plan, turns="always")
    # before the refusal, because an answer that can be read in two ways is the more exact reason
    readings = compare_readings(
        conversation_renderer(plan, bundle), conversation_renderer(plan, bundle, is_marked=False), renderer, choices
    )
    plan = replace(
        plan,
        turn_end=_turn_end(plan, bundle, renderer),
        openings=readings.openings,
        differences=readings.differences,
        # with our choices, because Nemotron's do not look for losses
        capabilities=find_capabilities(conversation_renderer(replace(plan, choices=_FOR_CAPABILITIES), bundle)),
    )
    if isinstance(trial, Refusal):
        words = f", {trial.words}" if trial.words else ""
        raise ConfigError(
            f"chat_template {template.name}: cannot write two questions and two answers ({trial}{words}). Use a "
            "template that writes each text, and each answer after its generation prompt"
        )
    check_cutting(bundle, trial, plan.structure)
    # refused here, where it cannot read a literal of them as text, and not at the first row that has one
    replace(bundle, structure=tuple(token.content for token in plan.structure)).engine_json("text")
    return plan


def _structure(bundle: TokenizerBundle, template: ChatTemplate, renderer: Renderer) -> tuple[SpecialToken, ...]:
    """Return the added tokens that are not special, but are in a template's text or in its renderings.

    White space and words are none: a text without them is not the text that a model reads when it answers.
    """
    texts = [template.text, *_rendered_roles(renderer)]
    tokens = [
        bundle.token(content, key="chat_template")
        for content in bundle.definition.added
        if len(content) > 1
        and any(not character.isalnum() and not character.isspace() for character in content)
        and any(content in text for text in texts)
    ]
    return tuple(sorted(tokens, key=lambda token: token.id))


def _rendered_roles(renderer: Renderer) -> Iterator[str]:
    """A conversation of each role, rendered: a template may make a token of a role's name."""
    question, answer = {"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}
    for role in ("user", "system", "developer", "tool"):
        message = {"role": role, "content": "a text"}
        messages = [question, answer, message, answer] if role in ("user", "tool") else [message, question, answer]
        with suppress(TemplateRenderError):
            yield renderer.render(messages, None, prompt=False, thinking=True)


def _render_trial(plan: ChatPlan, bundle: TokenizerBundle) -> RenderedConversation | Refusal:
    """Return two questions and two answers, rendered."""
    # white space where turns begin and end: `check_cutting` looks for special tokens that would absorb it
    messages = (("user", "Is it so?"), ("assistant", " Yes,\n it is. "), ("user", "\tWhy?"), ("assistant", "So."))
    conversation = Conversation([{"role": role, "content": text} for role, text in messages])
    return conversation_renderer(plan, bundle).render(conversation)


def unprompted_header(plan: ChatPlan, bundle: TokenizerBundle) -> str:
    """Return the trained text before the text of an answer because the template writes no generation prompt; else
    empty."""
    renderer = compile_template(plan.template, template_variables(bundle), plan.template_date, plan.template_kwargs)
    question = [{"role": "user", "content": "a question"}]
    try:
        prompted, alone = (renderer.render(question, None, prompt=prompt, thinking=False) for prompt in (True, False))
    except TemplateRenderError:  # it takes no question without an answer, or without a prompt
        return ""
    return max(plan.openings, key=len, default="") if prompted == alone else ""


def _turn_end(plan: ChatPlan, bundle: TokenizerBundle, renderer: Renderer) -> tuple[int, ...]:
    """Ids of the text that the template writes after an answer's stop token, if it is trained."""
    if not plan.choices.turn_end_newline:
        return ()
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]
    # the text after the last stop token comes from the template, so special tokens in it are matched
    text = renderer.render(messages, None, prompt=False, thinking=False).rpartition(plan.stop.content)[2]
    return tuple(ReferenceEngine(bundle, "match").encode([text])[0].tolist()) if text else ()


def conversation_renderer(plan: ChatPlan, bundle: TokenizerBundle, is_marked: bool = True) -> ConversationRenderer:
    """The renderer of a `plan` for the tokenizer `bundle`.

    Without `is_marked`, it reads the generation prompt even if the template marks its answers.
    """
    # the original does not look at marks
    is_marked = is_marked and plan.template.marks_answers and plan.choices.inline_reasoning == "train"
    marks = GENERATION_MARKS if is_marked else ("", "")
    return ConversationRenderer(
        compile_template(plan.template, template_variables(bundle), plan.template_date, plan.template_kwargs, marks),
        (*bundle.special_tokens, *plan.structure),
        stops=plan.stops,
        turns=plan.turns,
        tags=TAGS,
        choices=plan.choices,
        form=plan.form,
        is_marked=is_marked,
    )
