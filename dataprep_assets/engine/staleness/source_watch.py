"""Whether a source changed since it was planned; automation asks this regularly.

Asking is cheap. A source is listed, or asked for its commit; no file is read, fetched or written. Only if the listing
differs from the last look is it compared with the present plan, and the difference described in words.

Entry points: `SourceWatch`, which a wing puts into the spec that reads the source, and `look`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import SourceError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.stores.files import digest_value

EDITED = "files were edited in place, with the same names and sizes"


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """Two digests of a source's present listing; if both are equal, the source did not change.

    Attributes:
        listing: Digest of what the plan has too: names, sizes, versions, commits.
        stamps: Digest of what the plan does not have: the modification times of local files, which have no version
            until they are read. Empty if there are none.
    """

    listing: str
    stamps: str = ""

    def __str__(self) -> str:
        """The identity as text, for cursors and tags."""
        return f"{self.listing[:32]}.{self.stamps[:32]}"


@dataclass(frozen=True, kw_only=True)
class SourceWatch:
    """How a source is asked for changes. Both functions raise DataprepError if it cannot be listed.

    Attributes:
        identity: Returns the source's present identity.
        changes: Describes how the source differs from the plan in the store, without names of files; "" if it does not.
    """

    identity: Callable[[ArtifactStore], SourceIdentity]
    changes: Callable[[ArtifactStore], str]


@dataclass(frozen=True, kw_only=True)
class PollResult:
    """The result of a look: the source's present `identity`, and a description of the changes; "" if there are none."""

    identity: str
    change: str = ""


def look(watch: SourceWatch, store: ArtifactStore, seen: str | None) -> PollResult:
    """Ask whether the source changed.

    Args:
        watch: How the source is asked.
        store: Where the plan is.
        seen: The identity at the last look that found no change or was followed by a run; None at the first look.
    """
    identity = watch.identity(store)
    now = str(identity)
    if now == seen:
        return PollResult(identity=now)
    change = watch.changes(store)
    # a plan has no modification times: files that were edited in place differ from the last look alone, by their stamps
    if not change and seen is not None and seen.partition(".")[0] == now.partition(".")[0]:
        change = EDITED
    return PollResult(identity=now, change=change)


def identity_of(listing: Iterable[object], stamps: Iterable[object] = ()) -> SourceIdentity:
    """The identity of a listing, independent of its order; entries are JSON values."""
    # by `repr`: entries may hold what Python does not compare, as None beside a text
    stamped = sorted(stamps, key=repr)
    return SourceIdentity(
        listing=digest_value(sorted(listing, key=repr)), stamps=digest_value(stamped) if stamped else ""
    )


def time_of(path: Path, label: str) -> int:
    """Modification time of a local file, in nanoseconds.

    Raises SourceError, naming `label`, if the file is gone.
    """
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise SourceError(f"{label}: {error.strerror or error}: it vanished while the source was listed") from error


def in_words(counts: Iterable[tuple[int, str, str]]) -> str:
    """Join (count, noun, what happened) to `1 file added, 2 shards new`, leaving out zero counts.

    The nouns are things of a source, as files, and no documents or people.
    """
    return ", ".join(f"{count_of(count, noun)} {verb}" for count, noun, verb in counts if count)
