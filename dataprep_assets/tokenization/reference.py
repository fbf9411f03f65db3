"""The reference engine: Hugging Face `tokenizers`, whose ids are correct by definition, and its Unicode tables.

Since version 1.0, the library has a different interface without `from_str`, `get_vocab` and `encode_batch_fast`. Only
this module distinguishes the versions.

Entry points: `load_reference`, `normalize_texts`, `find_reference_tables`, `describe_affected_texts`.
"""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.receipt import find_installed_version
from dataprep_assets.project import find_user_cache, read_state
from dataprep_assets.stores.files import digest_value

# The functions below cache results about tokenizers. All datasets of a user share the cache.

T = TypeVar("T")


def _locate_cache_file(kind: str, key: str) -> Path | None:
    try:
        return find_user_cache() / kind / f"{key}.json"
    except ConfigError:  # without a home folder, as in some containers, nothing is cached
        return None


def read_cached(kind: str, key: str, schema: type[T]) -> T | None:
    """Return the cached value under a key; None if it does not exist or does not have the type `schema`."""
    path = _locate_cache_file(kind, key)
    return None if path is None else read_state(path, schema)


def write_cached(kind: str, key: str, value: Any) -> None:
    """Cache a JSON value under a key, if the home folder is writable."""
    if (path := _locate_cache_file(kind, key)) is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(value).encode())


# Some characters of each Unicode version since 10.0 identify the version of a library's Unicode tables.
#
# The reference normalizes and splits text by Unicode tables that are compiled into it. A different version of it, or a
# different engine, may have tables of a different Unicode version. Then characters that only one of the two tables has
# get different ids. The differences concern letters, marks and digits: a mark that a table lacks is not reordered, and
# a letter that a table lacks is split from its word. Other characters are read the same way whether or not a table has
# them, except by patterns with `\p{S}` or `\p{P}`.
#
# The characters are from the Unicode Character Database. They are stable, because no version changes earlier
# assignments.


@dataclass(frozen=True)
class UnicodeVersion:
    """Some characters that a version added: code points in hexadecimal, separated by spaces.

    Attributes:
        name: The version, such as `15.1`.
        letters: Letters and numbers. Only a few for versions before 14.0, because every table knows their letters.
        others: Symbols, punctuation, format characters.
        moved: Marks with a combining class, which normalization reorders.
        composed: Letters with a canonical decomposition, as `composed=first+second`.
    """

    name: str
    letters: str = ""
    others: str = ""
    moved: str = ""
    composed: str = ""

    @cached_property
    def sample(self) -> tuple[str, ...]:
        """The characters of the version, except those with a decomposition."""
        return tuple(
            _parse_character(point) for points in (self.letters, self.others, self.moved) for point in points.split()
        )

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """The characters of the version with a combining class."""
        return tuple(_parse_character(point) for point in self.moved.split())

    @cached_property
    def compositions(self) -> tuple[tuple[str, str], ...]:
        """Pairs `(composed, decomposed)` for the characters of the version with a canonical decomposition."""
        pairs = (entry.split("=") for entry in self.composed.split())
        return tuple(
            (_parse_character(point), "".join(map(_parse_character, parts.split("+")))) for point, parts in pairs
        )


def _parse_character(point: str) -> str:
    return chr(int(point, 16))


VERSIONS = (
    UnicodeVersion("10.0", moved="D3B 1DF8 11A47 11D45"),
    UnicodeVersion("11.0", moved="7FD 10F46 10F4E 11D97"),
    UnicodeVersion("12.0", "1F16C", moved="EBA 1E132 1E136 1E2EF"),
    UnicodeVersion("12.1", "32FF"),
    UnicodeVersion("13.0", "AB69 11930 1FBF0 1FBF9", moved="1ABF 10EAB 1193E 16FF1", composed="11938=11935+11930"),
    UnicodeVersion("14.0", "870 1058C 16ABE 2B738", "61D 1CFC3 1FAF6", "898 8CF 1AC8 1E2AE"),
    UnicodeVersion("15.0", "CF3 11F50 1D2D3 323AF", "11B00 1FA87 1FAF8", "10EFD 11F41 1E4EC 1E4EF"),
    UnicodeVersion("15.1", "2EBF0 2EE5D", "2FFC 2FFF 31EF"),
    UnicodeVersion(
        "16.0",
        "1C89 11389 11BE0 1E5FA",
        "1B4E 1CC00 1FBEF",
        "897 10D6C 113CF 1E5EF",
        "105C9=105D2+0307 16122=1611E+16129 16D6A=16D69+16D67",
    ),
    UnicodeVersion("17.0", "88F 11B67 18D1E 33479", "20C1 1CEE0 1FBFA", "1ACF 1ADA 1AE7 1E6F5"),
    UnicodeVersion("18.0", "558 10EEE 191D2 3FC3F", "20C2 1D25E 1FAFA", "5C8 10ECD 10EF8 1D281"),
)
"""The versions after `OLDEST`, which every table knows, in ascending order."""
OLDEST = "9.0"


