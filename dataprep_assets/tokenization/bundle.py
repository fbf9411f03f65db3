"""A tokenizer bundle: the files that determine the ids, their definition and digest, and the facts a trainer needs.

The digest is part of every downstream key, so it covers exactly the files that can change an id: `tokenizer.json` and
`tokenizer_config.json` (added tokens, BOS and EOS). All values of `meta.pkl` are read from these files, never from
a README.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import TokenizerError, count_of
from dataprep_assets.stores.files import canonical_json, digest_value, sha256_file, version_of
from dataprep_assets.tokenization.reference import (
    BYTE_LETTERS,
    NAME,
    Reference,
    load_reference,
    parts_of,
    reference_tables,
)

# Conversion of library errors to errors of this project.
#
# Libraries raise bare exceptions, whose messages may quote a text. A panic in Rust is a `BaseException` but not an
# `Exception`. So it passes every handler, and would end a run as if it were a bug of this project.


class EncodingError(TokenizerError):
    """A library cannot encode a text. The message gives the reason without quoting the library."""


class PanicError(EncodingError):
    """A library panicked."""


@contextmanager
def panics_as_errors(library: str) -> Iterator[None]:
    """Raise PanicError if `library` panics in the block."""
    try:
        yield
    except BaseException as error:
        # each library has its own panic class, which can be recognized only by its name
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(f"{library} panics with this tokenizer") from None


@contextmanager
def encoding_errors(library: str) -> Iterator[None]:
    """Raise EncodingError for any error of `library` while it encodes texts, except MemoryError."""
    try:
        with panics_as_errors(library):
            yield
    except (TokenizerError, MemoryError):
        raise
    except Exception as error:
        is_unknown = "unk" in str(error).casefold()
        why = (
            "a part of the text is not in the vocabulary, which has no unknown token"
            if is_unknown
            else f"{library} raises"
        )
        raise EncodingError(why) from None


# The definition in a `tokenizer.json`, and a variant whose special tokens cannot be produced from text.
#
# On demand, the libraries exclude literal special tokens from the *matching of added tokens*. The model may still
# encode a text as the id of one, because its content is an entry of every Unigram, WordPiece and WordLevel vocabulary,
# and of a BPE vocabulary with `ignore_merges`. Such an entry is renamed to a name that no text contains
# (`Definition.as_text`), similar to SentencePiece, which excludes control symbols from its search. Other ids stay, and
# a tokenizer that needs no change is not changed.
#
# Entry points: `definition_of`, `Definition`.

MAX_FILE_BYTES = 256 << 20
"""Maximum size of a file. The largest published files, with 250,000 tokens and their merges, have 40 MB."""
MAX_ID = (1 << 24) - 1
"""Maximum id. Engines allocate a table with an entry per id, so a larger id takes gigabytes or crashes the process."""
_BYTE_NAMES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BETWEEN_BYTE_NAMES = r"(?<=<)(?=0x[0-9A-F]{2}>)"
_UNKNOWN = {"WordPiece": "[UNK]", "WordLevel": "<unk>"}
"""The unknown token of a model whose file does not name one."""
_KEEPING = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel", "Strip", "Sequence"})
"""Normalizers that remove no characters except white space."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_UNCHANGING = frozenset({"NFC", "NFD", "Prepend", "ByteLevel", "Sequence"})
"""Normalizers that change at most the Unicode form of a character."""
_SECRET = secrets.token_hex(16)
"""Prefix for the names of entries that no text may reach. It is random per process, so that no one can write a text
with it. It is in no key and no file."""


