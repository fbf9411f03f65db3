"""What a name of a file may be: a key in a store, a path in a receipt, a manifest, a release or a lock.

Whoever wrote such a file may mean harm, and whoever reads it makes a path, a line of a log or a page of its names. So
each is looked at once, where it is parsed, by :func:`why_not_a_name`; the parser says in its own words where it stood.
Keys are stricter: only with :func:`check_key` can any dataset move between any two stores.
"""

import re

from dataprep_assets.errors import ConfigError

UPLOADS = ".uploads/"
"""Below it lie the temporaries of unfinished uploads: never listed, never a key."""

# Both GCS and S3 allow 1024 bytes for the whole name, the store's prefix included.
_LONGEST = 1024
# Unicode's marks and overrides of direction, and its line ends, make a terminal show another name than the one there.
_DECEIVING = re.compile("[\x00-\x1f\x7f-\x9f\N{ARABIC LETTER MARK}\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OUTSIDE = frozenset(("", ".", ".."))


def why_not_a_name(name: object) -> str:
    """Why a value cannot be the relative path of a file, or "".

    One that can is a text of parts with `/` between them, none of them empty, `.` or `..` (so neither does it begin
    with `/`), without control characters, marks of direction and lone surrogates.
    """
    if not isinstance(name, str):
        return f"it is {type(name).__name__}, not text"
    if not _OUTSIDE.isdisjoint(name.split("/")):
        return "it has an empty part, '.' or '..'"
    if _DECEIVING.search(name):
        return "it has a control character, a mark of direction or a lone surrogate"
    return ""


def check_key(key: str) -> str:
    """The key itself; ConfigError, saying why, for one that not every store could hold."""
    why = why_not_a_name(key)
    if not why and len(key.encode()) > _LONGEST:
        why = f"it has {len(key.encode())} bytes in UTF-8, more than {_LONGEST}"
    if not why and key.startswith(UPLOADS):
        why = f"what begins with {UPLOADS!r} is kept for unfinished uploads"
    if why:
        raise ConfigError(f"{key!r} cannot be the key of an object: {why}. Rename it")
    return key
