"""The definition in a `tokenizer.json`, and a variant whose special tokens cannot be produced from text.

Libraries can exclude literal special tokens from the *matching of added tokens*. The model may still give a text the id
of a special token, because its content is an entry of every Unigram, WordPiece and WordLevel vocabulary, and of a BPE
vocabulary with `ignore_merges`. Such an entry is renamed to a name that no text contains (`Definition.as_text`).
SentencePiece similarly excludes control symbols from its search. No other id changes, and a tokenizer is changed only
if necessary.

Entry points: `load_definition`, `Definition`; `read_settings`, `Settings`.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import TokenizerError, count_of
from dataprep_assets.tokenization.reference import BYTE_LETTERS, find_reference_tables, list_parts

MAX_FILE_BYTES = 256 << 20
"""Maximum size of a file. The largest published files, with 250,000 tokens and their merges, have about 40 MB."""
MAX_ID = (1 << 24) - 1
"""Maximum id. Engines allocate a table with an entry per id, so a larger id takes gigabytes or crashes the process."""
_BYTE_NAMES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BETWEEN_BYTE_NAMES = r"(?<=<)(?=0x[0-9A-F]{2}>)"
_UNKNOWN = {"WordPiece": "[UNK]", "WordLevel": "<unk>"}
"""Default unknown token by kind of model."""
_KEEPING_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel", "Strip", "Sequence"}
)
"""Normalizers that remove no characters except white space."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_FORM_NORMALIZERS = frozenset({"NFC", "NFD", "Prepend", "ByteLevel", "Sequence"})
"""Normalizers that change at most the Unicode form of a character."""
_SECRET = secrets.token_hex(16)
"""Prefix for the names of entries that no text may reach. It is random per process, so that no text can contain it. No
key and no file contains it."""


@dataclass(frozen=True)
class Definition:
    """The parsed definition of a tokenizer.

    Attributes:
        text: The `tokenizer.json` that engines load, without truncation and padding.
        as_text: The variant that reads literal special tokens as text; equal to `text` if no change is needed.
        refusal: The reason why this tokenizer cannot read literal special tokens as text; None if it can.
        special: Content and id of the special tokens, by id.
        added: Contents of the other added tokens. A text that contains one gets its id.
        ids: The id of every token, if the file determines it; None if only the library can compute it.
        tables: The Unicode tables that affect ids.
        unknown_id: The id that the model gives to unknown text; None if it never does.
        may_drop: Whether the tokenizer may drop characters without a trace in the ids.
        normalizer: The normalizer as JSON if it may replace characters with others; otherwise None.
        takes_blanks: Content, special flag, `lstrip` and `rstrip` of each added token that absorbs the white space on
            its left or right.
        is_completed: Whether `tokenizer_config.json` has added tokens, or flags of tokens, that the file lacks.
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

    def can_reach(self, content: str) -> bool:
        """Return whether a text may get this token's id if literal special tokens are text."""
        # Parse the vocabulary again, because calls are rare and keeping it would take 100 MB.
        return content in self.added or _Model(orjson.loads(self.as_text)["model"]).can_reach(content)


