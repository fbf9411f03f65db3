"""A check of an artifact and its finding: name, sentence that is true when it passes, function, whether it blocks.

A check is written once, next to its artifact. Its function takes a *subject*: what the checks of an artifact look at.
A subject is opened once and reads what is expensive when the first check needs it (cached properties), because several
checks read the same files. `verdicts` runs them.

Entry points: `Check`; `OpenedArtifact` and `OpenedPartition`, the bases of most subjects, and `FILES_INTACT`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, ParamSpec, Protocol, Self, TypeVar

from dataprep_assets.engine.artifact.metadata_values import Markdown
from dataprep_assets.errors import DataprepError, IntegrityError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, StoredSubject
from dataprep_assets.integrity.receipt import Ledger, Receipt, damage
from dataprep_assets.stores.files import digest_value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A finding: the result of one check of one artifact, with the numbers and places that support it.
#
# A check never raises for a defect that it exists to find, because a check that raises has no history and shows no
# numbers. Checks read files that may be damaged in any way, so `judged` also turns errors of the readers below them
# (a truncated file, a missing one, a receipt without its facts) into failed findings. A bug still raises.

Row = Mapping[str, str | int | float]
"""A row of a finding's table."""

ACCEPTED = "accepted"
"""Name of the fact with the reason in an accepted finding."""
SHOWN = 20
"""Maximum number of defects in a table."""
REBUILD = "Delete the shard's directory and materialize it again"
"""Remedy for a shard that differs from the state in which it was built."""

_P = ParamSpec("_P")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found. `facts` are numbers to plot (texts if they cannot change),
    `table` rows to look at, `plot` a picture.

    `summary` is one sentence: what holds, or what is wrong, where, and what to do. `warning` is the severity of a
    failure: True when the artifact may still be used by someone who has read the sentence.
    """

    passed: bool
    summary: str
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    table: tuple[Row, ...] = ()
    plot: Markdown | None = None
    warning: bool = False


def verdict(
    defects: Iterable[str],
    holds: str,
    todo: str,
    *,
    facts: Mapping[str, int | float | str] | None = None,
    table: Iterable[Row] | None = None,
    warning: bool = False,
) -> Finding:
    """A finding: passes with the sentence `holds` if there are no defects, else names the first and says what `todo`.

    Without a `table` the finding lists the first defects.
    """
    all_defects = list(defects)
    facts = {**(facts or {}), "defects": len(all_defects)}
    rows: tuple[Row, ...] = tuple(table) if table is not None else tuple({"defect": d} for d in all_defects[:SHOWN])
    if not all_defects:
        return Finding(passed=True, summary=holds, facts=facts, table=rows)
    suffix = f" (and {len(all_defects) - 1} more)" if len(all_defects) > 1 else ""
    summary = f"{all_defects[0]}{suffix}. {todo}."
    return Finding(passed=False, summary=summary, facts=facts, table=rows, warning=warning)


def accepted(finding: Finding, why: str) -> Finding:
    """Turn a warning that the declaration accepts into a pass with the reason. An unreadable artifact still fails."""
    if finding.passed or "unreadable" in finding.facts:
        return finding
    summary = f"Accepted: {why}. {finding.summary}"
    return replace(finding, passed=True, summary=summary, facts={**finding.facts, ACCEPTED: why})


def judged(check: Callable[_P, Finding]) -> Callable[_P, Finding]:
    """Decorate a check's function so that errors of readers and of the file system become failed findings."""

    @wraps(check)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> Finding:
        try:
            return check(*args, **kwargs)
        except DataprepError as error:
            return Finding(passed=False, summary=str(error), facts={"unreadable": 1})
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return Finding(
                passed=False,
                facts={"unreadable": 1},
                summary=f"{where}{error.strerror or error}. The artifact cannot be read: restore or rebuild it.",
            )

    return wrapped


@judged
def files_intact(directory: Path, receipt: Receipt, todo: str = REBUILD) -> Finding:
    """Every file that the receipt lists is there with its size and SHA-256, and there is no other file."""
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in damage(directory, receipt)),
        f"{count_of(len(receipt.files), 'file')}, {count_of(receipt.total_bytes, 'byte')}: all digests match the "
        "receipt.",
        todo,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


def ledger_of(receipt: Receipt) -> Ledger:
    """The receipt's ledger; raises IntegrityError when it has none."""
    if receipt.ledger is None:
        raise IntegrityError(f"{name_of(receipt)}: no ledger in its receipt. Rebuild the artifact")
    return receipt.ledger


def name_of(receipt: Receipt) -> str:
    """How messages name the artifact of a receipt."""
    return "/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition)))


def first_of(names: Iterable[object], limit: int = 3) -> str:
    """The first few of many names, and how many more there are."""
    texts = [str(n) for n in names]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")


S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True)
class Check(Generic[S_contra]):
    """One check, an asset check in the UI.

    Attributes:
        name: Its name, a noun and a claim.
        sentence: The sentence that is true when it passes.
        function: Returns the finding on a subject. Errors of readers and of the file system become failed findings. A
            function of a module, because workers import it.
        blocking: Whether its failure stops what is downstream; otherwise it only warns.
        version: Is increased when the check becomes stricter or is corrected: remembered verdicts of older versions
            do not count.
        samples: Whether it looks at some documents, or, with `every_document`, at all.
        limit: The declared number that it judges by: a verdict by a different one does not count.
    """

    name: str
    sentence: str
    function: Callable[[S_contra], Finding]
    blocking: bool = True
    version: int = 1
    samples: bool = False
    every_document: bool = False
    limit: float | None = None

    def find(self, subject: S_contra) -> Finding:
        """Return the finding on a subject; raises only for bugs."""
        return judged(self.function)(subject)


