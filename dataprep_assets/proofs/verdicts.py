"""Proves many partitions in parallel, and remembers the verdicts.

The verdict on a partition is kept beside the dataset (`.findings/<artifact>/<partition>.json`) under the digest of the
content that was examined, so that a check can speak of all partitions after a run that touched a few: those whose
content has not changed need no second reading. It is a cache: deleting it costs time only.

Entry points: `prove_all`; `remember`, `remembered`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from dataprep_assets.builds.token_bins import ONE_THREAD
from dataprep_assets.builds.workers import Finished, Task, WorkerPool
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import canonical_json
from dataprep_assets.proofs.finding import Finding

__all__ = ["Work", "prove_all", "remember", "remembered"]


class Work(Protocol):
    """What every unit of work knows: the artifact that it is about, and where artifacts are."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def store(self) -> ArtifactStore: ...


W = TypeVar("W", bound=Work)


def prove_all(
    works: Mapping[str, W], prove: Callable[[W], dict[str, Finding]], workers: int, *, silent: bool = False
) -> Iterator[tuple[str, dict[str, Finding]]]:
    """Partition and findings of each work, as they are done; verdicts are remembered.

    `prove` is a module-level function that raises for bugs alone; what it raises is raised here. `silent` as in
    `WorkerPool`.
    """
    with WorkerPool(min(workers, max(1, len(works))), ONE_THREAD, silent=silent) as pool:
        for partition, work in works.items():
            pool.submit(Task(partition, prove, (work,)))
        for event in pool.events():
            if isinstance(event, Finished):
                if event.error is not None:
                    raise event.error
                work = works[event.task.label]
                remember(work.artifact, work.store, event.result)
                yield event.task.label, event.result


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
