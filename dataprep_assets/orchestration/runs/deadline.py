"""A time limit for work that waits on another service: sensors share the daemon, and none may block the others."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run_with_deadline(seconds: float, work: Callable[[], T]) -> T:
    """Return or raise what `work` does; raises TimeoutError after so many seconds.

    Clients' own timeouts count from one packet to the next, and name resolution has none. Work that is late goes on in
    its daemon thread, which ends with the process at the latest; its result is dropped.
    """
    result: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # handed over to the waiting thread
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not result:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result[0]
