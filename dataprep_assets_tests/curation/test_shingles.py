"""The hashes of shingles equal the hashes of a plain implementation, which hashes each word of each text separately."""

import random

import numpy as np
import pytest

from dataprep_assets.curation.duplicates.kinds import Normalization
from dataprep_assets.curation.duplicates.shingles import ShingleHashes
from dataprep_assets.curation.duplicates.words import split_compared_words
from dataprep_assets.tokenization.document_ids import hash_id, mix_bits

ODD, BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1
TEXTS = [
    "",
    " \n\t ",
    "One, two: three.",
    "one",
    "\u00ad",
    "\u200b \u200d",
    "co\u00adoperate and re\u200dsign",
    "x\u00b2 + y\u2083 is not x2 + y3",
    "\u201cquoted\u201d \u2013 \u2019tis \u2212 5",
    "\u4e2d\u6587abc \u0e01\u0e34\u0e19 \ud55c\uad6d\uc5b4 \u3042",
    "\ufb01ne \u0130stanbul stra\u00dfe \u0149",
    "\U0001f600\ufe0f ok\U0001f468\u200d\U0001f469",
    "\x00a\x1cb\x85c\u2028d",
    "a" * 300,
    "same same same same same same same",
]
CHARACTERS = "".join(TEXTS) + "ab .,-_'  \n"


def hash_plainly(text: str, normalization: Normalization, size: int, key: bytes | None) -> list[int]:
    """Return the sorted, distinct hashes of a text's shingles."""
    words = [hash_id(word, key) for word in split_compared_words(text, normalization)]
    hashes = set()
    for start in range(max(1, len(words) - size + 1) if words else 0):
        value = 0
        for word in words[start : start + size]:
            value = (value * ODD + word) & BITS
        hashes.add(value)
    return sorted(mix_bits(np.array(list(hashes), np.uint64)).tolist())


@pytest.mark.parametrize("normalization", ["words", "space", "none"])
@pytest.mark.parametrize("key", [None, b"a secret"])
def test_shingles_equal_a_plain_implementation(normalization: Normalization, key: bytes | None) -> None:
    draw = random.Random(7)
    drawn = ["".join(draw.choices(CHARACTERS, k=draw.choice([1, 2, 5, 12, 60]))) for _ in range(300)]
    for size in (1, 2, 5):
        for texts in (TEXTS, drawn, [*TEXTS, *drawn][::-1], [""], []):
            hashes, ends = ShingleHashes(size, normalization, key).hash_texts(texts)
            starts = [0, *ends.tolist()]
            found = [hashes[start:end].tolist() for start, end in zip(starts, ends.tolist(), strict=False)]
            assert found == [hash_plainly(text, normalization, size, key) for text in texts]


def test_the_shingles_of_a_text_do_not_depend_on_its_batch() -> None:
    signer = ShingleHashes(3, "words")
    together, ends = signer.hash_texts(TEXTS)
    separate_hashes = [signer.hash_texts([text])[0] for text in TEXTS]
    assert np.array_equal(together, np.concatenate(separate_hashes))
    assert ends.tolist() == np.cumsum([len(hashes) for hashes in separate_hashes]).tolist()
