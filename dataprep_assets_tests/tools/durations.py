"""Store the seconds of test files, and print slow tests: `python -m dataprep_assets_tests.tools.durations REPORT.xml…`.

Reads JUnit reports of pytest named after their tier, `fast.xml` and `slow.xml`, which `make test` and `make test-slow`
write to `build/reports/`. Writes `dataprep_assets_tests/durations.json`, by which a session sorts its files and `make
test-quick` keeps its budget. A file that is in no report keeps its seconds as long as it exists.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

PATH = Path(__file__).parents[1] / "durations.json"
TIERS = ("fast", "slow")
Durations = Mapping[str, Mapping[str, float]]
"""Seconds per test file, per tier."""


def read_durations(path: Path = PATH) -> Durations:
    """Return the stored durations; nothing if there is no file."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {tier: kept.get(tier, {}) for tier in TIERS}


def read_report(report: Path, root: Path) -> Iterator[tuple[float, str, str]]:
    """Yield seconds, file and name of each test, including its fixtures."""
    for case in ElementTree.parse(report).iter("testcase"):
        *folders, name = case.attrib["classname"].split(".")
        # For tests in a class, the last part of `classname` is the name of the class, which is not part of the path.
        while folders and not root.joinpath(*folders, f"{name}.py").is_file():
            name = folders.pop()
        yield float(case.attrib["time"]), Path(*folders, f"{name}.py").as_posix(), case.attrib["name"]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the durations, print the slowest tests."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.durations", description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+", metavar="REPORT.xml")
    parser.add_argument("--output", type=Path, default=PATH, help="file to write [%(default)s]")
    parser.add_argument("--slowest", type=int, default=50, help="tests to print [50]")
    arguments = parser.parse_args(argv)
    kept = dict(read_durations(arguments.output))
    tests: list[tuple[float, str, str]] = []
    root = PATH.parents[1]
    for report in arguments.reports:
        if report.stem not in TIERS:
            parser.error(f"{report}: must be named fast.xml or slow.xml")
        found = list(read_report(report, root))
        files: defaultdict[str, float] = defaultdict(float)
        for seconds, file, _ in found:
            files[file] += seconds
        # Keep the seconds of other files, because a report may cover only some files, e.g., after an interrupted
        # session.
        before = {file: seconds for file, seconds in kept[report.stem].items() if (root / file).is_file()}
        merged = {**before, **{file: round(seconds, 1) for file, seconds in files.items()}}
        kept[report.stem] = dict(sorted(merged.items()))
        tests += found
        print(f"{report.stem}: {len(found):,} tests, {sum(files.values()):,.0f} s")
    for seconds, file, name in sorted(tests, reverse=True)[: arguments.slowest]:
        print(f"{seconds:7.1f} s  {file}::{name}")
    arguments.output.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
