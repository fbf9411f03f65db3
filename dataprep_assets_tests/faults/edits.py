"""Change an artifact's files as damage or a bug would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.integrity.receipt import _compute_digest


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file without updating any digest."""
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def edit_receipt(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a receipt and update its digest, as a bug would: the numbers are wrong, but the file is consistent."""
    value = json.loads(path.read_bytes())
    change(value)
    value["digest"] = _compute_digest(value)
    path.write_text(json.dumps(value))


def edit_ids(path: Path, change: Callable[[NDArray[Any]], None]) -> None:
    """Change a file of uint16 ids in a new inode, so that hard links to the old file keep their bytes."""
    ids = np.fromfile(path, "<u2")
    change(ids)
    path.unlink()
    ids.tofile(path)


def flip_byte(path: Path) -> None:
    """Flip one bit of a file, in a new inode."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
