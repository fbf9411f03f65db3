"""The hash of a document: a 64-bit hash of its declared id or of its text, by which an index finds it.

It is `XXH3_64bits` of the UTF-8 bytes (any implementation of xxHash gives the same value). For sensitive data, the hash
is keyed: the first eight bytes of HMAC-SHA256. With unkeyed hashes, anyone who has an index could confirm a guess.
Equal texts have equal hashes. Among a million documents, two different ones collide with probability 3e-8.

Entry points: `DocumentIds`, the hashed value and the key; `hash_texts`, `hash_id`.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DocumentIds:
    """The hashed value of each document, and the key. Picklable; its `repr` never shows the key.

    Attributes:
        id_field: The record's field with the id, a string or an integer; None to hash the text itself.
        key: The secret of a keyed hash; None for an unkeyed hash.
    """

    id_field: str | None = None
    key: bytes | None = field(default=None, repr=False)

    def hash_texts(self, texts: Sequence[str], declared: Sequence[str] | None) -> NDArray[np.uint64]:
        """Return the hash of each document's declared id if there is a field, otherwise of its text; uint64, 1-D."""
        return self.of_encoded(map(str.encode, texts), declared)

    def of_encoded(self, texts: Iterable[bytes], declared: Sequence[str] | None) -> NDArray[np.uint64]:
        """Return the hashes for texts that are encoded in UTF-8."""
        if self.id_field is None:
            return _hashes(texts, self.key)
        assert declared is not None, f"documents were read without the field {self.id_field!r}"
        return hash_texts(declared, self.key)

    @property
    def key_digest(self) -> str | None:
        """The part of artifact keys that identifies the secret: 16 hex digits that do not reveal it."""
        if self.key is None:
            return None
        return hmac.digest(self.key, b"dataprep_assets/document_key", "sha256").hex()[:16]

    def key_parts(self) -> dict[str, Any]:
        """Return the parts that enter an artifact's key."""
        return {"id_field": self.id_field, "id_key": self.key_digest}


def hash_texts(texts: Sequence[str], key: bytes | None = None) -> NDArray[np.uint64]:
    """Return the hash of each text (or declared id): shape ``(texts,)``, uint64. With ``key``, the hash is keyed.

    Raises UnicodeEncodeError for a lone surrogate, which no record contains (`sources/readers/records.py`).
    """
    return _hashes(map(str.encode, texts), key)


def _hashes(texts: Iterable[bytes], key: bytes | None) -> NDArray[np.uint64]:
    if key is None:
        # this avoids a Python step per text, because hashing is a third of the cost of the document index
        return np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64)
    keyed = b"".join(hmac.digest(key, text, "sha256")[:8] for text in texts)
    return np.frombuffer(keyed, "<u8").astype(np.uint64, copy=False)


def hash_id(value: str | int, key: bytes | None = None) -> int:
    """Return the hash of one declared id or one text; an integer is hashed as its decimal digits.

    Raises ConfigError if the value is not valid Unicode, as input from a terminal with another encoding.
    """
    try:
        return int(hash_texts([str(value)], key)[0])
    except UnicodeEncodeError:
        raise ConfigError(
            "an id is not Unicode: it contains bytes that are not UTF-8, or half a surrogate pair"
        ) from None
