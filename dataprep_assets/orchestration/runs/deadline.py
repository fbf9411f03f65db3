"""Time limit for calls to other services: all sensors share the daemon, so none may block the others."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run_with_deadline(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of `work` or raise its error; raise TimeoutError after `seconds`.

    Client timeouts are not enough, because they restart with every packet and do not cover name resolution. Late work
    continues in its daemon thread, which ends with the process at the latest. Its result is dropped.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # raised again in the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not result:
        raise TimeoutError(f"no response within {seconds:g} s")
    return result[0]
