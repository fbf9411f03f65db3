"""The result of `dataprep retract` for any pipeline: the ids that were found, their locations, and the ids not found.

A layer implements `DatasetComponent.retract`. It reads the list of ids, adds to the dataset's retraction list, and
returns a `RetractionResult`. For sensitive data, the result names no document and no patient.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NOT_BUILT = "not built yet"
"""Reason for a row that is in no finished partition and has no other reason."""


@dataclass(frozen=True, kw_only=True)
class RetractedAmount:
    """Amount of retracted content in a partition: one count for each noun in `RetractionResult.counted`."""

    partition: str
    counts: tuple[int, ...]
    planned: bool = True


@dataclass(frozen=True, kw_only=True)
class UnmatchedLine:
    """A line of the list of ids, numbered from 1, that matches nothing. Its text is None for sensitive data.

    `is_row` is whether it names a file and a row. Such a line has no id, so it is not added to the retraction list.
    """

    line: int
    is_row: bool = False
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class DuplicatesChange:
    """Effect on duplicates in the next run: numbers of documents that are restored (`back`) and newly dropped."""

    back: int
    gone: int


@dataclass(frozen=True, kw_only=True)
class RetractionResult:
    """The result of retracting a list of ids.

    Attributes:
        list: The dataset's retraction list.
        given: Number of lines in the list of ids.
        already: Number of lines that had been retracted before.
        found: Number of new lines that were found, in finished partitions or elsewhere.
        left_out: Reason why found lines are in no finished partition → their number.
        added: Number of lines added to the retraction list.
        not_found: The lines that match nothing.
        counted: Singular nouns for the counts of a partition: `("document", "token")`.
        held: The partitions that contain the found lines.
        artifact: The name of the artifact that has these partitions.
        partitions: The noun for one partition.
        kept: Description of the lines that were not found but are added to the retraction list.
        files: SHA-256 of the source files of the found lines, because other datasets may use the same files.
        copies: The copies of these source files in a mirror of the source.
        change: Effect on duplicates; None if nothing was added, or if it is known only after a run.
    """

    list: Path
    given: int
    already: int
    found: int
    added: int
    not_found: tuple[UnmatchedLine, ...]
    counted: tuple[str, ...]
    held: tuple[RetractedAmount, ...]
    artifact: str
    partitions: str
    kept: str
    files: frozenset[str] = frozenset()
    copies: tuple[Path, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    change: DuplicatesChange | None = None
