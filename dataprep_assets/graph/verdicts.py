"""Examines many partitions in parallel, and remembers the verdicts.

The verdict on a partition is kept beside the dataset (`.findings/<artifact>/<partition>.json`) with the receipt that
was examined and the version of each proof. So after a run that touched a few partitions a check can judge all of them:
those whose content and proofs are unchanged need not be read again. The verdicts are a cache: deleting them only costs
time. Those on an artifact as a whole are written by `check_results`.

Entry points: `of_all_partitions`; `find_in_workers`, `proven`; `remember`, `of_slots`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypeVar

from typing_extensions import TypedDict  # pydantic takes no other below Python 3.12

from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.tasks import Finished, Task, TaskId
from dataprep_assets.graph.check import Check, Checkable
from dataprep_assets.graph.finding import Finding
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import canonical_json, digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.plural import count_of
from dataprep_assets.state_file import read_state
from dataprep_assets.stores.files import while_unchanged

FOLDER = ".findings"
"""The folder of the verdicts, beside the artifacts of a dataset."""

Verdicts = Iterator[tuple[str, dict[str, Finding]]]
"""Partitions, each with its findings by the name of the proof."""


class KeptFinding(TypedDict):
    """What a record keeps of a finding."""

    passed: bool
    summary: str
    warning: bool
    version: NotRequired[int]
    blocking: NotRequired[bool]
    every_document: NotRequired[bool]
    limit: NotRequired[float | None]


class Record(TypedDict):
    """The file of a verdict: on a partition, or on an artifact as a whole.

    `version` and `content` are those of the artifacts that were judged (`version_of`, `content_of`). Of a content that
    failed before, `version` is that of the first build that failed. Of an artifact as a whole, `of` is a digest of the
    declaration that it was judged with, and `artifacts` has the name and partition of each of its artifacts.
    """

    version: str | None
    content: str | None
    at: float
    findings: dict[str, KeptFinding]
    of: NotRequired[str]
    artifacts: NotRequired[list[tuple[str, str | None]]]


T = TypeVar("T", bound=Checkable)


def find_in_workers(
    partitions: Iterable[T],
    find: Callable[[T], dict[str, Finding]],
    workers: int,
    *,
    engine: TaskEngine = ON_PROCESSES,
    prepare: Callable[[], object] | None = None,
) -> Verdicts:
    """Run `find` on each partition in parallel; yields each with its findings when it is done.

    Args:
        partitions: Pickled into the workers.
        find: Must be picklable; raises only for bugs, which are raised again here.
        workers: Largest number of workers.
        engine: Who does the work.
        prepare: As for `WorkerPool`.
    """
    tasks = [Task(TaskId(one.artifact.partition or "", "checks"), find, (one,)) for one in partitions]
    if not tasks:
        return
    with engine.open(min(workers, len(tasks)), prepare) as pool:
        for task in tasks:
            pool.submit(task)
        for event in pool.events():
            if isinstance(event, Finished):
                if event.error is not None:
                    raise event.error
                yield event.task.id.partition, event.result


def proven(
    artifact: Artifact,
    store: ArtifactStore,
    proofs: Iterable[Check[Any]],
    prove: Callable[[Path, Receipt], dict[str, Finding]],
) -> dict[str, Finding]:
    """The findings of `prove` on an artifact's directory and receipt. If these cannot be read, all of `proofs` fail."""
    try:
        receipt, directory = store.require(artifact), store.local(artifact)
    except DataprepError as error:  # an unreadable receipt is the finding
        return {proof.name: Finding(passed=False, summary=str(error)) for proof in proofs}
    return prove(directory, receipt)


def of_all_partitions(
    store: ArtifactStore,
    proofs: Sequence[Check[Any]],
    partitions: Sequence[str],
    examined: Sequence[str],
    *,
    artifact: Callable[[str], Artifact],
    prove: Callable[[Sequence[str]], Verdicts],
    noun: str = "shard",
) -> Iterator[tuple[str, Finding]]:
    """One finding of each proof for all partitions of an artifact, whichever partitions are examined now.

    Args:
        store: Where the artifacts are.
        proofs: The proofs that `prove` carries out.
        partitions: All partitions of the artifact.
        examined: The partitions to prove; their verdicts are remembered. For the others the remembered verdict on
            their present content counts, so the latest result is about all partitions, and a bad one stays visible
            until it is repaired. A verdict from before a proof existed, or of an older version of it, does not count,
            nor does one on content that another run replaced meanwhile: whether it was that or the new one is unknown.
        artifact: Returns the artifact of a partition.
        prove: Yields the findings of the given partitions.
        noun: The noun for one partition.
    """
    fresh: dict[str, dict[str, Finding]] = {}
    versions = dict(zip(examined, store.receipt_versions([artifact(p) for p in examined]), strict=True))
    # each is remembered as it comes: what was proven before a kill is not proven again
    for partition, findings in prove(examined) if examined else ():
        if remember(artifact(partition), store, versions[partition], findings, proofs):
            fresh[partition] = findings
    before = of_slots({p: artifact(p) for p in partitions if p not in fresh}, store, proofs)
    found = {p: fresh.get(p) or dict(before[p].findings) for p in partitions if p in fresh or p in before}
    for proof in proofs:
        of_proof = {p: of[proof.name] for p, of in found.items()}
        now = [p for p in examined if p in fresh]
        yield proof.name, summarized(of_proof, now, len(partitions) - len(found), noun)


