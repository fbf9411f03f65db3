"""Checks of artifacts and their findings. A check has a name, the sentence that is true if it passes, and a function.

A check is defined once, next to its artifact. Its function receives a *subject*: the object that an artifact's checks
examine. A subject is opened once for all checks. Its expensive parts are cached properties, because several checks read
the same files. `verdicts` runs the checks.

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
from dataprep_assets.integrity.receipt import Ledger, Receipt, find_damage
from dataprep_assets.stores.files import digest_value
from dataprep_assets.table import format_share

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A finding is the result of one check of one artifact, with the numbers and locations that support it.
#
# A check never raises an error for a defect that it is meant to find, because a check that raises has no history and
# shows no numbers. Checks read files that may be damaged in any way. Therefore, `fail_on_errors` also turns errors of
# the readers that checks call (for a truncated file, a missing file, a receipt without its facts) into failed findings.
# A bug still raises an error.

Row = Mapping[str, str | int | float]
"""A row of a finding's table."""

ACCEPTED = "accepted"
"""Name of the fact with the reason in an accepted finding."""
NO_RETRACTED = "no_retracted_document"
"""Name of the checks that look for documents on the retraction list."""
SHOWN = 20
"""Maximum number of defects in a table."""
REBUILD = "Rebuild the shard with `dataprep run`"
"""Remedy for a shard that differs from the state in which it was built."""
UNREPEATABLE = (
    "A tagger that depends on time, randomness or other documents cannot be reproduced. Give it a seed, or make each "
    "result depend on only one document"
)
"""Remedy for values of a user's tagger that differ when they are computed again."""

_P = ParamSpec("_P")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of a check.

    Attributes:
        passed: Whether the check passed.
        summary: One sentence: the claim that is true, or the defect, its location and the remedy.
        facts: Numbers to plot, or texts that never change.
        table: Rows that show details.
        plot: A picture.
        warning: Whether a failure only warns: users who have read the sentence may still use the artifact.
    """

    passed: bool
    summary: str
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    table: tuple[Row, ...] = ()
    plot: Markdown | None = None
    warning: bool = False


def build_verdict(
    defects: Iterable[str],
    holds: str,
    remedy: str,
    *,
    facts: Mapping[str, int | float | str] | None = None,
    table: Iterable[Row] | None = None,
    warning: bool = False,
) -> Finding:
    """Return a finding that passes with the sentence `holds` if there are no defects.

    Otherwise, its summary is the first defect followed by `remedy`. By default, `table` lists the first defects.
    """
    all_defects = list(defects)
    facts = {**(facts or {}), "defects": len(all_defects)}
    rows: tuple[Row, ...] = tuple(table) if table is not None else tuple({"defect": d} for d in all_defects[:SHOWN])
    if not all_defects:
        return Finding(passed=True, summary=holds, facts=facts, table=rows)
    suffix = f" (and {len(all_defects) - 1} more)" if len(all_defects) > 1 else ""
    summary = f"{all_defects[0]}{suffix}. {remedy}."
    return Finding(passed=False, summary=summary, facts=facts, table=rows, warning=warning)


def accept_warnings(finding: Finding, reason: str) -> Finding:
    """Turn a warning that the declaration accepts into a pass with the reason; an unreadable artifact still fails."""
    if finding.passed or "unreadable" in finding.facts:
        return finding
    summary = f"Accepted: {reason}. {finding.summary}"
    return replace(finding, passed=True, summary=summary, facts={**finding.facts, ACCEPTED: reason})


def fail_on_errors(check: Callable[_P, Finding]) -> Callable[_P, Finding]:
    """Decorate a check's function so that errors of readers and of the file system become failed findings."""

    @wraps(check)
    def run_check(*args: _P.args, **kwargs: _P.kwargs) -> Finding:
        try:
            return check(*args, **kwargs)
        except DataprepError as error:
            return Finding(passed=False, summary=str(error), facts={"unreadable": 1})
        except OSError as error:
            location = f"{error.filename}: " if error.filename else ""
            return Finding(
                passed=False,
                facts={"unreadable": 1},
                summary=f"{location}{error.strerror or error}. The artifact cannot be read: restore or rebuild it.",
            )

    return run_check


@fail_on_errors
def files_intact(directory: Path, receipt: Receipt, remedy: str = REBUILD) -> Finding:
    """Check that every file in the receipt exists with its size and SHA-256, and that there are no other files."""
    return build_verdict(
        (f"{describe_artifact(receipt)}: {d}" for d in find_damage(directory, receipt)),
        f"{count_of(len(receipt.files), 'file')}, {count_of(receipt.total_bytes, 'byte')}: all digests match the "
        "receipt.",
        remedy,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


def require_ledger(receipt: Receipt) -> Ledger:
    """Return the receipt's ledger; raise IntegrityError if it has none."""
    if receipt.ledger is None:
        raise IntegrityError(f"{describe_artifact(receipt)}: no ledger in its receipt. Rebuild the artifact")
    return receipt.ledger


def describe_artifact(receipt: Receipt) -> str:
    """Return the name of a receipt's artifact for messages."""
    return "/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition)))


def join_first(names: Iterable[object], limit: int = 3) -> str:
    """Return the first few names, and the number of the remaining ones."""
    texts = [str(n) for n in names]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")


S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True)
class Check(Generic[S_contra]):
    """One check, an asset check in the UI.

    Attributes:
        name: Its name: a noun and a claim, such as `digests_match`.
        sentence: The sentence that is true if it passes.
        function: Returns the finding on a subject. Errors of readers and of the file system become failed findings.
            Must be a module-level function, because workers import it.
        blocking: Whether its failure blocks downstream artifacts; otherwise it only warns.
        version: Increased when the check becomes stricter or is corrected. Cached verdicts of older versions are
            ignored.
        samples: Whether it examines a sample of the documents, or all documents if `every_document`.
        limit: The declared limit that it applies. Cached verdicts with a different limit are ignored.
    """

    name: str
    sentence: str
    function: Callable[[S_contra], Finding]
    blocking: bool = True
    version: int = 1
    samples: bool = False
    every_document: bool = False
    limit: float | None = None

    def run(self, subject: S_contra) -> Finding:
        """Run the check on a subject and return its finding; raise only for bugs."""
        return fail_on_errors(self.function)(subject)


