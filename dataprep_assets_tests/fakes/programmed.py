"""What every programmed server has: a log of its requests, and the faults to come."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Kind = TypeVar("Kind", bound=str)
Entry = TypeVar("Entry")


@dataclass(kw_only=True)
class Fault(Generic[Kind]):
    """What happens to the requests ``first`` to ``first + times - 1`` (counted from 1) that match.

    Those of ``operation`` match whose name has ``within`` or, if it is ``whole``, is ``within``. ``times=None`` means
    from then on; ``status`` and ``retry_after`` are answered by faults of the kind ``status``.
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
    """The log and the faults of a server whose handlers share ``lock``; ``closing`` is set when it stops."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self._faults: list[Fault[Kind]] = []

    def note(self, entry: Entry) -> None:
        """Log a request."""
        with self.lock:
            self.log.append(entry)

    def asked(self, matching: Callable[[Entry], bool], since: int = 0) -> list[Entry]:
        """The matching requests, from log entry ``since`` on."""
        with self.lock:
            return [entry for entry in self.log[since:] if matching(entry)]

    def program(self, fault: Fault[Kind]) -> None:
        """Let a fault strike."""
        with self.lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """Forget every fault."""
        with self.lock:
            self._faults.clear()

    def unspent(self) -> list[Fault[Kind]]:
        """The faults that have not struck as often as they should; a test that leaves some has tested nothing."""
        with self.lock:
            return [fault for fault in self._faults if fault.struck < (fault.times or 1)]

    def strike(self, operation: str, name: str) -> Fault[Kind] | None:
        """The first fault due for this request; every matching fault counts it."""
        with self.lock:
            due = [fault for fault in self._faults if fault.strikes(operation, name)]
        return due[0] if due else None
