"""BLAKE2b of many equally long messages at once: one message in each 64-bit lane of a vector.

hashlib hashes one message at a time, and the rounds of one message depend on each other. The messages of a shard do
not, so eight are hashed together, with the same operations on vectors of eight words (RFC 7693; 8-byte digests, no
key). The kernel is LLVM IR written here and compiled for the processor at hand by llvmlite, an optional dependency: a
user needs no C compiler. One core is four times as fast as with hashlib where vectors have 512 bits, three times
where they have 256 (AVX2), and slower with less, so that nothing is compiled there.

It is believed only after it gave hashlib's digests for messages of several lengths in this process.

Entry point: `lane_hasher`.
"""

import ctypes
import warnings
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIGEST_BYTES", "LANES", "hash_one_by_one", "lane_hasher"]

LANES = 8
DIGEST_BYTES = 8
BLOCK_BYTES = 128
_IV = (
    0x6A09E667F3BCC908,
    0xBB67AE8584CAA73B,
    0x3C6EF372FE94F82B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
    0x9B05688C2B3E6C1F,
    0x1F83D9ABFB41BD6B,
    0x5BE0CD19137E2179,
)
# One key-less, sequential hash: fan-out 1, depth 1, and the digest's length.
_PARAMETERS = 0x0101_0000 ^ DIGEST_BYTES
_ROUNDS = 12
_SIGMA = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
)
# The state words of the eight mixings of a round: four columns, then four diagonals.
_MIXINGS = [tuple(4 * row + (i + row * shift) % 4 for row in range(4)) for shift in (0, 1) for i in range(4)]

Rows = NDArray[np.uint8]
Hasher = Callable[[Rows], NDArray[np.uint64]]
"""From messages, shape `(messages, bytes ≥ 1)`, C order, to digests, shape `(messages,)`; gives up Python's lock."""


def hash_one_by_one(rows: Rows) -> NDArray[np.uint64]:
    """The digest of each row by hashlib, as little-endian uint64."""
    digests = [blake2b(row, digest_size=DIGEST_BYTES).digest() for row in rows]
    return np.frombuffer(b"".join(digests), dtype="<u8")


@lru_cache(maxsize=1)
def lane_hasher() -> Hasher | None:
    """The hasher of this process, compiled at the first call (a fraction of a second).

    None when llvmlite is not installed, or the processor has no AVX2. None with a RuntimeWarning when the kernel does
    not compile, or gives other digests than hashlib.
    """
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError):  # not installed, or its library does not load here
        return None
    try:
        if not llvm.get_host_cpu_features().get("avx2"):
            return None
        hasher = _over_groups(_compiled(llvm, kernel()))
    except (RuntimeError, AttributeError) as error:  # what llvmlite raises; a version without ORC
        warnings.warn(f"llvmlite cannot compile BLAKE2b here; hashlib is used: {error}", RuntimeWarning, stacklevel=2)
        return None
    if not _as_hashlib(hasher):
        warnings.warn("BLAKE2b compiled by llvmlite is not hashlib's; hashlib is used", RuntimeWarning, stacklevel=2)
        return None
    return hasher


def _as_hashlib(hasher: Hasher) -> bool:
    """Whether digests are hashlib's, for parts of a block, whole blocks, and a number of blocks."""
    data = np.random.default_rng(0).integers(0, 256, 2 * LANES * 1100, dtype=np.uint8)
    for width in (1, 4, 127, 128, 129, 256, 1100):
        rows = data[: 2 * LANES * width].reshape(-1, width)
        if not np.array_equal(hasher(rows), hash_one_by_one(rows)):
            return False
    return True


