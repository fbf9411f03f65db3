"""How many tokens the conversations of a few rows become: what a preview expects of the others.

They are rendered by the template and cut as in a spool, so what the template writes, tool declarations and turns count.

Entry point: `row_counter`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan
from dataprep_assets.pipelines.blend.sft.packed_sft import plan_of
from dataprep_assets.pipelines.blend.sft.spool import cut_lengths, load_tools
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.certificate import refused_outright
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation


def row_counter(blend: BlendDeclaration, dataset: BlendDataset) -> Callable[[Sequence[dict[str, Any]]], float]:
    """What tells the tokens of the packed sequences of some rows of a dataset, a row; one that is refused has none.

    Encoded by the reference. Raises ConfigError or TokenizerError for a template that cannot be used.
    """
    bundle = load_bundle(blend.required_tokenizer)
    return partial(_tokens_a_row, plan_of(blend, refused_outright(bundle, "text", "tokenizers", "a preview"), dataset))


def _tokens_a_row(plan: ChatPlan, rows: Sequence[dict[str, Any]]) -> float:
    renderer, encoder, _ = load_tools(plan)
    read = [read_conversation(row, plan.fields, plan.choices) for row in rows]
    rendered = [one if isinstance(one, Refusal) else renderer.render(one) for one in read]
    encoded = encoder.encode([one for one in rendered if not isinstance(one, Refusal)])
    lengths, stay = cut_lengths(plan, np.diff(encoded.offsets))
    return float(lengths[stay].sum()) / max(1, len(rows))
