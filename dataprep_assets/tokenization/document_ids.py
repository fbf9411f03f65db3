"""Hashes of documents, by which an index finds them: 64 bits of the declared id or of the text.

A hash is `XXH3_64bits` of the UTF-8 bytes (any implementation of xxHash gives the same value). For sensitive data, it
is keyed: the first eight bytes of HMAC-SHA256. With unkeyed hashes, anyone with the index could confirm a guess. Equal
texts have equal hashes. The probability of a collision among a million documents is 3e-8.

Entry points: `DocumentIds`, the hashed value and the key; `RowIds`, for whole rows; `hash_texts`, `hash_encoded` and
`hash_id`; `mix_bits`.
"""

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.fields import value_at

ROW = "row"
"""First word of `RowIds.origin`, which no origin of texts has."""


@dataclass(frozen=True, kw_only=True)
class DocumentIds:
    """The hashed value of each document, and the key. Picklable; its `repr` never shows the key.

    Attributes:
        id_field: The record's field with the id, a string or an integer; None to hash the text itself.
        key: The secret of a keyed hash; None for an unkeyed hash.
    """

    id_field: str | None = None
    key: bytes | None = field(default=None, repr=False)

    def hash_texts(self, texts: Sequence[str], declared_ids: Sequence[str] | None) -> NDArray[np.uint64]:
        """Return the hash of each document's declared id if there is a field, otherwise of its text; uint64, 1-D."""
        return self.hash_encoded(map(str.encode, texts), declared_ids)

    def hash_encoded(self, texts: Iterable[bytes], declared_ids: Sequence[str] | None) -> NDArray[np.uint64]:
        """Return the hashes for texts that are encoded in UTF-8."""
        if self.id_field is None:
            return hash_encoded(texts, self.key)
        assert declared_ids is not None, f"documents were read without the field {self.id_field!r}"
        return hash_texts(declared_ids, self.key)

    @property
    def origin(self) -> str:
        """The hashed value: `text`, or `field` and the field's name."""
        return "text" if self.id_field is None else f"field {self.id_field}"

    @property
    def key_digest(self) -> str | None:
        """16 hex digits in artifact keys that identify the secret without revealing it."""
        if self.key is None:
            return None
        return hmac.digest(self.key, b"dataprep_assets/document_key", "sha256").hex()[:16]

    def key_parts(self) -> dict[str, Any]:
        """Return the parts that enter an artifact's key."""
        return {"id_field": self.id_field, "id_key": self.key_digest}


class RowIds(DocumentIds):
    """Ids of rows of conversations, pairs or records: the hash of the declared id, otherwise of the whole row."""

    @property
    def origin(self) -> str:
        return ROW if self.id_field is None else f"{ROW} field {self.id_field}"

    def hash_row(self, row: Mapping[str, Any]) -> int:
        """Return the hash of a row: of its id if it has the field, otherwise of the row as JSON with sorted keys."""
        declared_id = None if self.id_field is None else value_at(row, self.id_field)
        if isinstance(declared_id, str | int) and not isinstance(declared_id, bool) and declared_id != "":
            # A row may contain half a surrogate pair, which is not valid UTF-8.
            content = str(declared_id).encode(errors="surrogatepass")
        else:
            content = _serialize_sorted(row)
        if self.key is None:
            return xxhash.xxh3_64_intdigest(content)
        return int.from_bytes(hmac.digest(self.key, content, "sha256")[:8], "little")


def _serialize_sorted(row: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    # This error means that the row is nested too deeply, or has an integer beyond 64 bits, half a surrogate pair, or a
    # type that JSON lacks.
    except TypeError:
        return _serialize_parts(row)


def _serialize_parts(row: Mapping[str, Any]) -> bytes:
    """Return the keys and values of a row, by sorted keys. Not recursive, because a row may have a thousand levels."""
    parts: list[str] = []
    remaining: list[Any] = [row]
    while remaining:
        value = remaining.pop()
        if isinstance(value, Mapping):
            keys = sorted(value, key=str, reverse=True)
            parts.append(f"{{{len(keys)}")
            remaining += [inner for key in keys for inner in (value[key], key)]
        elif isinstance(value, list | tuple):
            parts.append(f"[{len(value)}")
            remaining += reversed(value)
        else:
            parts.append(repr(value))
    return "\0".join(parts).encode()


def hash_texts(texts: Sequence[str], key: bytes | None = None) -> NDArray[np.uint64]:
    """Return the hash of each text (or declared id): shape ``(texts,)``, uint64. With ``key``, the hash is keyed.

    Raises UnicodeEncodeError for a lone surrogate, which no record contains (`sources/readers/records.py`).
    """
    return hash_encoded(map(str.encode, texts), key)


def hash_encoded(texts: Iterable[bytes], key: bytes | None = None) -> NDArray[np.uint64]:
    """Return the hash of each text that is encoded in UTF-8, like `hash_texts`."""
    if key is None:
        # Avoid a Python step per text, because hashing is a third of the cost of the document index.
        return np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64)
    keyed = b"".join(hmac.digest(key, text, "sha256")[:8] for text in texts)
    return np.frombuffer(keyed, "<u8").astype(np.uint64, copy=False)


def hash_id(value: str | int, key: bytes | None = None) -> int:
    """Return the hash of one declared id or one text; an integer is hashed as its decimal digits.

    Raises ConfigError if the value is not valid Unicode, such as input from a terminal with a different encoding.
    """
    try:
        return int(hash_texts([str(value)], key)[0])
    except UnicodeEncodeError:
        raise ConfigError(
            "an id is not valid Unicode (bytes that are not UTF-8, or half of a surrogate pair). Correct the id"
        ) from None


def mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each value, uint64: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), a bijection."""
    # The overflow of the products is intended, because they are defined modulo 2**64.
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
