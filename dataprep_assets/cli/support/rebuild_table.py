"""What has to be rebuilt, as a table for people and as JSON: for `dataprep status` and `run --dry-run`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.engine.staleness.rebuild import Rebuild, ToBuild
from dataprep_assets.errors import count_of
from dataprep_assets.planning.cost import shown_bytes, shown_time

MOST_ROWS = 20


@dataclass(frozen=True)
class _Row:
    """Artifacts of one asset that are stale for the same kind of reason."""

    works: list[ToBuild]
    privacy: Privacy

    @property
    def cells(self) -> tuple[str, ...]:
        first = self.works[0].stale
        asset = "/".join(first.spec.path[1:]) if first.spec is not None else first.name
        partitions = [work.stale.partition for work in self.works if work.stale.partition is not None]
        reasons = list(dict.fromkeys(work.stale.reason for work in self.works))
        more = f" (and {len(reasons) - 1} more like this)" if len(reasons) > 1 else ""
        return (
            asset,
            str(len(partitions)) if partitions else "-",
            partitions[0] + (f"...{partitions[-1]}" if len(partitions) > 1 else "") if partitions else "-",
            *_amounts(self.works, self.privacy),
            first.kind if self.privacy.closed else reasons[0] + more,
        )


def _amounts(works: Sequence[ToBuild], privacy: Privacy) -> tuple[str, str, str]:
    """Source bytes, tokens and time, summed and formatted; `-` for an amount that is not known, or does not leave."""
    sizes = [work.reading.source_bytes for work in works if work.reading is not None]
    tokens = [work.tokens for work in works if work.tokens is not None]
    seconds = [work.seconds for work in works if work.seconds is not None]
    if privacy.closed:
        return "-", privacy.count(sum(tokens)) if tokens else "-", "-"
    return (
        shown_bytes(sum(sizes)) if sizes else "-",
        f"{sum(tokens):,}" if tokens else "-",
        shown_time(sum(seconds)).strip() if seconds else "-",
    )


def rebuild_lines(rebuild: Rebuild, privacy: Privacy) -> Iterable[str]:
    """The lines of the table, then its sums: plain text, also on a terminal."""
    groups: dict[tuple[object, str], list[ToBuild]] = {}
    for work in rebuild.works:
        groups.setdefault((work.stale.spec or work.stale.name, work.stale.kind), []).append(work)
    rows = [_Row(works, privacy).cells for works in groups.values()]
    # a line that counts one or two rows saves nothing
    most = MOST_ROWS if len(rows) > MOST_ROWS + 2 else len(rows)
    shown = [("artifact", "count", "partitions", "source", "tokens", "time", "why"), *rows[:most]]
    widths = [max(len(row[at]) for row in shown) for at in range(6)]
    for row in shown:
        cells = []
        for column, (cell, width) in enumerate(_zip(row, widths)):
            blank = " " * (width - len(cell))
            cells.append(blank + cell if column in (1, 3, 4, 5) else cell + blank)
        yield "  ".join([*cells, row[6]] if row[6] else cells)
    if hidden := list(groups.values())[most:]:
        yield (
            f"and {count_of(len(hidden), 'more row')}, of {count_of(sum(map(len, hidden)), 'artifact')} "
            "(`--json` lists all)"
        )
    yield ""
    if not privacy.closed:
        yield from _sums(rebuild)
    for published in rebuild.published:
        yield f"replaces the published {published.place} ({published.artifact})"


def _zip(row: Sequence[str], widths: Sequence[int]) -> Iterable[tuple[str, int]]:
    return zip(row[: len(widths)], widths, strict=True)


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
