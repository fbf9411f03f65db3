"""CPU-seconds of a build and of every one of its checks: all checks together may cost as much as the build, no more.

Builds and checks alternate, in one process and on the threads that it would have as a worker; medians are reported.
What several checks share (a file that is read once for all of them) is counted for the first of them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from dataprep_assets.engine.checks.check import Check

S = TypeVar("S")

TARGET = 1.0
"""Most CPU-seconds of all proofs for one of the build."""


class CheckCosts(Generic[S]):
    """What one artifact costs.

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
        """Make the artifact; the result of `run`."""
        started = time.process_time()
        made = run()
        self.built(time.process_time() - started)
        return made

    def built(self, seconds: float) -> None:
        """Note the CPU-seconds of a build that somebody else measured."""
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
        """Leave out what was measured until now: it loaded libraries and tokenizers."""
        for seconds in (self._builds, self._all, *self._each.values()):
            seconds.clear()

    def report(self) -> bool:
        """Print the medians; whether the target is met."""
        build, proofs = self.medians
        print(f"{self._artifact}: build {build:.3f} CPU-s, all {len(self._checks)} proofs {proofs:.3f}")
        for name, seconds in self._each.items():
            print(f"    {name:28} {statistics.median(seconds) if seconds else 0.0:8.3f}")
        return judged("proofs", proofs, build)

    @property
    def medians(self) -> tuple[float, float]:
        """CPU-seconds of the build, and of all proofs."""
        return statistics.median(self._builds), statistics.median(self._all)

    def as_json(self) -> dict[str, Any]:
        """All measurements."""
        return {"build": self._builds, "proofs": self._all, "each": self._each}


def report_together(name: str, costs: Sequence[CheckCosts[Any]]) -> bool:
    """Print what several artifacts cost together, under a name; whether the target is met."""
    build, proofs = (sum(each) for each in zip(*(one.medians for one in costs), strict=True))
    return judged(f"proofs of {name}", proofs, build)


def judged(what: str, proofs: float, build: float) -> bool:
    """Print whether proofs meet the target, given the CPU-seconds of both; whether they do."""
    met = proofs <= TARGET * build
    print(f"  {'met' if met else 'MISSED'}  {what} at most {TARGET:g} of the build: {proofs / build:.2f}")
    return met
