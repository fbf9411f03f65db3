"""A tokenizer bundle: the files that decide the ids, their definition and digest, and the facts a trainer needs.

The digest is part of every key downstream, so it covers exactly what can change an id: `tokenizer.json` and
`tokenizer_config.json` (added tokens, BOS and EOS). All values of `meta.pkl` are read from here, never from a README.
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

# What libraries raise, as errors of this project.
#
# They raise bare exceptions, whose words may quote a text; and a panic in Rust is an exception that is no
# `Exception`, so that it passes every handler, and ends a run as if it were a bug of this project.


class EncodingError(TokenizerError):
    """A library cannot encode a text; says why without its words."""


class PanicError(EncodingError):
    """A library panicked."""


@contextmanager
def panics_as_errors(library: str) -> Iterator[None]:
    """Raise PanicError for a panic of `library` in the block."""
    try:
        yield
    except BaseException as error:
        # each library has a class of its own, which only its name tells
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(f"{library} panics with this tokenizer") from None


@contextmanager
def encoding_errors(library: str) -> Iterator[None]:
    """Raise EncodingError for whatever `library` raises while it encodes texts; MemoryError stays."""
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


# What a `tokenizer.json` defines, and the same tokenizer with special tokens that no text can become.
#
# The libraries leave literal special tokens out of the *matching of added tokens* on demand. The model may still
# make the id of one from a text: its content is an entry of every Unigram, WordPiece and WordLevel vocabulary, and
# of a BPE one with `ignore_merges`. Such an entry gets a name that no text holds (`Definition.as_text`), as
# SentencePiece keeps control symbols out of its search. Other ids stay, and a tokenizer that needs no change is not
# changed.
#
# Entry points: `definition_of`, `Definition`.

MAX_FILE_BYTES = 256 << 20
"""The largest published files, of a quarter of a million tokens and their merges, have 40 MB."""
MAX_ID = (1 << 24) - 1
"""Engines make a table with a place for each id: a greater one takes gigabytes, or ends the process."""
_BYTE_NAMES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BETWEEN_BYTE_NAMES = r"(?<=<)(?=0x[0-9A-F]{2}>)"
_UNKNOWN = {"WordPiece": "[UNK]", "WordLevel": "<unk>"}
"""The unknown token of a model whose file names none."""
_KEEPING = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel", "Strip", "Sequence"})
"""Normalizers that leave out no character but white space."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_UNCHANGING = frozenset({"NFC", "NFD", "Prepend", "ByteLevel", "Sequence"})
"""Normalizers that change of a character its Unicode form at most."""
_SECRET = secrets.token_hex(16)
"""Begins the names of entries that no text may reach. Every process has its own, so nobody can write a text with it; it
is in no key and no file."""


@dataclass(frozen=True)
class Definition:
    """What is kept of a `tokenizer.json`.

    Attributes:
        text: The file as engines load it, without truncation and padding.
        as_text: The same where literal special tokens are text; equal to `text` where that takes no change.
        refusal: Why this tokenizer cannot read literal special tokens as text; None if it can.
        special: Content and id of the special tokens, by id.
        added: Contents of the other added tokens: each becomes its id wherever a text holds it.
        ids: The id of every token where the file says it; None where only the library can tell.
        tables: The Unicode tables that decide ids.
        unknown_id: The id that the model gives to what it does not know; None if it never does.
        may_drop: Whether characters may be left out of the ids without a trace.
        normalizer: The normalizer, as JSON, if it may make other characters of those of a text; else None.
        takes_blanks: Content, whether it is special, `lstrip` and `rstrip` of each added token that has one of these:
            it takes the white space on that side with it.
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
        """Return whether a text may become the id of this token, where literal special tokens are text."""
        # parsed again, because the question is rare and a parsed vocabulary takes a hundred megabytes
        return content in self.added or _Model(orjson.loads(self.as_text)["model"]).reaches(content)


class _Model:
    """The model of a `tokenizer.json`, as it is parsed."""

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
        """The merges of a BPE."""
        merges = self.value.get("merges") or []
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
        # what is no pair is left for the library to refuse
        return [pair for pair in pairs if len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str)]

    @cached_property
    def merged_entries(self) -> set[str]:
        """The entries that merges make."""
        skipped = len(self.value.get("continuing_subword_prefix") or "")
        return {first + second[skipped:] for first, second in self.pairs}

    def reaches(self, content: str) -> bool:
        """Return whether the model may give a text the id of this entry of its vocabulary."""
        if content not in self.ids:
            return False
        if self.kind != "BPE" or self.value.get("ignore_merges") or len(content) == 1:
            return True
        return content in self.merged_entries

    @property
    def unknown_id(self) -> int | None:
        """The id of its unknown token; None if it has none."""
        if self.kind == "Unigram":
            token_id: int | None = self.value.get("unk_id")
            return token_id
        return self.ids.get(self.value.get("unk_token") or _UNKNOWN.get(self.kind, ""))

    def knows_every_byte(self, splitters: Collection[str]) -> bool:
        """Return whether no character is unknown to it, given the types of the normalizers and pre-tokenizers before
        it."""
        if any(self.value.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")):
            return False
        if self.kind == "BPE" and "ByteLevel" in splitters:
            return all(letter in self.ids for letter in BYTE_LETTERS)
        return bool(self.value.get("byte_fallback")) and all(name in self.ids for name in _BYTE_NAMES)

    def set_apart(self, contents: Collection[str]) -> dict[str, str]:
        """Give the entries with these contents names that no text holds: old → new name of those that need one.

        Raises TokenizerError where the model cannot do without an entry.
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
        """Leave out the merges that make one of these entries."""
        parts = {part for pair in self.pairs for part in pair}
        needed = {content for content in contents if content in parts or len(content) == 1}
        if needed:
            raise TokenizerError(f"the special token {min(needed)!r} is a character, or part of other tokens")
        skipped = len(self.value.get("continuing_subword_prefix") or "")
        kept_pairs = [[first, second] for first, second in self.pairs if first + second[skipped:] not in contents]
        self.value["merges"] = _short_merges(kept_pairs) or kept_pairs