class Checkable(Protocol):
    """A partition to check, as passed to a worker. It is pickled, so it has not opened anything yet."""

    @property
    def artifact(self) -> Artifact: ...


T = TypeVar("T", bound=StoredSubject)


@dataclass(frozen=True)
class OpenedArtifact:
    """A subject: a finished artifact or one of its partitions. Its receipt and files are read when first needed."""

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

    def with_local_files(self) -> Self:
        """Return this subject after reading its receipt and making its files local; raise the errors of `receipt`."""
        _ = self.receipt, self.directory
        return self

    @property
    def name(self) -> str:
        """The artifact's name in messages."""
        return describe_artifact(self.receipt)

    @property
    def seed(self) -> int:
        """The seed for random choices. It depends only on the content, so that a failure is reproducible."""
        return int(self.receipt.key[:8], 16)


@dataclass(frozen=True)
class OpenedPartition(OpenedArtifact, Generic[T]):
    """A subject: a finished partition, and its planned form, which defines the expected content."""

    planned: T

    @classmethod
    def open(cls, planned: T) -> Self:
        """Open the partition in a worker; raise the errors of `receipt`."""
        return cls(planned.artifact, planned.store, planned).with_local_files()


class _Files(Protocol):
    """A subject with a local folder of files and their receipt."""

    @property
    def directory(self) -> Path: ...
    @property
    def receipt(self) -> Receipt: ...


def _check_files_intact(files: _Files) -> Finding:
    return files_intact(files.directory, files.receipt)


FILES_INTACT: Check[_Files] = Check(
    "files_intact",
    "Every file has the size and digest that the receipt records, and there are no other files.",
    _check_files_intact,
)
"""The check that most artifacts share."""


# The checks of an artifact rebuild documents from the source. The level determines which: a sample, or every document.
#
# The level is declared (`prove: {level: …}`) and does not affect bytes, so changing the level rebuilds no artifact.
# However, a verdict from a sample is ignored if every document is required.
#
# Entry points: `draw_documents`, `choose_sample_count`, `set_level`; `RebuildCount`, `count_rebuilt` for the reported
# share.

S = TypeVar("S")
Level = Literal["sample", "every_document"]
EVERY_DOCUMENT: Level = "every_document"
SAMPLE: Level = "sample"
SAMPLED = 460
"""Documents in a sample of a shard of any size. If 1% of its documents have a fault, the sample finds one with a
probability of 99% (1 - 0.99^460)."""
BY_REFERENCE = 16
"""Documents of a shard that the reference engine encodes. The certified engine encodes the other sampled documents."""


@dataclass(frozen=True, kw_only=True)
class RebuildCount:
    """Number of documents that the checks rebuild, and the total."""

    level: Level
    documents: int
    of: int

    @property
    def share(self) -> float:
        """The share of rebuilt documents; 1 if there are no documents."""
        return self.documents / self.of if self.of else 1.0

    def __str__(self) -> str:
        """Return the level and the share in words."""
        scope = "every document" if self.level == EVERY_DOCUMENT else "a sample"
        # Round the share down, because 99.99% must not be shown as 100%.
        return f"{scope}: {format_share(int(self.share * 1000) / 1000)} of the documents"


def draw_documents(key: str, total: int, samples: int | None) -> "NDArray[np.int64]":
    """Return the numbers, below `total`, of the documents to rebuild: int64, ascending.

    One document is drawn from each of `samples` stretches of equal length, so that a fault that spans two stretches is
    always found. If `samples` is None, all documents are returned. The draw is seeded by the receipt's `key`, so that
    a failure is reproducible.
    """
    import numpy as np

    if samples is None or samples >= total:
        return np.arange(total)
    rng = np.random.default_rng(int(digest_value(key)[:16], 16))
    # Stretch `i` is `[bounds[i], bounds[i + 1])`. No stretch is empty, because there are more documents than samples.
    bounds = np.arange(samples + 1) * total // samples
    return rng.integers(bounds[:-1], bounds[1:])


def choose_sample_count(level: Level) -> int | None:
    """Return the number of documents of a shard that are rebuilt at this level; None for every document."""
    return None if level == EVERY_DOCUMENT else SAMPLED


def set_level(checks: Iterable[Check[S]], level: Level) -> tuple[Check[S], ...]:
    """Return the checks, configured for the level that the dataset declares."""
    is_every_document = level == EVERY_DOCUMENT
    return tuple(replace(check, every_document=is_every_document) if check.samples else check for check in checks)


def count_documents(receipt: Receipt) -> int:
    """Return the number of documents in a shard's ledger."""
    return 0 if receipt.ledger is None else receipt.ledger.documents


def count_rebuilt(receipts: Iterable[Receipt], documents: Callable[[Receipt], int], level: Level) -> RebuildCount:
    """Return the number of these partitions' documents that the checks rebuild.

    `documents` counts the documents of a partition.
    """
    counts = [documents(receipt) for receipt in receipts]
    rebuilt_counts = counts if level == EVERY_DOCUMENT else [min(count, SAMPLED) for count in counts]
    return RebuildCount(level=level, documents=sum(rebuilt_counts), of=sum(counts))