@dataclass(frozen=True)
class Definition:
    """The parsed definition of a tokenizer.

    Attributes:
        text: The `tokenizer.json` as engines load it, without truncation and padding.
        as_text: The variant that reads literal special tokens as text; equal to `text` if that needs no change.
        refusal: The reason why this tokenizer cannot read literal special tokens as text; None if it can.
        special: Content and id of the special tokens, by id.
        added: Contents of the other added tokens. A text that contains one gets its id.
        ids: The id of every token, if the file determines it; None if only the library can compute it.
        tables: The Unicode tables that affect ids.
        unknown_id: The id that the model gives to unknown text; None if it never does.
        may_drop: Whether the tokenizer may drop characters without a trace in the ids.
        normalizer: The normalizer, as JSON, if it may replace characters of a text by others; otherwise None.
        takes_blanks: Content, whether it is special, `lstrip` and `rstrip` of each added token that absorbs the white
            space on its left or right.
        is_completed: Whether `tokenizer_config.json` has added tokens, or flags of them, that the file does not have.
    """

    text: str
    as_text: str
    refusal: str | None
    special: tuple[tuple[str, int], ...]
    added: frozenset[str]
    ids: dict[str, int] | None
    tables: dict[str, str]
    unknown_id: int | None
    may_drop: bool
    normalizer: str | None = None
    takes_blanks: tuple[tuple[str, bool, bool, bool], ...] = ()
    is_completed: bool = False

    def reaches(self, content: str) -> bool:
        """Return whether a text may be encoded as this token if literal special tokens are text."""
        # the vocabulary is parsed again, because calls are rare and it takes 100 MB
        return content in self.added or _Model(orjson.loads(self.as_text)["model"]).reaches(content)