class _Model:
    """The parsed model of a `tokenizer.json`."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.kind: str = value.get("type") or ("BPE" if "merges" in value else "Unigram" if "unk_id" in value else "")

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every entry in the model's vocabulary."""
        vocab = self.value["vocab"]
        return {entry[0]: index for index, entry in enumerate(vocab)} if self.kind == "Unigram" else vocab

    @cached_property
    def pairs(self) -> list[list[str]]:
        """The merges of a BPE model."""
        merges = self.value.get("merges") or []
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
        # Skip malformed pairs, because the library reports them when it loads the tokenizer.
        return [pair for pair in pairs if len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], str)]

    @cached_property
    def merged_entries(self) -> set[str]:
        """The entries that merges produce."""
        skipped = len(self.value.get("continuing_subword_prefix") or "")
        return {first + second[skipped:] for first, second in self.pairs}

    def can_reach(self, content: str) -> bool:
        """Return whether the model may give a text the id of this entry of its vocabulary."""
        if content not in self.ids:
            return False
        if self.kind != "BPE" or self.value.get("ignore_merges") or len(content) == 1:
            return True
        return content in self.merged_entries

    @property
    def unknown_id(self) -> int | None:
        """The id of the model's unknown token; None if the model has no such token."""
        if self.kind == "Unigram":
            token_id: int | None = self.value.get("unk_id")
            return token_id
        return self.ids.get(self.value.get("unk_token") or _UNKNOWN.get(self.kind, ""))

    def knows_every_byte(self, splitters: Collection[str]) -> bool:
        """Return whether the model can encode every byte.

        `splitters` are the types of the normalizers and pre-tokenizers before the model.
        """
        if any(self.value.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")):
            return False
        if self.kind == "BPE" and "ByteLevel" in splitters:
            return all(letter in self.ids for letter in BYTE_LETTERS)
        return bool(self.value.get("byte_fallback")) and all(name in self.ids for name in _BYTE_NAMES)

    def rename_entries(self, contents: Collection[str]) -> dict[str, str]:
        """Rename the entries with these contents so that no text contains them; return old → new name.

        Entries that the model cannot produce from text keep their names. Raises TokenizerError if the model needs an
        entry.
        """
        names = {content: _SECRET + content for content in contents if self.can_reach(content)}
        if not names:
            return {}
        if self.kind == "Unigram":
            self.value["vocab"] = [[names.get(entry[0], entry[0]), *entry[1:]] for entry in self.value["vocab"]]
            return names
        if self.kind == "BPE":
            self._remove_merges(names)
        self.value["vocab"] = {names.get(content, content): number for content, number in self.ids.items()}
        unknown = self.value.get("unk_token") or _UNKNOWN.get(self.kind)
        if unknown in names:
            self.value["unk_token"] = names[unknown]
        return names

    def _remove_merges(self, contents: Collection[str]) -> None:
        """Remove the merges that produce these entries. Raises TokenizerError if other tokens need an entry."""
        parts = {part for pair in self.pairs for part in pair}
        needed = {content for content in contents if content in parts or len(content) == 1}
        if needed:
            raise TokenizerError(f"the special token {min(needed)!r} is a character, or part of other tokens")
        skipped = len(self.value.get("continuing_subword_prefix") or "")
        kept_pairs = [[first, second] for first, second in self.pairs if first + second[skipped:] not in contents]
        self.value["merges"] = _shorten_merges(kept_pairs) or kept_pairs


@lru_cache(maxsize=2)
def load_definition(
    path: Path, _digest: str, ends: tuple[str, ...], decoder: str = "{}", extra: tuple[str, ...] = ()
) -> Definition:
    """Return the definition in the `tokenizer.json` at `path`, cached per process while its content is unchanged.

    Args:
        path: The file.
        _digest: Digest of its content, for the cache.
        ends: Contents that `tokenizer_config.json` names as beginning and end of a text. As in transformers, they are
            special even without the flag.
        decoder: The `added_tokens_decoder` of `tokenizer_config.json`, as JSON. Like transformers, its tokens are added
            to the file's tokens, and its flags override the file's. Tokens of an `added_tokens.json` do not override.
        extra: Contents of additional special tokens. As in transformers, tokens that the file lacks are added last.

    Raises TokenizerError if the file is invalid or exceeds the limits, or if transformers would give a token a
    different id.
    """
    value = _read_file(path)
    value["truncation"] = value["padding"] = None
    model = _Model(value["model"])
    added_tokens = value.get("added_tokens") or []
    added = value["added_tokens"] = _complete_added_tokens(added_tokens, model, orjson.loads(decoder), extra, path)
    contents = {token["content"] for token in added if token.get("special")}
    own_ids = {token["content"]: token["id"] for token in added} | {
        content: model.ids[content] for content in (*contents, *ends) if content in model.ids
    }
    contents |= own_ids.keys() & set(ends)
    ids = _map_ids(model, added)
    if (merges := _shorten_merges(model.value.get("merges"))) is not None:
        model.value["merges"] = merges
    parts = [*list_parts(value.get("normalizer")), *list_parts(value.get("pre_tokenizer"))]
    knows = model.knows_every_byte({str(part.get("type")) for part in parts})
    text, unknown_id = orjson.dumps(value).decode(), None if knows else model.unknown_id
    as_text, refusal = text, None
    try:
        as_text = _turn_literals_into_text(value, model, contents) or text
    except TokenizerError as error:
        refusal = str(error)
    return Definition(
        text=text,
        as_text=as_text,
        refusal=refusal,
        special=tuple(sorted(((content, own_ids[content]) for content in contents), key=lambda item: item[1])),
        added=frozenset(token["content"] for token in added if token["content"] not in contents),
        ids=ids,
        tables=find_reference_tables(value.get("normalizer"), value.get("pre_tokenizer")),
        unknown_id=unknown_id,
        may_drop=not knows or any(map(_may_remove, parts)),
        normalizer=_find_rewriting_normalizer(value.get("normalizer")),
        takes_blanks=tuple(
            (token["content"], token["content"] in contents, strips_left, strips_right)
            for token in added
            if (strips_left := bool(token.get("lstrip"))) | (strips_right := bool(token.get("rstrip")))
        ),
        is_completed=added != added_tokens,
    )


def _complete_added_tokens(
    added: list[dict[str, Any]], model: _Model, decoder: Any, extra: tuple[str, ...], path: Path
) -> list[dict[str, Any]]:
    """Return the added tokens of a file, extended by the `added_tokens_decoder` and by special tokens."""
    if not isinstance(decoder, dict) or not all(
        number.isdecimal() and len(number) < 10 and isinstance(token, dict) and isinstance(token.get("content"), str)
        for number, token in decoder.items()
    ):
        raise TokenizerError(
            f"{path.with_name('tokenizer_config.json')}: `added_tokens_decoder` must be an object of ids and tokens. "
            "Save the tokenizer again with `save_pretrained(folder)` of transformers"
        )
    token_by_content = {token["content"]: token for token in added}
    next_id = max([len(model.ids), *(token["id"] + 1 for token in added)])
    for number, token in sorted(decoder.items(), key=lambda item: int(item[0])):
        content = token["content"]
        if content in token_by_content and is_from_older_file(token):
            continue
        # Use the id in `tokenizer.json` for a token that this file contains, because every library does.
        token_id: int = (
            token_by_content[content]["id"] if content in token_by_content else model.ids.get(content, next_id)
        )
        if content not in token_by_content and content not in model.ids and token_id != int(number):
            raise TokenizerError(
                f"{path.with_name('tokenizer_config.json')}: `added_tokens_decoder` gives {content!r} the id "
                f"{number}, but {path.name} does not contain it, and the next free id is {token_id}. Save both files "
                "again with `save_pretrained(folder)` of transformers"
            )
        next_id = max(next_id, token_id + 1)
        flags = {name: bool(token.get(name)) for name in _FLAGS}
        flags["normalized"] = bool(token.get("normalized", not flags["special"]))
        token_by_content[content] = {"id": token_id, "content": content, **flags}
    for content in extra:
        if content not in token_by_content:
            token_id = model.ids.get(content, next_id)
            next_id = max(next_id, token_id + 1)
            flags = dict.fromkeys(_FLAGS, False) | {"special": True}
            token_by_content[content] = {"id": token_id, "content": content, **flags}
    return list(token_by_content.values()) if decoder or extra else added


def _read_file(path: Path) -> dict[str, Any]:
    """Return the parsed file after checking the types of all parts that are used later."""
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise TokenizerError(
            f"{path}: has {count_of(size, 'byte')}, but a tokenizer.json can have at most {MAX_FILE_BYTES:,}. "
            "Use a different tokenizer"
        )
    try:
        value = orjson.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(
            f"{path}: invalid JSON: {error}. Save the tokenizer again with `save_pretrained(folder)` of transformers"
        ) from error
    if not isinstance(value, dict) or "model" not in value:
        raise TokenizerError(
            f"{path}: not a tokenizer.json: `model` is missing. Save the tokenizer again with "
            "`save_pretrained(folder)` of transformers"
        )
    if (wrong_value := _find_defect(value)) is not None:
        raise TokenizerError(
            f"{path}: {wrong_value}. Save the tokenizer again with `Tokenizer.save` of the library `tokenizers`"
        )
    if dropout := value["model"].get("dropout"):
        raise TokenizerError(
            f"{path}: model.dropout is {dropout}, so the same text gets different ids each time. Set "
            "model.dropout to null"
        )
    return value


def _find_defect(value: Mapping[str, Any]) -> str | None:
    """Return a description of a part with a wrong type or beyond the limits; None if all parts are valid."""
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


def _turn_literals_into_text(value: dict[str, Any], model: _Model, contents: Collection[str]) -> str | None:
    """Return the file after making these special tokens unreachable from text; None if they already are.

    Changes `value`, which contains `model`.
    """
    added = value.get("added_tokens") or []
    flagged = [token["content"] for token in added if token["content"] in contents and not token.get("special")]
    # Keep the names of byte tokens, because the model uses these names to look up the bytes of unknown characters.
    fallback = set(_BYTE_NAMES) if model.value.get("byte_fallback") else set()
    names = model.rename_entries({*contents} - fallback)
    hides_bytes = bool(fallback) and model.kind == "Unigram"
    if not (flagged or names or hides_bytes):
        return None
    for token in added:
        token["special"] = bool(token.get("special")) or token["content"] in contents
    # The library gives the next free id to an added token that is not in the vocabulary. Put renamed tokens last, so
    # that they do not shift the ids of other tokens.
    value["added_tokens"] = sorted(added, key=lambda token: token["content"] in names)
    if hides_bytes:
        # Split text that spells the name of a byte token, because the text would otherwise get the token's id.
        splitter = {"type": "Split", "pattern": {"Regex": _BETWEEN_BYTE_NAMES}, "behavior": "Isolated", "invert": False}
        old_pre_tokenizer = value.get("pre_tokenizer")
        value["pre_tokenizer"] = (
            {"type": "Sequence", "pretokenizers": [old_pre_tokenizer, splitter]} if old_pre_tokenizer else splitter
        )
    return orjson.dumps(value).decode()


def _find_rewriting_normalizer(normalizer: Any) -> str | None:
    """Return a normalizer as JSON if it may change more of a text than its Unicode form; otherwise None."""
    parts = list_parts(normalizer)
    return orjson.dumps(normalizer).decode() if any(map(_may_change, parts)) else None


def _may_change(part: Mapping[str, Any]) -> bool:
    if part.get("type") == "Replace":
        # Replacing a space with a visible character is not a change, because the decoder reverts it.
        pattern, sign = (part.get("pattern") or {}).get("String"), str(part.get("content") or "")
        return pattern != " " or not sign or sign.isspace()
    return part.get("type") not in _FORM_NORMALIZERS


def _may_remove(part: Mapping[str, Any]) -> bool:
    """Return whether a normalizer or pre-tokenizer may remove characters other than white space."""
    if part.get("type") == "Replace":
        return not part.get("content") or "Regex" in (part.get("pattern") or {})
    if "normalizers" in part or "pretokenizers" in part:
        return False
    is_splitter = "behavior" in part or part.get("type") in _SPLITTERS
    return part.get("behavior") == "Removed" if is_splitter else part.get("type") not in _KEEPING_NORMALIZERS


_SPLITTERS = frozenset({"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Metaspace", "Digits", "UnicodeScripts"})
"""Pre-tokenizers that remove no characters except white space. `CharDelimiterSplit` is not among them."""


def _shorten_merges(merges: Any) -> list[str] | None:
    """Return the merges of a BPE model as texts, `first second`, the format's other form; None if impossible.

    Engines load this form about 0.3 s faster. It cannot represent parts with a space, and a text that begins like the
    header of a merges file would be misread.
    """
    if not isinstance(merges, list) or set(map(type, merges)) != {list}:
        return None
    try:
        texts = list(map(" ".join, merges))
    except TypeError:
        return None
    all_texts = "\n".join(texts)
    # Each merge has exactly one space, which separates its two parts, unless a part contains a space.
    return texts if all_texts.count(" ") == len(texts) and "#version" not in all_texts else None


def _map_ids(model: _Model, added: list[dict[str, Any]]) -> dict[str, int] | None:
    """Return the id of every token without loading a library; None if only the library can compute it.

    The library ignores the ids of added tokens in the file. It gives an added token the id of the model's token with
    the same content, otherwise the next free id. So the file's ids are used only if they equal these ids.
    """
    vocab = model.value.get("vocab")
    if model.value.get("type") not in ("BPE", "WordPiece", "WordLevel") or not isinstance(vocab, dict) or not vocab:
        return None
    ids: dict[str, int] = dict(vocab)
    next_id = len(vocab)
    for token in added:
        content, token_id = token["content"], token["id"]
        # The last condition detects content that is added twice.
        if not content or token_id != vocab.get(content, next_id) or (content in ids and content not in vocab):
            return None
        ids[content] = token_id
        next_id = max(next_id, token_id + 1)
    return ids


# --- settings of a tokenizer's folder: BOS, EOS and added tokens, merged as in transformers
#
# Since 2023, `tokenizer_config.json` has all settings. Older folders have some of them in `special_tokens_map.json` and
# `added_tokens.json`. As in transformers, these two are read only if the first file has no `added_tokens_decoder`.

CONFIG, TOKENS_MAP, ADDED_TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
RECORD = "conversion.json"
"""The record of a conversion, in the folder of a tokenizer converted from a different form (`conversion.py`)."""
OLDER_FILES = (TOKENS_MAP, ADDED_TOKENS)
DECODER = "added_tokens_decoder"
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FROM_FILE = "from_file"
"""Mark of a token from `added_tokens.json`, whose flags the tokenizer.json overrides."""


@dataclass(frozen=True)
class Settings:
    """The merged settings of a tokenizer's folder.

    Attributes:
        values: The settings by their keys in `tokenizer_config.json`.
        older: Settings that the older files change, for the tokenizer's digest.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    older: Mapping[str, Any] = field(default_factory=dict)

    def find_token(self, name: str) -> str | None:
        """Return the content of a token, such as `pad_token`; None if it is not set."""
        return _read_content(self.values.get(name))

    @cached_property
    def variables(self) -> dict[str, str]:
        """The tokens that transformers passes to every chat template, by name."""
        contents = {name: self.find_token(name) for name in _TOKEN_NAMES}
        # Include the model's own tokens, such as `image_token`, as transformers does.
        own_values = {
            name: value for name, value in self.values.items() if name.endswith("_token") and name not in _TOKEN_NAMES
        }
        extra = self.values.get(_EXTRA[0])
        own_values |= extra if isinstance(extra, dict) else {}
        texts = {name: value for name, value in own_values.items() if isinstance(value, str)}
        return {name: content for name, content in contents.items() if content is not None} | texts

    @cached_property
    def extra_tokens(self) -> tuple[str, ...]:
        """Contents of additional special tokens, which transformers adds if the tokenizer.json lacks them."""
        return tuple(dict.fromkeys(content for content in _list_extra_tokens(self.values) if content))


def _list_extra_tokens(values: Mapping[str, Any]) -> Iterator[str]:
    value = next((values[name] for name in _EXTRA if values.get(name)), ())
    for token in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if (content := _read_content(token)) is not None:
            yield content


def _read_content(value: Any) -> str | None:
    # Transformers writes a token as text, or as an object with flags.
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def read_settings(directory: Path) -> Settings:
    """Return the settings of a tokenizer's folder. Raises TokenizerError for a file that is not a JSON object."""
    config = _read_object(directory / CONFIG)
    if DECODER in config:
        return Settings(config)
    changes = {
        name: value
        for name, value in _read_object(directory / TOKENS_MAP).items()
        if (_read_content(value) or value) != (_read_content(config.get(name)) or config.get(name))
    }
    settings = config | changes
    if ids := _read_object(directory / ADDED_TOKENS):
        contents = [content for name in _TOKEN_NAMES if (content := _read_content(settings.get(name)))]
        changes[DECODER] = _read_decoder(directory / ADDED_TOKENS, ids, {*contents, *_list_extra_tokens(settings)})
    return Settings(config | changes, changes)


def _read_decoder(path: Path, ids: Mapping[str, Any], special: set[str]) -> dict[str, Any]:
    """Return the tokens of an `added_tokens.json` in the form of `added_tokens_decoder`."""
    if any(type(number) is not int or number < 0 for number in ids.values()):
        raise TokenizerError(f"{path}: must be an object of tokens and ids (integers of at least 0)")
    return {
        str(number): {
            "content": content,
            "special": content in special,
            "normalized": content not in special,
            _FROM_FILE: True,
        }
        for content, number in ids.items()
    }


def is_from_older_file(token: Mapping[str, Any]) -> bool:
    """Return whether a token of the decoder comes from `added_tokens.json`."""
    return bool(token.get(_FROM_FILE))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = load_untrusted_json(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise TokenizerError(
            f"{path}: invalid JSON: {error}. Save the tokenizer again with `save_pretrained(folder)` of transformers"
        ) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: must be a JSON object")
    return value
