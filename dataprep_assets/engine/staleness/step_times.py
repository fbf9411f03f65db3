"""Times of datasets' steps in their last runs on this machine: `step_times.json` in DAGSTER_HOME.

The file maps `KIND/DATASET/STEP` to `[size, seconds]` of builds of the step with its checks, oldest first. The step
`run` is the time of whole runs without their steps. A size is in bytes of the source, or in partitions if no source is
read. Sensitive datasets are never in the file.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median_low
from typing import Annotated

from pydantic import Field, TypeAdapter

from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.stores.locks import lock_own_file

KEPT_BUILDS = 3
"""Number of builds to keep per step and size. It is small, so that estimates adapt to changes to the machine."""
RUN = "run"
"""Name under which the time of a run without its steps is stored, with size 1."""
_MAX_SIMILAR_RATIO = 1.5
"""Maximum ratio of two sizes that are similar."""
_FIXED_SECONDS = 0.3
"""Time of a step that reads almost nothing: its start, records and checks (0.1 to 0.6 s)."""
_RATED_SECONDS = 10.0
"""Shortest build from which a rate is derived. The time of a shorter build hardly depends on its size."""
_Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_FILE = TypeAdapter(dict[str, list[tuple[_Size, _Seconds]]])
Build = tuple[float, float]
"""The size and the seconds of a build."""
TimeRange = tuple[float, float]
"""Lower and upper bound of a time, in seconds."""
Sizes = Callable[[ArtifactSpec, Sequence[str | None]], float | None]


class StepTimes:
    """Sizes and times of the last builds of each step, stored in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._builds = self._read_builds()

    def estimate_duration(self, declaration: DatasetDeclaration, step: str, size: float | None) -> TimeRange | None:
        """Return bounds of the duration of a step of this size; None if no dataset of this kind was ever built here.

        The bounds are equal, unless all builds were much smaller and too short to derive a rate.

        For a dataset that was never built, builds of other datasets of its kind are used. For an unknown size, the size
        of the largest build is used.
        """
        builds = self._builds.get(_format_step_key(declaration, step)) or [
            build
            for key, step_builds in self._builds.items()
            if key.startswith(f"{type(declaration).__name__}/") and key.endswith(f"/{step}")
            for build in step_builds
        ]
        return estimate_seconds(builds, size) if builds else None

    def add(self, declaration: DatasetDeclaration, builds: Mapping[str, Iterable[Build]]) -> None:
        """Add builds to the file, which other processes may have changed. Sensitive datasets are skipped."""
        if declaration.sensitive:
            return
        # Ignore errors, because a run must not fail only because its times cannot be stored. The folder may be
        # read-only or contain a link.
        with suppress(OSError, DataprepError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with lock_own_file(self._path.with_suffix(".lock"), self._path.name):
                self._builds = self._read_builds()
                for step, new_builds in builds.items():
                    builds_of_step = self._builds.setdefault(_format_step_key(declaration, step), [])
                    for build in new_builds:
                        _append_build(builds_of_step, build)
                write_atomically(self._path, json.dumps(self._builds, sort_keys=True).encode(), durably=False)

    def _read_builds(self) -> dict[str, list[Build]]:
        # Ignore a missing or damaged file, because the only effect is that forecasts are less exact until the next run.
        with suppress(OSError, ValueError):
            return _FILE.validate_json(self._path.read_bytes())
        return {}


def _format_step_key(declaration: DatasetDeclaration, step: str) -> str:
    return f"{type(declaration).__name__}/{declaration.dataset}/{step}"


def _append_build(builds: list[Build], build: Build) -> None:
    """Append a build, and remove the oldest build of a similar size if there are already `KEPT_BUILDS`."""
    similar_builds = [other_build for other_build in builds if _is_similar_size(other_build[0], build[0])]
    if len(similar_builds) >= KEPT_BUILDS:
        builds.remove(similar_builds[0])
    builds.append(build)


def _is_similar_size(size: float, other_size: float) -> bool:
    return max(size, other_size) <= _MAX_SIMILAR_RATIO * min(size, other_size)


def estimate_seconds(builds: Sequence[Build], size: float | None) -> TimeRange:
    """Return bounds of the time of a build of this size, interpolated between known sizes.

    Beyond the known sizes, the time is a fixed part plus a part proportional to the size. If the size is larger than
    all known builds and these were short, the bounds are their time and the time at their rate.
    """
    sizes = [build_size for build_size, _ in builds]
    if size is None:
        size = max(sizes)
    smaller_size = max((build_size for build_size in sizes if build_size <= size), default=None)
    larger_size = min((build_size for build_size in sizes if build_size >= size), default=None)
    if smaller_size is None or larger_size is None:
        nearest = max(sizes) if larger_size is None else min(sizes)
        known_seconds = _estimate_typical_seconds(builds, nearest)
        fixed_seconds = min(known_seconds, _FIXED_SECONDS)
        seconds = fixed_seconds + (known_seconds - fixed_seconds) * size / nearest
        is_rated = known_seconds >= _RATED_SECONDS or size < nearest or _is_similar_size(size, nearest)
        return (seconds if is_rated else known_seconds), seconds
    share = (size - smaller_size) / (larger_size - smaller_size) if larger_size > smaller_size else 0.0
    seconds = (1 - share) * _estimate_typical_seconds(builds, smaller_size) + share * _estimate_typical_seconds(
        builds, larger_size
    )
    return seconds, seconds


def _estimate_typical_seconds(builds: Sequence[Build], size: float) -> float:
    """Return the median time of builds of similar sizes, scaled to this size; of two times, the shorter one.

    The longer time may come from a loaded machine, or from the first run, which creates Dagster's instance.
    """
    return median_low(
        seconds * size / build_size for build_size, seconds in builds if _is_similar_size(build_size, size)
    )


def build_size_function(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Sizes:
    """Return a function that returns the size of an artifact's partitions, or None if they are not planned yet.

    An artifact without partitions has the size of the partitions that it is built from.
    """
    source_bytes: dict[tuple[Partitions, str], int] = {}
    for spec in {spec.partitions: spec for spec in specs if spec.reads is not None}.values():
        with suppress(DataprepError):
            slots = list(_list_planned_partitions(spec, store))
            readings = spec.reads(store, [key for _, key in slots]) if spec.reads is not None else ()
            source_bytes |= {slot: one.source_bytes for slot, one in zip(slots, readings, strict=True)}

    def measure_size(spec: ArtifactSpec, partitions: Sequence[str | None]) -> float | None:
        try:
            slots = {
                slot
                for slot in _list_planned_partitions(spec, store)
                if spec.partitions is None or slot[1] in partitions
            }
        except DataprepError:
            return None
        return sum(source_bytes.get(slot, 1) for slot in slots) or 1.0

    return measure_size


def _list_planned_partitions(spec: ArtifactSpec, store: ArtifactStore) -> Iterable[tuple[Partitions, str]]:
    """Yield the partitions of an artifact or of its inputs. Raises MissingArtifactError if there is no plan."""
    if spec.partitions is not None:
        yield from ((spec.partitions, key) for key in spec.partitions.keys(store))
        return
    for source in spec.inputs:
        if isinstance(source, ArtifactSpec):
            yield from _list_planned_partitions(source, store)
