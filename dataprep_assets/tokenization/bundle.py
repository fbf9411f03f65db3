"""A tokenizer bundle: the files that determine ids, their definition and digest, and the facts that a trainer needs.

The digest is part of every downstream key, so it covers exactly the files that can change an id: `tokenizer.json`,
`tokenizer_config.json` (added tokens, BOS and EOS), and settings of older files (`settings.py`). All values of
`meta.pkl` are read from these files, never from a README.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from dataprep_assets.errors import TokenizerError
from dataprep_assets.stores.files import canonical_json, digest_value, identify_version, sha256_file
from dataprep_assets.tokenization.definition import (
    CONFIG,
    DECODER,
    Definition,
    Settings,
    load_definition,
    read_settings,
)
from dataprep_assets.tokenization.library_errors import convert_panics
from dataprep_assets.tokenization.reference import NAME, Reference, load_reference

TOKENIZER = "tokenizer.json"
_FILES = (TOKENIZER, CONFIG)
CHAT_TURN_TOKENS = frozenset({"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|im_start|>"})
"""Tokens that end a turn of a conversation, not a document (QwenLM/Qwen3#1422). As separators, they would teach a model
to stop within a document."""
_DOCUMENT_END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|end▁of▁sentence|>")


@dataclass(frozen=True, kw_only=True)
class SpecialToken:
    """A token with its content and id."""

    content: str
    id: int


@dataclass(frozen=True, kw_only=True)
class TokenizerBundle:
    """A tokenizer on disk.

    Attributes:
        directory: The folder.
        name: The common name (`qwen3`).
        revision: The commit on the Hugging Face Hub, if any.
        structure: Contents of tokens that a chat template writes and that count as special even without the flag.
        settings: The settings in the folder.
    """

    directory: Path
    name: str
    revision: str | None = None
    structure: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, *, name: str | None = None, revision: str | None = None) -> "TokenizerBundle":
        """Return the bundle at `path`: a folder, or the path of a `tokenizer.json`.

        `name` defaults to the folder's name. `revision` is the commit of the files on the Hugging Face Hub, if any.
        Raises TokenizerError if there is no readable `tokenizer.json`.
        """
        directory = path.parent if path.name == TOKENIZER else path
        if not (directory / TOKENIZER).is_file():
            raise TokenizerError(
                f"{directory}: {f'no {TOKENIZER} found' if directory.is_dir() else 'the folder does not exist'}. "
                "Save one with `AutoTokenizer.from_pretrained(...).save_pretrained(folder)` of transformers, or "
                f'`Tokenizer.save("{TOKENIZER}")` of tokenizers'
            )
        settings = read_settings(directory)
        return cls(directory=directory, name=name or directory.name, revision=revision, settings=settings)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and digests of the files that determine ids."""
        # Tokens and flags that only the settings contain change the digest, because older versions of this project
        # ignored them and gave different ids.
        has_more = bool(self.settings.values.get(DECODER) or self.settings.extra_tokens)
        is_completed = has_more and self.definition.is_completed
        digest = digest_value([self._digest_files, DECODER]) if is_completed else self._digest_files
        if self.settings.older:
            digest = digest_value([digest, canonical_json(self.settings.older).decode()])
        return digest_value([digest, *self.structure]) if self.structure else digest

    @property
    def _digest_files(self) -> str:
        return _digest_files(self.directory, tuple(identify_version(str(self.directory / name)) for name in _FILES))

    @cached_property
    def definition(self) -> Definition:
        """The definition in `tokenizer.json`. Raises TokenizerError if it is invalid or exceeds the limits."""
        ends = (*filter(None, map(self.find_configured, ("bos_token", "eos_token"))), *self.structure)
        decoder = canonical_json(self.settings.values.get(DECODER) or {}).decode()
        extra = self.settings.extra_tokens
        return load_definition(self.directory / TOKENIZER, self._digest_files, ends, decoder, extra)

    @property
    def tokenizer_json(self) -> str:
        """`tokenizer.json` as engines load it.

        Truncation and padding are removed, because they would silently alter documents. Merges are written as strings
        instead of pairs if possible, which defines the same tokenizer.
        """
        return self.definition.text

    def build_engine_json(self, special_tokens: str) -> str:
        """Return `tokenizer.json` for a reading of literal special tokens. With `text`, no text gets a special id.

        Raises TokenizerError if this tokenizer cannot read them as text.
        """
        if special_tokens != "text":
            return self.definition.text
        if (reason := self.definition.refusal) is not None:
            raise TokenizerError(
                f"{self.directory / TOKENIZER}: {reason}, so ordinary text may get its id. Set `special: false` for "
                "this token in `added_tokens`, or `special_tokens: match` in the declaration"
            )
        return self.definition.as_text

    @cached_property
    def reference_tables(self) -> dict[str, str]:
        """The Unicode tables of the installed reference that affect this tokenizer's ids (`reference_tables`)."""
        return dict(self.definition.tables)

    @property
    def _reference(self) -> Reference:
        """The reference library's tokenizer, for uses that do not depend on the reading of literal special tokens."""
        # Do not use the reading `text`, because its `tokenizer.json` may contain renamed special tokens, whose ids
        # would be decoded to the new names.
        return load_reference_tokenizer(self, "match")

    @cached_property
    def vocab_size(self) -> int:
        """`len(tokenizer)`, added tokens included. Every id is smaller."""
        vocab = self._vocabulary
        # Use the maximum id as well, because ids may have gaps.
        return max(len(vocab), max(vocab.values()) + 1)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """The id of every token, from the file if it determines the ids, otherwise from the library."""
        vocab = self.definition.ids
        if vocab is None:
            vocab = self._reference.vocabulary()
        if vocab is None:
            raise TokenizerError(
                f"{self.directory / TOKENIZER}: the ids of all tokens are neither in the file nor known to the "
                "installed tokenizers. Save the tokenizer with "
                "`AutoTokenizer.from_pretrained(...).save_pretrained(folder)` of transformers"
            )
        return vocab

    def _find_id(self, content: str) -> int | None:
        """Return the id of the token with exactly this content; None if there is no such token."""
        return self._vocabulary.get(content)

    @cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """Tokens marked special in `tokenizer.json`, and the BOS and EOS of `tokenizer_config.json`; by id."""
        return tuple(SpecialToken(content=content, id=number) for content, number in self.definition.special)

    @property
    def _some_special(self) -> str:
        """The first 12 special tokens, for messages."""
        return ", ".join(token.content for token in self.special_tokens[:12]) or "none"

    def find_token(self, content: str, *, key: str) -> SpecialToken:
        """Return the token with exactly this content.

        Raises TokenizerError if there is no such token. `key` is the declaration's key for the token, for messages.
        """
        if (token_id := self._find_id(content)) is None:
            raise TokenizerError(
                f"{key}: {content!r} is not in the vocabulary of {self.name}. Available special tokens: "
                f"{self._some_special}"
            )
        return SpecialToken(content=content, id=token_id)

    def find_configured(self, name: str) -> str | None:
        """Return the content of a token in its settings, such as `pad_token`; None if it is not set."""
        return self.settings.find_token(name)

    def choose_separator(self, separator: str, special_tokens: str, *, key: str = "document.separator") -> SpecialToken:
        """Return the token that ends every document: the declared one, or for `auto` the tokenizer's own.

        Raises TokenizerError with the candidates if `auto` finds only a chat-turn token or no token at all. Also raises
        it if a text may get the token's id, with this reading of literal special tokens. `key` is the declaration's
        key, for messages.
        """
        if separator != "auto":
            return self._require_delimiter(self.find_token(separator, key=key), special_tokens, key)
        configured = self.find_configured("eos_token")
        if configured and not self.ends_chat_turn(configured):
            eos_token = self.find_token(configured, key=f"{key} (auto: eos_token)")
            return self._require_delimiter(eos_token, special_tokens, key)
        # Consider only special tokens, because `</s>` is an ordinary token in many vocabularies.
        own_tokens = [token.content for token in self.special_tokens if token.content in _DOCUMENT_END_TOKENS]
        reason = (
            f"its eos_token {configured!r} ends a chat turn, not a document" if configured else "it has no eos_token"
        )
        choices = (
            f". Candidates in its vocabulary: {', '.join(own_tokens)}"
            if own_tokens
            else f". Available special tokens: {self._some_special}"
        )
        raise TokenizerError(
            f"{key}: auto cannot choose for the tokenizer {self.name!r}: {reason}. Set `{key}` to the token that ends "
            f"a document{choices}"
        )

    def ends_chat_turn(self, token: str) -> bool:
        """Return whether a token is a known end of a chat turn, and not the tokenizer's only special token."""
        return token in CHAT_TURN_TOKENS and len(self.special_tokens) > 1

    def choose_bos(self, bos: str, special_tokens: str, *, key: str = "document.bos") -> SpecialToken | None:
        """Return the token before every document: None for `none`, the tokenizer's own for `auto`, or the declared one.

        Raises TokenizerError if `auto` finds no BOS or the tokenizer lacks the declared token. Also raises it if a text
        may get the token's id, with this reading of literal special tokens.
        """
        if bos == "none":
            return None
        if bos != "auto":
            return self._require_delimiter(self.find_token(bos, key=key), special_tokens, key)
        configured = self.find_configured("bos_token")
        if not configured:
            raise TokenizerError(
                f"{key}: auto is not possible, because {self.name} has no bos_token. Set `none` or a token"
            )
        return self._require_delimiter(self.find_token(configured, key=f"{key} (auto: bos_token)"), special_tokens, key)

    def _require_delimiter(self, token: SpecialToken, special_tokens: str, key: str) -> SpecialToken:
        """Return the token. Raises TokenizerError if a text may get its id, because it must only delimit texts."""
        definition, name = self.definition, f"{key}: {token.content!r}"
        if token.id == definition.unknown_id:
            raise TokenizerError(
                f"{name} is the unknown token of {self.name}, whose id all unknown text gets. Choose a different token"
            )
        is_special = any(token.content == content for content, _ in definition.special)
        if special_tokens == "text" and not is_special and definition.can_reach(token.content):
            raise TokenizerError(
                f"{name} is an ordinary token of {self.name}, so texts that contain it get its id. Choose a special "
                f"token{self._special_tokens_hint}, mark this token as `special` in tokenizer.json, or set "
                "`special_tokens: match`"
            )
        return token

    @property
    def _special_tokens_hint(self) -> str:
        return f" ({self._some_special})" if self.special_tokens else ""

    @cached_property
    def special_literals(self) -> "LiteralFinder":
        """Search for documents that contain a special token."""
        return LiteralFinder(tuple(t.content for t in self.special_tokens))

    def decode(self, ids: Any) -> str:
        """Return the text of a sequence of ids, including special tokens."""
        # Convert arrays as a whole, because a conversion per id takes as long as decoding.
        plain = ids.tolist() if hasattr(ids, "tolist") else list(map(int, ids))
        return self._reference.decode(plain)


@lru_cache(maxsize=8)
def _digest_files(directory: Path, versions: tuple[str | None, ...]) -> str:
    """Return the digest of a bundle, cached per process while its files are unchanged (`identify_version`)."""
    present_names = [name for name, version in zip(_FILES, versions, strict=True) if version is not None]
    return digest_value([(name, sha256_file(directory / name)) for name in present_names])


_cached_references: dict[str, Reference] = {}
"""Loaded tokenizers by the text of their `tokenizer.json`."""


def load_reference_tokenizer(bundle: TokenizerBundle, special_tokens: str) -> Reference:
    """Return the reference's tokenizer for a bundle and a reading of literal special tokens.

    At most two tokenizers are cached per process, because each takes about 100 MB. Both readings share one unless they
    need different variants of `tokenizer.json`.

    Args:
        bundle: The tokenizer. Bundles with the same files share the loaded tokenizer.
        special_tokens: `text` or `match`.

    Raises TokenizerError if the library cannot load it.
    """
    text = bundle.build_engine_json(special_tokens)
    if text not in _cached_references:
        try:
            with convert_panics(NAME):
                loaded = load_reference(text)
        except Exception as error:  # the library raises bare Exception for a file it cannot parse
            raise TokenizerError(
                f"{bundle.directory}: tokenizers cannot load this tokenizer: {error}. Save it again with "
                "`save_pretrained(folder)` of transformers"
            ) from error
        # Remove the tokenizer that was loaded first. It is the first key, because a dict keeps its insertion order.
        while len(_cached_references) > 1:
            del _cached_references[next(iter(_cached_references))]
        _cached_references[text] = loaded
    return _cached_references[text]


class LiteralFinder:
    """Search for literals in texts.

    Special tokens share their first two characters (`<|`). A fast search for the rarer character rules out most
    documents. Only texts that contain both characters are matched with the full pattern.
    """

    def __init__(self, literals: tuple[str, ...]) -> None:
        prefixes = sorted({literal[:2] for literal in literals if literal})
        # Assume that the last character of the prefix that is neither a letter nor a digit is the rarest one. If there
        # is none, use the prefix's first character.
        self._begins = tuple(
            (next((character for character in reversed(prefix) if not character.isalnum()), prefix[0]), prefix)
            for prefix in prefixes
        )
        self._pattern = re.compile(
            "|".join(re.escape(x) for x in sorted(literals, key=len, reverse=True) if x) or r"(?!)"
        )

    def is_in(self, text: str) -> bool:
        """Return whether the text contains any of the literals."""
        for rare, prefix in self._begins:
            if rare in text and prefix in text:  # searching for one character is several times as fast as for two
                return self._pattern.search(text) is not None
        return False

    def replace_literals(self, text: str, build_replacement: Callable[[str], str]) -> str:
        """Return the text with `build_replacement(literal)` for each literal; the longest match is used."""
        return self._pattern.sub(lambda match: build_replacement(match[0]), text)

    def count(self, texts: Iterable[str]) -> int:
        """Return the number of texts that contain any of the literals."""
        return sum(map(self.is_in, texts))


def load_cached(path: Path) -> TokenizerBundle:
    """Return the tokenizer at a path (`TokenizerBundle.load`), cached per process while its files are unchanged.

    Reading the vocabulary takes longer than all checks of a small shard.
    """
    bundle = TokenizerBundle.load(path)
    return _cache_bundle(bundle, bundle.digest)


@lru_cache(maxsize=2)
def _cache_bundle(bundle: TokenizerBundle, _digest: str) -> TokenizerBundle:
    return bundle
