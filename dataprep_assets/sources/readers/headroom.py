"""Checks that a disk has room for the bytes to fetch, with some to spare.

Entry point: :func:`check_headroom`.
"""

import shutil
from pathlib import Path

from dataprep_assets.errors import SourceError


def check_headroom(path: Path, needed_bytes: int, headroom: float = 0.2) -> None:
    """Raise SourceError unless the disk of ``path`` has ``needed_bytes`` free and ``headroom`` (a fraction) on top."""
    if needed_bytes <= 0:
        return
    folder = path.absolute()
    # It may have to be made yet; the nearest folder that is there is on the same disk.
    while not folder.exists():
        folder = folder.parent
    wanted = needed_bytes + int(needed_bytes * headroom)
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise SourceError(
            f"not enough room in {path}: {needed_bytes} bytes are to be fetched, {wanted} are wanted free "
            f"({headroom:.0%} headroom), {free} are. Free {wanted - free} bytes, choose a larger disk "
            "(cache_dir or HF_HUB_CACHE), or fetch fewer files. Nothing was fetched"
        )
