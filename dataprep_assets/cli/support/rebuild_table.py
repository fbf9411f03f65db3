"""Table and JSON of the artifacts that a run would build, for `dataprep status` and `run --dry-run`."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.rebuild import LossChange, PlannedBuild, Rebuild
from dataprep_assets.errors import count_of
from dataprep_assets.planning.cost import format_bytes, format_seconds
from dataprep_assets.screen import read_width
from dataprep_assets.table import align_rows, fit_columns

MAX_LISTED = 20
"""Maximum number of causes and of changes to list."""
_HEAD = ("  artifact", "count", "partitions", "source", "tokens", "time", "")
_PARTITIONS, _SOURCE, _TOKENS = 2, 3, 4
_NUMBERS = frozenset((1, 3, 4, 5))
"""Columns of `_HEAD` that are right-aligned."""


@dataclass
class _Cause:
    """Cause of a rebuild, described in lines, and the artifacts that a run builds because of it."""

    lines: list[str] = field(default_factory=list)
    works: list[PlannedBuild] = field(default_factory=list)

    def rows(self, privacy: Privacy) -> Iterator[tuple[str, ...]]:
        """Yield a row per artifact, indented below the cause."""
        groups: dict[object, list[PlannedBuild]] = {}
        for work in self.works:
            groups.setdefault((work.stale.spec or work.stale.name, work.stale.provisional), []).append(work)
        for works in groups.values():
            first_stale = works[0].stale
            partitions = [work.stale.partition for work in works if work.stale.partition is not None]
            yield (
                f"  {first_stale.asset}",
                str(len(partitions)) if partitions else "-",
                partitions[0] + (f"...{partitions[-1]}" if len(partitions) > 1 else "") if partitions else "-",
                *_format_amounts(works, privacy),
                "if its input changes" if first_stale.provisional else "",
            )


def _group_causes(works: Iterable[PlannedBuild], privacy: Privacy) -> list[_Cause]:
    """Group artifacts by their causes, in build order; each line belongs to one group."""
    groups: list[_Cause] = []
    of_line: dict[str, _Cause] = {}
    # Cache the group of each tuple of causes, because thousands of shards may have the same thousand causes, e.g., new
    # files.
    of_causes: dict[tuple[tuple[str, ...], str], _Cause] = {}
    for work in works:
        key = (work.stale.causes, work.stale.kind)
        if key not in of_causes:
            lines = [privacy.public_text(line, work.stale.kind) for line in work.stale.causes]
            if (cause := of_line.get(lines[0])) is None:
                groups.append(cause := _Cause())
            new = [line for line in dict.fromkeys(lines) if line not in of_line]
            cause.lines += new
            of_line |= dict.fromkeys(new, cause)
            of_causes[key] = cause
        of_causes[key].works.append(work)
    return groups


def _count_listed(count: int) -> int:
    """Return how many of `count` items to list; omitting only one or two would not shorten the list."""
    return MAX_LISTED if count > MAX_LISTED + 2 else count


def _list_changes(lines: Sequence[str]) -> Iterator[str]:
    listed_count = _count_listed(len(lines))
    yield from lines[:listed_count]
    if omitted := len(lines) - listed_count:
        yield f"and {count_of(omitted, 'more change')} (`--json` lists all)"


def _format_amounts(works: Sequence[PlannedBuild], privacy: Privacy) -> tuple[str, str, str]:
    """Sum and format source bytes, tokens and time; use `-` for an unknown or private amount."""
    sizes = [work.reading.source_bytes for work in works if work.reading is not None]
    tokens = [work.tokens for work in works if work.tokens is not None]
    seconds = [work.timed_seconds for work in works if work.timed_seconds is not None]
    if privacy.closed:
        return "-", privacy.public_count(sum(tokens)) if tokens else "-", "-"
    return (
        format_bytes(sum(sizes)) if sizes else "-",
        f"{sum(tokens):,}" if tokens else "-",
        format_seconds(sum(seconds)).strip() if seconds else "-",
    )


def rebuild_lines(rebuild: Rebuild, privacy: Privacy) -> Iterator[str]:
    """Yield the causes, each with the artifacts that a run builds for it, then totals, as plain text."""
    causes = _group_causes(rebuild.works, privacy)
    listed_count = _count_listed(len(causes))
    rows = [list(cause.rows(privacy)) for cause in causes[:listed_count]]
    hidden_columns: list[str] = []
    if rows:
        table = [_HEAD, *chain.from_iterable(rows)]
        column_indices, hidden_columns = fit_columns(table, (_PARTITIONS, _SOURCE, _TOKENS), read_width(sys.stdout))
        right = {position for position, column in enumerate(column_indices) if column in _NUMBERS}
        head, *lines = align_rows([[row[column] for column in column_indices] for row in table], right=right)
        yield head
        for cause, cause_row in zip(causes[:listed_count], rows, strict=True):
            yield from _list_changes(cause.lines)
            yield from lines[: len(cause_row)]
            del lines[: len(cause_row)]
    if hidden := causes[listed_count:]:
        artifacts = count_of(sum(len(cause.works) for cause in hidden), "artifact")
        yield f"and {count_of(len(hidden), 'more cause')}, for {artifacts} (`--json` lists all)"
    if hidden_columns:
        yield f"not shown at this width: {', '.join(hidden_columns)} (`--json` lists all)"
    yield ""
    if rebuild.losses:
        yield from _format_losses(rebuild.losses, privacy)
        yield ""
    # Print due checks only if nothing is built, because a build also runs them.
    yield from () if rebuild.works else _list_due_checks(rebuild.due)
    if not privacy.closed and rebuild.works:
        yield from _format_sums(rebuild)
    for published in rebuild.published:
        yield f"replaces the published files in {published.place} ({published.artifact})"


def _format_losses(losses: Sequence[LossChange], privacy: Privacy) -> Iterator[str]:
    """Yield a table of the numbers of dropped documents before and after the run."""
    rows = [("dropped by", "reason", "before", "after")]
    for loss in losses:
        loss_after = "not known yet" if loss.after is None else privacy.public_count(loss.after)
        rows.append((loss.artifact, loss.reason, privacy.public_count(loss.before), loss_after))
    yield from align_rows(rows, right={2, 3})


def _list_due_checks(due_decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield a line per artifact and reason for which checks are due."""
    groups: dict[tuple[str, str], list[Decision]] = {}
    for decision in due_decisions:
        groups.setdefault((decision.asset, decision.reason), []).append(decision)
    for (asset, reason), decisions in groups.items():
        partitions = [decision.partition for decision in decisions if decision.partition is not None]
        partition_text = f" ({count_of(len(partitions), 'partition')})" if partitions else ""
        yield f"{asset}{partition_text}: {reason}"


