"""How long the steps of a dataset take on this machine, learned from its last runs: `step_times.json` in DAGSTER_HOME.

The file maps `dataset/step` to `[size, seconds]` of its last builds, checks included, newest last; `dataset/run` to the
time that runs took besides their steps. A size is in bytes of the source, or in partitions where no source is read.
The file holds nothing of sensitive datasets. Without it, forecasts are ranges.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from statistics import median

from dataprep_assets.engine.artifact.build import ancestors
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import write_atomically

KEPT_BUILDS = 5
"""Builds of a step that are kept: an estimate follows a machine that changed."""
_RUN = "run"
_SMALLEST_START = 0.1
"""Seconds of a step that depend on no size, where builds of one size cannot show them: its records and checks."""
Builds = Sequence[tuple[float, float]]
Sizes = Callable[[ArtifactSpec, Sequence[str | None]], float]


class StepTimes:
    """The builds in a file: none if it is missing or broken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._builds: dict[str, Builds] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            found = json.loads(path.read_bytes()).items()
            self._builds = {str(name): [(float(a), float(b)) for a, b in builds] for name, builds in found}
            if not all(
                math.isfinite(n) and n >= 0 for builds in self._builds.values() for pair in builds for n in pair
            ):
                self._builds = {}

    def seconds(self, dataset: str, step: str, size: float) -> float | None:
        """Estimate how long a step of this size takes; None if neither it nor its like was built here.

        A dataset that was never built is estimated by the same step of the other datasets.
        """
        builds = self._builds.get(f"{dataset}/{step}") or [
            build for name, others in self._builds.items() if name.endswith(f"/{step}") for build in others
        ]
        return expected_seconds(builds, size) if builds else None

    def run_seconds(self, dataset: str) -> float | None:
        """Estimate the time of a run besides its steps."""
        return self.seconds(dataset, _RUN, 0.0)

    def add(self, dataset: str, builds: Mapping[str, tuple[float, float]], run_seconds: float) -> None:
        """Keep the builds of a run. Of two commands that end at once, one may be lost."""
        for step, build in {**builds, _RUN: (0.0, run_seconds)}.items():
            kept = [*self._builds.get(f"{dataset}/{step}", ()), build]
            self._builds[f"{dataset}/{step}"] = kept[-KEPT_BUILDS:]
        # a project that cannot be written to has forecasts that are ranges
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(self._builds, sort_keys=True).encode(), durably=False)


def expected_seconds(builds: Builds, size: float) -> float:
    """Estimate a fixed start and a rate by medians over builds, and return the time for `size`."""
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0])
        for a, b in combinations(builds, 2)
        if abs(b[0] - a[0]) > 0.1 * max(a[0], b[0])  # what differs by less is noise
    ]
    if slopes:
        rate = max(0.0, median(slopes))
        start = max(0.0, median(seconds - rate * known for known, seconds in builds))
    else:
        known, typical = (median(values) for values in zip(*builds, strict=True))
        start = min(typical, _SMALLEST_START) if known else typical
        rate = (typical - start) / known if known else 0.0
    return start + rate * size


def step_sizes(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Sizes:
    """Return the function that gives the size of partitions of an artifact, or of one without partitions.

    An artifact without partitions is as large as the partitions that it is made of.
    """
    held: dict[str, int] = {}
    for spec in specs:
        if spec.reads is not None:
            with suppress(DataprepError):  # not planned yet
                keys = [slot for slot in spec.slots(store) if slot is not None]
                held |= {key: one.source_bytes for key, one in zip(keys, spec.reads(store, keys), strict=True)}

    def size(spec: ArtifactSpec, slots: Sequence[str | None]) -> float:
        keys = {slot for slot in slots if slot is not None}
        if spec.partitions is None:
            for source in ancestors([spec]):
                with suppress(DataprepError):
                    keys |= {slot for slot in source.slots(store) if slot is not None}
        known = [held[key] for key in keys if key in held]
        return float(sum(known) if known else len(keys) or 1)

    return size
