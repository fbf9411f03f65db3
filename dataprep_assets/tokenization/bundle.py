"""A tokenizer bundle: the files that decide the ids, their digest, and the facts a trainer needs.

The digest is part of every key downstream, so it covers exactly what can change an id: `tokenizer.json` and
`tokenizer_config.json` (added tokens, BOS and EOS). All values of `meta.pkl` are read from here, never from a README.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import TokenizerError
from dataprep_assets.integrity.digest import canonical_json, digest_value, sha256_file
from dataprep_assets.stores.files import version_of
from dataprep_assets.tokenization.definition import Definition, definition_of
from dataprep_assets.tokenization.library_errors import panics_as_errors
from dataprep_assets.tokenization.reference import NAME, Reference, load_reference

_FILES = ("tokenizer.json", "tokenizer_config.json")
CHAT_TURN_TOKENS = frozenset({"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|im_start|>"})
"""Tokens that end a turn of a conversation, not a document (QwenLM/Qwen3#1422): as separators they would teach a model
to stop within a document."""
_DOCUMENT_END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|end▁of▁sentence|>")


@dataclass(frozen=True, kw_only=True)
class SpecialToken:
    """A token by content and id."""

    content: str
    id: int


@dataclass(frozen=True, kw_only=True)
class TokenizerBundle:
    """A tokenizer on disk. `name` is its common name (`qwen3`), `revision` the hub commit, if any.

    `structure` are contents of tokens that are special whatever its files say, because a chat template writes them.
    """

    directory: Path
    name: str
    revision: str | None = None
    structure: tuple[str, ...] = ()
    _config: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, *, name: str | None = None, revision: str | None = None) -> "TokenizerBundle":
        """The bundle at `path`: a folder, or a `tokenizer.json` named directly.

        `name` is the folder's unless given; `revision` is the hub commit of the files, if any. Raises
        TokenizerError when there is no readable `tokenizer.json`.
        """
        directory = path.parent if path.name == _FILES[0] else path
        if not (directory / _FILES[0]).is_file():
            raise TokenizerError(
                f"{directory}: no {_FILES[0]}{'' if directory.is_dir() else ': there is no such folder'}. Save one: "
                "AutoTokenizer.from_pretrained(...).save_pretrained(folder) of transformers, "
                f'or Tokenizer.save("{_FILES[0]}") of tokenizers'
            )
        config_path = directory / _FILES[1]
        try:
            config = json_of(config_path.read_bytes()) if config_path.is_file() else {}
        except ValueError as error:
            raise TokenizerError(f"{config_path}: not JSON: {error}") from error
        if not isinstance(config, dict):
            raise TokenizerError(f"{config_path}: not a JSON object: not a {_FILES[1]}")
        return cls(directory=directory, name=name or directory.name, revision=revision, _config=config)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and digests of the files that determine ids."""
        # ids from before the tokens of its configuration were read are others
        is_completed = bool(self._config.get("added_tokens_decoder")) and self.definition.is_completed
        digest = digest_value([self._digest, "added_tokens_decoder"]) if is_completed else self._digest
        return digest_value([digest, *self.structure]) if self.structure else digest

    @property
    def _digest(self) -> str:
        return _digest(self.directory, tuple(version_of(str(self.directory / name)) for name in _FILES))

    @cached_property
    def definition(self) -> Definition:
        """What its `tokenizer.json` defines. Raises TokenizerError for a file that is none or exceeds the limits."""
        ends = (*filter(None, map(self.configured, ("bos_token", "eos_token"))), *self.structure)
        decoder = canonical_json(self._config.get("added_tokens_decoder") or {}).decode()
        return definition_of(self.directory / _FILES[0], self._digest, ends, decoder)

    @property
    def tokenizer_json(self) -> str:
        """`tokenizer.json` as engines load it.

        Truncation and padding are removed: if saved in it, they would silently alter documents. Merges are texts where
        they can be, which makes the same tokenizer.
        """
        return self.definition.text

    def engine_json(self, special_tokens: str) -> str:
        """The same for a reading of literal special tokens: with `text` the model cannot make the id of one.

        Raises TokenizerError where this tokenizer cannot read them as text.
        """
        if special_tokens != "text":
            return self.definition.text
        if (why := self.definition.refusal) is not None:
            raise TokenizerError(
                f"{self.directory / _FILES[0]}: {why}, so texts get its id. Set `special: false` for it in "
                "`added_tokens`, or `special_tokens: match` in the declaration"
            )
        return self.definition.as_text

    @cached_property
    def reference_tables(self) -> dict[str, str]:
        """The Unicode tables of the installed reference that decide ids of this tokenizer (`reference_tables`)."""
        return dict(self.definition.tables)

    @property
    def _reference(self) -> Reference:
        """The reference library's tokenizer, for what does not depend on how it reads literal special tokens."""
        # one in which special tokens have other names cannot decode them
        unchanged = self.definition.refusal is None and self.definition.as_text == self.definition.text
        readings = ("match", "text") if unchanged else ("match",)
        kept = next((known for one in readings if (known := _kept_references.get((self.digest, one)))), None)
        return kept or reference_tokenizer(self, readings[-1])

    @cached_property
    def vocab_size(self) -> int:
        """`len(tokenizer)`: added tokens included; every id is below it."""
        vocab = self._vocabulary
        # ids may have gaps, and then the number of tokens is not enough
        return max(len(vocab), max(vocab.values()) + 1)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """The id of every token: of the file where it says them, else of the library."""
        vocab = self.definition.ids
        if vocab is None:
            vocab = self._reference.vocabulary()
        if vocab is None:
            raise TokenizerError(
                f"{self.directory / _FILES[0]}: neither the file nor the installed tokenizers says the ids of all "
                "tokens. Save it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
            )
        return vocab

    def _id(self, content: str) -> int | None:
        """The id of the token with exactly this content."""
        return self._vocabulary.get(content)

    @cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """Tokens flagged special in `tokenizer.json`, and the BOS and EOS of tokenizer_config.json; by id."""
        return tuple(SpecialToken(content=content, id=number) for content, number in self.definition.special)

    @property
    def _some_special(self) -> list[str]:
        """The first of the special tokens, for messages."""
        return [token.content for token in self.special_tokens[:12]]

    def token(self, content: str, *, key: str) -> SpecialToken:
        """The token with exactly this content.

        Raises TokenizerError, naming the configuration `key` that asked for it.
        """
        if (found := self._id(content)) is None:
            raise TokenizerError(
                f"{key}: {content!r} is not in the vocabulary of {self.name}. "
                f"Its special tokens are {self._some_special}"
            )
        return SpecialToken(content=content, id=found)

    def configured(self, name: str) -> str | None:
        """The content of `pad_token`, `unk_token` or another such token of tokenizer_config.json; None without one."""
        # transformers writes a token as a text, or as an object with its flags
        value = self._config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        return content if isinstance(content, str) else None

    def separator(self, declared: str, special_tokens: str, *, key: str = "document.separator") -> SpecialToken:
        """The token appended to every document: the declared one, or for `auto` the tokenizer's end-of-document token.

        Raises TokenizerError for `auto` if that is a chat-turn token or if there is none, naming the candidates, and
        for a token that texts may become under this reading of literal special tokens. `key` is the declaration's key,
        for messages.
        """
        if declared != "auto":
            return self._apart(self.token(declared, key=key), special_tokens, key)
        configured = self.configured("eos_token")
        if configured and not self.ends_chat_turn(configured):
            found = self.token(configured, key=f"{key} (auto: eos_token)")
            return self._apart(found, special_tokens, key)
        # only special ones: `</s>` is an ordinary word of many vocabularies
        ours = [token.content for token in self.special_tokens if token.content in _DOCUMENT_END_TOKENS]
        because = (
            f"its eos_token {configured!r} ends a chat turn, not a document" if configured else "it has no eos_token"
        )
        which = f"; in its vocabulary are {ours}" if ours else f"; its special tokens are {self._some_special}"
        raise TokenizerError(
            f"{key}: auto cannot choose for the tokenizer {self.name}: {because}. Set `{key}` to the token that ends a "
            f"document{which}"
        )

    def ends_chat_turn(self, token: str) -> bool:
        """Whether a special token ends a turn of a chat, by its name, where the tokenizer has others, too."""
        return token in CHAT_TURN_TOKENS and len(self.special_tokens) > 1

    def bos(self, declared: str, special_tokens: str, *, key: str = "document.bos") -> SpecialToken | None:
        """The token before every document: None for `none`, the tokenizer's own for `auto`, or the declared one.

        Raises TokenizerError if `auto` finds no BOS, if the tokenizer does not have the declared token, or if texts may
        become it under this reading of literal special tokens.
        """
        if declared == "none":
            return None
        if declared != "auto":
            return self._apart(self.token(declared, key=key), special_tokens, key)
        configured = self.configured("bos_token")
        if not configured:
            raise TokenizerError(f"{key}: auto: {self.name} has no bos_token. Use none, or name the token")
        return self._apart(self.token(configured, key=f"{key} (auto: bos_token)"), special_tokens, key)

    def _apart(self, token: SpecialToken, special_tokens: str, key: str) -> SpecialToken:
        """The same token; raises TokenizerError if a text may become it although it is to be around texts only."""
        definition, name = self.definition, f"{key}: {token.content!r}"
        if token.id == definition.unknown_id:
            raise TokenizerError(
                f"{name} is the unknown token of {self.name}: whatever the tokenizer does not know becomes its id. "
                "Choose another token"
            )
        is_special = any(token.content == content for content, _ in definition.special)
        if special_tokens == "text" and not is_special and definition.reaches(token.content):
            raise TokenizerError(
                f"{name} is an ordinary token of {self.name}: texts that hold it get its id. "
                f"Choose a special token{self._offered}, flag it `special` in tokenizer.json, or set "
                "`special_tokens: match`"
            )
        return token

    @property
    def _offered(self) -> str:
        return f" ({', '.join(self._some_special)})" if self.special_tokens else ""

    @cached_property
    def special_literals(self) -> "LiteralFinder":
        """Finds documents that contain a special token's content as literal text."""
        return LiteralFinder(tuple(t.content for t in self.special_tokens))

    def decode(self, ids: Any) -> str:
        """The text of a sequence of ids, including special tokens."""
        # of an array all at once: one by one takes as long as the decoding
        plain = ids.tolist() if hasattr(ids, "tolist") else list(map(int, ids))
        return self._reference.decode(plain)


@lru_cache(maxsize=8)
def _digest(directory: Path, versions: tuple[str | None, ...]) -> str:
    """The digest of a bundle, computed once a process as long as its files are the same ones (`version_of`)."""
    there = [name for name, version in zip(_FILES, versions, strict=True) if version is not None]
    return digest_value([(name, sha256_file(directory / name)) for name in there])


_kept_references: dict[tuple[str, str], Reference] = {}


def reference_tokenizer(bundle: TokenizerBundle, special_tokens: str) -> Reference:
    """The reference's tokenizer of a bundle and a reading of literal special tokens, loaded once a process.

    Args:
        bundle: The tokenizer; another one with the same files has the same.
        special_tokens: `text` or `match`.

    Of two tokenizers at most, because each takes some 100 MB. TokenizerError when the library cannot load it.
    """
    key = (bundle.digest, special_tokens)
    if key not in _kept_references:
        try:
            with panics_as_errors(NAME):
                loaded = load_reference(bundle.engine_json(special_tokens), special_as_text=special_tokens == "text")
        except TokenizerError:
            raise
        except Exception as error:  # the library raises bare Exception for a file it cannot parse
            raise TokenizerError(f"{bundle.directory}: tokenizers cannot load it: {error}") from error
        # a dict keeps its order: the one that was loaded first goes
        while len(_kept_references) > 1:
            del _kept_references[next(iter(_kept_references))]
        _kept_references[key] = loaded
    return _kept_references[key]


class LiteralFinder:
    """Tells which texts contain one of a set of literals.

    Special tokens share their first two characters (`<|`), of which a search for the rarer one, at memory speed, rules
    out most documents; only texts that have both are matched with the full pattern.
    """

    def __init__(self, literals: tuple[str, ...]) -> None:
        prefixes = sorted({literal[:2] for literal in literals if literal})
        # of both characters the one that is no letter or digit, the second rather than the first
        self._begins = tuple(
            (next((one for one in reversed(prefix) if not one.isalnum()), prefix[0]), prefix) for prefix in prefixes
        )
        self._pattern = re.compile(
            "|".join(re.escape(x) for x in sorted(literals, key=len, reverse=True) if x) or r"(?!)"
        )

    def found_in(self, text: str) -> bool:
        """Whether the text contains any of the literals."""
        for rare, prefix in self._begins:
            if rare in text and prefix in text:  # a single character is found several times as fast as two
                return self._pattern.search(text) is not None
        return False

    def replaced(self, text: str, by: Callable[[str], str]) -> str:
        """The text with what `by` returns for a literal in place of each, of several that fit the longest."""
        return self._pattern.sub(lambda match: by(match[0]), text)

    def count(self, texts: Iterable[str]) -> int:
        """How many of the texts contain any of the literals."""
        return sum(map(self.found_in, texts))


def loaded_once(path: Path) -> TokenizerBundle:
    """The tokenizer at a path (`TokenizerBundle.load`), read once per process as long as its files do not change.

    Reading the vocabulary takes longer than all proofs of a small shard.
    """
    bundle = TokenizerBundle.load(path)
    return _cache_bundle(bundle, bundle.digest)


@lru_cache(maxsize=2)
def _cache_bundle(bundle: TokenizerBundle, _digest: str) -> TokenizerBundle:
    return bundle
