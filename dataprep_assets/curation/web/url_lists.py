"""A tagger that looks up the URL of each document in lists of domains and URLs, such as blocklists and opt-outs.

Each list is a column, which is true for a document whose URL is on the list. It is null for a document without a URL,
because the list cannot say anything about it.

A line of a list is a domain, which matches its subdomains, or a domain with a path, which matches the URLs below the
path: `example.com/blog` matches `https://www.example.com/blog/1?page=2`, but not `example.com/blogs`. Addresses are
compared in their normal form (`addresses`). Empty lines, and text after `#` at the beginning of a line or after a
space, are ignored.

A list is stored as hashes of 64 bits, so five million lines take 40 MB. A URL has a few dozen domains and paths, so the
probability that one of a billion URLs matches a list of this size by a collision is below one percent.

Entry points: `UrlListsTagger`, `UrlList`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.project_function import digest_files, list_files
from dataprep_assets.curation.table import Columns, DocumentBatch
from dataprep_assets.curation.tagging import VersionedTagger
from dataprep_assets.curation.web.addresses import Address, parse_address, parse_url
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.files import cache_by_file, digest_value
from dataprep_assets.tokenization.document_ids import hash_encoded, hash_texts

VERSION = 2
_BLOCK = 1 << 20
"""Number of bytes to read at once."""
_COMMENT = re.compile(r"(?:^|\s)#.*")
_ODD = re.compile(rb"[^a-z0-9_.\n-]|(?:^|\n)[\n.-]|[.-]\n|\.[.-]|-\.|[^\n]\Z")
"""A place in lines that are not all domains in their normal form. Lines without one, as in most lists, need no parsing.

Possessive quantifiers would match the lines themselves, but Python 3.11.2 has a fault in them.
"""
_BOUNDARY = re.compile("[/?&]")


@dataclass(frozen=True)
class UrlList:
    """The domains and URLs of a file.

    Attributes:
        hashes: Hash of each entry: shape `(entries,)`, uint64, in increasing order.
        depth: Maximum number of parts of a path; 0 if all entries are domains.
    """

    hashes: NDArray[np.uint64]
    depth: int

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a file.

        Raises ConfigError, with the line, for a line that is neither a domain nor a URL; also for a file without any.
        """
        blocks, depth, line_count = [np.zeros(0, np.uint64)], 0, 0
        with open(path, "rb") as file:
            while lines := file.readlines(_BLOCK):
                if _ODD.search(data := b"".join(lines)) is None:
                    blocks.append(hash_encoded(data.split(b"\n")[:-1]))
                else:
                    parsed_lines = (_parse_line(line, path, line_count + n) for n, line in enumerate(lines, 1))
                    entries = [entry for entry in parsed_lines if entry is not None]
                    depth = max(depth, max((len(_BOUNDARY.findall(entry)) for entry in entries), default=0))
                    blocks.append(hash_texts(entries))
                line_count += len(lines)
        hashes = np.concatenate(blocks)
        if not len(hashes):
            raise ConfigError(f"{path}: contains no domains or URLs. Add one per line, or remove the file")
        hashes.sort()  # in place, because a list may have millions of entries
        return cls(hashes, depth)

    def contains(self, addresses: Sequence[Address]) -> NDArray[np.bool_]:
        """Return a mask of the addresses with a domain or path on this list: shape `(addresses,)`."""
        entries = [_list_entries(address, self.depth) for address in addresses]
        hashes = hash_texts([entry for address_entries in entries for entry in address_entries])
        if not (len(self.hashes) and len(hashes)):
            return np.zeros(len(addresses), np.bool_)
        positions = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        starts = [0, *accumulate(map(len, entries[:-1]))]
        return np.logical_or.reduceat(self.hashes[positions] == hashes, starts)


def _parse_line(line: bytes, path: str, number: int) -> str | None:
    """Return the entry of a line: a domain, or a domain and a path; None for a line without an entry."""
    if _ODD.search(line) is None:
        return line[:-1].decode()
    try:
        text = line.decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: line {number}: is not UTF-8. Save the file as UTF-8") from None
    text = _COMMENT.sub("", text).strip()
    if not text:
        return None
    address = None if re.search(r"\s", text) else parse_address(text)
    if address is None:
        raise ConfigError(
            f"{path}: line {number}: {text[:80]!r} is not a domain or URL. Write one per line, e.g., `example.com`, "
            "which includes its subdomains, or `example.com/blog`"
        )
    return f"{address.host}{address.path}".rstrip("/")


def _list_entries(address: Address, depth: int) -> list[str]:
    """Return all entries that match an address and have at most `depth` parts of a path."""
    host, path = address
    domains = [host]
    if not host.startswith("["):  # an IPv6 address has no domains
        while parent := domains[-1].partition(".")[2]:
            domains.append(parent)
    if not depth or path == "/":
        return domains
    # A path ends before a boundary, or at its own end. Leave out the slash at its end, which entries do not have.
    ends = [*(match.start() for match in _BOUNDARY.finditer(path, 1)), len(path)][:depth]
    paths = dict.fromkeys(["", *(path[:end].rstrip("/") for end in ends)])
    return [f"{domain}{prefix}" for domain in domains for prefix in paths]


@dataclass(frozen=True, kw_only=True)
class UrlListsTagger(VersionedTagger):
    """A tagger with a column for each list.

    Attributes:
        column: The column with the URL.
        lists: Column of a list → patterns of its files, as absolute paths.
    """

    column: str
    lists: Mapping[str, tuple[str, ...]]

    @property
    def descriptions(self) -> Mapping[str, str]:
        return {name: f"Whether the list `{name}` contains the URL or its domain." for name in self.lists}

    @property
    def version(self) -> str:
        # Keep the order of the lists, because the table's columns have this order.
        files = [(name, digest_files(f"tag: {self.name}", patterns)) for name, patterns in self.lists.items()]
        return digest_value([VERSION, self.column, files])

    @property
    def reads(self) -> Columns:
        return {self.column: "string"}

    @property
    def missing(self) -> Mapping[str, str]:
        # One list represents all, because they have null values for the same documents.
        return {next(iter(self.lists)): "URL"}

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        addresses = list(map(parse_url, batch.good_rows[self.column]))
        positions = [position for position, address in enumerate(addresses) if address is not None]
        known_addresses = [address for address in addresses if address is not None]
        columns: dict[str, list[bool | None]] = {}
        for name, patterns in self.lists.items():
            url_lists = [_read_list(str(path)) for path in list_files(f"tag: {self.name}", patterns)]
            is_listed = np.logical_or.reduce([url_list.contains(known_addresses) for url_list in url_lists])
            column: list[bool | None] = [None] * len(addresses)
            for position, value in zip(positions, is_listed.tolist(), strict=True):
                column[position] = value
            columns[name] = column
        return columns


_read_list = cache_by_file(UrlList.read)
