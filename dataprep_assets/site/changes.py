"""Changes of a dataset's counts between its last two builds.

Entry points: `compare_builds`, `find_unusual_changes`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dataprep_assets.site.history import DatasetHistory

UNUSUAL_SHARE, UNUSUAL_COUNT = 0.2, 50
"""A count changed unusually if it changed by more than this share and at least this count since the last build."""
_TOTALS = {"rows": "source rows", "documents": "documents", "tokens": "tokens", "dropped": "dropped rows"}
"""Attribute of a build → name of the count."""


@dataclass(frozen=True, kw_only=True)
class CountChange:
    """A count in the last two builds.

    Attributes:
        dataset: The dataset's name.
        what: Name of the count.
        before: Count in the build before the last one.
        now: Count in the last build.
        time: Time of the last build, in seconds since 1970.
    """

    dataset: str
    what: str
    before: int
    now: int
    time: float

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
    counts = {
        **{(title, "", ""): (getattr(before, name), getattr(now, name)) for name, title in _TOTALS.items()},
        **{
            key: (before.volumes.get(key, 0), now.volumes.get(key, 0))
            for key in {**now.volumes, **before.volumes}
            # A build before the site existed recorded no volumes.
            if before.volumes and now.volumes
        },
    }
    for key, (old, new) in counts.items():
        if isinstance(old, int) and isinstance(new, int):
            yield CountChange(dataset=dataset, what=_describe_count(*key), before=old, now=new, time=now.time)


def find_unusual_changes(dataset: str, history: DatasetHistory) -> list[CountChange]:
    """Return the counts that changed unusually between the last two builds, the largest change first.

    If the number of documents changed unusually, all counts that changed are returned, because they explain it.
    """
    changes = list(compare_builds(dataset, history))
    explains_all = any(change.is_unusual for change in changes if change.what == "documents")
    return sorted(
        (change for change in changes if change.is_unusual or (explains_all and change.now != change.before)),
        key=lambda change: (-abs(change.now - change.before) / max(change.before, 1), change.what),
    )


def _describe_count(source: str, reason: str, kind: str) -> str:
    if not kind:
        return source
    text = f"{kind}: {reason}" if reason else kind
    return f"{text}, {source}" if source else text
