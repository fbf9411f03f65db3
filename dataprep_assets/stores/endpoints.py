"""Checks the URLs of data servers: credentials and data are sent to them, so the connection must be encrypted.

Every such URL (of a hub, an S3-compatible store, Google's emulator) is checked here before it is used.

Entry points: :func:`check_endpoint`, :func:`allows_http`.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from dataprep_assets.errors import ConfigError

ALLOW_HTTP = "DATAPREP_ALLOW_HTTP"
"""The variable equivalent to `allow_http: true`, for servers that no declaration names."""


def allows_http(environment: Mapping[str, str]) -> bool:
    """Return whether the environment allows servers without TLS; raises ConfigError for an invalid value."""
    value = environment.get(ALLOW_HTTP, "").lower()
    if value not in ("", "0", "1", "false", "true"):
        raise ConfigError(f"{ALLOW_HTTP}: must be `true` or `false`, not {value!r}")
    return value in ("1", "true")


def check_endpoint(url: str, setting: str, *, allow_http: bool) -> str:
    """The URL itself; raises ConfigError unless it is https://host[:port], or http:// where that is allowed.

    Args:
        url: The URL of a server, with or without a path.
        setting: Where the URL was declared, for the message: a YAML key or a variable.
        allow_http: Whether plain HTTP is allowed beyond this machine. To loopback it always is.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # parsed only when it is asked for; raises ValueError
    except ValueError:  # not repeated: it may hold credentials
        raise ConfigError(
            f"{setting}: must be http(s)://host[:port], but a bracket is not closed, or the port is invalid"
        ) from None
    if "@" in parts.netloc:
        # Not repeated: the part before the @ is a secret.
        raise ConfigError(f"{setting}: contains credentials. Leave only https://host, and set them in the environment")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{setting}: must be http(s)://host[:port], not {url!r}")
    if parts.scheme == "http" and not allow_http and not _is_loopback(parts.hostname):
        raise ConfigError(
            f"{setting}: {parts.scheme}://{parts.netloc} would send credentials and data unencrypted. Use https://, "
            f"or set `allow_http: true` (for the storage: {ALLOW_HTTP}=true) if you trust the network"
        )
    return url


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):  # names of this machine (RFC 6761)
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
