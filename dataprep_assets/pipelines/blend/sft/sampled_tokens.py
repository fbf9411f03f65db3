"""Token counts of a few rows, from which the preview estimates the tokens of all rows.

Rows are rendered and truncated as in a spool, so the counts include the template's own text, tool declarations and
turns.

Entry points: `build_row_counter`; `build_refusal_function` for refused rows.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dataprep_assets.bounds import report_position
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan
from dataprep_assets.pipelines.blend.sft.packed_sft import build_chat_plan
from dataprep_assets.pipelines.blend.sft.spool import cut_lengths, load_tools
from dataprep_assets.sources.readers.rows import RowBlock
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.mask import ChatEncoder, EncodedSequences
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import RenderedConversation, keep_used_part
from dataprep_assets.tokenization.losses import encode_or_locate, locate_row


def build_row_counter(blend: BlendDeclaration, dataset: BlendDataset) -> Callable[[str, RowBlock], float]:
    """Return a function that computes the mean number of tokens per row of a block; refused rows count as 0 tokens.

    The function encodes with the reference engine. Raises ConfigError or TokenizerError for an unusable template.
    """
    return partial(_count_tokens_per_row, _build_plan(blend, dataset))


def build_refusal_function(blend: BlendDeclaration, dataset: BlendDataset) -> Callable[[dict[str, Any]], str | None]:
    """Return a function that explains why a row is refused, including by its template; None if it is accepted.

    Raises the errors of `build_row_counter`.
    """
    return partial(_explain_refusal, _build_plan(blend, dataset), has_words=not blend.sensitive)


def _build_plan(blend: BlendDeclaration, dataset: BlendDataset) -> ChatPlan:
    bundle = load_declared_tokenizer(blend.required_tokenizer)
    plan = build_chat_plan(blend, refuse_engine(bundle, "text", "tokenizers", "a preview"), dataset)
    load_tools(plan)  # raises the error for an unusable template before any row is read
    # Read the source texts, because rewriting hardly changes the estimates, and user functions run only in workers.
    return replace(plan, fields=replace(plan.fields, rewriting=None))


def _explain_refusal(plan: ChatPlan, row: dict[str, Any], *, has_words: bool) -> str | None:
    rendered = _render(plan, row)
    if isinstance(rendered, Refusal):
        # Hide the template's error message if the data is sensitive, because the message may quote the row.
        return f"{rendered} ({rendered.words})" if has_words and rendered.words else str(rendered)
    return None if rendered.sequences else "no_answer"


def _render(plan: ChatPlan, row: dict[str, Any]) -> RenderedConversation | Refusal:
    conversation = read_conversation(row, plan.fields, plan.choices)
    return (
        conversation if isinstance(conversation, Refusal) else keep_used_part(load_tools(plan)[0].render(conversation))
    )


def _count_tokens_per_row(plan: ChatPlan, label: str, rows: RowBlock) -> float:
    encoder = load_tools(plan)[1]
    tokens = 0
    for number, row in zip(rows.numbers, rows.rows, strict=True):
        report_position(label, number)
        rendered = _render(plan, row)
        if not isinstance(rendered, Refusal):
            lengths, fits = cut_lengths(plan, np.diff(_encode(encoder, rendered, label, number).offsets))
            tokens += int(lengths[fits].sum())
    return tokens / max(1, len(rows.rows))


def _encode(encoder: ChatEncoder, rendered: RenderedConversation, label: str, row: int) -> EncodedSequences:
    return encode_or_locate(encoder.encode, [rendered], encoder.bundle.name, lambda _: locate_row(label, row))