def summarized(findings: Mapping[str, Finding], examined: Sequence[str], unknown: int, noun: str = "shard") -> Finding:
    """One finding for all partitions: it passes if all did, else lists the bad ones, or shows the table of the first.

    Args:
        findings: Partition → its finding, of this run or remembered.
        examined: The partitions of this run.
        unknown: Number of partitions without a verdict.
        noun: The noun for one partition.
    """
    bad = {partition: f for partition, f in findings.items() if not f.passed}
    now = sum(partition in findings for partition in examined)
    facts: dict[str, int | float | str] = {
        f"{noun}s_examined": now,
        f"{noun}s_examined_before": len(findings) - now,
        f"{noun}s_failed": len(bad),
        f"{noun}s_not_examined_yet": unknown,
    }
    shown = next((findings[p] for p in examined if p in findings), None)
    if shown is not None and len(examined) == 1:
        facts |= shown.facts
    when, before = "", len(findings) - now
    if before:
        when = f"{now:,} examined now, {before:,} before"
    if unknown:
        when = f"{when}{', ' if when else ''}{unknown:,} not examined yet"
    if not bad:
        example = f". For example {examined[0]}: {shown.summary}" if shown and shown.summary else "."
        passing = _all_pass(len(findings), unknown, noun)
        return Finding(
            passed=True,
            facts=facts,
            table=shown.table if shown else (),
            summary=f"{passing}{': ' if when else ''}{when}{example}",
        )
    first = next(iter(bad))
    fail = "fails" if len(bad) == 1 else "fail"
    return Finding(
        passed=False,
        warning=all(f.warning for f in bad.values()),
        facts=facts,
        summary=f"{len(bad):,} of {count_of(len(findings), noun)} {fail}"
        + (f" ({when})" if when else "")
        + f", first {first}: {bad[first].summary}",
        table=tuple({noun: partition, "what": f.summary} for partition, f in bad.items()),
    )


