"""CRC32Cs of concatenations, compared with those of their bytes."""

import random

import google_crc32c

from dataprep_assets.stores.crc32c import combine_all_crc32c, combine_crc32c


def test_a_combined_crc32c_equals_that_of_the_concatenation() -> None:
    chance = random.Random(4)
    for _ in range(200):
        parts = [chance.randbytes(chance.choice([0, 1, 2, 33, 4096, 70_001])) for _ in range(chance.randrange(6))]
        crcs = [(google_crc32c.value(part), len(part)) for part in parts]
        assert combine_all_crc32c(crcs) == google_crc32c.value(b"".join(parts))


def test_lengths_beyond_32_bits_combine_like_their_halves() -> None:
    half, crc = 3 << 31, 0x12345678
    assert combine_crc32c(crc, 0, 2 * half) == combine_crc32c(combine_crc32c(crc, 0, half), 0, half)
    assert combine_crc32c(0, crc, 1 << 45) == crc
