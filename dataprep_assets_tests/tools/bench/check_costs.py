"""Measure the CPU-seconds of a build and of each of its checks: all checks together may cost at most as much as the
build.

Builds and checks alternate in one process, with the number of threads of a worker; medians are reported. Work that
several checks share (a file that is read once for all of them) is counted for the first of them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from dataprep_assets.engine.checks.check import Check

S = TypeVar("S")

TARGET = 1.0
"""The maximum CPU-seconds of all checks per CPU-second of the build."""


class CheckCosts(Generic[S]):
    """The costs of one artifact.

    Args:
        artifact: Its name.
        checks: Its checks.
    """

    def __init__(self, artifact: str, checks: Sequence[Check[S]]) -> None:
        self._artifact, self._checks = artifact, checks
        self._builds: list[float] = []
        self._all: list[float] = []
        self._each: dict[str, list[float]] = {check.name: [] for check in checks}

    def build(self, run: Callable[[], Any]) -> Any:
        """Build the artifact, and return the result of `run`."""
        started = time.process_time()
        made = run()
        self.built(time.process_time() - started)
        return made

    def built(self, seconds: float) -> None:
        """Record the CPU-seconds of a build that was measured elsewhere."""
        self._builds.append(seconds)

    def check(self, open: Callable[[], S]) -> None:
        """Open the artifact and run all its checks, every one of which must pass."""
        begun = time.process_time()
        subject = open()
        for check in self._checks:
            started = time.process_time()
            found = check.run(subject)
            self._each[check.name].append(time.process_time() - started)
            if not found.passed:
                raise SystemExit(f"{self._artifact}: {check.name}: {found.summary}")
        self._all.append(time.process_time() - begun)

    def forget(self) -> None:
        """Discard earlier measurements, which loaded libraries and tokenizers."""
        for seconds in (self._builds, self._all, *self._each.values()):
            seconds.clear()

    def report(self) -> bool:
        """Print the medians; return whether the target is met."""
        build, proofs = self.medians
        print(f"{self._artifact}: build {build:.3f} CPU-s, all {len(self._checks)} proofs {proofs:.3f}")
        for name, seconds in self._each.items():
            print(f"    {name:28} {statistics.median(seconds) if seconds else 0.0:8.3f}")
        return judged("proofs", proofs, build)

    @property
    def medians(self) -> tuple[float, float]:
        """The CPU-seconds of the build, and of all checks."""
        return statistics.median(self._builds), statistics.median(self._all)

    def as_json(self) -> dict[str, Any]:
        """Return all measurements."""
        return {"build": self._builds, "proofs": self._all, "each": self._each}


def report_together(name: str, costs: Sequence[CheckCosts[Any]]) -> bool:
    """Print the total cost of several artifacts under a name; return whether the target is met."""
    build, proofs = (sum(each) for each in zip(*(one.medians for one in costs), strict=True))
    return judged(f"proofs of {name}", proofs, build)


def judged(what: str, proofs: float, build: float) -> bool:
    """Print whether checks meet the target, given the CPU-seconds of both; return whether they do."""
    met = proofs <= TARGET * build
    print(f"  {'met' if met else 'MISSED'}  {what} at most {TARGET:g} of the build: {proofs / build:.2f}")
    return met
