"""What a key may be, in every store alike: only then can any dataset move between any two of them."""

from dataprep_assets.errors import ConfigError

UPLOADS = ".uploads/"
"""Below it lie the temporaries of unfinished uploads: never listed, never a key."""

# Both GCS and S3 allow 1024 bytes for the whole name, the store's prefix included.
_LONGEST = 1024


def check_key(key: str) -> str:
    """The key itself; ConfigError, saying why, for one that not every store could hold."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts):
        why = "it has an empty part, '.' or '..'"
    elif any(ord(letter) < 32 or ord(letter) == 127 or "\ud800" <= letter <= "\udfff" for letter in key):
        why = "it has a control character or a lone surrogate"
    elif len(key.encode()) > _LONGEST:
        why = f"it has {len(key.encode())} bytes in UTF-8, more than {_LONGEST}"
    elif key.startswith(UPLOADS):
        why = f"what begins with {UPLOADS!r} is kept for unfinished uploads"
    else:
        return key
    raise ConfigError(f"{key!r} cannot be the key of an object: {why}. Rename it")
