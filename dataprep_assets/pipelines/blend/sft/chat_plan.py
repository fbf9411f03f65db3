"""How conversations become sequences of tokens with a loss mask: the plan of a shard's source files, and the files.

The mask itself is made by `tokenization/chat`: `rendering.py` says which text is trained, `mask.py` which token.
Entry points: `chat_plan`, `conversation_renderer`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.corpus.token_stream import SourcePart
from dataprep_assets.sources.rows import RowRange
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.chat.mask import check_cutting
from dataprep_assets.tokenization.chat.messages import Conversation, ConversationFields, Refusal
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, Turns, stop_token
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, template_variables

__all__ = ["VERSION", "ChatPlan", "ChatSource", "chat_plan", "conversation_renderer"]

VERSION = 1
"""Raise when a change in `spool.py` or in `tokenization/chat` can change a byte: it is part of every key downstream."""
ALLOWED_LITERALS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Literals that people may write as tokens even where a tokenizer calls them special: they end no turn."""


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
    """

    tokenizer: Path
    tokenizer_digest: str
    certificate: dict[str, Any]
    template: ChatTemplate
    template_date: date | None
    stop: SpecialToken
    fields: ConversationFields
    turns: Turns
    allowed_literals: tuple[str, ...]
    bad_rows: Literal["fail", "drop"]
    max_doc_tokens: int | None
    pack_size: int
    too_long: Literal["truncate", "drop"]
    sample_rate: float

    def key_parts(self) -> dict[str, Any]:
        """The parts of the plan that enter a key: not the paths of tokenizer and template, nor the template's name."""
        return {
            "spool": VERSION,
            "tokenizer": self.tokenizer_digest,
            "refused": sorted(self.certificate["refused"]),
            "template": self.template.digest,
            "template_date": self.template_date.isoformat() if self.template_date else None,
            "stop": self.stop.id,
            "fields": asdict(self.fields),
            "turns": self.turns,
            "allowed_literals": sorted(self.allowed_literals),
            "bad_rows": self.bad_rows,
            "max_doc_tokens": self.max_doc_tokens,
            "pack_size": self.pack_size,
            "too_long": self.too_long,
        }


def chat_plan(
    bundle: TokenizerBundle,
    certificate: Certificate,
    template: ChatTemplate,
    *,
    pack_size: int,
    fields: ConversationFields | None = None,
    template_date: date | None = None,
    stop: str = "auto",
    turns: Turns = "reasoning",
    allowed_literals: Sequence[str] = ALLOWED_LITERALS,
    bad_rows: Literal["fail", "drop"] = "fail",
    max_doc_tokens: int | None = None,
    too_long: Literal["truncate", "drop"] = "truncate",
    sample_rate: float = 0.0005,
) -> ChatPlan:
    """A plan that was tried: template and tokenizer are put together once, on one conversation.

    Args:
        bundle: the tokenizer.
        certificate: that of the engine, for special tokens as `text`.
        template: the chat template.
        pack_size: the longest sequence, in tokens.
        fields: where the messages and tools of a row are.
        template_date: the date that `strftime_now` of a template says; None makes such a template fail.
        stop: the token that ends an answer, or `auto`: as the template ends it.
        turns: when each user turn is a sequence of its own.
        allowed_literals: special tokens that text may contain.
        bad_rows: whether a bad row fails the shard, or is dropped and counted.
        max_doc_tokens: longer sequences are cut to this many tokens before `pack_size` applies.
        too_long: whether sequences longer than `pack_size` are cut or dropped.
        sample_rate: the share of texts that the reference engine encodes again.

    Raises ConfigError for a template that does not compile or whose answers end with no special token, and for sizes
    below 2; TokenizerError for a tokenizer that cannot be cut at its special tokens.
    """
    for name, value in (("pack_size", pack_size), ("max_doc_tokens", max_doc_tokens)):
        if value is not None and value < 2:
            raise ConfigError(f"{name}: {value}: a sequence that trains anything has at least 2 tokens")
    renderer = compile_template(template, template_variables(bundle), template_date)
    plan = ChatPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        template=template,
        template_date=template_date,
        stop=stop_token(renderer, bundle.special_tokens, stop),
        fields=fields or ConversationFields(),
        turns=turns,
        allowed_literals=tuple(allowed_literals),
        bad_rows=bad_rows,
        max_doc_tokens=max_doc_tokens,
        pack_size=pack_size,
        too_long=too_long,
        sample_rate=sample_rate,
    )
    _try(plan, bundle)
    return plan


def _try(plan: ChatPlan, bundle: TokenizerBundle) -> None:
    messages = (("user", "Is it so?"), ("assistant", " Yes,\n it is. "), ("user", "\tWhy?"), ("assistant", "So."))
    conversation = Conversation([{"role": role, "content": text} for role, text in messages])
    rendered = conversation_renderer(plan, bundle).render(conversation)
    if isinstance(rendered, Refusal):
        raise ConfigError(
            f"chat_template {plan.template.name}: {rendered} on a conversation of two questions and two answers. "
            "What it writes for the first messages must not depend on later ones; where it does on purpose, set "
            "`turns: always`, which makes one sequence of each user turn"
        )
    check_cutting(bundle, rendered)


def conversation_renderer(plan: ChatPlan, bundle: TokenizerBundle) -> ConversationRenderer:
    """The renderer of a plan."""
    renderer = compile_template(plan.template, template_variables(bundle), plan.template_date)
    return ConversationRenderer(
        renderer, bundle.special_tokens, stop=plan.stop.content, turns=plan.turns, allowed=plan.allowed_literals
    )
