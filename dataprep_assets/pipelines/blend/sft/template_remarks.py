"""Remarks on a chat template before anything is built: `dataprep check` tries it on invented conversations and rows.

Entry points: `template_remarks`, `lost_rows_remark`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, DataprepError, TokenizerError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.fields import conversation_fields
from dataprep_assets.pipelines.blend.sft.chat_plan import (
    ChatPlan,
    chat_plan,
    conversation_renderer,
    unprompted_header,
)
from dataprep_assets.pipelines.blend.sft.declared_template import declared_template, template_at_hand
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.sources.readers.first_rows import first_rows, sample_of
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import bundle_at_hand
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refused_outright
from dataprep_assets.tokenization.chat.lost_text import LOST
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation

_ROWS = 100
"""Rows of a dataset that are rendered."""


@lru_cache(maxsize=4)
def _plan(options: str, tokenizer: str) -> tuple[ChatPlan, TokenizerBundle] | None:
    """The plan of a template, and its tokenizer; both declarations as JSON. None if a file is not on this machine."""
    sft_options, tokenizer_declaration = (
        SftOptions.model_validate_json(options),
        TokenizerDeclaration.model_validate_json(tokenizer),
    )
    if (
        not template_at_hand(sft_options, tokenizer_declaration)
        or (bundle := bundle_at_hand(tokenizer_declaration, "text")) is None
    ):
        return None
    # no engine is certified yet, and the reference is fast enough for a few conversations
    certificate = refused_outright(bundle, "text", "tokenizers", "a trial of the template")
    return chat_plan(
        bundle, certificate, declared_template(sft_options, tokenizer_declaration), **sft_options.plan_settings()
    ), bundle


def template_remarks(options: SftOptions, tokenizer: TokenizerDeclaration) -> Iterator[Remark]:
    """Remarks on the template of `options` together with `tokenizer`.

    There are none on a template or tokenizer that is on the hub and not in this machine's cache.
    """
    try:
        plan_and_bundle = _plan(options.model_dump_json(), tokenizer.model_dump_json())
    except (ConfigError, TokenizerError) as error:
        yield Remark(keys=("sft", "chat_template"), sentence=str(error))
        return
    if plan_and_bundle is None:
        return
    plan, bundle = plan_and_bundle
    if not options.choices.unprompted_header and (header := unprompted_header(plan, bundle)):
        yield Remark(
            keys=("sft", "chat_template"),
            sentence=f"chat_template {plan.template.name}: writes no generation prompt, so the text before each "
            f"answer ({header!r}) is in the loss. If prompts end with it, write it where "
            "`add_generation_prompt` is true",
            hint=True,
        )
    for difference in plan.differences:
        yield Remark(
            keys=("sft", "chat_template"), sentence=f"chat_template {plan.template.name}: {difference}", hint=True
        )


def lost_rows_remark(blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path]) -> Remark | None:
    """A remark on the features of a dataset's first rows that its template drops; None if it drops nothing."""
    options = blend.sft_options
    # errors of the template or of a file have remarks of their own
    with suppress(DataprepError, OSError):
        if (plan_and_bundle := _plan(options.model_dump_json(), blend.required_tokenizer.model_dump_json())) is None:
            return None
        renderer, fields = conversation_renderer(*plan_and_bundle), conversation_fields(options, dataset)
        refusals: list[Refusal] = []
        rows = list(islice(first_rows(sample_of(paths), dataset.reading), _ROWS))
        for row in rows:
            read = read_conversation(row, fields, options.choices)
            rendered = read if isinstance(read, Refusal) else renderer.render(read)
            if isinstance(rendered, Refusal) and rendered.reason.startswith(LOST):
                refusals.append(rendered)
        if not refusals:
            return None
        features = sorted({refusal.reason.removeprefix(LOST).strip(": ") for refusal in refusals})
        amount = "some" if blend.sensitive else f"{len(refusals):,} of the first {len(rows):,}"
        is_allowed = blend.bad_records.policy == "drop" or all(refusal.part for refusal in refusals)
        return Remark(
            keys=("sft", "chat_template"),
            sentence=f"chat_template {plan_and_bundle[0].template.name}: writes no {' and no '.join(features)}; "
            f"{amount} rows of dataset {dataset.name} use them. Use a template that writes them, or list them in "
            "`sft.allow_loss`",
            hint=is_allowed,
            of_source=not is_allowed,
        )
    return None
