"""A keyed permutation of the numbers below a size, evaluated at any point without making a table of it.

The numbers are written as pairs `(left, right)` with `left < a`, `right < b`, where `a * b` is at least the size and
less than `size + a`. Each round of a Feistel network adds a hash of one half to the other, modulo `a` or `b` (Black and
Rogaway, "Ciphers with arbitrary finite domains", 2002); a result beyond the size is permuted again until it is below
("cycle walking"), which for large sizes hardly ever happens. So an order of 10⁹ samples costs neither memory nor a
start, and its inverse, which a ledger needs, costs the same.
"""

import hashlib
from collections.abc import Callable
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError

Int64 = NDArray[np.int64]
_U64 = NDArray[np.uint64]

# Both halves are then at most 2**31, so a hash of 32 bits times a limit stays below 2**64.
LARGEST = 1 << 62
_ROUNDS = 12
"""Sizes from 2 on have to come out uniform, and the smallest need most rounds: see test_permutation.py."""
_C1, _C2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_S32, _S33 = np.uint64(32), np.uint64(33)


class Permutation:
    """A permutation of `[0, size)` that `key` chooses: the same on every machine, for ever.

    Args:
        size: How many numbers are permuted, up to 2**62.
        key: What chooses the permutation; texts and numbers. Another key gives an unrelated permutation.
    """

    def __init__(self, size: int, *key: str | int) -> None:
        if not 0 <= size <= LARGEST:
            raise ConfigError(f"a permutation of {size} numbers: from 0 to 2**62 are possible")
        self.size = size
        root = isqrt(size)
        self._a = np.uint64(max(root + (root * root < size), 1))
        self._b = np.uint64(max(-(-size // int(self._a)), 1))
        # `repr` tells a number from a text, and where one part of the key ends.
        digest = hashlib.shake_256(repr(key).encode()).digest(8 * _ROUNDS)
        self._keys = np.frombuffer(digest, "<u8").astype(np.uint64)

    def __call__(self, numbers: Int64) -> Int64:
        """What stands at these places: int64, of any shape; each must be in `[0, size)`."""
        return self._walked(numbers, self._forward)

    def inverse(self, numbers: Int64) -> Int64:
        """The places at which these numbers stand: `inverse(permutation(x)) == x`."""
        return self._walked(numbers, self._backward)

    def _walked(self, numbers: Int64, once: Callable[[_U64], _U64]) -> Int64:
        found = once(np.asarray(numbers, np.int64).astype(np.uint64))
        size = np.uint64(self.size)
        # It ends: `once` moves the numbers below a * b in cycles, and that of a number below the size leads back to it.
        while (beyond := found >= size).any():
            found[beyond] = once(found[beyond])
        return found.astype(np.int64)

    def _forward(self, numbers: _U64) -> _U64:
        left, right = numbers // self._b, numbers % self._b
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + _below(left, key, self._b)) % self._b
            else:
                left = (left + _below(right, key, self._a)) % self._a
        found: _U64 = left * self._b + right
        return found

    def _backward(self, numbers: _U64) -> _U64:
        left, right = numbers // self._b, numbers % self._b
        for number in reversed(range(_ROUNDS)):
            key = self._keys[number]
            if number % 2:
                # the limit is added first, because unsigned numbers have no negative ones
                right = (right + self._b - _below(left, key, self._b)) % self._b
            else:
                left = (left + self._a - _below(right, key, self._a)) % self._a
        found: _U64 = left * self._b + right
        return found


def _below(half: _U64, key: np.uint64, limit: np.uint64) -> _U64:
    """A hash of `half` under a round's `key`, in `[0, limit)`; the mixing is that of MurmurHash3's finalizer."""
    mixed = half ^ key
    mixed = (mixed ^ (mixed >> _S33)) * _C1
    mixed = (mixed ^ (mixed >> _S33)) * _C2
    found: _U64 = ((mixed ^ (mixed >> _S33)) >> _S32) * limit >> _S32
    return found
