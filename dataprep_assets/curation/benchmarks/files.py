"""Files of benchmarks: next to the declaration, in a repository on the Hugging Face Hub, or in object storage.

Remote files are downloaded with the same access classes as sources, verified, and cached: Hub files in the standard
cache, objects in the declared folder. An address is resolved once per process, so that a process uses a single version.
"""

import re
from functools import lru_cache
from glob import escape
from pathlib import Path, PurePosixPath

from dataprep_assets.errors import ConfigError
from dataprep_assets.planning.manifest import build_manifest
from dataprep_assets.sources.access import HubMirror, SourceAccess
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.connect import format_bucket_urls, is_bucket

_HUB = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+?)(?:@([^/@]+))?/(.+)")


def is_elsewhere(path: str) -> bool:
    """Return whether a declared path is a remote address."""
    return "://" in path


def check_address(path: str) -> None:
    """Raise ConfigError for an address that does not name a file."""
    if not _HUB.fullmatch(path) and not (is_bucket(path) and PurePosixPath(path.partition("://")[2]).suffix):
        raise ConfigError(
            f"{path!r}: unsupported location of a file. Use hf://datasets/organization/name@revision/file, "
            f"{format_bucket_urls('bucket/file')}, or a path"
        )


@lru_cache(maxsize=64)
def fetch_file(path: str, cache_dir: Path | None) -> Path:
    """Return the local file of an address, downloading it if it is missing.

    Args:
        path: The address.
        cache_dir: Download folder for objects.

    Raises ConfigError if the file does not exist, and SourceError if it cannot be downloaded.
    """
    access, name = _open_access(path, cache_dir)
    listing = access.list()
    files = [file for file in listing.files if file.relpath == name]
    if not files:
        raise ConfigError(f"{path}: file does not exist. Correct the path or the revision")
    # Build a manifest with this one file, because the access downloads and verifies only manifest entries.
    (entry,) = build_manifest(
        files, include=[escape(name)], splits={"items": ["**"]}, commit=listing.commit, url_prefix=listing.url_prefix
    )
    access.fetch([entry])
    return access.path(entry)


def _open_access(path: str, cache_dir: Path | None) -> tuple[SourceAccess, str]:
    """Return the access to the file's container, and the file's name in it."""
    check_address(path)
    if match := _HUB.fullmatch(path):
        repo = HubRepo(repo_id=match[1], revision=match[2] or "main", endpoint=None, cache_dir=cache_dir)
        return HubMirror(repo), match[3]
    assert cache_dir is not None, "an object needs a folder"
    folder, _, name = path.rpartition("/")
    return ObjectStorePrefix(url=folder, cache_dir=cache_dir), name
