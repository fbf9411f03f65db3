"""Runs groups of checks on artifacts, on many partitions in parallel, and caches the verdicts.

The verdict on a partition is stored next to the dataset (`.findings/<artifact>/<partition>.json`), with the version of
the examined receipt and of each check. After a run that changed a few partitions, a check can therefore judge all
partitions without reading those with unchanged content and checks again. The verdicts are a cache, so deleting them
costs only time. `results` writes the verdicts on an artifact as a whole.

Entry points: `find_in_all_partitions`; `find_in_workers`; `remember_verdicts`, `read_slot_verdicts`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import TypedDict  # pydantic requires this `TypedDict` before Python 3.12

from dataprep_assets.engine.checks.check import Check, Checkable, Finding
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine, choose_worker_count
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.project import read_state
from dataprep_assets.stores.files import cache_by_file, canonical_json, digest_value

FOLDER = ".findings"
"""Folder of the verdicts, next to the artifacts of a dataset."""

Verdicts = Iterator[tuple[str, dict[str, Finding]]]
"""Partition → name of a check → finding."""


class StoredFinding(TypedDict):
    """The stored fields of a finding and its check."""

    passed: bool
    summary: str
    warning: bool
    version: int
    blocking: bool
    every_document: bool
    limit: float | None


class VerdictFile(TypedDict):
    """The file of a verdict on a partition, or on an artifact as a whole.

    Attributes:
        artifacts: Name and partition of each judged artifact.
        version: The version of these artifacts (`identify_version`). If the same content failed before, this is the
            version of its first failed build.
        content: The content of these artifacts (`digest_claims`).
        of: Digest of the declaration, for an artifact that was judged as a whole; empty for a partition.
        at: Time of the verdict, in seconds since 1970.
        findings: Name of each check → its stored finding.
    """

    artifacts: list[tuple[str, str | None]]
    version: str | None
    content: str
    of: str
    at: float
    findings: dict[str, StoredFinding]


T = TypeVar("T", bound=Checkable)


def find_in_workers(
    partitions: Iterable[T],
    find: Callable[[T], dict[str, Finding]],
    workers: int,
    *,
    engine: TaskEngine = ON_PROCESSES,
    prepare: Callable[[], object] | None = None,
) -> Verdicts:
    """Run `find` on each partition in parallel; yield each partition with its findings when it is finished.

    Args:
        partitions: The partitions, which are pickled for the workers.
        find: A picklable function that raises only for bugs, which are raised here.
        workers: Maximum number of workers.
        engine: Runs the tasks.
        prepare: The `prepare` argument of `WorkerPool`.
    """
    tasks = [Task(TaskId(partition.artifact.partition or "", "checks"), find, (partition,)) for partition in partitions]
    if not tasks:
        return
    with engine.open(min(workers, len(tasks)), prepare) as pool:
        for task in tasks:
            pool.submit(task)
        for event in pool.events():
            if isinstance(event, FinishedTask):
                if event.error is not None:
                    raise event.error
                yield event.task.id.partition, event.result


def find_in_all_partitions(
    store: ArtifactStore,
    checks: Sequence[Check[Any]],
    partitions: Sequence[str],
    examined: Sequence[str],
    *,
    artifact: Callable[[str], Artifact],
    find: Callable[[Sequence[str]], Verdicts],
    noun: str = "shard",
) -> Iterator[tuple[str, Finding]]:
    """Yield one finding per check for all partitions of an artifact, whichever partitions are examined now.

    Args:
        store: Where the artifacts are stored.
        checks: The checks that `find` runs.
        partitions: All partitions of the artifact.
        examined: The partitions to check; their verdicts are cached. The other partitions use the cached verdict on
            their current content. The latest result therefore covers all partitions, and a failed partition stays
            visible until it is repaired. Verdicts of an older version of a check are ignored. A verdict is also ignored
            if another run replaced the content meanwhile, because it is unknown which content was examined.
        artifact: Returns the artifact of a partition.
        find: Yields the findings of the given partitions.
        noun: The noun for one partition.
    """
    fresh: dict[str, dict[str, Finding]] = {}
    versions = dict(zip(examined, store.receipt_versions([artifact(p) for p in examined]), strict=True))
    # Cache each verdict immediately, so that the run after a killed run does not repeat finished checks.
    for partition, findings in find(examined) if examined else ():
        if remember_verdicts(artifact(partition), store, versions[partition], findings, checks):
            fresh[partition] = findings
    previous_findings = read_slot_verdicts({p: artifact(p) for p in partitions if p not in fresh}, store, checks)
    known_findings = {
        p: fresh.get(p) or dict(previous_findings[p].findings)
        for p in partitions
        if p in fresh or p in previous_findings
    }
    for check in checks:
        of_check = {p: partition_findings[check.name] for p, partition_findings in known_findings.items()}
        now = [p for p in examined if p in fresh]
        yield check.name, summarize_findings(of_check, now, len(partitions) - len(known_findings), noun)


def summarize_findings(
    findings: Mapping[str, Finding], examined: Sequence[str], unknown: int, noun: str = "shard"
) -> Finding:
    """Return one finding for all partitions: it passes if all passed, and otherwise lists the failed ones.

    A finding that passes shows the table of the first examined partition.

    Args:
        findings: Partition → its finding, from this run or cached.
        examined: The partitions of this run.
        unknown: Number of partitions without a verdict.
        noun: The noun for one partition.
    """
    failed_findings = {partition: f for partition, f in findings.items() if not f.passed}
    now = sum(partition in findings for partition in examined)
    facts: dict[str, int | float | str] = {
        f"{noun}s_checked": now,
        f"{noun}s_checked_before": len(findings) - now,
        f"{noun}s_failed": len(failed_findings),
        f"{noun}s_not_checked_yet": unknown,
    }
    example_finding = next((findings[p] for p in examined if p in findings), None)
    if example_finding is not None and len(examined) == 1:
        facts |= example_finding.facts
    when, earlier_text = "", len(findings) - now
    if earlier_text:
        when = f"{now:,} checked now, {earlier_text:,} before"
    if unknown:
        when = f"{when}{', ' if when else ''}{unknown:,} not checked yet"
    if not failed_findings:
        example = (
            f". For example, {examined[0]}: {example_finding.summary}"
            if example_finding and example_finding.summary
            else "."
        )
        passing = _describe_all_passed(len(findings), unknown, noun)
        return Finding(
            passed=True,
            facts=facts,
            table=example_finding.table if example_finding else (),
            summary=f"{passing}{': ' if when else ''}{when}{example}",
        )
    first_bad = next(iter(failed_findings))
    fail = "fails" if len(failed_findings) == 1 else "fail"
    return Finding(
        passed=False,
        warning=all(f.warning for f in failed_findings.values()),
        facts=facts,
        summary=f"{len(failed_findings):,} of {count_of(len(findings), noun)} {fail}"
        + (f" ({when})" if when else "")
        + f"; the first is {first_bad}: {failed_findings[first_bad].summary}",
        table=tuple({noun: partition, "finding": f.summary} for partition, f in failed_findings.items()),
    )


def _describe_all_passed(known_count: int, unknown: int, noun: str) -> str:
    if known_count == 1:
        return f"The {noun} passes" if not unknown else f"1 {noun} passes"
    return f"{'' if unknown else 'All '}{count_of(known_count, noun)} pass"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Current verdicts of checks on an artifact or one of its partitions.

    Attributes:
        findings: Name of each check → its finding: whether it passed, and its sentence.
        at: Time of the verdicts, in seconds since 1970.
        rebuilt: Whether they were given on a different build of the same content.
    """

    findings: Mapping[str, Finding]
    at: float
    rebuilt: bool = False


