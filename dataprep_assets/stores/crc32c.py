"""CRC32C of bytes, of files, and of a concatenation from the CRC32Cs of its parts.

A CRC is a polynomial remainder, so appending n bytes multiplies the previous remainder by x^(8n) modulo the CRC32C
polynomial (Castagnoli, reflected 0x82F63B78; RFC 3720, B.4). zlib's `crc32_combine` uses the same method with a
different polynomial. google-crc32c computes the CRC of bytes, but cannot combine two CRCs.
"""

from collections.abc import Iterable
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
# The polynomials 1 and x. In the reflected form, the highest of the 32 bits is the coefficient of x^0.
_ONE = 1 << 31
_X = 1 << 30
_BLOCK = 4 * 1024 * 1024


def compute_crc32c(data: bytes) -> int:
    """Return the CRC32C (unsigned) of some bytes."""
    import google_crc32c

    return int(google_crc32c.value(data))


def compute_file_crc32c(path: Path) -> int:
    """Return the CRC32C (unsigned) of a file, read in blocks."""
    import google_crc32c

    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = google_crc32c.extend(crc, block)
    return crc


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC32C (unsigned) of two concatenated byte strings from their CRC32Cs and the second one's length."""
    # No correction is needed, although a CRC starts with all bits set and inverts its result, because both effects
    # cancel out when two CRCs are combined.
    return _multiply(_compute_power_of_x(8 * second_bytes), first) ^ second


def combine_all_crc32c(parts: Iterable[tuple[int, int]]) -> int:
    """Return the CRC32C of concatenated byte strings, each described by its (CRC32C, length in bytes)."""
    total = 0
    for crc, length in parts:
        total = combine_crc32c(total, crc, length)
    return total


def _compute_power_of_x(exponent: int) -> int:
    # Squaring takes one step per bit of the exponent, so a part of a terabyte costs little more than one of a
    # kilobyte.
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _multiply(square, result)
        square = _multiply(square, square)
        exponent >>= 1
    return result


def _multiply(left_operand: int, right: int) -> int:
    """Multiply two polynomials modulo the CRC32C polynomial; the highest bit is the coefficient of x^0."""
    product, bit = 0, _ONE
    while bit and left_operand:
        if left_operand & bit:
            product ^= right
            left_operand ^= bit
        right = (right >> 1) ^ _POLYNOMIAL if right & 1 else right >> 1
        bit >>= 1
    return product
