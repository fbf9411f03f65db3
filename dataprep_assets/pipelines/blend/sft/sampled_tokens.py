"""How many tokens the conversations of a few rows become: what a preview expects of the others.

They are rendered by the template and cut as in a spool, so what the template writes, tool declarations and turns count.

Entry point: `row_counter`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from dataprep_assets.bounds import at
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan
from dataprep_assets.pipelines.blend.sft.packed_sft import plan_of
from dataprep_assets.pipelines.blend.sft.spool import cut_lengths, load_tools
from dataprep_assets.sources.rows import RowBlock
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.certificate import refused_outright
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation


def row_counter(blend: BlendDeclaration, dataset: BlendDataset) -> Callable[[str, RowBlock], float]:
    """What tells the tokens of the packed sequences of some rows of a file, a row; one that is refused has none.

    Encoded by the reference. Raises ConfigError or TokenizerError for a template that cannot be used.
    """
    bundle = load_bundle(blend.required_tokenizer)
    plan = plan_of(blend, refused_outright(bundle, "text", "tokenizers", "a preview"), dataset)
    load_tools(plan)  # a template that cannot be used is named before any row is
    return partial(_tokens_a_row, plan)


def _tokens_a_row(plan: ChatPlan, label: str, some: RowBlock) -> float:
    renderer, encoder, _ = load_tools(plan)
    tokens = 0
    for number, row in zip(some.numbers, some.rows, strict=True):
        at(label, number)
        read = read_conversation(row, plan.fields, plan.choices)
        rendered = read if isinstance(read, Refusal) else renderer.render(read)
        if not isinstance(rendered, Refusal):
            lengths, stay = cut_lengths(plan, np.diff(encoder.encode([rendered]).offsets))
            tokens += int(lengths[stay].sum())
    return tokens / max(1, len(some.rows))