def remember_verdicts(
    artifact: Artifact,
    store: ArtifactStore,
    version: str | None,
    findings: Mapping[str, Finding],
    checks: Iterable[Check[Any]],
) -> bool:
    """Store the verdicts on a partition, like `write_record`."""
    return write_record(locate_record(artifact, store), [artifact], store, version, findings, checks)


def write_record(
    path: Path,
    artifacts: Sequence[Artifact],
    store: ArtifactStore,
    version: str | None,
    findings: Mapping[str, Finding],
    checks: Iterable[Check[Any]],
    digest: str = "",
) -> bool:
    """Store the verdicts on these artifacts' content, each with the version of its check.

    `version` is the artifacts' version from before they were examined. If it has changed meanwhile, nothing is stored
    and False is returned. Nothing is stored if an artifact is missing.
    """
    content = digest_claims(artifacts, store)
    if identify_version(artifacts, store) != version:
        return False
    if content is None:
        return True
    kept_findings: dict[str, StoredFinding] = {
        check.name: {
            "passed": (finding := findings[check.name]).passed,
            "summary": finding.summary,
            "warning": finding.warning,
            "version": check.version,
            "blocking": check.blocking,
            "every_document": check.every_document,
            "limit": check.limit,
        }
        for check in checks
    }
    record: VerdictFile = {
        "artifacts": [(artifact.name, artifact.partition) for artifact in artifacts],
        "version": version,
        "content": content,
        "of": digest,
        "at": time.time(),
        "findings": kept_findings,
    }
    previous_record = read_record(path)
    # If a rebuild gave the same content, and a blocking check failed again, keep the version of the earlier build. The
    # version then shows readers that the content was rebuilt since it first failed.
    if (
        previous_record is not None
        and previous_record["content"] == content
        and find_failing(previous_record)
        and find_failing(record)
    ):
        record["version"] = previous_record["version"]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Do not flush the file to disk, because a verdict that is lost in a crash is computed again.
    write_atomically(path, canonical_json(record), durably=False)
    return True


