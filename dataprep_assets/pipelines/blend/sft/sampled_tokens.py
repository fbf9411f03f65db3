"""Number of tokens that the conversations of a few rows become, from which a preview estimates all others.

They are rendered by the template and cut as in a spool, so what the template writes, tool declarations and turns count.

Entry points: `row_counter`; `row_refusal`, for rows that become none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dataprep_assets.bounds import report_position
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan
from dataprep_assets.pipelines.blend.sft.packed_sft import plan_of
from dataprep_assets.pipelines.blend.sft.spool import cut_lengths, load_tools
from dataprep_assets.sources.readers.rows import RowBlock
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.certificate import refused_outright
from dataprep_assets.tokenization.chat.mask import ChatEncoder, EncodedSequences
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import RenderedConversation, used_part
from dataprep_assets.tokenization.losses import encode_or_name, row_of


def row_counter(blend: BlendDeclaration, dataset: BlendDataset) -> Callable[[str, RowBlock], float]:
    """Return a function that counts the tokens per row of some rows of a file; a refused row has none.

    Encoded by the reference. Raises ConfigError or TokenizerError for a template that cannot be used.
    """
    return partial(_tokens_a_row, _plan(blend, dataset))


def row_refusal(blend: BlendDeclaration, dataset: BlendDataset) -> Callable[[dict[str, Any]], str | None]:
    """Return a function that explains why a row is not a conversation, or why its template refuses it.

    Raises the errors of `row_counter`.
    """
    return partial(_why_refused, _plan(blend, dataset), has_words=not blend.sensitive)


def _plan(blend: BlendDeclaration, dataset: BlendDataset) -> ChatPlan:
    bundle = load_bundle(blend.required_tokenizer)
    plan = plan_of(blend, refused_outright(bundle, "text", "tokenizers", "a preview"), dataset)
    load_tools(plan)  # a template that cannot be used is named before any row is
    return plan


def _why_refused(plan: ChatPlan, row: dict[str, Any], *, has_words: bool) -> str | None:
    rendered = _rendered(plan, row)
    if isinstance(rendered, Refusal):
        # a template may quote the row
        return f"{rendered} ({rendered.words})" if has_words and rendered.words else str(rendered)
    return None if rendered.sequences else "no_answer"


def _rendered(plan: ChatPlan, row: dict[str, Any]) -> RenderedConversation | Refusal:
    read = read_conversation(row, plan.fields, plan.choices)
    return read if isinstance(read, Refusal) else used_part(load_tools(plan)[0].render(read))


def _tokens_a_row(plan: ChatPlan, label: str, some: RowBlock) -> float:
    encoder = load_tools(plan)[1]
    tokens = 0
    for number, row in zip(some.numbers, some.rows, strict=True):
        report_position(label, number)
        rendered = _rendered(plan, row)
        if not isinstance(rendered, Refusal):
            lengths, stay = cut_lengths(plan, np.diff(_encoded(encoder, rendered, label, number).offsets))
            tokens += int(lengths[stay].sum())
    return tokens / max(1, len(some.rows))


def _encoded(encoder: ChatEncoder, rendered: RenderedConversation, label: str, row: int) -> EncodedSequences:
    return encode_or_name(encoder.encode, [rendered], encoder.bundle.name, lambda _: row_of(label, row))
