"""`python -m dataprep_assets_tests.zoo --seed N --files 300`: hostile files through `dataprep run`, and how each ended.

The exit code is 1 when one took more than 1 GiB or 60 s without being refused with its name, or showed a stack.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dataprep_assets_tests.zoo.animals import animals
from dataprep_assets_tests.zoo.keeper import Keeper, Seen


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.zoo", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the files; default: 1")
    parser.add_argument("--files", type=int, default=300, metavar="N", help="how many; default: 300")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with this number; default: 0")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin with no file after so long; default: all")
    given = parser.parse_args(argv)
    home, began, seen = Path(tempfile.mkdtemp(prefix="dataprep-zoo-")), time.monotonic(), list[Seen]()
    try:
        keeper = Keeper(home)
        for animal in animals(given.seed, given.files):
            if animal.number < given.first:
                continue
            if given.seconds is not None and time.monotonic() - began > given.seconds:
                break
            found = keeper.show(animal)
            seen.append(found)
            print(_line(found), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(table(seen))
    return 1 if any(one.fault for one in seen) else 0


def _line(seen: Seen) -> str:
    animal = seen.animal
    took = f"{seen.peak_bytes >> 20:,} MiB, {seen.cpu_seconds:.0f} CPU-s"
    name = f"{animal.seed}/{animal.number} {animal.pipeline} {animal.kind} ({seen.what})"
    return f"{name}: {seen.end} {seen.fault}: {took}: {seen.said}"


def table(seen: Sequence[Seen]) -> str:
    """How the files of each kind ended, and the most that one took, in Markdown."""
    lines = ["| files | read | refused by name | faults | most memory, MiB | most CPU-s |", "|---|--:|--:|--:|--:|--:|"]
    kinds = sorted({(one.animal.pipeline, one.animal.kind) for one in seen})
    for name, some in (
        *((f"{p}, {k}", [one for one in seen if (one.animal.pipeline, one.animal.kind) == (p, k)]) for p, k in kinds),
        ("all", list(seen)),
    ):
        ends = Counter(one.end for one in some)
        most = max((one.peak_bytes for one in some), default=0) >> 20
        longest = max((one.cpu_seconds for one in some), default=0.0)
        counts = f"{ends['read']} | {ends['refused']} | {ends['fault']}"
        lines.append(f"| {name} ({len(some)}) | {counts} | {most:,} | {longest:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