class Checkable(Protocol):
    """A partition to check, as it is handed to a worker: pickled, so it opens nothing yet."""

    @property
    def artifact(self) -> Artifact: ...


T = TypeVar("T", bound=StoredSubject)


@dataclass(frozen=True)
class OpenedArtifact:
    """A subject: a finished artifact, or a partition of one. Its receipt and its files are read when first needed."""

    artifact: Artifact
    store: ArtifactStore

    @cached_property
    def receipt(self) -> Receipt:
        """Its receipt; raises MissingArtifactError or IntegrityError if it cannot be read."""
        return self.store.require(self.artifact)

    @cached_property
    def directory(self) -> Path:
        """A local folder with all its files."""
        return self.store.local(self.artifact)

    def opened(self) -> Self:
        """It with its receipt read and its files here; raises what `receipt` raises."""
        _ = self.receipt, self.directory
        return self

    @property
    def name(self) -> str:
        """How messages name it."""
        return name_of(self.receipt)

    @property
    def seed(self) -> int:
        """The seed of random choices: the same for the same content, so that a failure repeats."""
        return int(self.receipt.key[:8], 16)


@dataclass(frozen=True)
class OpenedPartition(OpenedArtifact, Generic[T]):
    """A subject: a finished partition, and how it was `planned`, which says what it should be."""

    planned: T

    @classmethod
    def open(cls, planned: T) -> Self:
        """Open it in a worker; raises what `receipt` raises."""
        return cls(planned.artifact, planned.store, planned).opened()


class _Files(Protocol):
    @property
    def directory(self) -> Path: ...
    @property
    def receipt(self) -> Receipt: ...


def _files_intact(opened: _Files) -> Finding:
    return files_intact(opened.directory, opened.receipt)


FILES_INTACT: Check[_Files] = Check(
    "files_intact", "Every file has the size and digest in the receipt, and no other file exists.", _files_intact
)
"""Check of most artifacts."""


# How much of an artifact its proofs make again from the source: a sample of its documents, or every one.
#
# The level is declared (`prove: {level: …}`) and decides no byte: nothing is built again when it changes, but a
# verdict that a sample gave does not count where every document is asked for.
#
# Entry points: `draw_documents`, `samples_of`, `at_level`; `RebuildCount`, `counted_again` for what a person is
# told.

S = TypeVar("S")
Level = Literal["sample", "every_document"]
EVERY_DOCUMENT: Level = "every_document"
SAMPLE: Level = "sample"
SAMPLED = 460
"""Documents of a sample: of a shard of any size, one that has a fault in 1 % of its documents is named in 99 % of cases
(1 - 0.99^460)."""
BY_REFERENCE = 16
"""Documents of a shard that the reference engine encodes again; the others are encoded by the certified engine."""


@dataclass(frozen=True, kw_only=True)
class RebuildCount:
    """How many documents the proofs make again, and of how many."""

    level: Level
    documents: int
    of: int

    @property
    def share(self) -> float:
        """The share that is made again; 1 of nothing."""
        return self.documents / self.of if self.of else 1.0

    def __str__(self) -> str:
        """The level and the share in words."""
        scope = "every document" if self.level == EVERY_DOCUMENT else "a sample"
        # rounded down: 99.99 % is not all
        return f"{scope}: {int(self.share * 1000) / 10:g} % of the documents"


def draw_documents(key: str, total: int, samples: int | None) -> "NDArray[np.int64]":
    """The numbers, below `total`, of the documents to make again: int64, ascending.

    One is drawn from each of `samples` stretches of equal length, so that a fault that runs over two stretches is
    always met; all without `samples`. The draw is seeded by the receipt's `key`, so that a failure repeats.
    """
    import numpy as np

    if samples is None or samples >= total:
        return np.arange(total)
    rng = np.random.default_rng(int(digest_value(key)[:16], 16))
    # stretch i is [bounds[i], bounds[i + 1]); none is empty, because there are more documents than samples
    bounds = np.arange(samples + 1) * total // samples
    return rng.integers(bounds[:-1], bounds[1:])


def samples_of(level: Level) -> int | None:
    """How many documents of a shard are made again at this level; None: every one."""
    return None if level == EVERY_DOCUMENT else SAMPLED


def at_level(checks: Iterable[Check[S]], level: Level) -> tuple[Check[S], ...]:
    """The checks as a dataset of this level asks for them."""
    is_every_document = level == EVERY_DOCUMENT
    return tuple(replace(check, every_document=is_every_document) if check.samples else check for check in checks)


def documents_in(receipt: Receipt) -> int:
    """The documents of a shard, of its ledger."""
    return 0 if receipt.ledger is None else receipt.ledger.documents


def counted_again(receipts: Iterable[Receipt], documents: Callable[[Receipt], int], level: Level) -> RebuildCount:
    """How many documents of these partitions the proofs make again, as `documents` counts those of each."""
    counts = [documents(receipt) for receipt in receipts]
    rebuilt_counts = counts if level == EVERY_DOCUMENT else [min(count, SAMPLED) for count in counts]
    return RebuildCount(level=level, documents=sum(rebuilt_counts), of=sum(counts))
