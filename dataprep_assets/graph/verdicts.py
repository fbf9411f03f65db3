"""Examines many partitions in parallel, and remembers the verdicts.

The verdict on a partition is kept beside the dataset (`.findings/<artifact>/<partition>.json`) with the digest of the
examined content and the version of each proof. So after a run that touched a few partitions a check can judge all of
them: those whose content and proofs are unchanged need not be read again. Nor does a partition of the run itself, if
its artifact knows that nothing its proofs look at has changed. The verdicts are a cache: deleting them only costs time.

Entry points: `of_all_partitions`; `prove_all`, `proven`; `remember`, `remembered`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.pool import ON_PROCESSES, Engine
from dataprep_assets.execution.tasks import Finished, Task, TaskId
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.known_verdicts import KnownVerdicts
from dataprep_assets.graph.shown import number_of
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import canonical_json, digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.files import version_of

__all__ = ["Verdicts", "of_all_partitions", "prove_all", "proven", "remember", "remembered", "summarized"]

Verdicts = Iterator[tuple[str, dict[str, Finding]]]
"""Partitions, each with its findings by the name of the proof."""


class Subject(Protocol):
    """What the proofs of a partition are called with; it knows its artifact."""

    @property
    def artifact(self) -> Artifact: ...


S = TypeVar("S", bound=Subject)


def prove_all(
    subjects: Iterable[S], prove: Callable[[S], dict[str, Finding]], workers: int, *, engine: Engine = ON_PROCESSES
) -> Verdicts:
    """Run `prove` on each subject in parallel; yields each partition with its findings when it is done.

    Args:
        subjects: One for each partition; pickled into the workers.
        prove: Must be picklable; raises only for bugs, which are raised again here.
        workers: Largest number of workers.
        engine: Who does the work.
    """
    tasks = [Task(TaskId(subject.artifact.partition or "", "proofs"), prove, (subject,)) for subject in subjects]
    if not tasks:
        return
    with engine.open(min(workers, len(tasks))) as pool:
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
    proofs: Iterable[Proof],
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
    proofs: Sequence[Proof],
    partitions: Sequence[str],
    examined: Sequence[str],
    *,
    artifact: Callable[[str], Artifact],
    prove: Callable[[Sequence[str]], Verdicts],
    noun: str = "shard",
    unchanged: Callable[[str], bool] = lambda partition: False,
) -> Iterator[tuple[str, Finding]]:
    """One finding of each proof for all partitions of an artifact, whichever partitions the run is about.

    Args:
        store: Where the artifacts are.
        proofs: The proofs that `prove` carries out.
        partitions: All partitions of the artifact.
        examined: The partitions of the run: they are proven, and their verdicts remembered. For the others the
            remembered verdict on their present content counts, so the latest result is about all partitions, and a bad
            one stays visible until it is repaired. A verdict from before a proof existed, or of an older version of it,
            does not count.
        artifact: Returns the artifact of a partition.
        prove: Yields the findings of the given partitions.
        noun: The noun for one partition.
        unchanged: Whether the files of a partition, and everything else that its proofs read, are as its receipt says.
            Asked for partitions of the run whose receipt passed every proof before: if so, they are not proven again.
    """
    stands = {p for p in examined if _passed_before(artifact(p), store, proofs) and unchanged(p)}
    examined = [p for p in examined if p not in stands]
    fresh: dict[str, dict[str, Finding]] = {}
    for partition, findings in prove(examined) if examined else ():
        remember(artifact(partition), store, findings, proofs)
        fresh[partition] = findings
    found = {**_of_others(store, proofs, [p for p in partitions if p not in fresh], artifact), **fresh}
    found = {partition: found[partition] for partition in partitions if partition in found}
    unknown = len(partitions) - len(found)
    for proof in proofs:
        of_proof = {p: of[proof.name] for p, of in found.items()}
        yield proof.name, summarized(of_proof, examined, unknown, noun)


def _of_others(
    store: ArtifactStore, proofs: Sequence[Proof], partitions: Sequence[str], artifact: Callable[[str], Artifact]
) -> dict[str, dict[str, Finding]]:
    """The remembered verdicts on partitions that are not examined now; of those without one, nothing."""
    artifacts = [artifact(partition) for partition in partitions]
    if not artifacts:
        return {}
    folder = _memory(artifacts[0], store).parent
    known = KnownVerdicts(folder.with_name(f"{folder.name}.known"), proofs)
    found: dict[str, dict[str, Finding]] = {}
    for partition, one, receipt in zip(partitions, artifacts, store.receipt_versions(artifacts), strict=True):
        if receipt is None:  # not made yet
            continue
        versions = [receipt, version_of(f"{folder}/{one.partition}.json")]
        there, verdict = known.of(partition, versions)
        if not there:
            verdict = remembered(one, store, proofs)
            known.keep(partition, versions, verdict)
        if verdict is not None:
            found[partition] = verdict
    known.write()
    return found


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
    when = f"{now:,} examined now, {len(findings) - now:,} before" if now < len(findings) else ""
    when += f"{', ' if when else ''}{unknown:,} not examined yet" if unknown else ""
    if not bad:
        example = f". For example {examined[0]}: {shown.summary}" if shown and shown.summary else "."
        return Finding(
            passed=True,
            facts=facts,
            table=shown.table if shown else (),
            summary=_all_pass(len(findings), unknown, noun) + (f": {when}" if when else "") + example,
        )
    first = next(iter(bad))
    fail = "fails" if len(bad) == 1 else "fail"
    return Finding(
        passed=False,
        warning=all(f.warning for f in bad.values()),
        facts=facts,
        summary=f"{len(bad):,} of {number_of(len(findings), noun)} {fail}"
        + (f" ({when})" if when else "")
        + f", first {first}: {bad[first].summary}",
        table=tuple({noun: partition, "what": f.summary} for partition, f in bad.items()),
    )


def _all_pass(known: int, unknown: int, noun: str) -> str:
    if known == 1:
        return f"The {noun} passes" if not unknown else f"1 {noun} passes"
    return f"{'' if unknown else 'All '}{number_of(known, noun)} pass"


def _memory(artifact: Artifact, store: ArtifactStore) -> Path:
    return store.root / artifact.dataset / ".findings" / artifact.name / f"{artifact.partition}.json"


def remember(
    artifact: Artifact, store: ArtifactStore, findings: Mapping[str, Finding], proofs: Iterable[Proof]
) -> None:
    """Keep the verdicts on an artifact's present content, each with the version of its proof."""
    try:
        receipt = store.require(artifact)
    except DataprepError:
        return  # there is nothing to remember a verdict on
    path = _memory(artifact, store)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        proof.name: {
            "passed": findings[proof.name].passed,
            "summary": findings[proof.name].summary,
            "warning": findings[proof.name].warning,
            "version": proof.version,
        }
        for proof in proofs
    }
    value = {"content": receipt.content, "receipt": _identity(receipt), "findings": kept}
    write_atomically(path, canonical_json(value), durably=False)


