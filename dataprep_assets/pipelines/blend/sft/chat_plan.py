"""The source files of a shard, and the plan that turns their conversations into token sequences with a loss mask.

`tokenization/chat` builds the mask: `rendering.py` decides which text is trained, and `mask.py` decides which tokens.
Entry points: `chat_plan`, `load_conversation_renderer`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.removal.row_ids import RowRetractions
from dataprep_assets.pipelines.blend.screening.reasons import CHOSEN_REASONS
from dataprep_assets.sources.readers.read_options import RowRange
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
from dataprep_assets.tokenization.chat.stops import Stops, find_quotes, find_stops
from dataprep_assets.tokenization.chat.template import (
    ChatTemplate,
    Renderer,
    TemplateRenderError,
    compile_template,
    get_template_variables,
)
from dataprep_assets.tokenization.engines import ReferenceEngine

# Import the module only for type checking, because only a blend with `decontaminate` needs its search.
if TYPE_CHECKING:
    from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows
    from dataprep_assets.pipelines.blend.screening.row_rules import RowRules
    from dataprep_assets.pipelines.blend.screening.row_screen import RowScreen

VERSION = 10
"""Version in the key of each shard. Increase it if a change in `spool.py` or `tokenization/chat` may change bytes."""
TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})
"""Texts that stay special tokens in answers and instructions, because they do not end a turn (`rendering.py`)."""

_FOR_CAPABILITIES = replace(OURS, roles="any")


@dataclass(frozen=True, kw_only=True)
class ChatSource(SourcePart):
    """A source file of a shard, or a range of the file's rows.

    `size` is the size in bytes, and is used only to show progress. `ordinal` is the number of the source in the shard.
    """

    size: int
    rows: RowRange = field(default_factory=RowRange)

    @classmethod
    def from_part(cls, part: SourcePart, size: int) -> Self:
        """Return the source for a planned part of a shard; `size` is the part's size in bytes."""
        values = {part_field.name: getattr(part, part_field.name) for part_field in fields(SourcePart)}
        return cls(**values | {"rows": part.rows or RowRange(), "size": size})

    def key_parts(self) -> list[Any]:
        """Return the values of the source that are part of a shard's key."""
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
    """The settings that determine the sequences of a source file and how they are checked. Instances are picklable.

    `chat_plan` builds a plan and explains its settings. The remaining fields are derived from the settings:

    Attributes:
        stops: The tokens that end an answer.
        form: The form in which the template reads a message.
        turn_end: The trained ids after a stop token.
        openings: Texts that the template may write at the beginning of a trained answer, before the message's text.
        structure: Tokens that the template writes although they do not have the special flag.
        quotes: The tokens that the template writes both before and after a text. An empty text leaves a pair of them.
        capabilities: The template's features.
        differences: Sentences about answers that begin differently with `{% generation %}` and the generation prompt.
        retractions: The kind of row ids, and the retraction list. The list is not in `key_parts`, because a shard's key
            covers only the listed ids that the shard has read.
        rules: The rules that drop rows; None without `keep` and `drop`.
        screen: The search for benchmark items; None without `decontaminate`.
        duplicates: The rows that are dropped as duplicates; None without `duplicates`. Only the plan of a shard has
            them.
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
    quotes: tuple[SpecialToken, ...] = ()
    capabilities: Capabilities = field(default_factory=Capabilities)
    differences: tuple[str, ...] = ()
    retractions: RowRetractions = field(default_factory=RowRetractions)
    rules: "RowRules | None" = None
    screen: "RowScreen | None" = None
    duplicates: "DuplicateRows | None" = None

    @property
    def stop(self) -> SpecialToken:
        """The token that ends an answer without tool calls."""
        return self.stops.plain_stop

    def is_bad(self, reason: str) -> bool:
        """Return whether rows that are dropped for a reason are bad, and so fail the build or use up the budget."""
        return reason not in (*CHOSEN_REASONS, *self.rule_names)

    @property
    def rule_names(self) -> tuple[str, ...]:
        """The names of the rules, which are reasons for dropping rows."""
        return () if self.rules is None else self.rules.names

    def key_parts(self) -> dict[str, Any]:
        """Return the values of the plan that are part of a shard's key, without paths and the template's name."""
        return {
            # Omit derived fields, and settings such as `sample_rate` and `level` that do not change the shard.
            "spool": VERSION,
            "tokenizer": self.tokenizer_digest,
            **select_key_parts(self.certificate),
            "template": self.template.digest,
            "template_date": self.template_date.isoformat() if self.template_date else None,
            "stops": [token.id for token in self.stops.tokens],
            "fields": self.fields.key_parts(),
            "turns": self.turns,
            "bad_rows": self.bad_rows,
            "max_doc_tokens": self.max_doc_tokens,
            "pack_size": self.pack_size,
            "too_long": self.too_long,
            "template_kwargs": dict(self.template_kwargs),
            "choices": self.choices.changes,
            **self.retractions.key_parts(),
            # Add rules, the search and duplicates only if they are declared, so that other shards keep their keys.
            **({} if self.rules is None else self.rules.key_parts()),
            **({} if self.screen is None else self.screen.key_parts()),
            **({} if self.duplicates is None else self.duplicates.key_parts()),
        }

    @property
    def reading_key_parts(self) -> dict[str, Any]:
        """The values that decide which rows of a source are read, and their contents."""
        return {
            "fields": self.fields.key_parts(),
            "choices": self.choices.changes,
            **({} if self.rules is None else self.rules.key_parts()),
            **({} if self.screen is None else self.screen.key_parts()),
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
    rules: "RowRules | None" = None,
    screen: "RowScreen | None" = None,
) -> ChatPlan:
    """Build a plan, and test its template together with its tokenizer on invented conversations.

    Args:
        bundle: The tokenizer.
        certificate: The engine's certificate, for special tokens that are encoded as `text`.
        template: The chat template.
        pack_size: Maximum number of tokens per sequence.
        fields: Names of the fields of a row that contain messages and tools.
        template_date: The date that `strftime_now` returns. With None, a template that calls it is refused.
        template_kwargs: Additional variables of the template.
        choices: The choices for chat data on which tools differ.
        stop: The token that ends an answer. With `auto`, it is found in the template's output.
        turns: When each user turn becomes a separate sequence. `auto` means `always` for a template that renders an
            answer differently if a later answer follows, such as Qwen3's, and otherwise `reasoning`.
        bad_rows: Whether a bad row fails the shard, or is dropped and counted.
        max_doc_tokens: Maximum number of tokens to which a sequence is truncated before `pack_size` applies.
        too_long: Whether sequences longer than `pack_size` are truncated or dropped.
        sample_rate: Share of texts that the reference engine encodes again.
        level: How many sequences the checks rebuild.
        max_loss: Share of unknown tokens, and of characters without a token, above which a check warns.
        names_keys: Whether facts may contain the names of the rows' unread keys, which may be sensitive.
        retractions: The kind of row ids, and the retraction list. Default: ids of whole rows, and an empty list.
        rules: The rules that drop rows, if any.
        screen: The search for benchmark items, if any.

    Raises ConfigError for sizes below 2, and for a template that does not compile, whose answers end without a special
    token, or whose answers can be read in two ways. Raises TokenizerError for a tokenizer that cannot be split at
    special tokens.
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
        rules=rules,
        screen=screen,
        structure=structure,
        quotes=find_quotes(renderer, form, bundle.special_tokens),
    )
    trial = _render_trial(plan, bundle)
    # If the trial has several sequences, the template renders an answer differently when a later answer follows (as
    # Qwen3's template does), so each turn must be a separate sequence.
    if turns == "auto" and isinstance(trial, RenderedConversation) and len(trial.sequences) > 1:
        plan = replace(plan, turns="always")
    # Compare the readings before raising the trial's error, because `compare_readings` raises a more specific error for
    # a template whose answers can be read in two ways.
    readings = compare_readings(
        load_conversation_renderer(plan, bundle),
        load_conversation_renderer(plan, bundle, is_marked=False),
        renderer,
        choices,
    )
    plan = replace(
        plan,
        turn_end=_find_turn_end(plan, bundle),
        openings=readings.openings,
        differences=readings.differences,
        # Do not use the declared choices, because with Nemotron's choices, the renderer does not look for lost texts.
        capabilities=find_capabilities(load_conversation_renderer(replace(plan, choices=_FOR_CAPABILITIES), bundle)),
    )
    if isinstance(trial, Refusal):
        words = f", {trial.words}" if trial.words else ""
        raise ConfigError(
            f"chat_template {template.name}: cannot render two questions and two answers ({trial}{words}). Use a "
            "template that writes every text, and every answer after its generation prompt"
        )
    check_cutting(bundle, trial, plan.structure)
    # Build the engine's JSON now, because a tokenizer that cannot encode these tokens as text would otherwise fail only
    # at the first row that contains one.
    replace(bundle, structure=tuple(token.content for token in plan.structure)).build_engine_json("text")
    return plan


