"""The SHA-256 of source files, computed while they are read, and the keyed digests that replace it for sensitive data.

Entry points: `SourceDigests`, `PLAIN`, `require_digest`.
"""

import hmac
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import CorruptSourceError, SourceError

# Checks that a disk has room for the bytes to fetch, with some to spare.
#
# Entry point: :func:`check_headroom`.


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


@dataclass(frozen=True)
class SourceDigests:
    """The digests of source files in keys, receipts, listings and messages of a dataset. Picklable.

    They are SHA-256. For sensitive data they are HMAC-SHA256 of that under `key`, because a plain digest would tell
    anybody with a copy of a file that the file is among the sources.
    """

    key: bytes | None = field(default=None, repr=False)

    def digest_of(self, sha256: str) -> str:
        """The digest of a file with this SHA-256 (hex): 64 hex digits."""
        if self.key is None:
            return sha256
        # the word is that of the first sources with keyed digests; another one would rebuild all notes
        return hmac.digest(self.key, b"dataprep_assets/cohort_file\0" + sha256.encode(), "sha256").hex()


PLAIN = SourceDigests()
"""Plain SHA-256, for data that are not sensitive."""


def require_digest(label: str, actual: str, expected: str, listing: str) -> None:
    """Raise CorruptSourceError if the bytes read from a file are not those that its snapshot lists.

    Args:
        label: The file's name in messages.
        actual: SHA-256 of the bytes read.
        expected: SHA-256 in the snapshot.
        listing: The asset to materialize again if the file was meant to change.
    """
    if actual != expected:
        raise CorruptSourceError(
            f"{label}: sha256 of the bytes read is {actual}, its snapshot says {expected}. "
            f"The file changed or is damaged: materialize {listing} again"
        )
