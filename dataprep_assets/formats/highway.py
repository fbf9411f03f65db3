"""HighwayHash-64 of many short messages at once, in NumPy: what Riegeli, and so ArrayRecord, has in its headers.

Written after the portable version of its authors (google/highwayhash, ``c/highwayhash.c``), for the lengths that are
needed: whole packets of 32 bytes and one of 16.

Entry point: `hash64`.
"""

import numpy as np
from numpy.typing import NDArray

_PACKET = 32
_MUL0 = np.array([0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3], "<u8")
_MUL1 = np.array([0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377], "<u8")
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ZIPPER = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])
"""Which byte of two lanes goes where, so that each product reaches every byte in the end."""
_LAST_ROUNDS = 4

Lanes = NDArray[np.uint64]


class _State:
    """Four arrays of four lanes for each message."""

    def __init__(self, key: bytes, messages: int) -> None:
        lanes = np.frombuffer(key, "<u8")
        self.mul0, self.mul1 = (np.tile(mul, (messages, 1)) for mul in (_MUL0, _MUL1))
        self.v0, self.v1 = self.mul0 ^ lanes, self.mul1 ^ _halves_swapped(lanes)

    def update(self, packet: Lanes) -> None:
        # sums and products wrap at 64 bits, as the algorithm wants, and arrays of NumPy do so without a word
        self.v1 += self.mul0 + packet
        self.mul0 ^= (self.v1 & _LOW) * (self.v0 >> _HALF)
        self.v0 += self.mul1
        self.mul1 ^= (self.v0 & _LOW) * (self.v1 >> _HALF)
        self.v0 += _zipped(self.v1)
        self.v1 += _zipped(self.v0)


def hash64(messages: NDArray[np.uint8], key: bytes) -> Lanes:
    """The hash of each message.

    Args:
        messages: uint8, one message a row, of 32, 64, 96, … bytes, or of 16; none may have 0 bytes, too.
        key: 32 bytes.

    Returns:
        uint64, as many as messages.
    """
    count, length = messages.shape
    state = _State(key, count)
    if length == _PACKET // 2:
        packet = np.zeros((count, _PACKET), np.uint8)
        packet[:, :length] = messages
        packet[:, -4:] = messages[:, -4:]  # a part's last four bytes stand at the packet's end again
        state.v0 += np.uint64(length << 32 | length)
        state.v1 = _halves_swapped_in_halves(state.v1)  # rotated by as many bits as the part has bytes
        state.update(packet.view("<u8"))
    elif length % _PACKET:
        raise ValueError(f"messages of {length} bytes")
    for at in range(0, length - length % _PACKET, _PACKET):
        state.update(np.ascontiguousarray(messages[:, at : at + _PACKET]).view("<u8"))
    for _ in range(_LAST_ROUNDS):
        state.update(_halves_swapped(state.v0[:, [2, 3, 0, 1]]))
    last: Lanes = state.v0[:, 0] + state.v1[:, 0] + state.mul0[:, 0] + state.mul1[:, 0]
    return last


def _zipped(lanes: Lanes) -> Lanes:
    pairs = np.ascontiguousarray(lanes).view(np.uint8).reshape(-1, 2, 16)
    return np.ascontiguousarray(pairs[:, :, _ZIPPER]).reshape(-1, _PACKET).view("<u8")


def _halves_swapped(lanes: Lanes) -> Lanes:
    swapped: Lanes = lanes >> _HALF | lanes << _HALF
    return swapped


def _halves_swapped_in_halves(lanes: Lanes) -> Lanes:
    """Each half of 32 bits, rotated by 16."""
    parts = np.ascontiguousarray(lanes).view("<u4")
    return (parts << np.uint32(16) | parts >> np.uint32(16)).view("<u8")
