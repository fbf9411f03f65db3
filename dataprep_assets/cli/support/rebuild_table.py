"""What a run would build, as a table for people and as JSON: for `dataprep status` and `run --dry-run`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.rebuild import LossChange, Rebuild, ToBuild
from dataprep_assets.errors import count_of
from dataprep_assets.planning.cost import shown_bytes, shown_time
from dataprep_assets.table import align_rows

MOST = 20
"""Most causes and changes that are listed."""
_HEAD = ("  artifact", "count", "partitions", "source", "tokens", "time", "")


@dataclass
class _Cause:
    """What changed, in lines, and the artifacts that a run builds for it."""

    lines: list[str] = field(default_factory=list)
    works: list[ToBuild] = field(default_factory=list)

    def rows(self, privacy: Privacy) -> Iterator[tuple[str, ...]]:
        """A row per artifact, indented below the cause."""
        groups: dict[object, list[ToBuild]] = {}
        for work in self.works:
            groups.setdefault((work.stale.spec or work.stale.name, work.stale.provisional), []).append(work)
        for works in groups.values():
            first = works[0].stale
            partitions = [work.stale.partition for work in works if work.stale.partition is not None]
            yield (
                f"  {first.asset}",
                str(len(partitions)) if partitions else "-",
                partitions[0] + (f"...{partitions[-1]}" if len(partitions) > 1 else "") if partitions else "-",
                *_amounts(works, privacy),
                "if its input changes" if first.provisional else "",
            )


def _causes(works: Iterable[ToBuild], privacy: Privacy) -> list[_Cause]:
    """Group artifacts by what they are built for, in the order of the build; each line is in one group."""
    groups: list[_Cause] = []
    of_line: dict[str, _Cause] = {}
    # thousands of shards may share the thousand new files that are their causes
    of_causes: dict[tuple[tuple[str, ...], str], _Cause] = {}
    for work in works:
        key = (work.stale.causes, work.stale.kind)
        if key not in of_causes:
            lines = [privacy.text(line, work.stale.kind) for line in work.stale.causes]
            if (cause := of_line.get(lines[0])) is None:
                groups.append(cause := _Cause())
            new = [line for line in dict.fromkeys(lines) if line not in of_line]
            cause.lines += new
            of_line |= dict.fromkeys(new, cause)
            of_causes[key] = cause
        of_causes[key].works.append(work)
    return groups


def _count_listed(count: int) -> int:
    """Return how many of so many are listed: a line that counts one or two more would save nothing."""
    return MOST if count > MOST + 2 else count


def _list_changes(lines: Sequence[str]) -> Iterator[str]:
    listed = _count_listed(len(lines))
    yield from lines[:listed]
    if more := len(lines) - listed:
        yield f"and {count_of(more, 'more change')} (`--json` lists all)"


def _amounts(works: Sequence[ToBuild], privacy: Privacy) -> tuple[str, str, str]:
    """Source bytes, tokens and time, summed and formatted; `-` for an amount that is not known, or does not leave."""
    sizes = [work.reading.source_bytes for work in works if work.reading is not None]
    tokens = [work.tokens for work in works if work.tokens is not None]
    seconds = [work.timed_seconds for work in works if work.timed_seconds is not None]
    if privacy.closed:
        return "-", privacy.count(sum(tokens)) if tokens else "-", "-"
    return (
        shown_bytes(sum(sizes)) if sizes else "-",
        f"{sum(tokens):,}" if tokens else "-",
        shown_time(sum(seconds)).strip() if seconds else "-",
    )


def rebuild_lines(rebuild: Rebuild, privacy: Privacy) -> Iterator[str]:
    """The causes, below each what a run builds for it, then sums: plain text, also on a terminal."""
    causes = _causes(rebuild.works, privacy)
    listed = _count_listed(len(causes))
    rows = [list(cause.rows(privacy)) for cause in causes[:listed]]
    if rows:
        head, *lines = align_rows([_HEAD, *chain.from_iterable(rows)], right={1, 3, 4, 5})
        yield head
        for cause, own in zip(causes[:listed], rows, strict=True):
            yield from _list_changes(cause.lines)
            yield from lines[: len(own)]
            del lines[: len(own)]
    if hidden := causes[listed:]:
        artifacts = count_of(sum(len(cause.works) for cause in hidden), "artifact")
        yield f"and {count_of(len(hidden), 'more cause')}, of {artifacts} (`--json` lists all)"
    yield ""
    if rebuild.losses:
        yield from _losses(rebuild.losses, privacy)
        yield ""
    # a run that builds something judges these again anyway
    yield from () if rebuild.works else _checks_due(rebuild.due)
    if not privacy.closed and rebuild.works:
        yield from _sums(rebuild)
    for published in rebuild.published:
        yield f"replaces the published {published.place} ({published.artifact})"


def _losses(losses: Sequence[LossChange], privacy: Privacy) -> Iterator[str]:
    """A table of what is dropped before and after the run."""
    rows = [("dropped by", "reason", "before", "after")]
    for one in losses:
        after = "not known yet" if one.after is None else privacy.count(one.after)
        rows.append((one.artifact, one.reason, privacy.count(one.before), after))
    yield from align_rows(rows, right={2, 3})


def _checks_due(due: Sequence[Decision]) -> Iterator[str]:
    """A line per artifact and reason for which checks have to run."""
    groups: dict[tuple[str, str], list[Decision]] = {}
    for one in due:
        groups.setdefault((one.asset, one.reason), []).append(one)
    for (asset, reason), decisions in groups.items():
        partitions = [one.partition for one in decisions if one.partition is not None]
        where = f" ({count_of(len(partitions), 'partition')})" if partitions else ""
        yield f"{asset}{where}: {reason}"


def _sums(rebuild: Rebuild) -> Iterable[str]:
    by_name: dict[str, list[ToBuild]] = {}
    for work in rebuild.works:
        if work.stale.spec is not None:
            by_name.setdefault(work.stale.spec.name, []).append(work)
    for name, works in by_name.items():
        if len(works) > 1:
            source, tokens, seconds = _amounts(works, OPEN)
            parts = {source + " of source": source, tokens + " tokens": tokens, seconds: seconds}
            known = [text for text, value in parts.items() if value != "-"]
            yield ", ".join([f"{name}: {count_of(len(works), 'artifact')}", *known])
    if provisional := sum(work.stale.provisional for work in rebuild.works):
        yield (
            f"{provisional} of {len(rebuild.works)} are built only if a rebuilt input differs from before, which is "
            "not known in advance"
        )
    cores = rebuild.machine.cores
    least, most = (shown_time(seconds).strip() for seconds in rebuild.seconds)
    expected = f"about {most}" if least == most else f"{least} to {most}"
    untimed = f"; never timed here: {', '.join(rebuild.untimed)}" if rebuild.untimed else ""
    yield f"expected: {expected} on {count_of(cores, 'core')}{untimed}"
