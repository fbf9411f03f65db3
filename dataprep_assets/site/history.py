"""What earlier runs reported about a dataset, from Dagster's public records.

Each build of a dataset materializes its `data_card`, whose metadata has the counts, and evaluates the checks of its
artifacts. Dagster keeps both, so the pages need no records of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CheckKey = tuple[str, str]
"""Path of an artifact below its dataset, such as `token_bins`, and the name of a check."""
DropKey = tuple[str, str]
"""Source, or empty for the whole dataset, and the rule that dropped rows."""


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """A build of the dataset.

    Counts are in their public form: a text, such as `< 11`, or None if they are not recorded.

    Attributes:
        time: End of the build, in seconds since 1970.
        run_id: Dagster's id of the run.
        documents: Documents in the dataset.
        tokens: Tokens in the dataset.
        dropped: Source rows that were dropped.
        drops: Dropped rows by source and rule.
        sources: Source rows by source.
    """

    time: float
    run_id: str
    documents: int | str | None = None
    tokens: int | str | None = None
    dropped: int | str | None = None
    drops: Mapping[DropKey, int] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckRecord:
    """An evaluation of a check.

    Attributes:
        time: Its time, in seconds since 1970.
        passed: Whether the check passed.
        severity: `WARN` or `ERROR`, which matters only if it did not pass.
    """

    time: float
    passed: bool
    severity: str = "ERROR"


@dataclass(frozen=True, kw_only=True)
class DatasetHistory:
    """What earlier runs reported about a dataset, oldest first."""

    builds: tuple[BuildRecord, ...] = ()
    checks: Mapping[CheckKey, tuple[CheckRecord, ...]] = field(default_factory=dict)
