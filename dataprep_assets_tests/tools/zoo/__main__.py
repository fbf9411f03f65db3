"""Read hostile files with `dataprep run`: `python -m dataprep_assets_tests.tools.zoo --seed N --files 300`.

The exit code is 1 if a file took more than 1 GiB or 60 s without being refused by name, or caused a traceback.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from dataprep_assets_tests.tools.zoo.animals import Animal, animals
from dataprep_assets_tests.tools.zoo.keeper import Keeper, Seen


def main(argv: Sequence[str] | None = None) -> int:
    """Read the files, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.zoo", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the files; default: 1")
    parser.add_argument("--files", type=int, default=300, metavar="N", help="how many; default: 300")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with this number; default: 0")
    parser.add_argument("--together", type=int, default=10, metavar="N", help="in one run, each alone: 1; default: 10")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time; default: 2")
    given = parser.parse_args(argv)
    chosen = [animal for animal in animals(given.seed, given.files) if animal.number >= given.first]
    groups = [chosen[at : at + given.together] for at in range(0, len(chosen), given.together)]
    home = Path(tempfile.mkdtemp(prefix="dataprep-zoo-"))
    try:
        keepers = SimpleQueue[Keeper]()
        for job in range(given.jobs):
            keepers.put(Keeper(home / f"{job}"))
        with ThreadPoolExecutor(given.jobs) as threads:
            seen = [one for some in threads.map(partial(_shown, keepers), groups) for one in some]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(table(seen))
    return 1 if any(one.fault for one in seen) else 0


def _shown(keepers: SimpleQueue[Keeper], animals: Sequence[Animal]) -> list[Seen]:
    keeper, seen = keepers.get(), list[Seen]()
    try:
        for found in keeper.show(animals):
            print(_line(found), file=sys.stderr, flush=True)
            seen.append(found)
    finally:
        keepers.put(keeper)
    return seen


def _line(seen: Seen) -> str:
    animal = seen.animal
    took = f"{seen.peak_bytes >> 20:,} MiB, {seen.cpu_seconds:.0f} CPU-s"
    name = f"{animal.seed}/{animal.number} {animal.pipeline} {animal.kind} ({seen.what})"
    return f"{name}: {seen.end} {seen.fault}: {took}: {seen.said}"


def table(seen: Sequence[Seen]) -> str:
    """Return the outcomes of each kind of file, and the maximum resources of one, in Markdown."""
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
