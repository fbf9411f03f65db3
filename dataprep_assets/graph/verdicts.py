"""Proves many partitions in parallel, and remembers the verdicts.

The verdict on a partition is kept beside the dataset (`.findings/<artifact>/<partition>.json`) under the digest of the
content that was examined, so that a check can speak of all partitions after a run that touched a few: those whose
content has not changed need no second reading. It is a cache: deleting it costs time only.

Entry points: `prove_all`, `proven`; `remember`, `remembered`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.processes import Finished, Task, WorkerPool
from dataprep_assets.graph.finding import Finding
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import canonical_json
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_bins import ONE_THREAD

__all__ = ["Verdicts", "Work", "prove_all", "proven", "remember", "remembered"]

Verdicts = Iterator[tuple[str, dict[str, Finding]]]
"""Partitions, each with its findings by the name of the proof."""


class Work(Protocol):
    """What every unit of work knows: the artifact that it is about."""

    @property
    def artifact(self) -> Artifact: ...


W = TypeVar("W", bound=Work)


def prove_all(
    works: Iterable[W], prove: Callable[[W], dict[str, Finding]], workers: int, *, silent: bool = False
) -> Verdicts:
    """Prove each work, in parallel; yields them as they are done.

    `prove` can be pickled and raises for bugs alone; what it raises is raised here. `silent` as in `WorkerPool`.
    """
    tasks = [Task(work.artifact.partition or "", prove, (work,)) for work in works]
    with WorkerPool(min(workers, max(1, len(tasks))), ONE_THREAD, silent=silent) as pool:
        for task in tasks:
            pool.submit(task)
        for event in pool.events():
            if isinstance(event, Finished):
                if event.error is not None:
                    raise event.error
                yield event.task.label, event.result


def proven(
    artifact: Artifact,
    store: ArtifactStore,
    names: Iterable[str],
    prove: Callable[[Path, Receipt], dict[str, Finding]],
) -> dict[str, Finding]:
    """What `prove` finds in an artifact's directory and receipt. Where these cannot be had, all of `names` fail."""
    try:
        receipt, directory = store.require(artifact), store.local(artifact)
    except DataprepError as error:  # a receipt that cannot be read is the finding
        return dict.fromkeys(names, Finding(passed=False, summary=str(error)))
    return prove(directory, receipt)


def _memory(artifact: Artifact, store: ArtifactStore) -> Path:
    return store.root / artifact.dataset / ".findings" / artifact.name / f"{artifact.partition}.json"


def remember(artifact: Artifact, store: ArtifactStore, findings: Mapping[str, Finding]) -> None:
    """Keep the verdicts on an artifact's present content."""
    try:
        content = store.require(artifact).content
    except DataprepError:
        return  # nothing there to remember a verdict on
    path = _memory(artifact, store)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: {"passed": f.passed, "summary": f.summary, "warning": f.warning} for name, f in findings.items()}
    write_atomically(path, canonical_json({"content": content, "findings": kept}))


def remembered(artifact: Artifact, store: ArtifactStore) -> dict[str, Finding] | None:
    """The kept verdicts on an artifact; None when its present content was not examined."""
    try:
        value = json.loads(_memory(artifact, store).read_bytes())
        content = store.require(artifact).content
    except (OSError, ValueError, DataprepError):
        return None
    if value["content"] != content:
        return None
    return {name: Finding(**kept) for name, kept in value["findings"].items()}
