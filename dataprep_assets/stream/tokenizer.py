"""The declared tokenizer of a dataset, loaded once per process, and texts that hold its special tokens."""

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

# Texts that hold special tokens, such as conversations that a template rendered: with `text` they stay plain text.
#
# That is right for what people wrote and wrong for what was rendered for this tokenizer, so it is told.
#
# Entry points: `literal_lines`, `rendered_remarks`.

_MANY = 0.5
"""Minimum share of texts with special tokens that suggests rendered templates."""


def literal_lines(ledger: Ledger, special_tokens: str) -> Iterator[str]:
    """A line for the end of a run, if documents hold special tokens; `special_tokens` says how those were read."""
    if ledger.special_literals:
        read = "stay plain text" if special_tokens == "text" else "are encoded as these tokens"
        yield (
            f"special tokens in texts: {count_of(ledger.special_literals, 'document')} of {ledger.documents:,} "
            f"contain some, which {read} (`special_tokens: {special_tokens}`)"
        )


def rendered_remarks(
    texts: Iterable[str], bundle: TokenizerBundle, special_tokens: str, keys: tuple[str | int, ...]
) -> Iterator[Remark]:
    """A remark if half of the texts or more hold special tokens that stay plain text.

    Args:
        texts: The first texts of a source.
        bundle: The tokenizer.
        special_tokens: How literal special tokens are read.
        keys: Path of the key that says so.
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
    """The declared tokenizer; one in a hub repository is fetched into the cache once, at its pinned revision.

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
    hub_file(declared.repo, declared.revision, _CONFIG)  # if there is one: EOS and BOS
    # the hub's cache has a folder for each commit, in which both files lie
    return TokenizerBundle.load(
        tokenizer_path.parent, name=declared.name or declared.repo.rpartition("/")[2], revision=declared.revision
    )


def _require_text(path: Path) -> None:
    """Raise TokenizerError if a file of a tokenizer is something else, such as the pointer to it."""
    for file in (path,) if path.is_file() else (path / _TOKENIZER, path / _CONFIG):
        with suppress(OSError):  # of a file that is absent or cannot be read, which is said when it is loaded
            if (kind := no_text(file)) is not None:
                raise TokenizerError(f"{file}: {kind}")


def hub_file(repo: str, revision: str, file: str, *, key: str = "tokenizer.repo") -> Path | None:
    """A file of a hub repository at a commit, fetched into the cache once; None if the repository has no such file.

    Raises TokenizerError, naming `key`, the setting that asked for the file, if it cannot be fetched.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, file, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        # while the hub cannot be reached one may well be in the repository, unless the cache knows that none is
        out_of_reach = isinstance(error, LocalEntryNotFoundError)
        if is_known(repo, revision, file) if out_of_reach else isinstance(error, EntryNotFoundError):
            return None
        raise TokenizerError(
            f"{key}: {repo}@{revision}: {file} cannot be downloaded: {error}. Check the names and the network, or set "
            f"the path of a local copy{' as `tokenizer.path`' if key == 'tokenizer.repo' else ''}"
        ) from error


def is_known(repo: str, revision: str, file: str) -> bool:
    """Whether the cache has a file of a hub repository at a commit, or knows that the repository has none."""
    from huggingface_hub import try_to_load_from_cache

    return try_to_load_from_cache(repo, file, revision=revision) is not None


def bundle_at_hand(declared: TokenizerDeclaration, special_tokens: str) -> TokenizerBundle | None:
    """The tokenizer; None if it would have to be downloaded.

    Raises TokenizerError if it is unusable, or cannot read literal special tokens in the way `special_tokens` says.
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
    """Remarks on the token that ends a document.

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