class _Model:
    """The parsed model of a `tokenizer.json`."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.kind: str = value.get("type") or ("BPE" if "merges" in value else "Unigram" if "unk_id" in value else "")

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every entry of its vocabulary."""
        vocab = self.value["vocab"]
        return {entry[0]: index for index, entry in enumerate(vocab)} if self.kind == "Unigram" else vocab

    @cached_property
    def pairs(self) -> list[list[str]]:
        """The merges of a BPE model."""
        merges = self.value.get("merges") or []
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
        # malformed pairs are skipped, because the library refuses them
        return [pair for pair in pairs if len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str)]

    @cached_property
    def merged_entries(self) -> set[str]:
        """The entries that merges produce."""
        skipped = len(self.value.get("continuing_subword_prefix") or "")
        return {first + second[skipped:] for first, second in self.pairs}

    def reaches(self, content: str) -> bool:
        """Return whether the model may encode a text as this entry of its vocabulary."""
        if content not in self.ids:
            return False
        if self.kind != "BPE" or self.value.get("ignore_merges") or len(content) == 1:
            return True
        return content in self.merged_entries

    @property
    def unknown_id(self) -> int | None:
        """The id of the model's unknown token; None if it has none."""
        if self.kind == "Unigram":
            token_id: int | None = self.value.get("unk_id")
            return token_id
        return self.ids.get(self.value.get("unk_token") or _UNKNOWN.get(self.kind, ""))

    def knows_every_byte(self, splitters: Collection[str]) -> bool:
        """Return whether the model knows every character.

        `splitters` are the types of the normalizers and pre-tokenizers before the model.
        """
        if any(self.value.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")):
            return False
        if self.kind == "BPE" and "ByteLevel" in splitters:
            return all(letter in self.ids for letter in BYTE_LETTERS)
        return bool(self.value.get("byte_fallback")) and all(name in self.ids for name in _BYTE_NAMES)

    def set_apart(self, contents: Collection[str]) -> dict[str, str]:
        """Rename the entries with these contents so that no text contains them; return old → new name.

        Entries that the model cannot produce from text keep their names. Raises TokenizerError if the model needs an
        entry.
        """
        names = {content: _SECRET + content for content in contents if self.reaches(content)}
        if not names:
            return {}
        if self.kind == "Unigram":
            self.value["vocab"] = [[names.get(entry[0], entry[0]), *entry[1:]] for entry in self.value["vocab"]]
            return names
        if self.kind == "BPE":
            self._do_without(names)
        self.value["vocab"] = {names.get(content, content): number for content, number in self.ids.items()}
        unknown = self.value.get("unk_token") or _UNKNOWN.get(self.kind)
        if unknown in names:
            self.value["unk_token"] = names[unknown]
        return names

    def _do_without(self, contents: Collection[str]) -> None:
        """Remove the merges that produce one of these entries; raise TokenizerError if other tokens need an entry."""
        parts = {part for pair in self.pairs for part in pair}
        needed = {content for content in contents if content in parts or len(content) == 1}
        if needed:
            raise TokenizerError(f"the special token {min(needed)!r} is a character, or part of other tokens")
        skipped = len(self.value.get("continuing_subword_prefix") or "")
        kept_pairs = [[first, second] for first, second in self.pairs if first + second[skipped:] not in contents]
        self.value["merges"] = _short_merges(kept_pairs) or kept_pairs


@lru_cache(maxsize=2)
def definition_of(path: Path, _digest: str, ends: tuple[str, ...], decoder: str = "{}") -> Definition:
    """Return the definition in the `tokenizer.json` at `path`, cached per process while its content is unchanged.

    Args:
        path: The file.
        _digest: Digest of its content, for the cache.
        ends: Contents that `tokenizer_config.json` names as beginning and end of a text. They are special whatever
            the file says, as in transformers.
        decoder: The `added_tokens_decoder` of `tokenizer_config.json`, as JSON. Like transformers, its tokens are added
            to the file's tokens, and its flags override the file's.

    Raises TokenizerError if the file is invalid or exceeds the limits, or if transformers would give a token a
    different id.
    """
    value = _read_file(path)
    value["truncation"] = value["padding"] = None
    model = _Model(value["model"])
    before = value.get("added_tokens") or []
    added = value["added_tokens"] = _completed(before, model, orjson.loads(decoder), path)
    contents = {token["content"] for token in added if token.get("special")}
    own = {token["content"]: token["id"] for token in added} | {
        content: model.ids[content] for content in (*contents, *ends) if content in model.ids
    }
    contents |= own.keys() & set(ends)
    ids = _ids(model, added)
    if (merges := _short_merges(model.value.get("merges"))) is not None:
        model.value["merges"] = merges
    parts = [*parts_of(value.get("normalizer")), *parts_of(value.get("pre_tokenizer"))]
    knows = model.knows_every_byte({str(part.get("type")) for part in parts})
    text, unknown_id = orjson.dumps(value).decode(), None if knows else model.unknown_id
    as_text, refusal = text, None
    try:
        as_text = _with_literals_as_text(value, model, contents) or text
    except TokenizerError as error:
        refusal = str(error)
    return Definition(
        text=text,
        as_text=as_text,
        refusal=refusal,
        special=tuple(sorted(((content, own[content]) for content in contents), key=lambda one: one[1])),
        added=frozenset(token["content"] for token in added if token["content"] not in contents),
        ids=ids,
        tables=reference_tables(value.get("normalizer"), value.get("pre_tokenizer")),
        unknown_id=unknown_id,
        may_drop=not knows or any(map(_may_remove, parts)),
        normalizer=_rewriting(value.get("normalizer")),
        takes_blanks=tuple(
            (token["content"], token["content"] in contents, strips_left, strips_right)
            for token in added
            if (strips_left := bool(token.get("lstrip"))) | (strips_right := bool(token.get("rstrip")))
        ),
        is_completed=added != before,
    )


def _completed(added: list[dict[str, Any]], model: _Model, decoder: Any, path: Path) -> list[dict[str, Any]]:
    """Return the added tokens of a file, extended by the tokens and flags of the `added_tokens_decoder`."""
    if not isinstance(decoder, dict) or not all(
        number.isdecimal() and len(number) < 10 and isinstance(token, dict) and isinstance(token.get("content"), str)
        for number, token in decoder.items()
    ):
        raise TokenizerError(
            f"{path.with_name('tokenizer_config.json')}: `added_tokens_decoder` is not an object of ids and tokens. "
            "Save it again with `save_pretrained(folder)` of transformers"
        )
    token_by_content = {token["content"]: token for token in added}
    following = max([len(model.ids), *(token["id"] + 1 for token in added)])
    for number, token in sorted(decoder.items(), key=lambda one: int(one[0])):
        content = token["content"]
        # every library uses the file's id for a token that the file contains
        token_id: int = (
            token_by_content[content]["id"] if content in token_by_content else model.ids.get(content, following)
        )
        if content not in token_by_content and content not in model.ids and token_id != int(number):
            raise TokenizerError(
                f"{path.with_name('tokenizer_config.json')}: `added_tokens_decoder` gives {content!r} the id "
                f"{number}, but {path.name} does not contain it, and the next free id is {token_id}. Save both again "
                "with `save_pretrained(folder)` of transformers"
            )
        following = max(following, token_id + 1)
        flags = {name: bool(token.get(name)) for name in _FLAGS}
        flags["normalized"] = bool(token.get("normalized", not flags["special"]))
        token_by_content[content] = {"id": token_id, "content": content, **flags}
    return list(token_by_content.values()) if decoder else added


def _read_file(path: Path) -> dict[str, Any]:
    """Return the parsed file after checking the types of all parts that are used later."""
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise TokenizerError(
            f"{path}: {count_of(size, 'byte')}, but a tokenizer.json can have at most {MAX_FILE_BYTES:,}"
        )
    try:
        value = orjson.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"{path}: invalid JSON: {error}") from error
    if not isinstance(value, dict) or "model" not in value:
        raise TokenizerError(f"{path}: not a tokenizer.json: `model` is missing")
    if (wrong := _wrong(value)) is not None:
        raise TokenizerError(f"{path}: {wrong}. Save it again with `Tokenizer.save` of the library `tokenizers`")
    if dropout := value["model"].get("dropout"):
        raise TokenizerError(
            f"{path}: model.dropout is {dropout}, so the same text gets different ids each time. Set it to null in "
            "the file"
        )
    return value


