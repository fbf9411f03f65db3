"""Loading of the declared chat template: the tokenizer's, an included one, a file, a file on the Hub, or Jinja text."""

from collections.abc import Iterator
from functools import lru_cache

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.sft.options import HubTemplate, NamedTemplate, SftOptions
from dataprep_assets.sources.hub_cache import is_cached
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import fetch_hub_file, load_declared_tokenizer
from dataprep_assets.tokenization.chat.template import (
    DEFAULT,
    FILE,
    FURTHER_FILES,
    OF_TOKENIZER,
    TOOL_USE,
    ChatTemplate,
)

_KEY = "chat_template"


def load_declared_template(options: SftOptions, tokenizer: TokenizerDeclaration) -> ChatTemplate:
    """Return the template that `options` declare, which may be a template of `tokenizer`.

    Raises ConfigError if the template does not exist or cannot be read, and TokenizerError if it cannot be downloaded.
    """
    choice = options.chat_template
    if isinstance(choice, HubTemplate):
        return _load_hub_template(choice.repo, choice.revision, choice.file)
    if isinstance(choice, str) and choice != OF_TOKENIZER:
        return ChatTemplate.load(choice)
    bundle = load_declared_tokenizer(tokenizer)
    if tokenizer.repo is not None and tokenizer.revision is not None:
        # Download the files into the cache, because `load_from_tokenizer` looks for them next to the tokenizer's other
        # files.
        for file in _list_files(choice):
            fetch_hub_file(tokenizer.repo, tokenizer.revision, file, key=_KEY)
    return ChatTemplate.load_from_tokenizer(bundle, choice.name if isinstance(choice, NamedTemplate) else None)


def _list_files(choice: str | NamedTemplate) -> Iterator[str]:
    """Yield the paths of the repository's files that may contain the chosen template of its tokenizer."""
    yield FILE
    name = choice.name if isinstance(choice, NamedTemplate) else TOOL_USE
    if name != DEFAULT:
        yield f"{FURTHER_FILES}/{name}.jinja"


def has_local_template(options: SftOptions, tokenizer: TokenizerDeclaration) -> bool:
    """Return whether the template of `options` and `tokenizer` is available without a download."""
    choice, repo, revision = options.chat_template, tokenizer.repo, tokenizer.revision
    if isinstance(choice, HubTemplate):
        return is_cached(choice.repo, choice.revision, choice.file)
    if (isinstance(choice, NamedTemplate) or choice == OF_TOKENIZER) and repo is not None and revision is not None:
        return all(is_cached(repo, revision, file) for file in _list_files(choice))
    return True


@lru_cache(maxsize=8)
def _load_hub_template(repo: str, revision: str, file: str) -> ChatTemplate:
    path = fetch_hub_file(repo, revision, file, key=_KEY)
    if path is None:
        raise ConfigError(f"chat_template: {repo}@{revision} has no file {file}. Set `file` to an existing file")
    return ChatTemplate.load(str(path))
