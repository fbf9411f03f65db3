"""A tokenizer bundle: the files that decide the ids, their digest, and the facts a trainer needs.

The digest is part of every key downstream, so it covers exactly what can change an id: `tokenizer.json` and
`tokenizer_config.json` (added tokens, BOS and EOS). All values of `meta.pkl` are read from here, never from a README.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import TokenizerError
from dataprep_assets.integrity.digest import digest_value, sha256_file
from dataprep_assets.stores.files import version_of
from dataprep_assets.tokenization.reference import Reference, load_reference, reference_tables

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
    """A tokenizer on disk. `name` is its common name (`qwen3`), `revision` the hub commit, if any."""

    directory: Path
    name: str
    revision: str | None = None
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
        return _digest(self.directory, tuple(version_of(str(self.directory / name)) for name in _FILES))

    @cached_property
    def _definition(self) -> "_Definition":
        return _defined(self.directory / _FILES[0], self.digest)

    @property
    def tokenizer_json(self) -> str:
        """`tokenizer.json` as engines load it.

        Truncation and padding are removed: if saved in it, they would silently alter documents. Merges are texts where
        they can be, which makes the same tokenizer.
        """
        return self._definition.text

    @cached_property
    def reference_tables(self) -> dict[str, str]:
        """The Unicode tables of the installed reference that decide ids of this tokenizer (`reference_tables`)."""
        return dict(self._definition.tables)

    @property
    def _reference(self) -> Reference:
        """The reference library's tokenizer, for what does not depend on how it reads literal special tokens."""
        kept = next((known for (digest, _), known in _kept_references.items() if digest == self.digest), None)
        return kept or reference_tokenizer(self, "text")

    @cached_property
    def vocab_size(self) -> int:
        """`len(tokenizer)`: added tokens included; every id is below it."""
        vocab = self._vocabulary
        # ids may have gaps, and then the number of tokens is not enough
        return max(len(vocab), max(vocab.values()) + 1)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """The id of every token: of the file where it says them, else of the library."""
        vocab = self._definition.ids
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
        """Tokens flagged special in `tokenizer.json`, by id."""
        added = self._definition.added
        found = [SpecialToken(content=t["content"], id=t["id"]) for t in added if t.get("special")]
        return tuple(sorted(found, key=lambda t: t.id))

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

    def separator(self, declared: str, *, key: str = "document.separator") -> SpecialToken:
        """The token appended to every document: the declared one, or for `auto` the tokenizer's end-of-document token.

        Raises TokenizerError for `auto` if that is a chat-turn token or if there is none, naming the candidates. `key`
        is the declaration's key, for messages.
        """
        if declared != "auto":
            return self.token(declared, key=key)
        configured = self.configured("eos_token")
        if configured and not self.ends_chat_turn(configured):
            return self.token(configured, key=f"{key} (auto: eos_token)")
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

    def bos(self, declared: str) -> SpecialToken | None:
        """The token before every document: None for `none`, the tokenizer's own for `auto`, or the declared one.

        Raises TokenizerError if `auto` finds no BOS, or if the tokenizer does not have the declared token.
        """
        if declared == "none":
            return None
        if declared != "auto":
            return self.token(declared, key="document.bos")
        configured = self.configured("bos_token")
        if not configured:
            raise TokenizerError(f"document.bos: auto: {self.name} has no bos_token. Use none, or name the token")
        return self.token(configured, key="document.bos (auto: bos_token)")

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


@dataclass(frozen=True, slots=True)
class _Definition:
    """What is kept of a `tokenizer.json`: its text, its added tokens, the id of every token where it says them, and
    the Unicode tables that decide ids."""

    text: str
    added: list[dict[str, Any]]
    ids: dict[str, int] | None
    tables: dict[str, str]


@lru_cache(maxsize=2)
def _defined(path: Path, _digest: str) -> _Definition:
    """What a `tokenizer.json` defines, parsed once a process as long as its content does not change."""
    try:
        value = orjson.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict) or "model" not in value:
        raise TokenizerError(f"{path}: no `model`: not a tokenizer.json")
    value["truncation"] = value["padding"] = None
    added, model = value.get("added_tokens") or [], value["model"]
    ids = _ids(model, added)
    if isinstance(model, dict) and (merges := _short_merges(model.get("merges"))) is not None:
        model["merges"] = merges
    tables = reference_tables(value.get("normalizer"), value.get("pre_tokenizer"))
    return _Definition(text=orjson.dumps(value).decode(), added=added, ids=ids, tables=tables)


def _short_merges(merges: Any) -> list[str] | None:
    """The pairs of a BPE's merges in the format's other form, a text `first second` each; None where it has none.

    Engines load a third of a second faster from it. A text with a space within a part, or that begins like the header
    of a file of merges, would be read as something else.
    """
    if not isinstance(merges, list) or set(map(type, merges)) != {list}:
        return None
    try:
        texts = list(map(" ".join, merges))
    except TypeError:
        return None
    together = "\n".join(texts)
    # one space a text: none lies within a part
    return texts if together.count(" ") == len(texts) and "#version" not in together else None


def _ids(model: Any, added: list[dict[str, Any]]) -> dict[str, int] | None:
    """The id of every token, without loading a library; None where only the library can tell.

    The library gives an added token the id of the model's token with that content, else the next free one, whatever
    the file says: so the file is believed only where it says the same.
    """
    named = isinstance(model, dict) and model.get("type") in ("BPE", "WordPiece", "WordLevel")
    vocab = model.get("vocab") if named else None
    if not isinstance(vocab, dict) or not vocab or set(map(type, vocab.values())) != {int}:
        return None
    ids: dict[str, int] = dict(vocab)
    following = len(vocab)
    for token in added:
        content, declared = token.get("content"), token.get("id")
        # the last case is a content that is added twice
        if not content or declared != vocab.get(content, following) or (content in ids and content not in vocab):
            return None
        ids[content] = declared
        following = max(following, declared + 1)
    return ids


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
            loaded = load_reference(bundle.tokenizer_json, special_as_text=special_tokens == "text")
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

    def count(self, texts: Iterable[str]) -> int:
        """How many of the texts contain any of the literals."""
        return sum(map(self.found_in, texts))


def loaded_once(path: Path) -> TokenizerBundle:
    """The tokenizer at a path (`TokenizerBundle.load`), read once per process as long as its files do not change.

    Reading the vocabulary takes longer than all proofs of a small shard.
    """
    bundle = TokenizerBundle.load(path)
    return _kept(bundle, bundle.digest)


@lru_cache(maxsize=2)
def _kept(bundle: TokenizerBundle, _digest: str) -> TokenizerBundle:
    return bundle