NAME = "tokenizers"
NORMALIZATION, LETTERS = "normalization", "letters"
SETTING = "reference"
"""The setting of recipes that contains the tables."""
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTE_LETTERS = (*map(chr, _PRINTABLE), *map(chr, range(0x100, 0x200 - len(_PRINTABLE))))
"""GPT-2's letters for bytes. Printable bytes map to themselves, other bytes to U+0100 and above."""

_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "BertNormalizer", "Nmt"})
_SPLITTERS = frozenset({"Whitespace", "BertPreTokenizer", "Punctuation", "Digits", "UnicodeScripts"})


def read_library_version() -> str:
    """Return the installed version of the library; an empty text if it is not installed."""
    return find_installed_version(NAME) or ""


class Reference(Protocol):
    """A loaded tokenizer of the library."""

    def encode(self, texts: Sequence[str], *, special_as_text: bool = True) -> list[Any]:
        """Return the ids of each text, as a list or an array, without BOS or EOS.

        With `special_as_text`, a literal special token is encoded as ordinary text; otherwise it gets its id.
        """
        ...

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text as `encode` does, and the start and end of each id in the text, in characters.

        Literal special tokens are encoded as ordinary text.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        ...

    def vocabulary(self) -> dict[str, int] | None:
        """Return the id of every token, added tokens included; None if the library does not provide them."""
        ...


def load_reference(tokenizer_json: str) -> Reference:
    """Load a `tokenizer.json`. Raises the library's errors."""
    kind = _TokenizerBefore1 if read_library_version().startswith("0.") else _TokenizerFrom1
    return kind(tokenizer_json)


class _TokenizerBefore1:
    """A tokenizer loaded with a version of the library before 1.0."""

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_str(tokenizer_json)

    def encode(self, texts: Sequence[str], *, special_as_text: bool = True) -> list[Any]:
        self._set_reading(special_as_text)
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        self._set_reading(special_as_text=True)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def _set_reading(self, special_as_text: bool) -> None:
        # Set the reading only if it changes, because the library refuses to change a tokenizer that another thread
        # uses.
        if self._tokenizer.encode_special_tokens != special_as_text:
            self._tokenizer.encode_special_tokens = special_as_text

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def vocabulary(self) -> dict[str, int] | None:
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary


class _TokenizerFrom1:
    """A tokenizer loaded with version 1.0 of the library or later."""

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer

        # Use a temporary file, because version 1.0 of the library loads tokenizers only from files.
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            file.write(tokenizer_json)
            file.flush()
            self._tokenizer: Any = Tokenizer.from_file(file.name)

    def encode(self, texts: Sequence[str], *, special_as_text: bool = True) -> list[Any]:
        encoded = self._tokenizer.encode_batch(
            list(texts), add_special_tokens=False, encode_special_tokens=special_as_text
        )
        return [encoding.ids_array for encoding in encoded]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False, encode_special_tokens=True)
        return encoding.ids_array.tolist(), list(encoding.offsets)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def vocabulary(self) -> dict[str, int] | None:
        return None


