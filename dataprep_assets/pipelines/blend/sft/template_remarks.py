"""Remarks on a chat template before anything is built: `dataprep check` tries it on invented conversations.

Entry point: `template_remarks`.
"""

from collections.abc import Iterator

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.pipelines.blend.sft.chat_plan import chat_plan, unprompted_header
from dataprep_assets.pipelines.blend.sft.declared_template import declared_template, template_at_hand
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refused_outright


def template_remarks(options: SftOptions, tokenizer: TokenizerDeclaration, bundle: TokenizerBundle) -> Iterator[Remark]:
    """Remarks on the template of `options` together with `bundle`, the loaded `tokenizer`.

    There are none on a template that is on the hub and not in this machine's cache.
    """
    if not template_at_hand(options, tokenizer):
        return
    # no engine is certified yet, and the reference is fast enough for a few invented conversations
    certificate = refused_outright(bundle, "text", "tokenizers", "a trial of the template")
    try:
        plan = chat_plan(bundle, certificate, declared_template(options, tokenizer), **options.plan_settings())
    except (ConfigError, TokenizerError) as error:
        yield Remark(keys=("sft", "chat_template"), sentence=str(error))
        return
    if not options.choices.unprompted_header and (header := unprompted_header(plan, bundle)):
        yield Remark(
            keys=("sft", "chat_template"),
            sentence=f"chat_template {plan.template.name}: writes no generation prompt, so the text before each "
            f"answer ({header!r}) is in the loss. If prompts end with it, write it where "
            "`add_generation_prompt` is true",
            hint=True,
        )
