"""CPU-seconds of a build and of every one of its proofs: all proofs together may cost as much as the build, no more.

Builds and proofs alternate, in one process and on the threads that it would have as a worker; medians are reported.
What several proofs share (a file that is read once for all of them) is counted for the first of them.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from dataprep_assets.graph.check import Check
from dataprep_assets.graph.finding import Finding

TARGET = 1.0
"""Most CPU-seconds of all proofs for one of the build."""


class ProofCosts:
    """What one artifact costs.

    Args:
        artifact: Its name.
        proofs: Its proofs.
        module: Where the functions that examine it are looked up by the names of the proofs.
    """

    def __init__(self, artifact: str, proofs: Sequence[Check[Any]], module: ModuleType) -> None:
        self._artifact, self._proofs, self._module = artifact, proofs, module
        self._builds: list[float] = []
        self._all: list[float] = []
        self._each: dict[str, list[float]] = {proof.name: [] for proof in proofs}

    def build(self, run: Callable[[], Any]) -> Any:
        """Make the artifact; the result of `run`."""
        started = time.process_time()
        made = run()
        self.built(time.process_time() - started)
        return made

    def built(self, seconds: float) -> None:
        """Note the CPU-seconds of a build that somebody else measured."""
        self._builds.append(seconds)

    def prove(self, run: Callable[[], Mapping[str, Finding]]) -> None:
        """Run all its proofs, every one of which must pass."""
        with self._counted():
            started = time.process_time()
            findings = run()
            self._all.append(time.process_time() - started)
        if failed := {name: found.summary for name, found in findings.items() if not found.passed}:
            raise SystemExit(f"{self._artifact}: {failed}")
        if findings.keys() != self._each.keys():
            raise SystemExit(f"{self._artifact}: its proofs are {sorted(findings)}")

    def forget(self) -> None:
        """Leave out what was measured until now: it loaded libraries and tokenizers."""
        for seconds in (self._builds, self._all, *self._each.values()):
            seconds.clear()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        functions = {name: vars(self._module)[name] for name in self._each if name in vars(self._module)}
        try:
            for name, function in functions.items():
                setattr(self._module, name, self._measured(name, function))
            yield
        finally:
            for name, function in functions.items():
                setattr(self._module, name, function)

    def _measured(self, name: str, function: Callable[..., Finding]) -> Callable[..., Finding]:
        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Finding:
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._each[name].append(time.process_time() - started)

        return measured

    def report(self) -> bool:
        """Print the medians; whether the target is met."""
        build, proofs = self.medians
        print(f"{self._artifact}: build {build:.3f} CPU-s, all {len(self._proofs)} proofs {proofs:.3f}")
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


def report_together(name: str, costs: Sequence[ProofCosts]) -> bool:
    """Print what several artifacts cost together, under a name; whether the target is met."""
    build, proofs = (sum(each) for each in zip(*(one.medians for one in costs), strict=True))
    return judged(f"proofs of {name}", proofs, build)


def judged(what: str, proofs: float, build: float) -> bool:
    """Print whether proofs meet the target, given the CPU-seconds of both; whether they do."""
    met = proofs <= TARGET * build
    print(f"  {'met' if met else 'MISSED'}  {what} at most {TARGET:g} of the build: {proofs / build:.2f}")
    return met
