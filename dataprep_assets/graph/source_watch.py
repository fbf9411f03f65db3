"""Whether a source changed since it was planned: the question that automation asks of a dataset, again and again.

The question is cheap. A source is listed, or asked for its commit; no file is read, fetched or written. Only where the
listing is another than at the last look, it is compared with the plan that is there, and told in words.

Entry points: `SourceWatch`, which a wing gives to the spec that reads the source, and `look`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import SourceError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value

__all__ = ["EDITED", "Look", "SourceIdentity", "SourceWatch", "identity_of", "in_words", "look", "time_of"]

EDITED = "files were edited in place, with the same names and sizes"


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """What a source lists now, in two digests; equal ones say that nothing was done to the source.

    Attributes:
        listing: Of everything that the plan knows as well: names, sizes, versions, commits.
        stamps: Of what the plan does not know: the times of files of this machine, which have no version before they
            are read. Empty where there is nothing of the kind.
    """

    listing: str
    stamps: str = ""

    def __str__(self) -> str:
        """As a cursor and a tag hold it."""
        return f"{self.listing[:32]}.{self.stamps[:32]}"


@dataclass(frozen=True, kw_only=True)
class SourceWatch:
    """How a source is asked for changes. Both functions raise DataprepError where it cannot be listed.

    Attributes:
        identity: What the source lists now.
        changes: What of the source is not as the plan in the store has it, in words without names of files; empty where
            nothing is.
    """

    identity: Callable[[ArtifactStore], SourceIdentity]
    changes: Callable[[ArtifactStore], str]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was found: the source's `identity` now, and in words what changed; empty where nothing did."""

    identity: str
    change: str = ""


def look(watch: SourceWatch, store: ArtifactStore, seen: str | None) -> Look:
    """Ask whether the source changed.

    Args:
        watch: How it is asked.
        store: Where the plan is.
        seen: The identity at the last look that found everything as planned, or was followed by a run; None at the
            first.
    """
    identity = watch.identity(store)
    now = str(identity)
    if now == seen:
        return Look(identity=now)
    change = watch.changes(store)
    if not change and seen is not None and seen.partition(".")[0] == now.partition(".")[0]:
        change = EDITED
    return Look(identity=now, change=change)


def identity_of(listing: Iterable[object], stamps: Iterable[object] = ()) -> SourceIdentity:
    """The identity of a listing, whatever its order; lines are JSON values."""
    stamped = sorted(stamps, key=repr)
    return SourceIdentity(
        listing=digest_value(sorted(listing, key=repr)), stamps=digest_value(stamped) if stamped else ""
    )


def time_of(path: Path, label: str) -> int:
    """When a file of this machine was last changed, in nanoseconds.

    Raises SourceError, naming `label`, when it is gone.
    """
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise SourceError(f"{label}: {error.strerror or error}: it vanished while the source was listed") from error


def in_words(counts: Iterable[tuple[int, str, str]]) -> str:
    """`1 file added, 2 shards new`, of (count, noun, what happened) without those that are 0."""
    return ", ".join(f"{count:,} {noun if count == 1 else noun + 's'} {verb}" for count, noun, verb in counts if count)