def flatten_ids(rows: Sequence[Any]) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Return lists or arrays of ids as flat uint32 ids and n + 1 uint64 offsets, starting with 0."""
    offsets = np.zeros(len(rows) + 1, np.uint64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    # From version 1.0 on, the library returns arrays instead of lists. Concatenate them, because this is faster than
    # iterating over their ids.
    if rows and isinstance(rows[0], np.ndarray):
        return np.concatenate(rows).astype(np.uint32, copy=False), offsets
    return np.fromiter(chain.from_iterable(rows), np.uint32, int(offsets[-1])), offsets


def normalize_texts(normalizer: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
    """Normalize texts with the normalizer of a `tokenizer.json`, without mapping bytes to letters."""
    parts = [part for part in list_parts(normalizer) if part["type"] not in ("Sequence", "ByteLevel")]
    loaded = load_reference(_build_probe(normalizer={"type": "Sequence", "normalizers": parts}))
    return [loaded.decode(list(ids)) for ids in loaded.encode(texts)]


def find_reference_tables(normalizer: Any, pre_tokenizer: Any) -> dict[str, str]:
    """Return name → Unicode version of the installed library's tables that affect the ids of a tokenizer.

    `normalizer` and `pre_tokenizer` are parts of its `tokenizer.json`. `normalization` is included if it normalizes by
    Unicode, `letters` if it splits texts by kinds of characters.
    """
    used_tables = {
        NORMALIZATION: any(part.get("type") in _NORMALIZERS for part in list_parts(normalizer)),
        LETTERS: any(_splits_by_kind(part) for part in list_parts(pre_tokenizer)),
    }
    return (
        {name: table for name, table in detect_tables().items() if used_tables[name]}
        if any(used_tables.values())
        else {}
    )


def list_parts(value: Any) -> list[dict[str, Any]]:
    """Return a normalizer or pre-tokenizer, and its members if it is a sequence."""
    if not isinstance(value, dict):
        return []
    members = value.get("normalizers") or value.get("pretokenizers") or []
    return [value, *(part for member in members for part in list_parts(member))]


def _splits_by_kind(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    if kind == "ByteLevel":
        # The default is GPT-2's pattern, which distinguishes letters and numbers.
        return part.get("use_regex", True) is not False
    return kind in _SPLITTERS or (kind == "Split" and "Regex" in (part.get("pattern") or {}))


@lru_cache(maxsize=1)
def detect_tables() -> dict[str, str]:
    """Return the newest Unicode version covered by the library's tables, for `normalization` and `letters`.

    The versions are determined by encoding sample characters, once for each version of the library.
    """
    # Import the library only if the result is not cached, because commands that only compare artifacts do not need it.
    characters = [[version.name, *version.sample] for version in VERSIONS]
    key = digest_value([read_library_version(), characters])
    cached_tables = read_cached("tables", key, dict[str, str])
    if cached_tables is not None and cached_tables.keys() == {NORMALIZATION, LETTERS}:
        return cached_tables
    normalizer = load_reference(_build_probe(normalizer={"type": "NFC"}))
    splitter = load_reference(_build_probe(splits=True))
    # Encode the characters of all versions together, because each call takes a fraction of a millisecond.
    marks = [mark for unicode_version in VERSIONS for mark in unicode_version.marks]
    letters = [letter for unicode_version in VERSIONS for letter in unicode_version.sample]
    # A known mark is reordered after a mark of a lower combining class.
    wrong_order_ids = normalizer.encode([f"a{mark}\u0334" for mark in marks])
    right_order_ids = normalizer.encode([f"a\u0334{mark}" for mark in marks])
    id_pairs = zip(map(list, wrong_order_ids), map(list, right_order_ids), strict=True)
    known_marks = {mark for mark, (ids, other_ids) in zip(marks, id_pairs, strict=True) if ids == other_ids}
    # A known letter is in the same word as the `a` before it, so its first byte is merged with the `a`.
    words = splitter.encode([f"a{letter}" for letter in letters])
    known_letters = {letter for letter, word in zip(letters, words, strict=True) if len(word) == len(letter.encode())}
    tables = {NORMALIZATION: OLDEST, LETTERS: OLDEST}
    for unicode_version in VERSIONS:
        if unicode_version.marks and known_marks.issuperset(unicode_version.marks):
            tables[NORMALIZATION] = unicode_version.name
        if not known_letters.isdisjoint(unicode_version.sample):
            tables[LETTERS] = unicode_version.name
    named_tables = {name: f"Unicode {newest}" for name, newest in tables.items()}
    write_cached("tables", key, named_tables)
    return named_tables


def _build_probe(*, normalizer: dict[str, Any] | None = None, splits: bool = False) -> str:
    """Return a byte tokenizer that merges an `a` with the first byte of the next character in the same word."""
    # Use the first bytes of characters from U+00C0 on, because each of these bytes is represented by the letter with
    # the same code.
    merges = [["a", chr(lead)] for lead in range(0xC3, 0xF5)]
    vocabulary = [*BYTE_LETTERS, *(a + b for a, b in merges)]
    # With `splits`, split by GPT-2's pattern, because every version of the library has this pattern.
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": splits}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(vocabulary)},
        "merges": merges,
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": normalizer,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": {**byte_level, "use_regex": False},
            "model": model,
        }
    )


_TEXTS = {
    f"{SETTING}.{NORMALIZATION}": "combining marks and composed letters",
    f"{SETTING}.{LETTERS}": "letters, marks and digits",
}


def describe_affected_texts(setting: str, old_value: Any, now: Any) -> str:
    """Return a sentence about texts that get different ids after a change to the tables; empty for other settings.

    Args:
        setting: Name of the setting in a recipe, such as `reference.letters`.
        old_value: The earlier Unicode version, such as `Unicode 9.0`.
        now: The current version.
    """
    if setting not in _TEXTS:
        return ""
    versions = (str(version).removeprefix("Unicode ") for version in (old_value, now))
    # Compare as numbers, because 16.0 would come before 9.0 as text.
    older, newer = sorted(versions, key=lambda version: [int(number) for number in re.findall(r"\d+", version)])
    return (
        f"different ids for texts with {_TEXTS[setting]} added between Unicode {older} and {newer}; all other ids "
        "are unchanged"
    )