def _format_sums(rebuild: Rebuild) -> Iterable[str]:
    by_name: dict[str, list[PlannedBuild]] = {}
    for work in rebuild.works:
        if work.stale.spec is not None:
            by_name.setdefault(work.stale.spec.name, []).append(work)
    for name, works in by_name.items():
        if len(works) > 1:
            source, tokens, seconds = _format_amounts(works, OPEN)
            parts = {source + " of source": source, tokens + " tokens": tokens, seconds: seconds}
            amounts = [text for text, value in parts.items() if value != "-"]
            yield ", ".join([f"{name}: {count_of(len(works), 'artifact')}", *amounts])
    if provisional := sum(work.stale.provisional for work in rebuild.works):
        verb = "is" if provisional == 1 else "are"
        yield (
            f"{provisional:,} of {count_of(len(rebuild.works), 'artifact')} {verb} built only if a rebuilt input "
            "differs from its current version, which is not known in advance"
        )
    cores = rebuild.machine.cores
    shortest, longest = (format_seconds(seconds).strip() for seconds in rebuild.seconds)
    time_range = f"about {longest}" if shortest == longest else f"{shortest} to {longest}"
    untimed = (
        f"; not included, because never timed with this much data: {', '.join(rebuild.untimed)}"
        if rebuild.untimed
        else ""
    )
    yield f"expected: {time_range} on {count_of(cores, 'core')}{untimed}"