def _identity(receipt: Receipt) -> str:
    """Digest of everything that a receipt claims, except measurements of its build."""
    ledger = receipt.ledger.to_json() if receipt.ledger else None
    return digest_value([receipt.key, receipt.content, dict(receipt.inputs), dict(receipt.facts), ledger])


def _passed_before(artifact: Artifact, store: ArtifactStore, proofs: Iterable[Proof]) -> bool:
    """Whether the present version of every proof passed the artifact with exactly its present receipt."""
    kept = remembered(artifact, store, proofs)
    if kept is None or not all(finding.passed for finding in kept.values()):
        return False
    try:
        value = json.loads(_memory(artifact, store).read_bytes())
        return bool(value.get("receipt") == _identity(store.require(artifact)))
    except (OSError, ValueError, DataprepError):
        return False


def remembered(artifact: Artifact, store: ArtifactStore, proofs: Iterable[Proof]) -> dict[str, Finding] | None:
    """The remembered verdicts on an artifact; None unless each proof, in its present version, examined its content."""
    try:
        value = json.loads(_memory(artifact, store).read_bytes())
        content = store.require(artifact).content
    except (OSError, ValueError, RecursionError, DataprepError):
        return None
    if value["content"] != content:
        return None
    found = {}
    for proof in proofs:
        kept = dict(value["findings"].get(proof.name, {}))
        # verdicts from before versions were kept count as version 1
        if kept.pop("version", 1) != proof.version or not kept:
            return None
        found[proof.name] = Finding(**kept)
    return found
