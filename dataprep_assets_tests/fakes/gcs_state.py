"""The state of the local Google Cloud Storage: objects, active uploads, programmed faults and a log."""

import base64
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import google_crc32c

from dataprep_assets_tests.fakes.programmed import Fault, Programmed

# status    answer with `status` and, if set, Retry-After; do not execute the request
# reset     reset the TCP connection after reading the request; do not execute the request
# stall     stay silent after reading the request; do not execute the request
# lost      execute the request, then reset the TCP connection instead of answering
# cut       execute the request, send half of the answer's body, then reset the TCP connection
# truncate  execute the request, send half of the body under its full Content-Length, then close in order
# short     execute the request, send half of the body under a matching Content-Length
# hang      execute the request, send half of the body, then stay silent
# flip      execute the request, change one byte in the middle of the answer's body
# corrupt   change one byte in the middle of the request's body on arrival
Kind = Literal["status", "reset", "stall", "lost", "cut", "truncate", "short", "hang", "flip", "corrupt"]


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A logged request; ``operation`` as in :meth:`GcsServer.fail`, ``name`` of an object (or a listing's prefix)."""

    operation: str
    name: str
    status: int
    bytes_in: int


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A stored object."""

    name: str
    data: bytes
    generation: int
    metageneration: int = 1
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)
    components: int | None = None
    has_md5: bool = True
    updated: str = ""

    @cached_property
    def crc32c(self) -> str:
        return crc32c_of(self.data)

    @cached_property
    def md5(self) -> str:
        return md5_of(self.data)


@dataclass(kw_only=True)
class Session:
    """An active resumable upload."""

    about: dict[str, Any]
    query: dict[str, str]
    data: bytearray = field(default_factory=bytearray)


@dataclass(kw_only=True)
class Multipart:
    """An active XML multipart upload."""

    name: str
    content_type: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class RefusalError(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class GcsState(Programmed[Kind, Logged]):
    """The state of one bucket with its log and its programmed faults; the arguments are those of `GcsServer`."""

    def __init__(
        self,
        *,
        bucket: str = "bucket",
        page_size: int = 1000,
        rewrite_bytes: int = 1 << 40,
        seconds_per_block: float = 0.0,
        min_part_bytes: int = 5 * 1024 * 1024,
    ) -> None:
        super().__init__()
        self.bucket = bucket
        self.page_size = page_size
        self.rewrite_bytes = rewrite_bytes
        self.seconds_per_block = seconds_per_block
        self.min_part_bytes = min_part_bytes
        self.objects: dict[str, Stored] = {}
        self.sessions: dict[str, Session] = {}
        self.multiparts: dict[str, Multipart] = {}
        self.rewrites: dict[str, int] = {}
        # `wrong_joins` has the compositions (counted from 1) that get a wrong byte in the middle.
        self.wrong_joins: set[int] = set()
        self.joins = 0
        # `interruptions` has the faults in the middle of the next request bodies over 64 KiB: stop reading, or a TCP
        # reset.
        self.interruptions: list[Literal["deaf", "hangup"]] = []
        # `connections` has the addresses of clients whose requests may still arrive or be active.
        self.connections: set[tuple[str, int]] = set()
        self._last = 0

    def fail(self, operation: str, kind: Kind, *, within: str = "", **how: Any) -> None:
        """Make requests of an operation fail if the object's name contains ``within``; ``how`` has the fields of
        `Fault`.

        Operations: bucket, list, get, media, insert, resume, compose, rewrite, delete, patch, xml.
        """
        self.program(Fault(operation=operation, kind=kind, within=within, **how))

    def count(self, operation: str, within: str = "", since: int = 0) -> int:
        """Return the number of requests of an operation, from log entry ``since`` on."""
        return len(self.asked(lambda entry: entry.operation == operation and within in entry.name, since))

    def store(self, name: str, data: bytes, query: Mapping[str, str] | None = None, **about: Any) -> Stored:
        """Create a new generation of an object if the preconditions in ``query`` are met."""
        if not 0 < len(name.encode()) <= 1024:
            raise RefusalError(400, "invalid", "Object names are 1 to 1024 bytes of UTF-8")
        with self.lock:
            demand_preconditions(self.objects.get(name), query or {})
            self._last = max(self._last + 1, time.time_ns() // 1000)
            stored = Stored(name=name, data=data, generation=self._last, updated=format_now(), **about)
            self.objects[name] = stored
            return stored


def demand_preconditions(stored: Stored | None, query: Mapping[str, str]) -> None:
    generation, metageneration = (0, 0) if stored is None else (stored.generation, stored.metageneration)
    for name, actual in (("Generation", generation), ("Metageneration", metageneration)):
        if int(query.get(f"if{name}Match", actual)) != actual:
            raise RefusalError(412, "conditionNotMet", "At least one of the pre-conditions did not hold.")
        if int(query.get(f"if{name}NotMatch", -1)) == actual:
            raise RefusalError(304, "notModified", "Not Modified")


def format_now() -> str:
    """Return the time in the service's format; its client accepts no offset except Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def crc32c_of(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def md5_of(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
