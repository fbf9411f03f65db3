"""Ways to damage artifacts, for tests of the proofs that exist to find them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataprep_assets.integrity.receipt import _own_digest


def edit_receipt(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter a receipt and sign it again, as a bug would: the lie is in the numbers, not in the file."""
    value = json.loads(path.read_bytes())
    change(value)
    value["digest"] = _own_digest(value)
    path.write_text(json.dumps(value))


def flip_byte(path: Path) -> None:
    """Change one byte in the middle of a file, in a file of its own: others may be links to it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def poke(path: Path, byte: int, value: int = 1) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= value
    path.write_bytes(data)


def flip_in_place(path: Path) -> None:
    """Change one byte in place: neither the size nor the time of the last change says so."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
