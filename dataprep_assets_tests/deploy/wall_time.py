"""Divide the wall time of a backfill into work and orchestration, by the time stamps of Dagster's own events.

A step is at work from its start until it reports the outcome of its shards. The rest is orchestration: Dagster's
bookkeeping, the start of processes, the queue and the daemon's ticks.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import dagster as dg

_DONE = re.compile(r"[\d,]+ shards?: [\d,]+ built, [\d,]+ reused")
_ENDS = (dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE)
Interval = tuple[float, float]


@dataclass(frozen=True)
class WallTime:
    """The seconds from the launch of a backfill to its last event, and the seconds in which at least one step worked.

    `a_run` is the overhead of a run: median seconds from its launch to its end without work.
    """

    wall: float
    at_work: float
    a_run: float

    @property
    def orchestration_share(self) -> float:
        """The share of the wall time, 0 to 1, in which no step worked."""
        return 1 - self.at_work / self.wall


def measure_wall_time(instance: dg.DagsterInstance, run_ids: Iterable[str], launched: float) -> WallTime:
    """Return the wall time of the runs of a backfill that was launched at a time in seconds since the epoch."""
    every: list[Interval] = []
    overheads, last = [], launched
    for run_id in run_ids:
        events = instance.all_logs(run_id)
        work = at_work(events)
        every += work
        starts = [e.timestamp for e in events if _is(e, dg.DagsterEventType.RUN_STARTING)]
        ends = [e.timestamp for e in events if _is(e, dg.DagsterEventType.RUN_SUCCESS)]
        if starts and ends:
            overheads.append(ends[0] - starts[0] - measure_union(work))
        last = max([last, *(e.timestamp for e in events)])
    overheads.sort()
    return WallTime(
        wall=last - launched, at_work=measure_union(every), a_run=overheads[len(overheads) // 2] if overheads else 0.0
    )


def at_work(events: Sequence[dg.EventLogEntry]) -> list[Interval]:
    """Return the interval of work of each step of a run; a step without an end counts until the run's last event."""
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    for event in events:
        if event.step_key is None:
            continue
        if _is(event, dg.DagsterEventType.STEP_START):
            starts[event.step_key] = event.timestamp
        elif _DONE.fullmatch(event.user_message or "") or any(_is(event, end) for end in _ENDS):
            ends.setdefault(event.step_key, event.timestamp)
    last = max((event.timestamp for event in events), default=0.0)
    return [(start, ends.get(step, last)) for step, start in starts.items()]


def measure_union(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _is(event: dg.EventLogEntry, kind: dg.DagsterEventType) -> bool:
    return event.dagster_event is not None and event.dagster_event.event_type == kind
