"""What a window reports: the events of its shards as they happen, and its status when asked.

Entry points: `WindowEvent`, `WindowStatus`, `tell`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

EventKind = Literal["fetching", "ready", "failed", "gave_up", "waiting", "evicted", "kept", "refused", "swapped"]


@dataclass(frozen=True, kw_only=True)
class WindowEvent:
    """Something that happened to a shard, with a sentence about it; `error` for `failed` and `gave_up`."""

    kind: EventKind
    shard: int
    detail: str
    error: Exception | None = None


OnEvent = Callable[[WindowEvent], None]
"""A user's callback: called from the window's thread with every event; must not block."""


@dataclass(frozen=True, kw_only=True)
class WindowStatus:
    """What a window does at this moment.

    `active` is the shard in use, `wanted` the one that `wait` waits for, `next` the one prefetched; None: none. `ready`
    are those of them that are verified. This process has fetched `done_bytes` of `total_bytes` of the shard `fetching`.
    `failures` says for each shard why its last attempt failed, until one succeeds; `gave_up` are those whose retries
    are used up.
    """

    active: int | None
    wanted: int | None
    next: int | None
    ready: tuple[int, ...]
    fetching: int | None
    done_bytes: int
    total_bytes: int
    failures: Mapping[int, str]
    gave_up: tuple[int, ...]


def tell(on_event: OnEvent | None, event: WindowEvent) -> None:
    """Call the user's callback; an exception that it raises is logged and not passed on.

    The callback is the user's code, called from the thread that training depends on.
    """
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        logger.exception("on_event raised for %s of shard %d", event.kind, event.shard)
