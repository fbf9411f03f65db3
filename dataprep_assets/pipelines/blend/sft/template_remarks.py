"""Remarks of `dataprep check` on a chat template, which is tested on invented conversations and on the first rows.

Entry points: `find_template_remarks`, `find_lost_rows_remark`.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, DataprepError, TokenizerError, count_of
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.pairs.encoding import render_preference
from dataprep_assets.pipelines.blend.plan.fields import get_conversation_fields
from dataprep_assets.pipelines.blend.sft.chat_plan import (
    ChatPlan,
    chat_plan,
    find_unprompted_header,
    load_conversation_renderer,
)
from dataprep_assets.pipelines.blend.sft.declared_template import has_local_template, load_declared_template
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.sources.readers.first_rows import read_first_rows, sample_files
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import find_local_tokenizer
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.lost_text import LOST
from dataprep_assets.tokenization.chat.messages import (
    Conversation,
    Preference,
    Refusal,
    read_conversation,
    read_preference,
)
from dataprep_assets.tokenization.chat.template import ALL_KWARGS, RENDERING_VARIABLES, ChatTemplate, find_variables

_ROWS = 100
"""Number of a dataset's first rows to render."""


@lru_cache(maxsize=4)
def _build_plan(options: str, tokenizer: str) -> tuple[ChatPlan, TokenizerBundle] | None:
    """Return the plan of a template, and its tokenizer; None if a file of either is not on this machine.

    `options` and `tokenizer` are the declarations as JSON, which can be keys of the cache.
    """
    sft_options, tokenizer_declaration = (
        SftOptions.model_validate_json(options),
        TokenizerDeclaration.model_validate_json(tokenizer),
    )
    if (
        not has_local_template(sft_options, tokenizer_declaration)
        or (bundle := find_local_tokenizer(tokenizer_declaration, "text")) is None
    ):
        return None
    # Use the reference, because no engine is certified yet, and the reference is fast enough for a few conversations.
    certificate = refuse_engine(bundle, "text", "tokenizers", "a trial of the template")
    return chat_plan(
        bundle, certificate, load_declared_template(sft_options, tokenizer_declaration), **sft_options.plan_settings()
    ), bundle


def find_template_remarks(options: SftOptions, tokenizer: TokenizerDeclaration, stage: str = "sft") -> Iterator[Remark]:
    """Yield remarks on the template of `options` together with `tokenizer`, at the key `chat_template` of `stage`.

    If the template or the tokenizer is not on this machine, there are no remarks.
    """
    try:
        plan_and_bundle = _build_plan(options.model_dump_json(), tokenizer.model_dump_json())
    except (ConfigError, TokenizerError) as error:
        yield Remark(keys=(stage, "chat_template"), sentence=str(error))
        return
    if plan_and_bundle is None:
        return
    plan, bundle = plan_and_bundle
    yield from _find_unread_variable_remarks(options, plan.template, stage)
    if not options.choices.unprompted_header and (header := find_unprompted_header(plan, bundle)):
        yield Remark(
            keys=(stage, "chat_template"),
            sentence=f"chat_template {plan.template.name}: writes no generation prompt, so the text before each "
            f"answer ({header!r}) is in the loss. If your prompts end with this text, "
            "write it in the template where `add_generation_prompt` is true",
            hint=True,
        )
    for difference in plan.differences:
        yield Remark(
            keys=(stage, "chat_template"), sentence=f"chat_template {plan.template.name}: {difference}", hint=True
        )


def _find_unread_variable_remarks(options: SftOptions, template: ChatTemplate, stage: str) -> Iterator[Remark]:
    """Yield a remark on each declared variable that the template does not use.

    If the template reads the object with all variables, the remark is a hint, because the template may use any of them.
    """
    variables = find_variables(template.texts)
    reads_all = ALL_KWARGS in variables
    words = set(re.findall(r"\w+", " ".join(template.texts))) if reads_all else variables
    for name in options.template_kwargs:
        if name in words:
            continue
        nearest_name = find_nearest(name, sorted(variables))
        if nearest_name in RENDERING_VARIABLES:
            advice = f"; `{nearest_name}` is set by each rendering. Remove this key"
        else:
            advice = f"; did you mean `{nearest_name}`?" if nearest_name else ". Remove this key"
        yield Remark(
            keys=(stage, "template_kwargs", name),
            sentence=f"template_kwargs: chat_template {template.name} does not use `{name}`{advice}",
            hint=reads_all,
        )


def load_template_text(blend: BlendDeclaration) -> str:
    """Return the text of a blend's template; empty if the template is not on this machine or is unusable."""
    options = blend.chat_options
    with suppress(DataprepError):  # a different remark reports the error
        if has_local_template(options, blend.required_tokenizer):
            return load_declared_template(options, blend.required_tokenizer).text
    return ""


def find_lost_rows_remark(blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path]) -> Remark | None:
    """Return a remark on parts of a dataset's first rows that the template leaves out; None if it writes all parts."""
    options, is_pairs = blend.chat_options, blend.stage == "pairs"
    # Suppress errors in the template or a file, which other remarks report.
    with suppress(DataprepError, OSError):
        if (
            plan_and_bundle := _build_plan(options.model_dump_json(), blend.required_tokenizer.model_dump_json())
        ) is None:
            return None
        renderer = load_conversation_renderer(*plan_and_bundle, is_marked=not is_pairs)
        fields = get_conversation_fields(options, dataset)
        refusals: list[Refusal] = []
        rows = list(
            islice(read_first_rows(sample_files(paths), dataset.reading, as_json=options.choices.reads_json), _ROWS)
        )
        for row in rows:
            read = read_preference if is_pairs else read_conversation
            conversation = read(row, fields, options.choices)
            rendered: object = conversation
            if isinstance(conversation, Preference):
                rendered = render_preference(renderer, conversation)
            elif isinstance(conversation, Conversation):
                rendered = renderer.render(conversation)
            if isinstance(rendered, Refusal) and rendered.reason.startswith(LOST):
                refusals.append(rendered)
        if not refusals:
            return None
        features = sorted({refusal.reason.removeprefix(LOST).strip(": ") for refusal in refusals})
        amount = "some rows" if blend.sensitive else f"{len(refusals):,} of the first {count_of(len(rows), 'row')}"
        them = "it" if len(features) == 1 else "these features"
        contain = "contains" if len(refusals) == 1 and not blend.sensitive else "contain"
        is_allowed = blend.bad_records.policy == "drop" or all(refusal.part for refusal in refusals)
        return Remark(
            keys=(blend.stage, "chat_template"),
            sentence=f"chat_template {plan_and_bundle[0].template.name}: does not write {' or '.join(features)}, but "
            f"{amount} of dataset {dataset.name} {contain} {them}. Use a template that does, or list "
            f"{', '.join(features)} in `{blend.stage}.allow_loss`",
            hint=is_allowed,
            of_source=not is_allowed,
        )
    return None
