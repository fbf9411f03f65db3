"""The chat template of a declaration: its tokenizer's, a shipped one, a file, a file on the hub, or Jinja itself."""

from functools import lru_cache

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.sft.options import HubTemplate, SftOptions
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import hub_file, is_known, load_bundle
from dataprep_assets.tokenization.chat.template import OF_TOKENIZER, ChatTemplate

_FILE, _KEY = "chat_template.jinja", "chat_template"


def declared_template(options: SftOptions, tokenizer: TokenizerDeclaration) -> ChatTemplate:
    """The template that `options` name, or that of `tokenizer`.

    Raises ConfigError if there is none or it cannot be read, TokenizerError if the hub does not provide it.
    """
    choice = options.chat_template
    if isinstance(choice, HubTemplate):
        return _from_hub(choice.repo, choice.revision, choice.file)
    if choice != OF_TOKENIZER:
        return ChatTemplate.load(choice)
    bundle = load_bundle(tokenizer)
    if tokenizer.repo is not None and tokenizer.revision is not None:
        # the cache puts it beside the tokenizer's other files, if there is one
        hub_file(tokenizer.repo, tokenizer.revision, _FILE, key=_KEY)
    return ChatTemplate.of_tokenizer(bundle)


def template_at_hand(options: SftOptions, tokenizer: TokenizerDeclaration) -> bool:
    """Return whether the template of `options` and `tokenizer` is available without a network."""
    choice = options.chat_template
    if isinstance(choice, HubTemplate):
        return is_known(choice.repo, choice.revision, choice.file)
    if choice == OF_TOKENIZER and tokenizer.repo is not None and tokenizer.revision is not None:
        return is_known(tokenizer.repo, tokenizer.revision, _FILE)
    return True


@lru_cache(maxsize=8)
def _from_hub(repo: str, revision: str, file: str) -> ChatTemplate:
    path = hub_file(repo, revision, file, key=_KEY)
    if path is None:
        raise ConfigError(f"chat_template: {repo}@{revision} has no file {file}. Set `file` to an existing one")
    return ChatTemplate.load(str(path))
