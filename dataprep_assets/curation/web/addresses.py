"""The host and the path of a URL, in one normal form, so that equal addresses are equal texts.

The host is in lower case, without user, port and final period. Letters outside ASCII are in Punycode, as in browsers.
The path includes the query and begins with `/`. It has no fragment, and an escape such as `%7E` is replaced if the
character may be written as itself. The scheme is not part of either.

Entry points: `Address`, `parse_address`, `parse_url`.
"""

import re
import string
from typing import Any, NamedTuple
from urllib.parse import quote

import idna

_URL = re.compile(
    r"(?:(?:[a-z][a-z0-9+.-]*:)?//)?(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)(?::[0-9]*)?([/?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
"""The host and the rest of a URL; the scheme is optional."""
_LABEL = r"[a-z0-9_-]{1,63}"
_HOST = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}|\[[0-9a-f:.]+\]")
_AUTHORITY = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_USER = re.compile(r"[^/?#]*@")
_DOMAIN = re.compile(r"\.(?:[a-z][a-z0-9-]*[a-z0-9]|[0-9]+)$")
"""The end of a domain name, whose last label has at least two characters, or of an IPv4 address."""
_MAX_HOST = 253
"""Maximum number of characters of a host (RFC 1035)."""
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(string.ascii_letters + string.digits + "-._~")
"""Characters that mean the same with and without an escape (RFC 3986)."""
_ASCII = "".join(map(chr, range(128)))


class Address(NamedTuple):
    """The host and the path of a URL."""

    host: str
    path: str


def parse_address(url: str) -> Address | None:
    """Return the address of a URL, which may begin with its host; None for a text that is not a URL."""
    match = _URL.fullmatch(url.strip())
    if match is None or (host := _normalize_host(match[1])) is None:
        return None
    path = (match[2] or "").partition("#")[0]
    if not path.startswith("/"):
        path = f"/{path}"
    if "%" in path or not path.isascii():
        path = _ESCAPE.sub(_normalize_escape, quote(path, safe=_ASCII, errors="replace"))
    return Address(host, path)


def parse_url(url: Any) -> Address | None:
    """Return the address of a document's URL; None for a value that is not a URL, such as `n/a` or an e-mail address.

    Without `//`, a text is a URL only if it begins with a domain name or an IPv4 address, and with no user and `@`.
    """
    if not isinstance(url, str) or (address := parse_address(url)) is None:
        return None
    return address if _AUTHORITY.match(url) or (not _USER.match(url) and _DOMAIN.search(address.host)) else None


def _normalize_host(host: str) -> str | None:
    if len(host) > _MAX_HOST + 1:
        return None
    if not host.isascii():
        try:
            host = idna.uts46_remap(host, std3_rules=False)
        except idna.IDNAError:
            return None
        # Encode every label as browsers do. The stricter `idna.encode` refuses emoji and `_`, which real hosts have.
        labels = host.split(".")
        host = ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels)
    host = host.lower().removesuffix(".")
    return host if len(host) <= _MAX_HOST and _HOST.fullmatch(host) else None


def _normalize_escape(match: re.Match[str]) -> str:
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()
