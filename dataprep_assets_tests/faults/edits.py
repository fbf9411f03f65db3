"""Alterations of an artifact's files, as damage or a bug would leave them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.integrity.receipt import _compute_digest


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter a JSON file, and sign nothing."""
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def edit_receipt(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter a receipt and sign it again, as a bug would: the lie is in the numbers, not in the file."""
    value = json.loads(path.read_bytes())
    change(value)
    value["digest"] = _compute_digest(value)
    path.write_text(json.dumps(value))


def edit_ids(path: Path, change: Callable[[NDArray[Any]], None]) -> None:
    """Alter a file of uint16 ids in place of the old one, which keeps its bytes where other names link it."""
    ids = np.fromfile(path, "<u2")
    change(ids)
    path.unlink()
    ids.tofile(path)


def flip_byte(path: Path) -> None:
    """Alter one bit of a file, in a new inode."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
