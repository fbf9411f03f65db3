"""The SHA-256 of source files as it was while they were read, and what stands for it.

Entry points: `SourceDigests`, `PLAIN`, `require_digest`.
"""

import hmac
from dataclasses import dataclass, field

from dataprep_assets.errors import CorruptSourceError

__all__ = ["PLAIN", "SourceDigests", "require_digest"]


@dataclass(frozen=True)
class SourceDigests:
    """What stands for source files in keys, receipts, listings and messages of a dataset. Picklable.

    It is their SHA-256. Of sensitive data it is HMAC-SHA256 of that under `key`, because a plain one tells whoever has
    a copy of a file that it is among the sources.
    """

    key: bytes | None = field(default=None, repr=False)

    def of(self, sha256: str) -> str:
        """What stands for a file with this SHA-256 (hex): 64 hex digits."""
        if self.key is None:
            return sha256
        # the word is that of the first sources which had it; another would make all notes anew
        return hmac.digest(self.key, b"dataprep_assets/cohort_file\0" + sha256.encode(), "sha256").hex()


PLAIN = SourceDigests()
"""Their SHA-256."""


def require_digest(label: str, actual: str, expected: str, listing: str) -> None:
    """Refuse a file of which other bytes were read than its snapshot lists, with CorruptSourceError.

    Args:
        label: How messages name the file.
        actual: SHA-256 of the bytes read.
        expected: That of the snapshot.
        listing: What a person materializes again when the file was meant to change.
    """
    if actual != expected:
        raise CorruptSourceError(
            f"{label}: sha256 of the bytes read is {actual}, its snapshot says {expected}. "
            f"The file changed or is damaged: materialize {listing} again"
        )