def _wrong(value: Mapping[str, Any]) -> str | None:
    """Return a description of a part with a wrong type or beyond the limits; None if there is none."""
    model, added = value["model"], value.get("added_tokens")
    if not isinstance(model, dict):
        return "`model` is not an object"
    if added is not None and not (isinstance(added, list) and all(map(_is_token, added))):
        return "`added_tokens` is not a list of objects with a string `content` and an integer `id`"
    vocab, merges = model.get("vocab"), model.get("merges")
    if model.get("type") == "Unigram" or isinstance(vocab, list):
        if not isinstance(vocab, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in vocab):
            return "`model.vocab` is not a list of pairs of a string and a number"
        if set(map(type, (entry[0] for entry in vocab))) - {str}:
            return "`model.vocab` has a name that is not a string"
        numbers = [len(vocab) - 1]
    else:
        if not isinstance(vocab, dict) or set(map(type, vocab.values())) - {int}:
            return "`model.vocab` is not an object of strings and integers"
        numbers = list(vocab.values())
    if merges is not None and not isinstance(merges, list):
        return "`model.merges` is not a list"
    numbers += [token["id"] for token in added or []]
    if numbers and not 0 <= min(numbers) <= max(numbers) <= MAX_ID:
        outside = min(numbers) if min(numbers) < 0 else max(numbers)
        return f"a token has the id {outside}, outside 0 to {MAX_ID:,}"
    return None


def _is_token(token: Any) -> bool:
    return isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int


def _with_literals_as_text(value: dict[str, Any], model: _Model, contents: Collection[str]) -> str | None:
    """Return the file with these special tokens unreachable from text; None if they already are.

    Changes `value`, which contains `model`.
    """
    added = value.get("added_tokens") or []
    flagged = [token["content"] for token in added if token["content"] in contents and not token.get("special")]
    # the names of byte tokens stay, because the model finds the bytes of unknown characters by them
    fallback = set(_BYTE_NAMES) if model.value.get("byte_fallback") else set()
    names = model.set_apart({*contents} - fallback)
    hides_bytes = bool(fallback) and model.kind == "Unigram"
    if not (flagged or names or hides_bytes):
        return None
    for token in added:
        token["special"] = bool(token.get("special")) or token["content"] in contents
    # The library gives an added token that is missing in the vocabulary the next free id, although a special one is
    # never produced. Placed last, such tokens do not shift the ids of others.
    value["added_tokens"] = sorted(added, key=lambda token: token["content"] in names)
    if hides_bytes:
        # a text that spells a byte token would be encoded as it; no token spans a cut of the pre-tokenizer
        splitter = {"type": "Split", "pattern": {"Regex": _BETWEEN_BYTE_NAMES}, "behavior": "Isolated", "invert": False}
        before = value.get("pre_tokenizer")
        value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [before, splitter]} if before else splitter
    return orjson.dumps(value).decode()


