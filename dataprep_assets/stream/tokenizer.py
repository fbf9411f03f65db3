"""The declared tokenizer of a dataset, loaded once per process, and reports on special tokens in texts."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import IntegrityError, SourceError, TokenizerError, count_of
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.sources.hub_cache import fetch_model_file, is_cached
from dataprep_assets.sources.readers.contents import detect_non_text
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.tokenization.bundle import TOKENIZER, TokenizerBundle
from dataprep_assets.tokenization.definition import CONFIG, DECODER, OLDER_FILES, read_settings
from dataprep_assets.tokenization.engines import try_in_process

# Texts can contain special tokens, for example if a template rendered them. With `special_tokens: text`, they stay
# plain text.
#
# Plain text is right for texts that people wrote and wrong for texts that were rendered for this tokenizer, so a remark
# reports texts that look rendered.

_MANY = 0.5
"""Minimum share of texts with special tokens that suggests rendered templates."""


def require_same_tokenizer(receipt: Receipt, bundle: TokenizerBundle) -> None:
    """Raise IntegrityError if a shard was built with a different tokenizer, which would give its ids other texts."""
    if receipt.inputs.get("tokenizer", bundle.digest) != bundle.digest:
        raise IntegrityError(
            f"{receipt.artifact}/{receipt.partition}: was built with a different tokenizer, so its tokens cannot be "
            f"shown as text. Run `dataprep run {receipt.dataset}`"
        )


def describe_literals(ledger: Ledger, special_tokens: str) -> Iterator[str]:
    """Yield a line for the end of a run if documents contain special tokens, read as `special_tokens` declares."""
    if ledger.special_literals:
        reading = "stays plain text" if special_tokens == "text" else "is encoded as the token"
        contain = "contains" if ledger.special_literals == 1 else "contain"
        yield (
            f"special tokens in texts: {ledger.special_literals:,} of {count_of(ledger.documents, 'document')} "
            f"{contain} the text of a special token, which {reading} (`special_tokens: {special_tokens}`)"
        )


def find_rendered_remarks(
    texts: Iterable[str], bundle: TokenizerBundle, special_tokens: str, keys: tuple[str | int, ...]
) -> Iterator[Remark]:
    """Yield a remark if at least half of the texts contain special tokens that stay plain text.

    Args:
        texts: The first texts of a source.
        bundle: The tokenizer.
        special_tokens: How literal special tokens are read.
        keys: Path of the key that sets `special_tokens`.
    """
    if special_tokens != "text":
        return
    rows = list(texts)
    if (count := bundle.special_literals.count(rows)) and count >= _MANY * len(rows):
        sentence = (
            f"{'.'.join(map(str, keys))}: {count:,} of the first {count_of(len(rows), 'text')} "
            f"{'contains' if count == 1 else 'contain'} special tokens of {bundle.name}, which stay plain text. "
            "Set the key to `match` if a template wrote them"
        )
        yield Remark(keys=keys, sentence=sentence, hint=True)


@lru_cache(maxsize=8)
def load_declared_tokenizer(declaration: TokenizerDeclaration) -> TokenizerBundle:
    """Return the declared tokenizer; a Hub repository is downloaded into the cache once, at its pinned revision.

    Raises TokenizerError if it is missing or cannot be loaded.
    """
    bundle = _load_bundle(declaration)
    try_in_process(bundle)
    return bundle


def _load_bundle(declaration: TokenizerDeclaration) -> TokenizerBundle:
    if declaration.path is not None:
        _require_text(declaration.path)
        folder = declaration.path.parent if declaration.path.name == TOKENIZER else declaration.path
        converted = None if (folder / TOKENIZER).is_file() else _convert(folder, declaration.pattern)
        return TokenizerBundle.load(converted or declaration.path, name=declaration.name or folder.name)
    assert declaration.repo is not None
    assert declaration.revision is not None
    # Use the folder of this file, because the Hub's cache has one folder per commit with all of its files.
    tokenizer_path = fetch_hub_file(declaration.repo, declaration.revision, TOKENIZER)
    fetch_hub_file(declaration.repo, declaration.revision, CONFIG)  # an optional file that names EOS and BOS
    folder = tokenizer_path.parent if tokenizer_path is not None else _download_original(declaration)
    if DECODER not in read_settings(folder).values:
        for file in OLDER_FILES:
            fetch_hub_file(declaration.repo, declaration.revision, file)
    converted = _convert(folder, declaration.pattern) if tokenizer_path is None else None
    return TokenizerBundle.load(
        converted or folder, name=declaration.name or declaration.repo.rpartition("/")[2], revision=declaration.revision
    )


def _convert(folder: Path, pattern: str | None) -> Path | None:
    # Import the module only here, because most tokenizers need no conversion.
    from dataprep_assets.tokenization.conversion import convert_folder

    return convert_folder(folder, pattern)


def _download_original(declaration: TokenizerDeclaration) -> Path:
    """Download a repository's tokenizer in a form that can be converted, and return its folder.

    Raises TokenizerError if the repository has no such tokenizer.
    """
    from dataprep_assets.tokenization.conversion import TEMPLATES
    from dataprep_assets.tokenization.originals import CANDIDATES, CODE, DESCRIPTIONS

    assert declaration.repo is not None
    assert declaration.revision is not None
    names = (*CANDIDATES, *CODE, *DESCRIPTIONS, TEMPLATES[0], f"{TEMPLATES[1]}/tool_use.jinja")
    paths = {name: fetch_hub_file(declaration.repo, declaration.revision, name) for name in names}
    for name in CANDIDATES:
        if (path := paths[name]) is not None:
            return path.parent
    raise TokenizerError(
        f"tokenizer.repo: {declaration.repo}@{declaration.revision} has none of {', '.join((TOKENIZER, *CANDIDATES))}. "
        "Save a tokenizer with `save_pretrained(folder)`, and set the folder as `tokenizer.path`"
    )


def _require_text(path: Path) -> None:
    """Raise TokenizerError if a tokenizer file has different content, such as a pointer to the real file."""
    for file in (path,) if path.is_file() else (path / TOKENIZER, path / CONFIG):
        with suppress(OSError):  # loading reports a missing or unreadable file
            if (kind := detect_non_text(file)) is not None:
                raise TokenizerError(f"{file}: {kind}")


def fetch_hub_file(repo: str, revision: str, file: str, *, key: str = "tokenizer.repo") -> Path | None:
    """Return the path of a Hub repository's file at a commit, downloaded once; None if the repository lacks the file.

    Raises TokenizerError, naming the setting `key` that requires the file, if the download fails.
    """
    try:
        return fetch_model_file(repo, revision, file, key)
    except SourceError as error:
        advice = " as `tokenizer.path`" if key == "tokenizer.repo" else ""
        raise TokenizerError(f"{error}{advice}") from error


def find_local_tokenizer(declaration: TokenizerDeclaration, special_tokens: str) -> TokenizerBundle | None:
    """Return the tokenizer; None if it would have to be downloaded.

    Raises TokenizerError if it is unusable, or cannot read literal special tokens as `special_tokens` requires.
    """
    if not _is_at_hand(declaration):
        return None
    bundle = load_declared_tokenizer(declaration)
    bundle.build_engine_json(special_tokens)
    return bundle


def _is_at_hand(tokenizer: TokenizerDeclaration) -> bool:
    repo, revision = tokenizer.repo, tokenizer.revision
    if repo is None or revision is None:
        return True
    if not all(is_cached(repo, revision, file) for file in (TOKENIZER, CONFIG)):
        return False
    path = fetch_hub_file(repo, revision, TOKENIZER)
    # Require the older files only if the settings have no `added_tokens_decoder`, because they are not read otherwise.
    has_tokens = path is not None and DECODER in read_settings(path.parent).values
    return has_tokens or all(is_cached(repo, revision, file) for file in OLDER_FILES)


def describe_boundary(tokenizer: TokenizerDeclaration, *, separator: str | None, bos: str, special_tokens: str) -> str:
    """Return which tokens are before and after each document; empty if the tokenizer is not on this machine.

    `separator` and `bos` are as declared; a `separator` of None puts no token after a document.
    """
    bundle = find_local_tokenizer(tokenizer, special_tokens)
    if bundle is None:
        return ""
    last_token = None if separator is None else bundle.choose_separator(separator, special_tokens)
    first_token = bundle.choose_bos(bos, special_tokens)
    end_text, start_text = (
        "no token" if token is None else f"{token.content!r} (id {token.id})" for token in (last_token, first_token)
    )
    return f"{end_text} after each document, {start_text} before it"


def find_separator_remarks(
    bundle: TokenizerBundle, declared_separator: str, special_tokens: str, keys: tuple[str, ...]
) -> Iterator[Remark]:
    """Yield remarks on the token that ends a document.

    Args:
        bundle: The tokenizer.
        declared_separator: Content of the token, or `auto`.
        special_tokens: How literal special tokens are read.
        keys: Path of the declaration's key.
    """
    try:
        separator = bundle.choose_separator(declared_separator, special_tokens, key=".".join(keys))
    except TokenizerError as error:
        yield Remark(keys=keys, sentence=str(error))
        return
    if bundle.ends_chat_turn(separator.content):
        yield Remark(
            keys=keys,
            sentence=f"{'.'.join(keys)}: {separator.content!r} ends a chat turn in {bundle.name}, not a document. A "
            "model pretrained with it stops in the middle of documents. Set the tokenizer's end-of-document "
            "token",
            hint=True,
        )
