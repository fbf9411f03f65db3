"""The result of `dataprep retract` for any pipeline: which ids were found and where, and which were not.

A wing implements `DatasetComponent.retract`: it reads the list of ids, adds to the dataset's retraction list, and
returns a `Retracted`. For sensitive data nothing in it names a document or a patient.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NOT_BUILT = "not built yet"
"""Reason of a row that has no other reason and is in no finished partition."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """How much a partition holds of what is retracted: one count for each noun in `Retracted.counted`."""

    partition: str
    counts: tuple[int, ...]
    planned: bool = True


@dataclass(frozen=True, kw_only=True)
class NotFound:
    """A line of the list of ids, numbered from 1, that matches nothing; its text is None for sensitive data."""

    line: int
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class DuplicatesChange:
    """What the next run makes of duplicates: how many documents come back, and how many go that did not before."""

    back: int
    gone: int


@dataclass(frozen=True, kw_only=True)
class Retracted:
    """The result of retracting a list of ids.

    Attributes:
        list: The dataset's retraction list.
        given: Number of lines in the list of ids.
        already: How many of them had been retracted before.
        found: How many are new and were found, in finished partitions or elsewhere.
        left_out: Why some of these are in no finished partition → how many.
        added: Number of lines added to the retraction list.
        not_found: The lines that match nothing.
        counted: Nouns of the counts in a partition, in the singular: `("document", "token")`.
        held: The partitions that hold what was found.
        artifact: The name of the artifact that has these partitions.
        partitions: The noun for one partition.
        kept: Which of the lines that were not found are on the retraction list nevertheless.
        files: SHA-256 of the source files of what was found: other datasets may be made of them too.
        copies: The files in which a mirror of the source keeps a copy of these.
        change: What this makes of duplicates; None if nothing was added, or it is known only after a run.
    """

    list: Path
    given: int
    already: int
    found: int
    added: int
    not_found: tuple[NotFound, ...]
    counted: tuple[str, ...]
    held: tuple[Held, ...]
    artifact: str
    partitions: str
    kept: str
    files: frozenset[str] = frozenset()
    copies: tuple[Path, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    change: DuplicatesChange | None = None
