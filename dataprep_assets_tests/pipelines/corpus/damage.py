"""Damage to what is stored, as a bug or a disk would do it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataprep_assets.integrity.receipt import _own_digest

__all__ = ["edit_receipt", "flip_byte"]


def edit_receipt(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter a receipt and sign it again, as a bug would: the lie is in the numbers, not in the file."""
    value = json.loads(path.read_bytes())
    change(value)
    value["digest"] = _own_digest(value)
    path.write_text(json.dumps(value))


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