def _rewriting(normalizer: Any) -> str | None:
    """Return a normalizer as JSON if it may change more of a text than its Unicode form; otherwise None."""
    parts = parts_of(normalizer)
    return orjson.dumps(normalizer).decode() if any(map(_may_change, parts)) else None


def _may_change(part: Mapping[str, Any]) -> bool:
    if part.get("type") == "Replace":
        # replacing a space by a visible sign is not a loss, because the decoder reverts it
        pattern, sign = (part.get("pattern") or {}).get("String"), str(part.get("content") or "")
        return pattern != " " or not sign or sign.isspace()
    return part.get("type") not in _UNCHANGING


def _may_remove(part: Mapping[str, Any]) -> bool:
    """Return whether a normalizer or pre-tokenizer may remove characters other than white space."""
    if part.get("type") == "Replace":
        return not part.get("content") or "Regex" in (part.get("pattern") or {})
    if "normalizers" in part or "pretokenizers" in part:
        return False
    is_splitter = "behavior" in part or part.get("type") in _SPLITTERS
    return part.get("behavior") == "Removed" if is_splitter else part.get("type") not in _KEEPING


_SPLITTERS = frozenset({"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Metaspace", "Digits", "UnicodeScripts"})
"""Pre-tokenizers that remove no characters except white space. `CharDelimiterSplit` is not among them."""


def _short_merges(merges: Any) -> list[str] | None:
    """Return a BPE's merges in the format's other form, texts of the form `first second`; None if that is impossible.

    Engines load this form about 0.3 s faster. It cannot represent parts that contain a space, and a text that begins
    like the header of a merges file would be misread.
    """
    if not isinstance(merges, list) or set(map(type, merges)) != {list}:
        return None
    try:
        texts = list(map(" ".join, merges))
    except TypeError:
        return None
    together = "\n".join(texts)
    # the number of spaces equals the number of texts only if no part contains a space
    return texts if together.count(" ") == len(texts) and "#version" not in together else None


def _ids(model: _Model, added: list[dict[str, Any]]) -> dict[str, int] | None:
    """Return the id of every token without loading a library; None if only the library can compute it.

    The library gives an added token the id of the model's token with the same content, otherwise the next free id. It
    ignores the id in the file, so the file's ids are used only if they are equal.
    """
    vocab = model.value.get("vocab")
    if model.value.get("type") not in ("BPE", "WordPiece", "WordLevel") or not isinstance(vocab, dict) or not vocab:
        return None
    ids: dict[str, int] = dict(vocab)
    following = len(vocab)
    for token in added:
        content, token_id = token["content"], token["id"]
        # the last condition detects a content that is added twice
        if not content or token_id != vocab.get(content, following) or (content in ids and content not in vocab):
            return None
        ids[content] = token_id
        following = max(following, token_id + 1)
    return ids


