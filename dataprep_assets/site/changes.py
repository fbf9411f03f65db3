"""Changes of a dataset's counts between its last two builds.

Entry points: `compare_builds`, `find_unusual_changes`, `explain_documents`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dataprep_assets.errors import count_of
from dataprep_assets.site.history import BuildRecord, DatasetHistory, VolumeKey

UNUSUAL_SHARE, UNUSUAL_COUNT = 0.2, 50
"""A count changed unusually if it changed by more than this share and at least this count since the last build."""
_TOTALS = {"rows": "source rows", "documents": "documents", "tokens": "tokens", "dropped": "dropped rows"}
"""Attribute of a build → name of the count."""
_ALL_ROWS, _DROPPED_ROWS = ("", "all rows"), "rows dropped"
"""Rule and kind of a source's total, and the kind of the rows that a rule drops (`LossTable.list_counts`)."""


@dataclass(frozen=True, kw_only=True)
class CountChange:
    """A count in the last two builds.

    Attributes:
        dataset: The dataset's name.
        what: Name of the count.
        before: Count in the build before the last one.
        now: Count in the last build.
        time: Time of the last build, in seconds since 1970.
        explanation: Why the number of documents changed; empty for other counts.
    """

    dataset: str
    what: str
    before: int
    now: int
    time: float
    explanation: str = ""

    @property
    def change(self) -> str:
        """The change in percent, with its sign; in words if there was nothing before."""
        return f"{(self.now - self.before) / self.before:+.0%}" if self.before else "new"

    @property
    def is_unusual(self) -> bool:
        """Whether it changed by a large share and a large count."""
        size = abs(self.now - self.before)
        return size >= UNUSUAL_COUNT and size > UNUSUAL_SHARE * self.before


def compare_builds(dataset: str, history: DatasetHistory) -> Iterator[CountChange]:
    """Yield the totals, then the counts by source and rule, of the last two builds.

    Nothing is yielded for a sensitive dataset, because differences of rounded counts must not be shown.
    """
    if history.is_private or len(history.builds) < 2:
        return
    before, now = history.builds[-2:]
    volumes = _pair_volumes(before, now)
    is_single = len({source for source, _, _ in volumes}) == 1
    counts = {
        **{title: (getattr(before, name), getattr(now, name)) for name, title in _TOTALS.items()},
        **{
            _describe_count("" if is_single else source, rule, kind): pair
            for (source, rule, kind), pair in volumes.items()
            # The rows of a single source are the source rows of the dataset.
            if not (is_single and (rule, kind) == _ALL_ROWS)
        },
    }
    for what, (old, new) in counts.items():
        if isinstance(old, int) and isinstance(new, int):
            yield CountChange(dataset=dataset, what=what, before=old, now=new, time=now.time)


def find_unusual_changes(dataset: str, history: DatasetHistory) -> list[CountChange]:
    """Return the counts that changed unusually between the last two builds, the documents and the largest first."""
    unusual_changes = sorted(
        (change for change in compare_builds(dataset, history) if change.is_unusual),
        key=lambda change: (-abs(change.now - change.before) / max(change.before, 1), change.what),
    )
    documents = [change for change in unusual_changes if change.what == _TOTALS["documents"]]
    return [
        *(replace(change, explanation=explain_documents(history)) for change in documents),
        *(change for change in unusual_changes if change not in documents),
    ]


def explain_documents(history: DatasetHistory) -> str:
    """Return a sentence about the source rows and rules that changed the number of documents since the previous build.

    Returns an empty text if the number did not change, if it is private, or if the recorded counts do not add up to it.
    """
    totals = {change.what: change.now - change.before for change in compare_builds("", history)}
    documents, rows = totals.get(_TOTALS["documents"], 0), totals.get(_TOTALS["rows"])
    if not documents or rows is None:
        return ""
    dropped = Counter[str]()
    for (_, rule, kind), (old, new) in _pair_volumes(*history.builds[-2:]).items():
        if rule and kind == _DROPPED_ROWS:
            dropped[rule] += new - old
    if documents != rows - dropped.total():
        return ""
    causes = [_compare(rows, "source row")] if rows else []
    causes += [
        f"{_compare(count, 'row')} dropped as {rule}"
        for rule, count in sorted(dropped.items(), key=lambda item: (-abs(item[1]), item[0]))
        if count
    ]
    return f"{_compare(documents, 'document')} than in the previous build: {', '.join(causes)}."


def _pair_volumes(before: BuildRecord, now: BuildRecord) -> dict[VolumeKey, tuple[int, int]]:
    """Return the counts of both builds by source, rule and kind; nothing if one of the builds recorded none."""
    keys = {**now.volumes, **before.volumes} if before.volumes and now.volumes else {}
    return {key: (before.volumes.get(key, 0), now.volumes.get(key, 0)) for key in keys}


def _compare(difference: int, noun: str) -> str:
    """Return a difference in words, such as `2 fewer rows`."""
    return count_of(abs(difference), f"{'fewer' if difference < 0 else 'more'} {noun}")


def _describe_count(source: str, rule: str, kind: str) -> str:
    text = f"{kind}: {rule}" if rule else kind
    return f"{text}, {source}" if source else text
