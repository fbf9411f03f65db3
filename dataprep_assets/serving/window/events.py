"""Reports of a window: events of its shards as they happen, and its current status.

Entry points: `WindowEvent`, `WindowStatus`, `notify`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

EventKind = Literal["fetching", "ready", "failed", "gave_up", "waiting", "evicted", "kept", "refused", "swapped"]


@dataclass(frozen=True, kw_only=True)
class WindowEvent:
    """An event of a shard, with a sentence that describes it; `error` is set for `failed` and `gave_up`."""

    kind: EventKind
    shard: int
    detail: str
    error: Exception | None = None


OnEvent = Callable[[WindowEvent], None]
"""User callback for every event. It is called from the window's thread and must not block."""


@dataclass(frozen=True, kw_only=True)
class WindowStatus:
    """Current state of a window.

    `active` is the shard in use, `wanted` the shard that `wait` waits for, and `next` the shard that is prefetched;
    each may be None. `ready` lists the verified shards of these three. This process has downloaded `done_bytes` of
    `total_bytes` of the shard `fetching`. `failures` maps each shard to the reason of its last failure, until an
    attempt succeeds. `gave_up` contains the shards that have no attempts left.
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


def notify(on_event: OnEvent | None, event: WindowEvent) -> None:
    """Call the user's callback; log any exception that it raises instead of passing it on.

    Training depends on the thread that calls the callback, so an error in user code must not stop it.
    """
    if on_event is None:
        return
    try:
        on_event(event)
    except Exception:
        logger.exception("on_event raised an exception for the event %r of shard %d", event.kind, event.shard)