_FILES = ("tokenizer.json", "tokenizer_config.json")
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
        directory: Its folder.
        name: Its common name (`qwen3`).
        revision: The commit on the Hugging Face Hub, if any.
        structure: Contents of tokens that are special whatever the files say, because a chat template writes them.
    """

    directory: Path
    name: str
    revision: str | None = None
    structure: tuple[str, ...] = ()
    _config: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, path: Path, *, name: str | None = None, revision: str | None = None) -> "TokenizerBundle":
        """Return the bundle at `path`: a folder, or the path of a `tokenizer.json`.

        `name` defaults to the folder's name. `revision` is the commit of the files on the Hugging Face Hub, if any.
        Raises TokenizerError if there is no readable `tokenizer.json`.
        """
        directory = path.parent if path.name == _FILES[0] else path
        if not (directory / _FILES[0]).is_file():
            raise TokenizerError(
                f"{directory}: {f'no {_FILES[0]} found' if directory.is_dir() else 'the folder does not exist'}. "
                "Save one with `AutoTokenizer.from_pretrained(...).save_pretrained(folder)` of transformers, or "
                f'`Tokenizer.save("{_FILES[0]}")` of tokenizers'
            )
        config_path = directory / _FILES[1]
        try:
            config = json_of(config_path.read_bytes()) if config_path.is_file() else {}
        except ValueError as error:
            raise TokenizerError(f"{config_path}: invalid JSON: {error}") from error
        if not isinstance(config, dict):
            raise TokenizerError(f"{config_path}: not a {_FILES[1]}: must be a JSON object")
        return cls(directory=directory, name=name or directory.name, revision=revision, _config=config)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and digests of the files that determine ids."""
        # older versions ignored these tokens and gave different ids, so their digest must differ
        is_completed = bool(self._config.get("added_tokens_decoder")) and self.definition.is_completed
        digest = digest_value([self._digest, "added_tokens_decoder"]) if is_completed else self._digest
        return digest_value([digest, *self.structure]) if self.structure else digest

    @property
    def _digest(self) -> str:
        return _digest(self.directory, tuple(version_of(str(self.directory / name)) for name in _FILES))

    @cached_property
    def definition(self) -> Definition:
        """The definition in its `tokenizer.json`. Raises TokenizerError if it is invalid or exceeds the limits."""
        ends = (*filter(None, map(self.configured, ("bos_token", "eos_token"))), *self.structure)
        decoder = canonical_json(self._config.get("added_tokens_decoder") or {}).decode()
        return definition_of(self.directory / _FILES[0], self._digest, ends, decoder)

    @property
    def tokenizer_json(self) -> str:
        """`tokenizer.json` as engines load it.

        Truncation and padding are removed, because they would silently alter documents. Merges are texts if possible,
        which defines the same tokenizer.
        """
        return self.definition.text

    def engine_json(self, special_tokens: str) -> str:
        """Return `tokenizer.json` for a reading of literal special tokens. With `text`, no text gets the id of one.

        Raises TokenizerError if this tokenizer cannot read them as text.
        """
        if special_tokens != "text":
            return self.definition.text
        if (why := self.definition.refusal) is not None:
            raise TokenizerError(
                f"{self.directory / _FILES[0]}: {why}, so ordinary text is encoded as it. Set `special: false` for "
                "it in `added_tokens`, or `special_tokens: match` in the declaration"
            )
        return self.definition.as_text

    @cached_property
    def reference_tables(self) -> dict[str, str]:
        """The Unicode tables of the installed reference that affect this tokenizer's ids (`reference_tables`)."""
        return dict(self.definition.tables)

    @property
    def _reference(self) -> Reference:
        """The reference library's tokenizer, for uses that do not depend on the reading of literal special tokens."""
        # a variant with renamed special tokens cannot decode them
        unchanged = self.definition.refusal is None and self.definition.as_text == self.definition.text
        readings = ("match", "text") if unchanged else ("match",)
        reference = next(
            (candidate for reading in readings if (candidate := _kept_references.get((self.digest, reading)))), None
        )
        return reference or reference_tokenizer(self, readings[-1])

    @cached_property
    def vocab_size(self) -> int:
        """`len(tokenizer)`, added tokens included. Every id is smaller."""
        vocab = self._vocabulary
        # the maximum id is also needed, because ids may have gaps
        return max(len(vocab), max(vocab.values()) + 1)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """The id of every token, from the file if it determines them, otherwise from the library."""
        vocab = self.definition.ids
        if vocab is None:
            vocab = self._reference.vocabulary()
        if vocab is None:
            raise TokenizerError(
                f"{self.directory / _FILES[0]}: neither the file nor the installed tokenizers gives the ids of all "
                "tokens. Save it with `AutoTokenizer.from_pretrained(...).save_pretrained(folder)` of transformers"
            )
        return vocab

    def _id(self, content: str) -> int | None:
        """Return the id of the token with exactly this content; None if there is none."""
        return self._vocabulary.get(content)

    @cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """Tokens marked special in `tokenizer.json`, and the BOS and EOS of `tokenizer_config.json`; by id."""
        return tuple(SpecialToken(content=content, id=number) for content, number in self.definition.special)

    @property
    def _some_special(self) -> str:
        """The first 12 special tokens, for messages."""
        return ", ".join(token.content for token in self.special_tokens[:12]) or "none"

    def token(self, content: str, *, key: str) -> SpecialToken:
        """Return the token with exactly this content.

        Raises TokenizerError with the configuration `key` that refers to the token.
        """
        if (token_id := self._id(content)) is None:
            raise TokenizerError(
                f"{key}: {content!r} is not in the vocabulary of {self.name}. Available special tokens: "
                f"{self._some_special}"
            )
        return SpecialToken(content=content, id=token_id)

    def configured(self, name: str) -> str | None:
        """Return the content of a token in tokenizer_config.json, such as `pad_token`; None if it is not set."""
        # transformers writes a token either as a text or as an object with flags
        value = self._config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        return content if isinstance(content, str) else None

    def separator(self, declared: str, special_tokens: str, *, key: str = "document.separator") -> SpecialToken:
        """Return the token that ends every document: the declared one, or for `auto` the tokenizer's own.

        Raises TokenizerError with the candidates if `auto` finds only a chat-turn token or no token at all. Also raises
        it for a token that a text may be encoded as, with this reading of literal special tokens. `key` is the
        declaration's key, for messages.
        """
        if declared != "auto":
            return self._apart(self.token(declared, key=key), special_tokens, key)
        configured = self.configured("eos_token")
        if configured and not self.ends_chat_turn(configured):
            eos_token = self.token(configured, key=f"{key} (auto: eos_token)")
            return self._apart(eos_token, special_tokens, key)
        # only special tokens are candidates, because `</s>` is an ordinary word of many vocabularies
        ours = [token.content for token in self.special_tokens if token.content in _DOCUMENT_END_TOKENS]
        because = (
            f"its eos_token {configured!r} ends a chat turn, not a document" if configured else "it has no eos_token"
        )
        which = (
            f". Candidates in its vocabulary: {', '.join(ours)}"
            if ours
            else f". Available special tokens: {self._some_special}"
        )
        raise TokenizerError(
            f"{key}: auto cannot choose for the tokenizer {self.name}: {because}. Set `{key}` to the token that ends "
            f"a document{which}"
        )

    def ends_chat_turn(self, token: str) -> bool:
        """Return whether a special token, by its name, ends a chat turn and the tokenizer has other special tokens."""
        return token in CHAT_TURN_TOKENS and len(self.special_tokens) > 1

    def bos(self, declared: str, special_tokens: str, *, key: str = "document.bos") -> SpecialToken | None:
        """Return the token before every document: None for `none`, the tokenizer's own for `auto`, or the declared one.

        Raises TokenizerError if `auto` finds no BOS or the tokenizer lacks the declared token. Also raises it if a text
        may be encoded as the token, with this reading of literal special tokens.
        """
        if declared == "none":
            return None
        if declared != "auto":
            return self._apart(self.token(declared, key=key), special_tokens, key)
        configured = self.configured("bos_token")
        if not configured:
            raise TokenizerError(f"{key}: auto: {self.name} has no bos_token. Use none, or a token")
        return self._apart(self.token(configured, key=f"{key} (auto: bos_token)"), special_tokens, key)

    def _apart(self, token: SpecialToken, special_tokens: str, key: str) -> SpecialToken:
        """Return the token; raise TokenizerError if a text may be encoded as it, because it must only delimit texts."""
        definition, name = self.definition, f"{key}: {token.content!r}"
        if token.id == definition.unknown_id:
            raise TokenizerError(
                f"{name} is the unknown token of {self.name}, the id of all unknown text. Choose a different token"
            )
        is_special = any(token.content == content for content, _ in definition.special)
        if special_tokens == "text" and not is_special and definition.reaches(token.content):
            raise TokenizerError(
                f"{name} is an ordinary token of {self.name}, so texts that contain it get its id. Choose a special "
                f"token{self._offered}, mark it `special` in tokenizer.json, or set `special_tokens: match`"
            )
        return token

    @property
    def _offered(self) -> str:
        return f" ({self._some_special})" if self.special_tokens else ""

    @cached_property
    def special_literals(self) -> "LiteralFinder":
        """Finder of documents whose text contains a special token."""
        return LiteralFinder(tuple(t.content for t in self.special_tokens))

    def decode(self, ids: Any) -> str:
        """Return the text of a sequence of ids, including special tokens."""
        # arrays are converted at once, because a conversion per id takes as long as decoding
        plain = ids.tolist() if hasattr(ids, "tolist") else list(map(int, ids))
        return self._reference.decode(plain)