def _over_groups(function: Callable[..., None]) -> Hasher:
    """A hasher of any number of rows from the kernel, which hashes whole groups of `LANES`."""

    def hash_rows(rows: Rows) -> NDArray[np.uint64]:
        messages, width = rows.shape
        digests = np.empty(messages, dtype="<u8")
        groups, blocks = messages // LANES, -(-width // BLOCK_BYTES)
        whole = (blocks - 1) * BLOCK_BYTES
        if groups:
            # The last block of a message is padded with zeros, which the next message is not.
            tails = rows[:, whole:]
            if width % BLOCK_BYTES:
                tails = np.zeros((groups * LANES, BLOCK_BYTES), dtype=np.uint8)
                tails[:, : width - whole] = rows[: groups * LANES, whole:]
            places = (rows.ctypes.data, rows.strides[0], blocks, tails.ctypes.data, tails.strides[0])
            function(*places, width, groups, digests.ctypes.data)
        digests[groups * LANES :] = hash_one_by_one(rows[groups * LANES :])
        return digests

    return hash_rows


def _compiled(llvm: Any, text: str) -> Callable[..., None]:
    """The function of the kernel, compiled for the processor that this runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    jit = llvm.create_lljit_compiler(machine)
    library = llvm.JITLibraryBuilder().add_ir(text).export_symbol("blake2b_lanes").link(jit, "blake2b_lanes")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signature = ctypes.CFUNCTYPE(None, pointer, number, number, pointer, number, number, number, pointer)
    function = signature(library["blake2b_lanes"])
    function.keeps = (jit, library)  # type: ignore[attr-defined]  # the code lives as long as these do
    return function


def kernel() -> str:
    """LLVM IR of `blake2b_lanes(rows, stride, blocks, tails, tail_stride, width, groups, digests)`.

    Hashes `groups` times `LANES` messages of `width` bytes: message `i` begins at `rows + i * stride`, and its last of
    `blocks` blocks is the 128 bytes at `tails + i * tail_stride`.
    """
    begin = [splat(word ^ _PARAMETERS if i == 0 else word) for i, word in enumerate(_IV)]
    body = _Body()
    body.compress(body.words())
    return _FRAME.format(
        vector=_VECTOR,
        lanes=LANES,
        block=BLOCK_BYTES,
        state="\n".join(
            f"  %h{i} = phi {_VECTOR} [{word}, %group], [%next{i}, %block]" for i, word in enumerate(begin)
        ),
        iv4=_IV[4],
        last_iv6=splat(~_IV[6] & (1 << 64) - 1),
        iv6=splat(_IV[6]),
        body="\n".join(body.lines),
    )


_VECTOR = f"<{LANES} x i64>"
# `%h0` to `%h7` are the chained state; `%from` and `%step` say where the lanes' present block is.
_FRAME = """
declare {vector} @llvm.fshr.v{lanes}i64({vector}, {vector}, {vector})
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @blake2b_lanes(ptr %rows, i64 %stride, i64 %blocks, ptr %tails, i64 %tail_stride, i64 %width,
                           i64 %groups, ptr %digests) "min-legal-vector-width"="512" {{
entry:
  br label %group
group:
  %g = phi i64 [0, %entry], [%g_next, %store]
  %first = mul i64 %g, {lanes}
  %row_at = mul i64 %first, %stride
  %row = getelementptr i8, ptr %rows, i64 %row_at
  %tail_at = mul i64 %first, %tail_stride
  %tail = getelementptr i8, ptr %tails, i64 %tail_at
  br label %block
block:
  %k = phi i64 [0, %group], [%k_next, %block]
{state}
  %k_next = add i64 %k, 1
  %last = icmp eq i64 %k_next, %blocks
  %block_at = mul i64 %k, {block}
  %inside = getelementptr i8, ptr %row, i64 %block_at
  %from = select i1 %last, ptr %tail, ptr %inside
  %step = select i1 %last, i64 %tail_stride, i64 %stride
  %ahead = mul i64 %step, {lanes}
  %full = add i64 %block_at, {block}
  %hashed = select i1 %last, i64 %width, i64 %full
  %counted = xor i64 %hashed, {iv4}
  %lane0 = insertelement {vector} poison, i64 %counted, i64 0
  %counter = shufflevector {vector} %lane0, {vector} poison, <{lanes} x i32> zeroinitializer
  %flag = select i1 %last, {vector} {last_iv6}, {vector} {iv6}
{body}
  br i1 %last, label %store, label %block
store:
  %place = getelementptr i64, ptr %digests, i64 %first
  store {vector} %next0, ptr %place, align 1
  %g_next = add i64 %g, 1
  %end = icmp eq i64 %g_next, %groups
  br i1 %end, label %done, label %group
done:
  ret void
}}
"""


def splat(word: int) -> str:
    """A vector constant with this word in each lane."""
    return f"<{', '.join([f'i64 {word}'] * LANES)}>"


class _Body:
    """The instructions of one block."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def value(self, instruction: str) -> str:
        """The name of a new value."""
        name = f"%x{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def words(self) -> list[str]:
        """The 16 words of the block, each a vector over the messages."""
        words = []
        for half in (0, BLOCK_BYTES // 2):
            rows = []
            for lane in range(LANES):
                offset = self.value(f"add i64 {self.value(f'mul i64 %step, {lane}')}, {half}")
                place = self.value(f"getelementptr i8, ptr %from, i64 {offset}")
                rows.append(self.value(f"load {_VECTOR}, ptr {place}, align 1"))
                # The same block of the next group: processors do not foresee so many streams of a few lines each.
                next_group = self.value(f"getelementptr i8, ptr {place}, i64 %ahead")
                self.lines.append(f"  call void @llvm.prefetch.p0(ptr {next_group}, i32 0, i32 2, i32 1)")
            words += self.transposed(rows)
        return words

    def transposed(self, rows: list[str]) -> list[str]:
        """Vectors of which number `i` has word `i` of every row."""
        for distance in (1, 2, 4):
            # Of two rows this far apart, the squares of this many words beside the diagonal change places.
            moved = list(rows)
            for low in (i for i in range(LANES) if not i & distance):
                high = low | distance
                for target in (low, high):
                    lanes = [
                        (j & ~distance) | (target & distance) | (LANES if j & distance else 0) for j in range(LANES)
                    ]
                    mask = f"<{LANES} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"
                    moved[target] = self.value(f"shufflevector {_VECTOR} {rows[low]}, {_VECTOR} {rows[high]}, {mask}")
            rows = moved
        return rows

    def compress(self, words: list[str]) -> None:
        """The compression function: from the state `%h<i>` and the words to `%next<i>`."""
        v = [*(f"%h{i}" for i in range(8)), *map(splat, _IV[:4]), "%counter", splat(_IV[5]), "%flag", splat(_IV[7])]
        for number in range(_ROUNDS):
            order = iter(_SIGMA[number % len(_SIGMA)])
            for a, b, c, d in _MIXINGS:
                for turn_d, turn_b in ((32, 24), (16, 63)):
                    v[a] = self.lanewise("add", self.lanewise("add", v[a], words[next(order)]), v[b])
                    v[d] = self.rotated(self.lanewise("xor", v[d], v[a]), turn_d)
                    v[c] = self.lanewise("add", v[c], v[d])
                    v[b] = self.rotated(self.lanewise("xor", v[b], v[c]), turn_b)
        for i in range(8):
            self.lines.append(f"  %next{i} = xor {_VECTOR} %h{i}, {self.lanewise('xor', v[i], v[i + 8])}")

    def lanewise(self, operation: str, left: str, right: str) -> str:
        """`add` or `xor` of each lane."""
        return self.value(f"{operation} {_VECTOR} {left}, {right}")

    def rotated(self, word: str, bits: int) -> str:
        """Each lane rotated to the right."""
        arguments = f"{_VECTOR} {word}, {_VECTOR} {word}, {_VECTOR} {splat(bits)}"
        return self.value(f"call {_VECTOR} @llvm.fshr.v{LANES}i64({arguments})")
