"""How long the steps of datasets take on this machine, learned from their last runs: `step_times.json` in DAGSTER_HOME.

The file maps `KIND/DATASET/STEP` to `[size, seconds]` of builds of the step with its checks, oldest first. The step
`run` is the time of whole runs without their steps. A size is in bytes of the source, or in partitions if no source is
read. Sensitive datasets are never in the file.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import Field, TypeAdapter

from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.stores.locks import owned_file

KEPT_BUILDS = 3
"""Number of builds kept per step and size. It is small, so that estimates follow a machine that changed."""
RUN = "run"
"""Name under which the time of a run without its steps is stored, with size 1."""
_SIMILAR = 1.5
"""The largest ratio of two sizes that are similar."""
_Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_FILE = TypeAdapter(dict[str, list[tuple[_Size, _Seconds]]])
Build = tuple[float, float]
"""The size and the seconds of a build."""
Sizes = Callable[[ArtifactSpec, Sequence[str | None]], float | None]


class StepTimes:
    """Sizes and times of the last builds of each step, stored in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._builds = self._read()

    def seconds(self, declaration: DatasetDeclaration, step: str, size: float | None) -> float | None:
        """Estimate how long a step of this size takes; None if no dataset of this kind was ever built here.

        A dataset that was never built is estimated by others of its kind, an unknown size by the largest build.
        """
        builds = self._builds.get(_key(declaration, step)) or [
            build
            for key, step_builds in self._builds.items()
            if key.startswith(f"{type(declaration).__name__}/") and key.endswith(f"/{step}")
            for build in step_builds
        ]
        return expected_seconds(builds, size) if builds else None

    def add(self, declaration: DatasetDeclaration, builds: Mapping[str, Iterable[Build]]) -> None:
        """Add builds to those in the file, which other processes may have changed; skip a sensitive dataset."""
        if declaration.sensitive:
            return
        # the times are not worth a failed run: the folder may be read-only, or contain a link
        with suppress(OSError, DataprepError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with owned_file(self._path.with_suffix(".lock"), self._path.name):
                self._builds = self._read()
                for step, added in builds.items():
                    builds_of_step = self._builds.setdefault(_key(declaration, step), [])
                    for build in added:
                        _keep(builds_of_step, build)
                write_atomically(self._path, json.dumps(self._builds, sort_keys=True).encode(), durably=False)

    def _read(self) -> dict[str, list[Build]]:
        # a missing or damaged file only makes forecasts ranges until the next run
        with suppress(OSError, ValueError):
            return _FILE.validate_json(self._path.read_bytes())
        return {}


def _key(declaration: DatasetDeclaration, step: str) -> str:
    return f"{type(declaration).__name__}/{declaration.dataset}/{step}"


def _keep(builds: list[Build], build: Build) -> None:
    """Append a build. It replaces the oldest of `KEPT_BUILDS` builds of a similar size, never one of another size."""
    similar = [other_build for other_build in builds if _are_similar(other_build[0], build[0])]
    if len(similar) >= KEPT_BUILDS:
        builds.remove(similar[0])
    builds.append(build)


def _are_similar(size: float, other_size: float) -> bool:
    return max(size, other_size) <= _SIMILAR * min(size, other_size)


def expected_seconds(builds: Sequence[Build], size: float | None) -> float:
    """Return the time of builds of this size: on the line between two known sizes, and in proportion beyond all."""
    sizes = [build_size for build_size, _ in builds]
    if size is None:
        size = max(sizes)
    below = max((build_size for build_size in sizes if build_size <= size), default=None)
    above = min((build_size for build_size in sizes if build_size >= size), default=None)
    if below is None or above is None:
        nearest = max(sizes) if above is None else min(sizes)
        return _typical(builds, nearest) * size / nearest
    share = (size - below) / (above - below) if above > below else 0.0
    return (1 - share) * _typical(builds, below) + share * _typical(builds, above)


def _typical(builds: Sequence[Build], size: float) -> float:
    """Return the median time of builds of similar sizes, scaled to this size."""
    return median(seconds * size / build_size for build_size, seconds in builds if _are_similar(build_size, size))


def step_sizes(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Sizes:
    """Return a function from partitions of an artifact to their size; None if they are not planned yet.

    An artifact without partitions has the size of the partitions that it is built from.
    """
    source_bytes: dict[tuple[Partitions, str], int] = {}
    for spec in {spec.partitions: spec for spec in specs if spec.reads is not None}.values():
        with suppress(DataprepError):
            slots = list(_planned_partitions(spec, store))
            readings = spec.reads(store, [key for _, key in slots]) if spec.reads is not None else ()
            source_bytes |= {slot: one.source_bytes for slot, one in zip(slots, readings, strict=True)}

    def size(spec: ArtifactSpec, partitions: Sequence[str | None]) -> float | None:
        try:
            slots = {
                slot for slot in _planned_partitions(spec, store) if spec.partitions is None or slot[1] in partitions
            }
        except DataprepError:
            return None
        return sum(source_bytes.get(slot, 1) for slot in slots) or 1.0

    return size


def _planned_partitions(spec: ArtifactSpec, store: ArtifactStore) -> Iterable[tuple[Partitions, str]]:
    """The partitions of an artifact, or those that it is made of; raises MissingArtifactError if there is no plan."""
    if spec.partitions is not None:
        yield from ((spec.partitions, key) for key in spec.partitions.keys(store))
        return
    for source in spec.inputs:
        if isinstance(source, ArtifactSpec):
            yield from _planned_partitions(source, store)