def find_failing(record: VerdictFile) -> list[str]:
    """Return the names of the blocking checks in a record that failed, warnings excluded."""
    findings = record["findings"].items()
    return [
        name for name, finding in findings if not finding["passed"] and not finding["warning"] and finding["blocking"]
    ]


def read_slot_verdicts(
    artifacts: Mapping[str, Artifact],
    store: ArtifactStore,
    checks: Sequence[Check[Any]],
    *,
    allow_partial: bool = False,
) -> dict[str, Verdict]:
    """Return the verdicts that are valid for the partitions' current receipts.

    With `allow_partial`, a verdict may lack some of the checks.
    """
    if not artifacts:
        return {}
    # Locate the folder only once, because the records of all partitions of an artifact are in the same folder.
    folder = locate_record(next(iter(artifacts.values())), store).parent
    versions = store.receipt_versions(list(artifacts.values()))
    verdicts = {
        slot: read_verdict(
            f"{folder}/{artifact.partition}.json", [artifact], store, version, checks, allow_partial=allow_partial
        )
        for (slot, artifact), version in zip(artifacts.items(), versions, strict=True)
        if version is not None
    }
    return {slot: verdict for slot, verdict in verdicts.items() if verdict is not None}


def read_verdict(
    path: Path | str,
    artifacts: Sequence[Artifact],
    store: ArtifactStore,
    version: str | None,
    checks: Iterable[Check[Any]],
    *,
    allow_partial: bool,
    digest: str = "",
) -> Verdict | None:
    """Return a stored verdict; None if it is not valid for these artifacts' current content.

    It is valid if it has the finding of each check in its current version. With `allow_partial`, checks without a
    stored finding are skipped. `version` is the artifacts' current version.
    """
    record = read_record(path)
    if record is None or record["of"] != digest:
        return None
    findings = {}
    for check in checks:
        kept_finding = record["findings"].get(check.name)
        if kept_finding is None and allow_partial:
            continue
        if kept_finding is None or kept_finding["version"] != check.version:
            return None
        if check.every_document and not kept_finding["every_document"]:
            return None  # the stored finding is from a sample
        if check.limit != kept_finding["limit"]:
            return None
        findings[check.name] = Finding(
            passed=kept_finding["passed"], summary=kept_finding["summary"], warning=kept_finding["warning"]
        )
    is_rebuilt = record["version"] != version
    # After a rebuild, a verdict is valid only if the content is the same. A passed verdict on a whole artifact (with
    # `digest`) is never valid then, because the receipt does not show whether the inputs were damaged during the
    # rebuild.
    if is_rebuilt and ((digest and not find_failing(record)) or record["content"] != digest_claims(artifacts, store)):
        return None
    return Verdict(findings=findings, at=record["at"], rebuilt=is_rebuilt)


