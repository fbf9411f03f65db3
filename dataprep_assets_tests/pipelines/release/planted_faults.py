"""Change bytes of files in place, for tests of their readers."""

import os
from pathlib import Path


def poke(path: Path, byte: int, value: int = 1) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= value
    path.write_bytes(data)


def flip_in_place(path: Path) -> None:
    """Change one byte in place without changing the size or the modification time."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