@lru_cache(maxsize=2)
def definition_of(path: Path, _digest: str, ends: tuple[str, ...], decoder: str = "{}") -> Definition:
    """Return what the `tokenizer.json` at `path` defines, parsed once a process as long as its content (`_digest`)
    stays.

    `ends` are the contents that `tokenizer_config.json` names as beginning and end of a text. They are special whatever
    the file says, as they are for transformers. `decoder` is its `added_tokens_decoder`, as JSON: transformers adds
    these tokens to those of the file, and believes it on their flags. Raises TokenizerError for a file that is none or
    exceeds the limits, and for a token that has another id than transformers would give it.
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
    """The added tokens of a file, with those of the `added_tokens_decoder` and its flags."""
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
        # of a token that the file has, its id counts for every library
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
    """The parsed file, of which every part that is used later has the right type."""
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
    """Return what of a file is of the wrong type, or beyond the limits; None if nothing is."""
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
    """The file with these special tokens out of reach of any text; None if they are already.

    Changes `value`, of which `model` is a part.
    """
    added = value.get("added_tokens") or []
    flagged = [token["content"] for token in added if token["content"] in contents and not token.get("special")]
    # the bytes of unknown characters are found by these names, so they keep them
    fallback = set(_BYTE_NAMES) if model.value.get("byte_fallback") else set()
    names = model.set_apart({*contents} - fallback)
    hides_bytes = bool(fallback) and model.kind == "Unigram"
    if not (flagged or names or hides_bytes):
        return None
    for token in added:
        token["special"] = bool(token.get("special")) or token["content"] in contents
    # The library gives an added token that is not in the vocabulary the next free id, although none is ever made of a
    # special one: last, they take no other token's.
    value["added_tokens"] = sorted(added, key=lambda token: token["content"] in names)
    if hides_bytes:
        # a text that names a byte would become that byte; no token spans a cut of the pre-tokenizer
        splitter = {"type": "Split", "pattern": {"Regex": _BETWEEN_BYTE_NAMES}, "behavior": "Isolated", "invert": False}
        before = value.get("pre_tokenizer")
        value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [before, splitter]} if before else splitter
    return orjson.dumps(value).decode()


def _rewriting(normalizer: Any) -> str | None:
    """A normalizer, as JSON, that may change more of a text than its Unicode form."""
    parts = parts_of(normalizer)
    return orjson.dumps(normalizer).decode() if any(map(_may_change, parts)) else None


def _may_change(part: Mapping[str, Any]) -> bool:
    if part.get("type") == "Replace":
        # a sign in the place of a space, which the decoder turns back
        pattern, sign = (part.get("pattern") or {}).get("String"), str(part.get("content") or "")
        return pattern != " " or not sign or sign.isspace()
    return part.get("type") not in _UNCHANGING


def _may_remove(part: Mapping[str, Any]) -> bool:
    """Return whether a normalizer or pre-tokenizer may leave out characters other than white space."""
    if part.get("type") == "Replace":
        return not part.get("content") or "Regex" in (part.get("pattern") or {})
    if "normalizers" in part or "pretokenizers" in part:
        return False
    is_splitter = "behavior" in part or part.get("type") in _SPLITTERS
    return part.get("behavior") == "Removed" if is_splitter else part.get("type") not in _KEEPING


_SPLITTERS = frozenset({"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Metaspace", "Digits", "UnicodeScripts"})
"""Pre-tokenizers that leave out no character but white space; `CharDelimiterSplit` is none of them."""


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


def _ids(model: _Model, added: list[dict[str, Any]]) -> dict[str, int] | None:
    """The id of every token, without loading a library; None where only the library can tell.

    The library gives an added token the id of the model's token with that content, else the next free one, whatever
    the file says: so the file is believed only where it says the same.
    """
    vocab = model.value.get("vocab")
    if model.value.get("type") not in ("BPE", "WordPiece", "WordLevel") or not isinstance(vocab, dict) or not vocab:
        return None
    ids: dict[str, int] = dict(vocab)
    following = len(vocab)
    for token in added:
        content, token_id = token["content"], token["id"]
        # the last case is a content that is added twice
        if not content or token_id != vocab.get(content, following) or (content in ids and content not in vocab):
            return None
        ids[content] = token_id
        following = max(following, token_id + 1)
    return ids


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
                f"{self.directory / _FILES[0]}: {why}, so ordinary text is encoded as it. Set `special: false` for "
                "it in `added_tokens`, or `special_tokens: match` in the declaration"
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
        reference = next(
            (candidate for reading in readings if (candidate := _kept_references.get((self.digest, reading)))), None
        )
        return reference or reference_tokenizer(self, readings[-1])

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
                f"{self.directory / _FILES[0]}: neither the file nor the installed tokenizers gives the ids of all "
                "tokens. Save it with `AutoTokenizer.from_pretrained(...).save_pretrained(folder)` of transformers"
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
    def _some_special(self) -> str:
        """The first of the special tokens, for messages."""
        return ", ".join(token.content for token in self.special_tokens[:12]) or "none"

    def token(self, content: str, *, key: str) -> SpecialToken:
        """The token with exactly this content.

        Raises TokenizerError, naming the configuration `key` that asked for it.
        """
        if (token_id := self._id(content)) is None:
            raise TokenizerError(
                f"{key}: {content!r} is not in the vocabulary of {self.name}. Available special tokens: "
                f"{self._some_special}"
            )
        return SpecialToken(content=content, id=token_id)

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
            eos_token = self.token(configured, key=f"{key} (auto: eos_token)")
            return self._apart(eos_token, special_tokens, key)
        # only special ones: `</s>` is an ordinary word of many vocabularies
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
        """Return whether a special token ends a turn of a chat, by its name, where the tokenizer has others, too."""
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
            raise TokenizerError(f"{key}: auto: {self.name} has no bos_token. Use none, or a token")
        return self._apart(self.token(configured, key=f"{key} (auto: bos_token)"), special_tokens, key)

    def _apart(self, token: SpecialToken, special_tokens: str, key: str) -> SpecialToken:
        """The same token; raises TokenizerError if a text may become it although it is to be around texts only."""
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
    present_names = [name for name, version in zip(_FILES, versions, strict=True) if version is not None]
    return digest_value([(name, sha256_file(directory / name)) for name in present_names])


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
            (next((character for character in reversed(prefix) if not character.isalnum()), prefix[0]), prefix)
            for prefix in prefixes
        )
        self._pattern = re.compile(
            "|".join(re.escape(x) for x in sorted(literals, key=len, reverse=True) if x) or r"(?!)"
        )

    def found_in(self, text: str) -> bool:
        """Return whether the text contains any of the literals."""
        for rare, prefix in self._begins:
            if rare in text and prefix in text:  # a single character is found several times as fast as two
                return self._pattern.search(text) is not None
        return False

    def replaced(self, text: str, by: Callable[[str], str]) -> str:
        """The text with what `by` returns for a literal in place of each, of several that fit the longest."""
        return self._pattern.sub(lambda match: by(match[0]), text)

    def count(self, texts: Iterable[str]) -> int:
        """Return how many of the texts contain any of the literals."""
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
