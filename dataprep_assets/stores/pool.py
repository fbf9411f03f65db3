"""Thread pools for transfers, in which the first error stops all other items.

Entry points: :func:`run_all` and :func:`map_all`.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from dataprep_assets.stores.retry import StoppedError

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_AT_ONCE = 8
"""Requests to a store that run at the same time."""


def run_all(fetch: Callable[[T], None], items: Sequence[T], at_once: int, stop: threading.Event) -> None:
    """Call ``fetch`` for each of ``items`` on ``at_once`` threads; the first error or interrupt ends the group.

    ``stop`` is set when the group ends for any reason, so calls should poll it. Once it is set, no further item starts.
    """

    def fetch_unless_stopped(item: T) -> None:
        if stop.is_set():
            return
        try:
            fetch(item)
        except BaseException:
            # Set the event in the failing thread, because other threads could start more items before the waiting
            # thread sets the event.
            stop.set()
            raise

    pool = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="transfer")
    futures: list[Future[None]] = []
    try:
        futures = [pool.submit(fetch_unless_stopped, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        # Set the event before the shutdown, so that running calls, for which the shutdown waits, end early.
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    errors = [error for future in futures if not future.cancelled() and (error := future.exception()) is not None]
    # Prefer other errors to StoppedError, because items that are stopped after a failure also raise, but only the
    # original error helps the caller.
    causes = [error for error in errors if not isinstance(error, StoppedError)]
    for error in causes or errors:
        raise error


def map_all(
    function: Callable[[T], R], items: Sequence[T], at_once: int, stop: threading.Event | None = None
) -> list[R]:
    """Call ``function`` for every item on ``at_once`` threads, as `run_all` does; return the results in item order.

    Pass ``stop`` if the calls poll it.
    """
    results: dict[int, R] = {}

    def run_one(numbered: tuple[int, T]) -> None:
        results[numbered[0]] = function(numbered[1])

    run_all(run_one, [*enumerate(items)], at_once, threading.Event() if stop is None else stop)
    return [results[index] for index in range(len(items))]
