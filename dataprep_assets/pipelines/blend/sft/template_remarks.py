"""What is said of a chat template before anything is built.

Entry point: `template_remarks`.
"""

from collections.abc import Iterator

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.remark import Remark
from dataprep_assets.pipelines.blend.declaration import SftOptions
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.rendering import stop_token
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, template_variables

__all__ = ["template_remarks"]


def template_remarks(options: SftOptions, bundle: TokenizerBundle) -> Iterator[Remark]:
    """Of the template that `options` name and of the tokenizer `bundle`, put together."""
    try:
        template = ChatTemplate.load(options.chat_template)
        renderer = compile_template(template, template_variables(bundle), options.template_date)
        stop_token(renderer, bundle.special_tokens, options.stop)
    except ConfigError as error:
        yield Remark(keys=("sft", "chat_template"), sentence=str(error))
