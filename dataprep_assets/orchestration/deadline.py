"""A limit of time for what waits on somebody else: sensors share the daemon, and none may keep it from the others."""

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["within"]

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; TimeoutError after so many seconds.

    Time limits of clients count from one packet to the next, and name servers have none of theirs. Work that is late
    goes on in its thread, which ends with the process at the latest, and nobody hears of it.
    """
    result: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # handed over to who waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not result:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result[0]
