"""The declared tokenizer of a dataset, loaded once per process, and reports on special tokens in texts."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import TokenizerError, count_of
from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.sources.readers.contents import no_text
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import try_out

# Texts can contain special tokens, such as conversations rendered by a template. With `text` they stay plain text.
#
# This is right for text written by people, and wrong for text rendered for this tokenizer, so a remark reports it.
#
# Entry points: `literal_lines`, `rendered_remarks`.

_MANY = 0.5
"""Minimum share of texts with special tokens that suggests rendered templates."""


def literal_lines(ledger: Ledger, special_tokens: str) -> Iterator[str]:
    """Yield a line for the end of a run if documents contain special tokens, read as `special_tokens` declares."""
    if ledger.special_literals:
        read = "stay plain text" if special_tokens == "text" else "are encoded as these tokens"
        yield (
            f"special tokens in texts: {count_of(ledger.special_literals, 'document')} of {ledger.documents:,} "
            f"contain some, which {read} (`special_tokens: {special_tokens}`)"
        )


def rendered_remarks(
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
            f"{'.'.join(map(str, keys))}: {count} of the first {count_of(len(rows), 'text contains', 'texts contain')} "
            f"special tokens of {bundle.name}, which stay plain text. Set it to match if a template wrote them"
        )
        yield Remark(keys=keys, sentence=sentence, hint=True)


_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"


@lru_cache(maxsize=8)
def load_bundle(declared: TokenizerDeclaration) -> TokenizerBundle:
    """Return the declared tokenizer; a Hub repository is downloaded into the cache once, at its pinned revision.

    Raises TokenizerError if it is missing or cannot be loaded.
    """
    bundle = _load_bundle(declared)
    try_out(bundle)
    return bundle


def _load_bundle(declared: TokenizerDeclaration) -> TokenizerBundle:
    if declared.path is not None:
        _require_text(declared.path)
        return TokenizerBundle.load(declared.path, name=declared.name)
    assert declared.repo is not None
    assert declared.revision is not None
    tokenizer_path = hub_file(declared.repo, declared.revision, _TOKENIZER)
    if tokenizer_path is None:
        raise TokenizerError(f"tokenizer.repo: {declared.repo}@{declared.revision} has no tokenizer.json")
    hub_file(declared.repo, declared.revision, _CONFIG)  # this optional file names EOS and BOS
    # The Hub's cache has one folder per commit, which contains both files.
    return TokenizerBundle.load(
        tokenizer_path.parent, name=declared.name or declared.repo.rpartition("/")[2], revision=declared.revision
    )


def _require_text(path: Path) -> None:
    """Raise TokenizerError if a tokenizer file has different content, such as the pointer to the file."""
    for file in (path,) if path.is_file() else (path / _TOKENIZER, path / _CONFIG):
        with suppress(OSError):  # loading reports a file that is missing or cannot be read
            if (kind := no_text(file)) is not None:
                raise TokenizerError(f"{file}: {kind}")


def hub_file(repo: str, revision: str, file: str, *, key: str = "tokenizer.repo") -> Path | None:
    """Return the path of a Hub repository's file at a commit, downloaded once; None if the repository lacks the file.

    Raises TokenizerError, naming the setting `key` that requires the file, if the download fails.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, file, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        # If the Hub is unreachable, the file may exist, unless the cache has recorded that it does not.
        out_of_reach = isinstance(error, LocalEntryNotFoundError)
        if is_known(repo, revision, file) if out_of_reach else isinstance(error, EntryNotFoundError):
            return None
        raise TokenizerError(
            f"{key}: {repo}@{revision}: {file} cannot be downloaded: {error}. Check the names and the network, or set "
            f"the path of a local copy{' as `tokenizer.path`' if key == 'tokenizer.repo' else ''}"
        ) from error


def is_known(repo: str, revision: str, file: str) -> bool:
    """Return whether the cache has a Hub repository's file at a commit, or has recorded that it does not exist."""
    from huggingface_hub import try_to_load_from_cache

    return try_to_load_from_cache(repo, file, revision=revision) is not None


def bundle_at_hand(declared: TokenizerDeclaration, special_tokens: str) -> TokenizerBundle | None:
    """Return the tokenizer; None if it would have to be downloaded.

    Raises TokenizerError if it is unusable, or cannot read literal special tokens as `special_tokens` requires.
    """
    repo, revision = declared.repo, declared.revision
    if repo is None or revision is None or all(is_known(repo, revision, file) for file in (_TOKENIZER, _CONFIG)):
        bundle = load_bundle(declared)
        bundle.engine_json(special_tokens)
        return bundle
    return None


def separator_remarks(
    bundle: TokenizerBundle, declared: str, special_tokens: str, keys: tuple[str, ...]
) -> Iterator[Remark]:
    """Yield remarks on the token that ends a document.

    Args:
        bundle: The tokenizer.
        declared: Content of the token, or `auto`.
        special_tokens: How literal special tokens are read.
        keys: Path of the declaration's key.
    """
    try:
        separator = bundle.separator(declared, special_tokens, key=".".join(keys))
    except TokenizerError as error:
        yield Remark(keys=keys, sentence=str(error))
        return
    if bundle.ends_chat_turn(separator.content):
        yield Remark(
            keys=keys,
            sentence=f"{'.'.join(keys)}: {separator.content!r} ends a chat turn in {bundle.name}, not a document: a "
            "model pretrained on it stops in the middle of documents. Set the tokenizer's end-of-document "
            "token",
            hint=True,
        )