def read_record(path: Path | str) -> VerdictFile | None:
    """Return a stored record; None if there is no readable record."""
    try:
        return _read_record(str(path))
    except OSError:
        return None


@cache_by_file
def _read_record(path: str) -> VerdictFile | None:
    return read_state(path, VerdictFile)


def locate_record(artifact: Artifact, store: ArtifactStore) -> Path:
    return locate_records(artifact.dataset, artifact.name, store) / f"{artifact.partition}.json"


def locate_records(dataset: str, name: str, store: ArtifactStore) -> Path:
    # Use `home` instead of `root`, because the `root` of an overlay is the scratch folder.
    return store.home(Artifact(dataset=dataset, name=name)).parent / FOLDER / name


def identify_version(artifacts: Sequence[Artifact], store: ArtifactStore) -> str | None:
    """Return a string that changes if one of these artifacts is rebuilt, without reading their receipts."""
    versions = store.receipt_versions(artifacts)
    return versions[0] if len(versions) == 1 else digest_value(list(versions))


def digest_claims(artifacts: Sequence[Artifact], store: ArtifactStore) -> str | None:
    """Return the digest of all claims in these artifacts' receipts, except measurements; None if one is missing."""
    try:
        receipts = [store.require(artifact) for artifact in artifacts]
    except DataprepError:
        return None
    return digest_value([_list_claims(receipt) for receipt in receipts])


def _list_claims(receipt: Receipt) -> list[object]:
    ledger = receipt.ledger.to_json() if receipt.ledger else None
    return [receipt.key, receipt.content, dict(receipt.inputs), dict(receipt.facts), ledger]


def forget_absent(dataset: str, store: ArtifactStore) -> None:
    """Remove the cached verdicts on partitions that no longer exist."""
    for folder in (store.root / dataset / FOLDER).glob("*/"):
        present_partitions = set(store.partitions(dataset, folder.name))
        for path in folder.glob("*.json"):
            if path.stem not in present_partitions:
                path.unlink(missing_ok=True)


# This part groups checks that share a subject: a partition, or an artifact as a whole.
#
# Entry points: `PartitionChecks`, `WholeArtifactChecks`, `CheckWorkers`; `find_all` for one partition.

S = TypeVar("S")


class CheckedSpec(Protocol):
    """The part of an artifact's spec that its checks need."""

    @property
    def noun(self) -> str: ...
    def slots(self, store: ArtifactStore) -> Sequence[str | None]: ...
    def locate_artifact(self, store: ArtifactStore, partition: str | None = None) -> Artifact: ...


@dataclass(frozen=True, kw_only=True)
class CheckWorkers:
    """The workers that check partitions.

    Attributes:
        engine: Runs the tasks.
        declared: The declared number of workers; None for the number in the environment.
        prepare: The `prepare` argument of `WorkerPool`.
    """

    engine: TaskEngine
    declared: int | None
    prepare: Callable[[], object] | None = None


Guard = Callable[[str], AbstractContextManager[None]]
"""Returns the context in which checks run, given the partition or dataset. It may replace errors that quote data."""


