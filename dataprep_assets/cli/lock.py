"""`dataprep lock`: write a dataset's lock; comparison of a build with its lock for `run --locked`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import Name
from dataprep_assets.errors import ConfigError, DriftError, count_of

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.engine.lock.drift import Drift
    from dataprep_assets.engine.lock.lock import Lock
    from dataprep_assets.integrity.artifacts import ArtifactStore
    from dataprep_assets.orchestration.build import StepResult

_SHOWN = 20
"""Maximum number of reasons to print."""


def command(
    dataset: Name,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="[default: dataset.lock next to the defs.yaml]")
    ] = None,
) -> int:
    """Write a lock file: everything that determines a dataset's bytes, and the digests of its artifacts."""
    from dataprep_assets.engine.lock.lock import LOCK, lock_bytes, lock_dataset
    from dataprep_assets.integrity.commit import write_atomically

    component = project.component(dataset)
    path = output or project.folder(dataset) / LOCK
    # checked before the artifacts are verified, because verification may read all of their bytes
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"--output {path}: must be a file in an existing folder")
    lock = lock_dataset(component.specs, component.store(project.storage()))
    write_atomically(path, lock_bytes(lock))
    artifact_count = count_of(len(lock.artifacts), "artifact")
    print(f"Locked {dataset} ({artifact_count}, {count_of(lock.files, 'source file')}): wrote {path}")
    return 0


def lock_of(name: str, file: Path | None) -> "Lock":
    """Read the lock of a dataset.

    Args:
        name: The dataset.
        file: The lock file; None for `dataset.lock` next to the defs.yaml, where `dataprep lock` writes it.

    Raises ConfigError if there is no such file.
    """
    from dataprep_assets.engine.lock.lock import LOCK, read_lock

    path = file or project.folder(name) / LOCK
    if path.exists():
        return read_lock(path)
    if file is None:
        raise ConfigError(f"{name}: no {LOCK} next to its defs.yaml. Run `dataprep lock {name}` to write it")
    raise ConfigError(f"--lock: {path}: no such file")


class LockedBuild:
    """Build listener that stops a build whose recipes or contents differ from the lock."""

    def __init__(self, lock: "Lock", specs: "Sequence[ArtifactSpec]", store: "ArtifactStore") -> None:
        dataset = specs[0].declaration.dataset
        if lock.dataset != dataset:
            raise ConfigError(f"--lock: must be a lock of {dataset}, not of {lock.dataset}")
        self._lock, self._specs, self._store = lock, specs, store
        self.drift: DriftError | None = None

    def begin(self) -> None:
        """Raise DriftError for all differences from the lock that are known before the build starts."""
        from dataprep_assets.engine.lock.drift import adopt_plan, drift_of_recipes

        adopt_plan(self._specs, self._store, self._lock)
        refuse(self._lock, drift_of_recipes(self._specs, self._store, self._lock), "nothing was built")

    def before(self, spec: "ArtifactSpec", partitions: Sequence[str], *, current: bool) -> None:
        """Compare the recipe of an artifact before it is built; its recipe is known when its inputs are present."""
        from dataprep_assets.engine.lock.drift import drift_of_recipes

        drifts = drift_of_recipes(self._specs, self._store, self._lock, [spec])
        self._refuse(drifts, f"{spec.path[-1]} and its downstream artifacts were not built")

    def after(self, spec: "ArtifactSpec", partitions: Sequence[str], result: "StepResult") -> None:
        """Compare the content of a built artifact with the lock."""
        from dataprep_assets.engine.lock.drift import drift_of_contents

        drifts = drift_of_contents([spec], self._store, self._lock, partitions)
        self._refuse(drifts, f"{spec.path[-1]} was built, its downstream artifacts were not")

    def checking(self, spec: "ArtifactSpec") -> None:
        """Do nothing, because checks do not change artifacts."""

    def failed(self, spec: "ArtifactSpec", why: str) -> None:
        """Do nothing, because missing artifacts are reported separately."""

    def report_line(self, sentence: str) -> None:
        """Do nothing, because warnings and removals do not concern the lock."""

    def _refuse(self, drifts: "Iterable[Drift]", told: str) -> None:
        try:
            refuse(self._lock, drifts, told)
        except DriftError as error:
            # kept for `run` to raise, because Dagster's step replaces the error that is raised here
            self.drift = self.drift or error
            raise

    def end(self) -> None:
        """Raise DriftError if the finished dataset differs from the lock; otherwise print that it matches."""
        from dataprep_assets.engine.lock.drift import drift_of_contents, undeclared

        for drifts in (
            drift_of_contents(self._specs, self._store, self._lock),
            undeclared(self._specs, self._store, self._lock),
        ):
            refuse(self._lock, drifts, "the run is complete")
        print(f"matches its lock: {count_of(len(self._lock.artifacts), 'artifact')}")


def refuse(lock: "Lock", drifts: "Iterable[Drift]", progress: str) -> None:
    """Print each reason once with the affected artifacts; raise DriftError if there is any.

    Args:
        lock: The lock, whose dataset the error names.
        drifts: The differences from the lock.
        progress: The state of the build, for the error message.
    """
    from dataprep_assets.engine.lock.difference import grouped
    from dataprep_assets.orchestration.runs.terminal import say

    privacy = lock.privacy.stricter(project.privacy())
    reasons = {drift.name: privacy.text(drift.reason, "differs") for drift in drifts}
    lines = grouped(reasons)
    for line in lines[:_SHOWN]:
        say(f"drift: {line}")
    if len(lines) > _SHOWN:
        say(f"drift: … and {count_of(len(lines) - _SHOWN, 'more reason')}")
    if reasons:
        raise DriftError(
            f"{lock.dataset}: {count_of(len(reasons), 'artifact differs', 'artifacts differ')} from the lock; "
            f"{progress}"
        )
