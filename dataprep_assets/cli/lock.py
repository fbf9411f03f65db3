"""`dataprep lock`: write the inputs and results of a dataset; and what `run --locked` compares with them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import Name
from dataprep_assets.cli.status import known_failures
from dataprep_assets.errors import ConfigError, DriftError

if TYPE_CHECKING:
    from dataprep_assets.graph.drift import Drift
    from dataprep_assets.graph.lock import Lock
    from dataprep_assets.graph.runs import PlannedRun
    from dataprep_assets.graph.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore

__all__ = ["LockedRuns", "command", "lock_of", "refuse"]

_SHOWN = 20
"""How many reasons are printed."""


def command(
    dataset: Name,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: dataset.lock beside the defs.yaml.")
    ] = None,
) -> int:
    """Write a lock: all that decides a dataset's bytes, and the digests of its artifacts."""
    from dataprep_assets.graph.lock import lock_dataset
    from dataprep_assets.graph.lock_file import LOCK, lock_bytes
    from dataprep_assets.integrity.commit import write_atomically

    component = project.component(dataset)
    path = output or project.folder(dataset) / LOCK
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"--output {path}: not a file in a folder that is there")
    written = lock_dataset(component.specs, component.store(project.storage()), known_failures(component.specs))
    write_atomically(path, lock_bytes(written))
    print(f"{dataset}: {len(written.artifacts):,} artifacts, {written.files:,} source files: {path}")
    return 0


def lock_of(name: str, file: Path | None) -> "Lock":
    """Read the lock of a dataset; raises ConfigError if it is the lock of another dataset.

    Args:
        name: The dataset, as in defs/<name>/defs.yaml.
        file: The lock; None for `dataset.lock` beside the defs.yaml, where `dataprep lock` writes it.
    """
    from dataprep_assets.graph.lock_file import LOCK, read_lock

    path = file or project.folder(name) / LOCK
    if file is None and not path.exists():
        raise ConfigError(f"{name}: has no {LOCK} beside its defs.yaml; `dataprep lock {name}` writes it")
    return read_lock(path)


class LockedRuns:
    """Runs of a dataset that are refused if they would make, or have made, anything but what its lock says."""

    def __init__(self, lock: "Lock", specs: "Sequence[ArtifactSpec]", store: "ArtifactStore") -> None:
        dataset = specs[0].declaration.dataset
        if lock.dataset != dataset:
            raise ConfigError(f"--lock: the lock is of {lock.dataset}, not of {dataset}")
        self._lock, self._specs, self._store = lock, specs, store

    def before(self) -> None:
        """Raise DriftError for every difference from the lock that is known before anything runs."""
        from dataprep_assets.graph.drift import adopt_plan, drift_of_recipes

        adopt_plan(self._specs, self._store, self._lock)
        refuse(self._lock, drift_of_recipes(self._specs, self._store, self._lock), "nothing was built")

    def each(self, runs: "Iterable[PlannedRun]") -> "Iterator[PlannedRun]":
        """The runs; each is compared with the lock before it begins and after it is done.

        An artifact made of another one in the same run gets a run of its own: its recipe is known only when its input
        is finished, and is to be compared before it is built.
        """
        from dataprep_assets.graph.drift import drift_of_contents, drift_of_recipes
        from dataprep_assets.graph.runs import apart

        for index, run in enumerate(apart(runs)):
            if index:
                told = f"“{run.title}” and what follows it were not built"
                refuse(self._lock, drift_of_recipes(self._specs, self._store, self._lock, run.specs), told)
            yield run
            found = drift_of_contents(run.specs, self._store, self._lock, run.partitions)
            refuse(self._lock, found, f"it was built in “{run.title}”; nothing that follows was")

    def after(self) -> None:
        """Raise DriftError if the finished dataset differs from the lock; otherwise say that it equals the lock."""
        from dataprep_assets.graph.drift import drift_of_contents, undeclared

        for found in (
            drift_of_contents(self._specs, self._store, self._lock),
            undeclared(self._specs, self._store, self._lock),
        ):
            refuse(self._lock, found, "all runs are done")
        print(f"equals its lock: {len(self._lock.artifacts):,} artifacts")


def refuse(lock: "Lock", found: "Iterable[Drift]", told: str) -> None:
    """Print each reason once, with the artifacts that it applies to; raises DriftError if there is any.

    Args:
        lock: The lock, whose dataset the error names.
        found: The differences from the lock.
        told: What has been done so far, for the error.
    """
    by_reason: dict[str, list[str]] = {}
    for drift in found:
        by_reason.setdefault(drift.reason, []).append(drift.name)
    for reason, names in list(by_reason.items())[:_SHOWN]:
        print(f"drift: {names[0]}{f' and {len(names) - 1:,} more' if len(names) > 1 else ''}: {reason}")
    if len(by_reason) > _SHOWN:
        print(f"drift: … and {len(by_reason) - _SHOWN:,} more reasons")
    if by_reason:
        count = len({name for names in by_reason.values() for name in names})
        raise DriftError(f"{lock.dataset}: {count:,} artifacts are not as the lock says; {told}")
