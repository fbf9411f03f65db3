"""The SHA-256 of source files: as they lie there, and as it was while they were read.

Entry points: `source_digest`, `require_digest`.
"""

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess

__all__ = ["require_digest", "source_digest"]


def source_digest(access: SourceAccess, entry: ManifestEntry) -> str:
    """That of a present file of the source `access`; SourceError naming the file when it cannot be read."""
    try:
        return sha256_file(access.path(entry))
    except OSError as error:
        raise SourceError(f"{entry.relpath}: cannot be read: {error.strerror or error}") from error


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
