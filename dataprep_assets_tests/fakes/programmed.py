"""The common part of all programmed servers: a log of their requests, and the faults to inject."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Kind = TypeVar("Kind", bound=str)
Entry = TypeVar("Entry")


@dataclass(kw_only=True)
class Fault(Generic[Kind]):
    """A fault for the matching requests ``first`` to ``first + times - 1`` (counted from 1).

    Requests of ``operation`` match if their name contains ``within`` or, with ``whole``, equals ``within``. With
    ``times=None`` the fault never ends. Faults of the kind ``status`` answer with ``status`` and ``retry_after``.
    """

    operation: str
    kind: Kind
    within: str
    whole: bool = False
    first: int = 1
    times: int | None = 1
    status: int = 503
    retry_after: str | None = None
    seen: int = 0
    struck: int = 0

    def strikes(self, operation: str, name: str) -> bool:
        if operation != self.operation or not (name == self.within if self.whole else self.within in name):
            return False
        self.seen += 1
        due = self.seen >= self.first and (self.times is None or self.seen < self.first + self.times)
        self.struck += due
        return due


class Programmed(Generic[Kind, Entry]):
    """The log and the faults of a server whose handlers share ``lock``; ``closing`` is set when the server stops."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self._faults: list[Fault[Kind]] = []

    def note(self, entry: Entry) -> None:
        """Append a request to the log."""
        with self.lock:
            self.log.append(entry)

    def asked(self, matching: Callable[[Entry], bool], since: int = 0) -> list[Entry]:
        """Return the matching requests, from log entry ``since`` on."""
        with self.lock:
            return [entry for entry in self.log[since:] if matching(entry)]

    def program(self, fault: Fault[Kind]) -> None:
        """Add a fault."""
        with self.lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """Remove every fault."""
        with self.lock:
            self._faults.clear()

    def unspent(self) -> list[Fault[Kind]]:
        """Return the faults that have not occurred as often as programmed; if some remain, a test has tested
        nothing.
        """
        with self.lock:
            return [fault for fault in self._faults if fault.struck < (fault.times or 1)]

    def strike(self, operation: str, name: str) -> Fault[Kind] | None:
        """Return the first due fault for this request, and count the request for every matching fault."""
        with self.lock:
            due = [fault for fault in self._faults if fault.strikes(operation, name)]
        return due[0] if due else None
