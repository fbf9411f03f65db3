"""Scratch folders of a dataset: what a check or a tagger writes for a while, and nobody else reads.

They lie beside the dataset's staging, not in the machine's temporary folder. They may hold texts, so they are private
(0700) and do not outlive their process for long: the kernel releases the lock of a killed one, and the next scratch
folder of the dataset, or the end of its next run, removes what has no lock.

Entry points: `scratch`, `sweep_scratch`.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.stores.locks import own_file, refuse_link, try_lock

_AREA = f"{STAGING}/scratch"
_LOCK = ".lock"


@contextmanager
def scratch(dataset: Path) -> Iterator[Path]:
    """Yield an empty, private folder of a dataset, which is gone after the block.

    Args:
        dataset: The folder of the dataset's artifacts.
    """
    with _area(dataset) as area:
        _sweep(area)
        folder = area / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def sweep_scratch(dataset: Path) -> None:
    """Remove the scratch folders of a dataset that killed processes left."""
    if (dataset / _AREA).is_dir():
        with _area(dataset) as area:
            _sweep(area)


@contextmanager
def _area(dataset: Path) -> Iterator[Path]:
    """The folder of a dataset's scratch folders, locked: none is made or removed meanwhile by another process."""
    area = dataset / _AREA
    refuse_link(area.parent)
    area.parent.mkdir(parents=True, exist_ok=True)
    refuse_link(area)
    area.mkdir(mode=0o700, exist_ok=True)
    # private, whatever the umask: the whole of a sensitive dataset is, and this may be the run of another one
    with open(area / _LOCK, "ab", opener=lambda path, flags: own_file(path, flags, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield area


def _sweep(area: Path) -> None:
    with os.scandir(area) as entries:
        left = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in left:
        try:
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # its process is at its end
            continue
        try:
            if try_lock(held):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(held)