@lru_cache(maxsize=8)
def _digest(directory: Path, versions: tuple[str | None, ...]) -> str:
    """Return the digest of a bundle, cached per process while its files are unchanged (`version_of`)."""
    present_names = [name for name, version in zip(_FILES, versions, strict=True) if version is not None]
    return digest_value([(name, sha256_file(directory / name)) for name in present_names])


_kept_references: dict[tuple[str, str], Reference] = {}


def reference_tokenizer(bundle: TokenizerBundle, special_tokens: str) -> Reference:
    """Return the reference's tokenizer for a bundle and a reading of literal special tokens.

    At most two tokenizers are cached per process, because each takes about 100 MB.

    Args:
        bundle: The tokenizer. Bundles with the same files share the loaded tokenizer.
        special_tokens: `text` or `match`.

    Raises TokenizerError if the library cannot load it.
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
        # a dict keeps its order, so this removes the tokenizer that was loaded first
        while len(_kept_references) > 1:
            del _kept_references[next(iter(_kept_references))]
        _kept_references[key] = loaded
    return _kept_references[key]


class LiteralFinder:
    """Finds texts that contain one of a set of literals.

    Special tokens share their first two characters (`<|`). A search for the rarer one, at memory speed, rules out most
    documents. Only texts that contain both are matched with the full pattern.
    """

    def __init__(self, literals: tuple[str, ...]) -> None:
        prefixes = sorted({literal[:2] for literal in literals if literal})
        # a character that is neither letter nor digit is rarer; the second character is preferred over the first
        self._begins = tuple(
            (next((character for character in reversed(prefix) if not character.isalnum()), prefix[0]), prefix)
            for prefix in prefixes
        )
        self._pattern = re.compile(
            "|".join(re.escape(x) for x in sorted(literals, key=len, reverse=True) if x) or r"(?!)"
        )

    def found_in(self, text: str) -> bool:
        """Return whether the text contains any of the literals."""
        for rare, prefix in self._begins:
            if rare in text and prefix in text:  # a search for one character is several times as fast as for two
                return self._pattern.search(text) is not None
        return False

    def replaced(self, text: str, by: Callable[[str], str]) -> str:
        """Return the text with each literal replaced by the result of `by`. The longest matching literal is used."""
        return self._pattern.sub(lambda match: by(match[0]), text)

    def count(self, texts: Iterable[str]) -> int:
        """Return the number of texts that contain any of the literals."""
        return sum(map(self.found_in, texts))


def loaded_once(path: Path) -> TokenizerBundle:
    """Return the tokenizer at a path (`TokenizerBundle.load`), cached per process while its files are unchanged.

    Reading the vocabulary takes longer than all checks of a small shard.
    """
    bundle = TokenizerBundle.load(path)
    return _cache_bundle(bundle, bundle.digest)


@lru_cache(maxsize=2)
def _cache_bundle(bundle: TokenizerBundle, _digest: str) -> TokenizerBundle:
    return bundle
