"""What `dataprep retract` tells of a list of ids, whatever the pipeline: found, not found, and where it was.

A pipeline's wing retracts by `DatasetComponent.retract`: it reads the list of ids, adds to the dataset's retraction
list, and returns a `Retracted`. Of sensitive data nothing in it names a document or a patient.
"""

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Held", "NotFound", "Retracted"]


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a partition holds of what is retracted: a count for each of the `counted` of its `Retracted`."""

    partition: str
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class NotFound:
    """A line of the list of ids, from 1, that names nothing that is there; its text is None for sensitive data."""

    line: int
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Retracted:
    """What became of a list of ids.

    Attributes:
        list: The dataset's retraction list.
        given: Lines of the list of ids.
        already: Those that were retracted before.
        found: What is new and is in finished partitions.
        added: Lines that the retraction list gained.
        not_found: Lines that name nothing that is there.
        counted: What is counted in a partition, each in the singular: `("document", "token")`.
        held: The partitions that hold what was found.
        partitions: What a person calls one partition.
        kept: Which of the lines that were not found are on the retraction list nevertheless.
        files: SHA-256 of the source files that what was found came from: other datasets may be made of them, too.
    """

    list: Path
    given: int
    already: int
    found: int
    added: int
    not_found: tuple[NotFound, ...]
    counted: tuple[str, ...]
    held: tuple[Held, ...]
    partitions: str
    kept: str
    files: frozenset[str] = frozenset()
