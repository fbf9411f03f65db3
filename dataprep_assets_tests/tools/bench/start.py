"""Measure the start-up cost of commands: `python -m dataprep_assets_tests.tools.bench.start`.

In a `dataprep init` project with its sample built, it measures the CPU time (user and system, all processes) of each
read-only command as a multiple of `python -c "import dagster"` in the same run, because machines differ. All are
measured in turn, and the figures are medians. Use `--project DIR` for your own project, and `--name` for its dataset.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from dataprep_assets_tests.tools.bench.retract import environment
from dataprep_assets_tests.tools.bench.runner import measure

COMMAND = [sys.executable, "-c", "import sys; from dataprep_assets.entry import main; sys.exit(main())"]
DAGSTER = "import dagster"
TARGETS = {"--help": 0.63, "completion": 0.63, "list": 0.63, "status": 1.5, "show": 1.5, "check": 1.5}
"""Maximum multiples: 0.63 is 0.4 CPU-s if `import dagster` takes 0.63."""


def measured(project: Path, dataset: str, variables: Mapping[str, str], rounds: int) -> dict[str, float]:
    """Return case → median of its CPU seconds."""
    # Allow byte code, so that modules are compiled only once, as in an installation.
    variables = {**variables, "DATAPREP_PROJECT": str(project), "PYTHONDONTWRITEBYTECODE": ""}
    completion = {"_DATAPREP_COMPLETE": "complete_bash", "COMP_WORDS": "dataprep status ", "COMP_CWORD": "2"}
    cases: dict[str, tuple[list[str], Mapping[str, str]]] = {
        DAGSTER: ([sys.executable, "-c", DAGSTER], {}),
        "--help": ([*COMMAND, "--help"], {}),
        "completion": ([*COMMAND], completion),
        "list": ([*COMMAND, "list"], {}),
        **{name: ([*COMMAND, name, dataset], {}) for name in ("status", "show", "check")},
    }
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(rounds + 1):
        for case, (command, more) in cases.items():
            cpu = measure(command, {**variables, **more}).cpu
            if number:  # the first round compiles modules
                seconds[case].append(cpu)
    return {case: median(found) for case, found in seconds.items()}


def build_sample(folder: Path, variables: Mapping[str, str]) -> Path:
    """Return a new project with its sample, built."""
    project = folder / "their-data"
    measure([*COMMAND, "init", str(project)], dict(variables))
    measure([*COMMAND, "--project", str(project), "run", "sample_corpus"], dict(variables))
    return project


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a multiple is above its target."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--project", type=Path, help="a project, instead of a new one with a sample")
    parser.add_argument("--name", default="sample_corpus", help="a dataset of it that is up to date")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        variables = dict(os.environ) if given.project else environment(Path(name), "place")
        project = given.project or build_sample(Path(name), variables)
        found = measured(project.resolve(), given.name, variables, given.rounds)
    head = f"dagster {version('dagster')}"
    print(f"{head:<22}{'CPU-s':>8}{'multiple':>10}{'target':>8}")
    for case, seconds in found.items():
        print(f"{case:<22}{seconds:>8.3f}{seconds / found[DAGSTER]:>10.2f}{TARGETS.get(case, ''):>8}")
    return int(any(found[case] > most * found[DAGSTER] for case, most in TARGETS.items()))


if __name__ == "__main__":
    sys.exit(main())
