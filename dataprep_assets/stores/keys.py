"""Which names of files are valid: keys in a store, paths in a receipt, a manifest, a release or a lock.

The author of such a file may be malicious, and readers turn its names into paths, log lines and pages. So
:func:`why_not_a_name` checks each name once, where it is parsed; the parser adds where the name was found. Keys are
restricted further by :func:`check_key`, so that any dataset can move between any two stores.
"""

import re

from dataprep_assets.errors import ConfigError

UPLOADS = ".uploads/"
"""Prefix of the temporaries of unfinished uploads: never listed, and not a valid key."""

# Both GCS and S3 allow 1024 bytes for the whole name, the store's prefix included.
_LONGEST = 1024
# Unicode's direction marks, overrides and line ends make a terminal show a name other than the real one.
# Lone surrogates, which Python also reads for bytes of a file's name that are not UTF-8, cannot be written as UTF-8.
_DECEIVING = re.compile("[\x00-\x1f\x7f-\x9f\N{ARABIC LETTER MARK}\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OUTSIDE = frozenset(("", ".", ".."))


def why_not_a_name(name: object) -> str:
    """Why a value cannot be the relative path of a file; "" if it can.

    A valid path is a text of parts separated by `/`, none of them empty, `.` or `..` (so it does not begin with `/`),
    without control characters, direction marks and lone surrogates.
    """
    if not isinstance(name, str):
        return f"it is {type(name).__name__}, not text"
    if not _OUTSIDE.isdisjoint(name.split("/")):
        return "it has an empty part, '.' or '..'"
    if _DECEIVING.search(name):
        return "it has a control character, a mark of direction or a lone surrogate"
    return ""


def check_key(key: str) -> str:
    """The key itself; raises ConfigError, saying why, if it is not valid in every store."""
    why = why_not_a_name(key)
    if not why and len(key.encode()) > _LONGEST:
        why = f"it has {len(key.encode())} bytes in UTF-8, more than {_LONGEST}"
    if not why and key.startswith(UPLOADS):
        why = f"what begins with {UPLOADS!r} is kept for unfinished uploads"
    if why:
        raise ConfigError(f"{key!r} cannot be the key of an object: {why}. Rename it")
    return key