def return_partition(partition: Any) -> Any:
    """Return the partition itself, as its own subject."""
    return partition


def _check_in_this_process(store: ArtifactStore, partitions: Sequence[str]) -> CheckWorkers | None:
    return None


@dataclass(frozen=True, kw_only=True)
class PartitionChecks(Generic[T, S]):
    """Checks of single partitions. The verdicts are cached, so a run examines only the partitions that it changed.

    Attributes:
        checks: The checks.
        planned: Returns the given partitions in the form that is passed to workers.
        open: Opens a partition; must be a module-level function. If it raises a DataprepError, all checks fail with
            this error. By default, a partition is its own subject.
        workers: Returns the workers for the given partitions; None for this process, if checks are fast.
        guard: The context in which the checks of a partition run.
        documents: Counts the documents of a receipt; None if no check rebuilds a sample of them.
    """

    checks: tuple[Check[S], ...]
    planned: Callable[[ArtifactStore, Sequence[str]], Iterable[T]]
    open: Callable[[T], S] = return_partition
    workers: Callable[[ArtifactStore, Sequence[str]], CheckWorkers | None] = _check_in_this_process
    guard: Guard | None = None
    documents: Callable[[Receipt], int] | None = None

    def find_verdicts(self, store: ArtifactStore, partitions: Sequence[str]) -> Verdicts:
        """Check these partitions; yield each partition with its findings when it is finished."""
        find, workers = partial(find_all, self.checks, self.open, self.guard), self.workers(store, partitions)
        planned_partitions = self.planned(store, partitions)
        if workers is None:
            return ((partition.artifact.partition or "", find(partition)) for partition in planned_partitions)
        count = choose_worker_count(workers.declared)
        return find_in_workers(planned_partitions, find, count, engine=workers.engine, prepare=workers.prepare)

    def examine(
        self, spec: CheckedSpec, store: ArtifactStore, partitions: Sequence[str]
    ) -> Iterator[tuple[str, Finding]]:
        """Yield the finding of each check across all partitions. Only the given partitions are examined now."""
        yield from find_in_all_partitions(
            store,
            self.checks,
            [slot for slot in spec.slots(store) if slot is not None],
            partitions,
            artifact=partial(spec.locate_artifact, store),
            find=partial(self.find_verdicts, store),
            noun=spec.noun,
        )


def find_all(
    checks: Sequence[Check[S]], open: Callable[[T], S], guard: Guard | None, partition: T
) -> dict[str, Finding]:
    """Open one partition and return the findings of all checks, by name."""
    with nullcontext() if guard is None else guard(partition.artifact.partition or partition.artifact.dataset):
        try:
            subject = open(partition)
        except DataprepError as error:  # the error, such as an unreadable receipt, becomes the finding of every check
            return {check.name: Finding(passed=False, summary=str(error)) for check in checks}
        return {check.name: check.run(subject) for check in checks}


@dataclass(frozen=True, kw_only=True)
class WholeArtifactChecks(Generic[S]):
    """Checks of an artifact as a whole: an unpartitioned artifact, or all partitions together.

    Attributes:
        checks: The checks.
        open: Opens the subject, given the partitions of the run. If it raises a DataprepError, `examine` raises it.
        guard: The context in which the checks run.
    """

    checks: tuple[Check[S], ...]
    open: Callable[[ArtifactStore, Sequence[str]], S]
    guard: Callable[[], AbstractContextManager[None]] = nullcontext

    def examine(
        self, spec: CheckedSpec, store: ArtifactStore, partitions: Sequence[str]
    ) -> Iterator[tuple[str, Finding]]:
        """Yield the finding of each check; raise DataprepError if the subject cannot be opened."""
        with self.guard():
            subject = self.open(store, partitions)
            for check in self.checks:
                yield check.name, check.run(subject)


CheckGroup = PartitionChecks[Any, Any] | WholeArtifactChecks[Any]