def _find_structure_tokens(
    bundle: TokenizerBundle, template: ChatTemplate, renderer: Renderer
) -> tuple[SpecialToken, ...]:
    """Return the added tokens without the special flag that occur in a template's text or renderings.

    White space and words are excluded, because in messages a model also reads them as these tokens.
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
    """Yield the renderings of conversations with each role, because a template may form a token from a role's name."""
    question, answer = {"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}
    for role in ("user", "system", "developer", "tool"):
        message = {"role": role, "content": "a text"}
        messages = [question, answer, message, answer] if role in ("user", "tool") else [message, question, answer]
        with suppress(TemplateRenderError):
            yield renderer.render(messages, None, prompt=False, thinking=True)


def _render_trial(plan: ChatPlan, bundle: TokenizerBundle) -> RenderedConversation | Refusal:
    """Render an invented conversation with two questions and two answers; return a Refusal if this is impossible."""
    # Some texts begin or end with white space, because `check_cutting` looks for special tokens that absorb it.
    messages = (("user", "Is it so?"), ("assistant", " Yes,\n it is. "), ("user", "\tWhy?"), ("assistant", "So."))
    conversation = Conversation([{"role": role, "content": text} for role, text in messages])
    return load_conversation_renderer(plan, bundle).render(conversation)


def find_unprompted_header(plan: ChatPlan, bundle: TokenizerBundle) -> str:
    """Return the header before each answer if it is in the loss, because the template writes no generation prompt.

    The header is empty for a template with a generation prompt.
    """
    renderer = compile_template(plan.template, get_template_variables(bundle), plan.template_date, plan.template_kwargs)
    question = [{"role": "user", "content": "a question"}]
    try:
        prompted, unprompted = (
            renderer.render(question, None, prompt=prompt, thinking=False) for prompt in (True, False)
        )
    except TemplateRenderError:  # some templates refuse a conversation that ends with a question
        return ""
    return max(plan.openings, key=len, default="") if prompted == unprompted else ""


def _find_turn_end(plan: ChatPlan, bundle: TokenizerBundle) -> tuple[int, ...]:
    """Return the ids of the trained text that the template writes after an answer's stop token."""
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]
    rendered = load_conversation_renderer(plan, bundle).render(Conversation(messages))
    if isinstance(rendered, Refusal):
        return ()
    # Match special tokens in the text after the last stop token, because the template has written this text.
    text = next((c.text for c in reversed(rendered.sequences[-1]) if c.trained), "").rpartition(plan.stop.content)[2]
    return tuple(ReferenceEngine(bundle, "match").encode([text])[0].tolist()) if text else ()


def load_conversation_renderer(plan: ChatPlan, bundle: TokenizerBundle, is_marked: bool = True) -> ConversationRenderer:
    """Return the renderer of a `plan` for the tokenizer `bundle`.

    Unless `is_marked`, the renderer finds answers by the generation prompt even if the template marks them.
    """
    # Use no marks if `inline_reasoning` is `refuse`, which only Nemotron's preset sets, because Nemotron ignores a
    # template's marks.
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
