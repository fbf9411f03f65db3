"""Validation of server URLs: they receive credentials and data, so the connection must be encrypted.

Every URL of a Hub, an S3-compatible store or Google's emulator is checked here before it is used.

Entry points: :func:`check_endpoint`, :func:`check_region`, :func:`allows_http`.
"""

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from dataprep_assets.errors import ConfigError

ALLOW_HTTP = "DATAPREP_ALLOW_HTTP"
"""Environment variable with the effect of `allow_http: true`, for servers that are not named in a declaration."""


_REGION = re.compile(r"(?!\d+$)(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
"""Pattern of a region, which becomes a part of a host name."""


def allows_http(environment: Mapping[str, str]) -> bool:
    """Return whether the environment allows servers without TLS; raise ConfigError for an invalid value."""
    value = environment.get(ALLOW_HTTP, "").lower()
    if value not in ("", "0", "1", "false", "true"):
        raise ConfigError(f"{ALLOW_HTTP}: must be `true` or `false`, not {value!r}")
    return value in ("1", "true")


def check_endpoint(url: str, setting: str, *, allow_http: bool) -> str:
    """Return `url` unchanged; raise ConfigError unless it is https://host[:port], or http:// where that is allowed.

    Args:
        url: URL of a server, with or without a path.
        setting: YAML key or environment variable that declares the URL, for messages.
        allow_http: Whether plain HTTP to other machines is allowed. HTTP to loopback is always allowed.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # urlsplit parses the port only on access, and raises ValueError if the port is invalid
    except ValueError:  # the message omits the URL, which may contain credentials
        raise ConfigError(
            f"{setting}: must be http(s)://host[:port], but a bracket is not closed, or the port is invalid"
        ) from None
    if "@" in parts.netloc:
        # The message omits the URL, because the part before the @ is a secret.
        raise ConfigError(f"{setting}: contains credentials. Leave only https://host, and set them in the environment")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{setting}: must be http(s)://host[:port], not {url!r}")
    if parts.scheme == "http" and not allow_http and not _is_loopback(parts.hostname):
        raise ConfigError(
            f"{setting}: {parts.scheme}://{parts.netloc} would send credentials and data unencrypted. Use https://, "
            f"or, if you trust the network, set `allow_http: true`, or {ALLOW_HTTP}=true where this key does not exist"
        )
    return url


def check_region(region: str, setting: str) -> str:
    """Return `region` unchanged; raise ConfigError, naming the `setting`, unless it can be part of a host name."""
    if not _REGION.fullmatch(region):
        raise ConfigError(f"{setting}: must be a region, e.g., `eu-west-1`, or `auto`, not {region!r}")
    return region


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761 reserves these names for this machine
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
