"""Ids of documents: the published hash, keyed for sensitive data, equal for an integer id and its digits."""

import hashlib
import hmac
import pickle

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id, hash_texts
from dataprep_assets_tests.messages import raises

KEY = b"a key of thirty-two characters.."


def test_the_hash_is_xxh3_of_the_utf8_bytes() -> None:
    # The hash of the empty input is a published test vector of xxHash.
    assert hash_texts([""]).tolist() == [0x2D06800538D394C2]
    assert hash_texts(["é"]).dtype == np.uint64
    assert len({hash_id(text) for text in ("", "a", "\u00e9", "e\u0301", "A")}) == 5


def test_a_keyed_hash_is_the_first_bytes_of_hmac_sha256() -> None:
    expected = hmac.new(KEY, "é".encode(), hashlib.sha256).digest()[:8]
    assert hash_id("é", KEY) == int.from_bytes(expected, "little")
    assert hash_texts(["é", "a"], KEY).tolist() == [hash_id("é", KEY), hash_id("a", KEY)]
    assert hash_id("é", KEY) != hash_id("é") != hash_id("é", KEY[:-1] + b"!")


def test_no_texts_give_no_ids() -> None:
    assert hash_texts([]).shape == hash_texts([], KEY).shape == (0,)


def test_an_integer_is_hashed_as_its_digits() -> None:
    assert hash_id(17) == hash_id("17")


def test_the_key_is_hidden_and_is_passed_to_workers() -> None:
    ids = DocumentIds(id_field="url", key=KEY)
    assert "thirty" not in repr(ids)
    assert pickle.loads(pickle.dumps(ids)) == ids
    assert KEY.hex()[:16] != ids.key_digest != DocumentIds(key=KEY[:-1] + b"!").key_digest
    assert DocumentIds().key_parts() == {"id_field": None, "id_key": None}
    assert ids.key_parts() == {"id_field": "url", "id_key": ids.key_digest}


def test_ids_are_hashed_from_the_text_or_the_declared_field() -> None:
    assert DocumentIds().hash_texts(["a"], ["x"]).tolist() == [hash_id("a")]
    assert DocumentIds(id_field="id").hash_texts(["a"], ["x"]).tolist() == [hash_id("x")]
    assert DocumentIds(id_field="id", key=KEY).hash_texts(["a"], ["x"]).tolist() == [hash_id("x", KEY)]


@pytest.mark.parametrize("given", ["caf\udce9", "\ud800"])
def test_an_id_that_is_not_unicode_is_refused(given: str) -> None:
    with raises(ConfigError, "Unicode"):
        hash_id(given)
