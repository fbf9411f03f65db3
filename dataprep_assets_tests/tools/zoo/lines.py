"""Files of lines: a harmless beginning, then hostile content; and streams that are truncated, or have many frames."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import zstandard

MIB = 1 << 20
Good = Callable[[Random, int], bytes]
"""The number of harmless lines."""


def text_line(random: Random, number: int) -> bytes:
    """Return a document."""
    return b'{"text": "document %d, %s"}\n' % (number, random.randbytes(random.randrange(4, 60)).hex().encode())


def chat_line(random: Random, number: int) -> bytes:
    """Return a conversation."""
    said = random.randbytes(8).hex()
    turns = [{"role": "user", "content": f"Question {number}?"}, {"role": "assistant", "content": f"Answer {said}."}]
    return json.dumps({"messages": turns}).encode() + b"\n"


def _prefix(random: Random, good: Good) -> bytes:
    return b"".join(good(random, n) for n in range(random.choice((1, 7, 300, 3_000))))


def _some(random: Random, max_mib: int) -> int:
    """Return a number of bytes; small and large ones are equally likely."""
    return int(MIB * max_mib ** random.random() * random.choice((0.01, 0.2, 1)))


def _open_string(random: Random, key: bytes) -> Iterator[bytes]:
    """Return a string that never ends, of quotes, escapes or letters."""
    filler = random.choice((b'\\"', b"\\\\", b"a", b"\\u0041", b"\\", "é".encode(), b'\\"a'))
    yield b'{"%s": "' % key + filler * (_some(random, 60) // len(filler))


def _refused_value(random: Random, key: bytes) -> Iterator[bytes]:
    """Return a line that becomes invalid JSON after a long valid string."""
    value = random.choice((b"1e400", b"-1e999", b"NaN", b"Infinity", b"01", b"+1", b"nul", b'"\\ud800"', b'"\\x"'))
    yield b'{"long": "' + b"b" * _some(random, 40) + b'", "%s": %s}\n' % (key, value)


def _deep(random: Random, key: bytes) -> Iterator[bytes]:
    """Return nested brackets, closed or not."""
    depth, opens = random.choice((1_000, 100_000, 5_000_000)), random.choice((b"[", b'{"a":'))
    closes = b"]" if opens == b"[" else b"}"
    body = opens * depth + b"1" + closes * random.choice((0, depth, depth // 2))
    yield b'{"%s": "x", "y": ' % key + body + b"}\n"


def _wide(random: Random, key: bytes) -> Iterator[bytes]:
    """Return an object of very many values or keys."""
    one = random.choice((b"0,", b"[],", b"{},", b'"",', b"null,", b"[[]],", b'{"":{}},'))
    count = _some(random, 50) // len(one)
    if random.random() < 0.3:
        yield b'{"%s": "x"' % key
        yield from (b"".join(b',"k%d":0' % n for n in range(k, k + 10_000)) for k in range(0, count // 8, 10_000))
        yield b"}\n"
    else:
        yield b'{"%s": "x", "y": [' % key + one * count + b"0]}\n"


def _same_key(random: Random, key: bytes) -> Iterator[bytes]:
    """Return an object that repeats a key many times."""
    yield b"{" + b'"%s": "x",' % key * (_some(random, 20) // 12) + b'"%s": "last"}\n' % key


def _number(random: Random, key: bytes) -> Iterator[bytes]:
    """Return a number with very many digits."""
    yield b'{"%s": "x", "n": ' % key + b"9" * _some(random, 30) + random.choice((b"", b".5", b"e5")) + b"}\n"


def _bytes(random: Random, _: bytes) -> Iterator[bytes]:
    """Return random bytes: noise, zeros, line ends of all kinds, byte order marks, halves of characters."""
    kind = random.choice((b"\x00", b"\n", b"\r\n", b"\r", b" \n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b""))
    size = _some(random, 60)
    yield kind * (size // len(kind)) if kind else random.randbytes(min(size, 8 * MIB))


def _long_text(random: Random, key: bytes) -> Iterator[bytes]:
    """Return a valid string that is very long, or near the size limit of a record."""
    one = random.choice((b"x", b"\\n", b"\\u00e9", "\U0001f600".encode(), b"a b ", b"\\ud83d\\ude00"))
    size = random.choice((*[_some(random, 200)] * 4, 64 * MIB - 20, 64 * MIB + 20))
    yield b'{"%s": "' % key
    yield from (one * (MIB // len(one)) for _ in range(size // MIB))
    yield b'"}\n'


def _many(random: Random, _: bytes) -> Iterator[bytes]:
    """Return very many almost empty lines."""
    one = random.choice((b"{}\n", b"[]\n", b'""\n', b"0\n", b'{"text":""}\n', b'{"text":"a"}\n', b'{"messages":[]}\n'))
    yield one * (_some(random, 4) // len(one))


RESTS = (
    _open_string,
    _refused_value,
    _deep,
    _wide,
    _same_key,
    _number,
    _bytes,
    _long_text,
    _many,
)


def lines(path: Path, random: Random, good: Good, key: bytes) -> str:
    """Write a harmless beginning and a hostile rest, with the compression in the name, and perhaps more good lines."""
    rest = random.choice(RESTS)
    pieces: list[Iterator[bytes]] = [iter([_prefix(random, good)]), rest(random, key)]
    if random.random() < 0.5:
        pieces.append(iter([b"\n", _prefix(random, good)]))
    _write(path, (piece for part in pieces for piece in part))
    return rest.__name__.strip("_")


def _write(path: Path, pieces: Iterator[bytes]) -> None:
    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=1) as packed:
            packed.writelines(pieces)
    elif path.suffix == ".zst":
        with open(path, "wb") as raw, zstandard.ZstdCompressor(level=1).stream_writer(raw) as writer:
            for piece in pieces:
                writer.write(piece)
    else:
        with open(path, "wb") as file:
            file.writelines(pieces)


def cut(path: Path, random: Random, good: Good, key: bytes) -> str:
    """Write valid lines to a file and truncate it, or change a bit or a page."""
    _write(path, iter([_prefix(random, good), *(good(random, n) for n in range(random.choice((10, 20_000))))]))
    how = damaged(path, random)
    return f"cut: {how}"


def damaged(path: Path, random: Random) -> str:
    """Damage a file: truncate its end or its beginning, or change a bit or a page."""
    data = bytearray(path.read_bytes())
    how = random.choice(("end", "front", "bit", "page", "tail"))
    at = random.randrange(len(data))
    if how == "end":
        del data[at:]
    elif how == "front":
        del data[:at]
    elif how == "bit":
        data[at] ^= 1 << random.randrange(8)
    elif how == "page":
        data[at : at + 4_096] = random.randbytes(min(4_096, len(data) - at))
    else:
        del data[-random.randrange(1, min(20, len(data)) + 1) :]
    path.write_bytes(data)
    return how


def frames(path: Path, random: Random, good: Good, _: bytes) -> str:
    """Write very many frames or members, empty or with one line, after a valid one; or frames with wrong headers."""
    line, count = good(random, 0), random.choice((1_000, 1_000, 30_000, 30_000, 300_000, 1_000_000))
    if path.suffix == ".gz":
        member = gzip.compress(random.choice((b"", line)), mtime=0)
        path.write_bytes(gzip.compress(_prefix(random, good)) + member * (count // 4))
        return "members"
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=random.random() < 0.5)
    kinds = {
        "empty frames": compressor.compress(b""),
        "frames of a line": compressor.compress(line),
        "skippable frames": b"\x50\x2a\x4d\x18\x00\x00\x00\x00",
    }
    kind = random.choice((*kinds, "runs", "a large window", "a lying size"))
    head = zstandard.compress(_prefix(random, good))
    if kind == "runs":  # blocks of four bytes that decompress to 128 KiB each
        run = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + random.choice((b"a", b"\n", b'"', b" "))
        rest = b"\x28\xb5\x2f\xfd\x00\x38" + run * random.choice((100, 8_000, 64_000)) + b"\x01\x00\x00"
    elif kind == "a large window":
        rest = b"\x28\xb5\x2f\xfd\x00" + bytes([random.randrange(0x60, 0x100)]) + b"\x01\x00\x00"
    elif kind == "a lying size":  # a single segment whose header states its size
        size = random.choice((1, 1 << 30, 1 << 40, (1 << 63) - 1))
        rest = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"
    else:
        rest = kinds[kind] * count
    path.write_bytes(head + rest)
    return kind