def _all_pass(known: int, unknown: int, noun: str) -> str:
    if known == 1:
        return f"The {noun} passes" if not unknown else f"1 {noun} passes"
    return f"{'' if unknown else 'All '}{count_of(known, noun)} pass"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What proofs said of an artifact, or of a partition of one, as it is now.

    Attributes:
        findings: Name of each proof → what it found: whether it passed, and its sentence.
        at: When they were given, in seconds since 1970.
        rebuilt: Whether they were given on another build of the same content.
    """

    findings: Mapping[str, Finding]
    at: float
    rebuilt: bool = False


def remember(
    artifact: Artifact,
    store: ArtifactStore,
    version: str | None,
    findings: Mapping[str, Finding],
    proofs: Iterable[Check[Any]],
) -> bool:
    """Keep the verdicts on a partition, each with the version of its proof.

    `version` is that of its receipt before it was examined. False, and nothing is kept, if it is another one by now.
    """
    try:
        receipt = store.require(artifact)
    except DataprepError:
        receipt = None  # there is nothing to remember a verdict on
    # The version is another one whenever the artifact was built again, and is compared without reading a receipt. The
    # digest beside it stays the same as long as the receipt claims the same.
    if version_of([artifact], store) != version:
        return False
    if receipt is not None:
        record = {"version": version, "content": _claims(receipt)}
        write_record(memory(artifact, store), record, findings, proofs)
    return True


def write_record(
    path: Path, record: Mapping[str, Any], findings: Mapping[str, Finding], proofs: Iterable[Check[Any]]
) -> None:
    kept: dict[str, KeptFinding] = {
        proof.name: {
            "passed": findings[proof.name].passed,
            "summary": findings[proof.name].summary,
            "warning": findings[proof.name].warning,
            "version": proof.version,
            "blocking": proof.blocking,
            "every_document": proof.every_document,
            "limit": proof.limit,
        }
        for proof in proofs
    }
    value = {**record, "at": time.time(), "findings": kept}
    before = read_record(path)
    # another build of what failed fails again: that it was built again is told by the version of the first one
    if before is not None and before["content"] == record["content"] and failing_in(before) and failing_in(value):
        value["version"] = before["version"]
    path.parent.mkdir(parents=True, exist_ok=True)
    # a verdict that a crash of the machine takes is only given once more, so none waits for the disk
    write_atomically(path, canonical_json(value), durably=False)


def failing_in(record: Mapping[str, Any]) -> list[str]:
    """The names of the blocking proofs in a record that failed as errors."""
    return [
        name
        for name, found in record["findings"].items()
        if not found["passed"] and not found["warning"] and found.get("blocking", True)
    ]


def of_slots(
    artifacts: Mapping[str, Artifact], store: ArtifactStore, proofs: Sequence[Check[Any]], *, some: bool = False
) -> dict[str, Verdict]:
    """The verdicts on partitions that hold for their present receipts; with `some`, of any of the proofs."""
    found: dict[str, Verdict] = {}
    if not artifacts:
        return found
    # they are partitions of one artifact, with all of their records in one folder
    folder = memory(next(iter(artifacts.values())), store).parent
    versions = store.receipt_versions(list(artifacts.values()))
    for (slot, artifact), version in zip(artifacts.items(), versions, strict=True):
        value = read_record(f"{folder}/{artifact.partition}.json") if version is not None else None
        verdict = None if value is None else verdict_in(value, [artifact], store, proofs, some=some, version=version)
        if verdict is not None:
            found[slot] = verdict
    return found


def verdict_in(
    value: Record,
    artifacts: Sequence[Artifact],
    store: ArtifactStore,
    proofs: Iterable[Check[Any]],
    *,
    some: bool,
    version: str | None,
) -> Verdict | None:
    """A kept verdict; None unless each of the proofs (with `some`: any that is kept), in its version, gave it on what
    these artifacts, whose `version` is known, contain now."""
    findings = {}
    for proof in proofs:
        kept = value["findings"].get(proof.name)
        if kept is None and some:
            continue
        if kept is None or kept.get("version") != proof.version:
            return None
        if proof.every_document and not kept.get("every_document"):
            return None  # a sample gave it
        if proof.limit != kept.get("limit"):
            return None
        findings[proof.name] = Finding(passed=kept["passed"], summary=kept["summary"], warning=kept["warning"])
    if value["version"] == version:
        return Verdict(findings=findings, at=value["at"])
    # The inputs of a whole artifact may have been damaged when it was built again, which its receipt does not tell.
    if "of" in value and not failing_in(value):
        return None
    if value["content"] is None or value["content"] != content_of(artifacts, store):
        return None
    return Verdict(findings=findings, at=value["at"], rebuilt=True)


def read_record(path: Path | str) -> Record | None:
    """A kept record; None if there is none that can be read."""
    try:
        return _read(str(path))
    except OSError:
        return None


@while_unchanged
def _read(path: str) -> Record | None:
    return read_state(path, Record)


def memory(artifact: Artifact, store: ArtifactStore) -> Path:
    return folder_of(artifact.dataset, artifact.name, store) / f"{artifact.partition}.json"


def folder_of(dataset: str, name: str, store: ArtifactStore) -> Path:
    # not `root`, which of a store over another one is a scratch folder
    return store.home(Artifact(dataset=dataset, name=name)).parent / FOLDER / name


def version_of(artifacts: Sequence[Artifact], store: ArtifactStore) -> str | None:
    """A text that another build of one of these partitions of an artifact changes; no receipt is read."""
    versions = store.receipt_versions(artifacts)
    return versions[0] if len(versions) == 1 else digest_value(list(versions))


def content_of(artifacts: Sequence[Artifact], store: ArtifactStore) -> str | None:
    """Digest of everything that the receipts of these artifacts claim, except measurements; None without a receipt."""
    try:
        claims = [_claims(store.require(artifact)) for artifact in artifacts]
    except DataprepError:
        return None
    return claims[0] if len(claims) == 1 else digest_value(claims)


def _claims(receipt: Receipt) -> str:
    ledger = receipt.ledger.to_json() if receipt.ledger else None
    return digest_value([receipt.key, receipt.content, dict(receipt.inputs), dict(receipt.facts), ledger])


def forget_absent(dataset: str, store: ArtifactStore) -> None:
    """Remove the remembered verdicts on partitions that are not there any more."""
    for folder in (store.root / dataset / FOLDER).glob("*/"):
        there = set(store.partitions(dataset, folder.name))
        for path in folder.glob("*.json"):
            if path.stem not in there:
                path.unlink(missing_ok=True)
