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

_MAX_LINES = 20
"""Maximum number of reasons to print."""


def command(
    dataset: Name,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the lock to this file. [default: dataset.lock next to the defs.yaml]"),
    ] = None,
) -> int:
    """Write a lock file, which records everything that determines a dataset's bytes, and its artifacts' digests."""
    from dataprep_assets.engine.lock.lock import LOCK, encode_lock, lock_dataset
    from dataprep_assets.integrity.commit import write_atomically

    component = project.use_dataset(dataset)
    path = output or project.find_dataset_folder(dataset) / LOCK
    # Check the path before the artifacts are verified, because verification may read all of their bytes.
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"--output {path}: must be a file, and its folder must exist")
    lock = lock_dataset(component.specs, component.store(project.open_storage()))
    write_atomically(path, encode_lock(lock))
    artifact_count = count_of(len(lock.artifacts), "artifact")
    print(f"Locked {dataset} ({artifact_count}, {count_of(lock.files, 'source file')}): wrote {path}")
    return 0


def read_dataset_lock(name: str, file: Path | None) -> "Lock":
    """Read the lock of a dataset.

    Args:
        name: The dataset.
        file: The lock file; None for `dataset.lock` next to the defs.yaml, where `dataprep lock` writes it.

    Raises ConfigError if there is no such file.
    """
    from dataprep_assets.engine.lock.lock import LOCK, read_lock

    path = file or project.find_dataset_folder(name) / LOCK
    if path.exists():
        return read_lock(path)
    if file is None:
        raise ConfigError(f"{name}: no {LOCK} next to its defs.yaml. Run `dataprep lock {name}` to write it")
    raise ConfigError(f"--lock: {path} does not exist. Run `dataprep lock {name}` to write a lock")


class LockListener:
    """Build listener that stops a build whose recipes or contents differ from the lock."""

    def __init__(self, lock: "Lock", specs: "Sequence[ArtifactSpec]", store: "ArtifactStore") -> None:
        dataset = specs[0].declaration.dataset
        if lock.dataset != dataset:
            raise ConfigError(f"--lock: must be a lock of {dataset}, not of {lock.dataset}")
        self._lock, self._specs, self._store = lock, specs, store
        self.drift: DriftError | None = None

    def begin(self) -> None:
        """Raise DriftError for all differences from the lock that are known before the build starts."""
        from dataprep_assets.engine.lock.drift import adopt_plan, find_recipe_drift

        adopt_plan(self._specs, self._store, self._lock)
        raise_for_drifts(self._lock, find_recipe_drift(self._specs, self._store, self._lock), "nothing was built")

    def before(self, spec: "ArtifactSpec", partitions: Sequence[str], *, current: bool) -> None:
        """Compare the recipe of an artifact before it is built; its recipe is known when its inputs are present."""
        from dataprep_assets.engine.lock.drift import find_recipe_drift

        drifts = find_recipe_drift(self._specs, self._store, self._lock, [spec])
        self._print_drifts_and_raise(drifts, f"{spec.path[-1]} and its downstream artifacts were not built")

    def after(self, spec: "ArtifactSpec", partitions: Sequence[str], result: "StepResult") -> None:
        """Compare the content of a built artifact with the lock."""
        from dataprep_assets.engine.lock.drift import find_content_drift

        drifts = find_content_drift([spec], self._store, self._lock, partitions)
        self._print_drifts_and_raise(drifts, f"{spec.path[-1]} was built, but its downstream artifacts were not")

    def checking(self, spec: "ArtifactSpec") -> None:
        """Do nothing, because checks do not change artifacts."""

    def failed(self, spec: "ArtifactSpec", reason: str) -> None:
        """Do nothing, because missing artifacts are reported separately."""

    def report_line(self, sentence: str) -> None:
        """Do nothing, because warnings and removals do not concern the lock."""

    def _print_drifts_and_raise(self, drifts: "Iterable[Drift]", message: str) -> None:
        try:
            raise_for_drifts(self._lock, drifts, message)
        except DriftError as error:
            # Store the error for `run` to raise again, because Dagster's step raises an error of its own instead.
            self.drift = self.drift or error
            raise

    def end(self) -> None:
        """Raise DriftError if the finished dataset differs from the lock; otherwise print that it matches."""
        from dataprep_assets.engine.lock.drift import find_content_drift, find_undeclared_artifacts

        for drifts in (
            find_content_drift(self._specs, self._store, self._lock),
            find_undeclared_artifacts(self._specs, self._store, self._lock),
        ):
            raise_for_drifts(self._lock, drifts, "the run is complete")
        print(f"{count_of(len(self._lock.artifacts), 'artifact matches', 'artifacts match')} the lock")


def raise_for_drifts(lock: "Lock", drifts: "Iterable[Drift]", progress: str) -> None:
    """Print each reason once with the affected artifacts; raise DriftError if there are any differences.

    Args:
        lock: The lock, whose dataset the error names.
        drifts: The differences from the lock.
        progress: The state of the build, for the error message.
    """
    from dataprep_assets.engine.lock.difference import group_reasons
    from dataprep_assets.orchestration.runs.terminal import print_line

    privacy = lock.privacy.choose_stricter(project.get_privacy())
    reasons = {drift.name: privacy.public_text(drift.reason, "differs") for drift in drifts}
    lines = group_reasons(reasons)
    for line in lines[:_MAX_LINES]:
        print_line(f"drift: {line}")
    if len(lines) > _MAX_LINES:
        print_line(f"drift: … and {count_of(len(lines) - _MAX_LINES, 'more reason')}")
    if reasons:
        raise DriftError(
            f"{lock.dataset}: {count_of(len(reasons), 'artifact differs', 'artifacts differ')} from the lock; "
            f"{progress}"
        )
