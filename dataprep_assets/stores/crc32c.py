"""CRC32C of bytes and files, and of a concatenation computed from the CRC32Cs of its parts.

A CRC is a polynomial remainder, so appending n bytes multiplies what came before by x^(8n) modulo the polynomial of
CRC32C (Castagnoli, reflected 0x82F63B78; RFC 3720, B.4). The method is that of zlib's `crc32_combine`, with this
polynomial. google-crc32c computes CRCs of bytes and cannot combine them.
"""

from collections.abc import Iterable
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
# The polynomials 1 and x: in the reflected form the coefficient of x^0 is the highest of 32 bits.
_ONE = 1 << 31
_X = 1 << 30
_BLOCK = 4 * 1024 * 1024


def crc32c_of(data: bytes) -> int:
    """The CRC32C (unsigned) of some bytes."""
    import google_crc32c

    return int(google_crc32c.value(data))


def crc32c_of_file(path: Path) -> int:
    """The CRC32C (unsigned) of a file, read in blocks."""
    import google_crc32c

    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = google_crc32c.extend(crc, block)
    return crc


def combine(first: int, second: int, second_bytes: int) -> int:
    """The CRC32C (unsigned) of two concatenated byte strings, from their CRC32Cs and the length of the second."""
    # A CRC begins with all bits set and inverts its result; in this sum of two CRCs both cancel out.
    return _multiply(_power_of_x(8 * second_bytes), first) ^ second


def combine_all(parts: Iterable[tuple[int, int]]) -> int:
    """The CRC32C of any number of concatenated byte strings, each given as (CRC32C, length in bytes)."""
    total = 0
    for crc, length in parts:
        total = combine(total, crc, length)
    return total


def _power_of_x(exponent: int) -> int:
    # By squaring: the number of steps is that of the exponent's bits, so a part of a terabyte costs little more than
    # one of a kilobyte.
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _multiply(square, result)
        square = _multiply(square, square)
        exponent >>= 1
    return result


def _multiply(left: int, right: int) -> int:
    """The product of two polynomials modulo CRC32C's; the coefficient of x^0 is the highest bit."""
    product, bit = 0, _ONE
    while bit and left:
        if left & bit:
            product ^= right
            left ^= bit
        right = (right >> 1) ^ _POLYNOMIAL if right & 1 else right >> 1
        bit >>= 1
    return product
