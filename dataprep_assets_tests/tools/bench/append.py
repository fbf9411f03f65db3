"""Measure the cost of appending: `python -m dataprep_assets_tests.tools.bench.append`.

In a `dataprep init` project, a corpus of 1,000 shards of invented text is built with all checks, then run again without
changes, with one more file, and with ten more, as often as requested. Each is a `dataprep run` in its own process; CPU
seconds and bytes read are totals of all its processes. One file may cost 1.5 times as much as a run without changes;
the extra cost of ten is compared with their share of the first build.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

from dataprep_assets_tests.tools.bench.invented_text import SEPARATORS, sentence, train_tokenizer, vocabulary
from dataprep_assets_tests.tools.bench.retract import environment
from dataprep_assets_tests.tools.bench.runner import Measurement, measure

DATASET, TARGET = "appended", 1.5
_COMMAND = (sys.executable, "-m", "dataprep_assets.cli")


@cache
def _lines() -> list[str]:
    """Return documents, one per line, from which files are drawn."""
    rng, words = random.Random(0), vocabulary()
    return [json.dumps({"text": sentence(rng, words, rng.randint(50, 400))}) + "\n" for _ in range(5_000)]


def write_files(folder: Path, first: int, count: int, size: int) -> int:
    """Write this many files of documents below `folder/data/train`, each of at least `size` bytes; return their total
    bytes.
    """
    (folder / "data" / "train").mkdir(parents=True, exist_ok=True)
    written = 0
    for number in range(first, first + count):
        rng, lines, length = random.Random(number), [], 0
        while length < size:
            lines.append(rng.choice(_lines()))
            length += len(lines[-1])
        (folder / "data" / "train" / f"{number:06d}.jsonl").write_text("".join(lines))
        written += length
    return written


def write_project(folder: Path, shards: int, size: int) -> tuple[Path, int]:
    """Create a project with a corpus of two files per shard; return its folder of definitions, and the bytes of the
    files.
    """
    subprocess.run([*_COMMAND, "init", str(folder)], check=True, capture_output=True)
    defs = folder / folder.name.replace("-", "_") / "defs" / DATASET
    defs.mkdir(parents=True)
    rng, words = random.Random(0), vocabulary()
    train_tokenizer(defs / "tokenizer", [sentence(rng, words, 200) for _ in range(500)], size=2_000)
    attributes = {
        "dataset": DATASET,
        "source": {"kind": "local", "path": "./data"},
        "include": ["**/*.jsonl"],
        "splits": {"train": ["train/**"]},
        "tokenizer": {"path": "./tokenizer"},
        "document": {"separator": SEPARATORS[0]},
        "shards": {"count": shards},
        "views": ["nanogpt", "megatron"],
    }
    value = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": attributes}
    (defs / "defs.yaml").write_text(yaml.safe_dump(value))
    return defs, write_files(defs, 0, 2 * shards, size)


def _written(root: Path) -> dict[str, int]:
    """Return artifact → the time at which its receipt was written."""
    return {path.parent.relative_to(root).as_posix(): path.stat().st_mtime_ns for path in root.rglob("receipt.json")}


class _Bench:
    """A project with its runs."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._root = folder, folder / "place" / "artifacts" / DATASET

    def run(self, name: str) -> Measurement:
        """Execute `dataprep run`, and print a line of the table."""
        before = _written(self._root)
        command = [*_COMMAND, "--project", str(self._folder / "their-data"), "run", DATASET]
        found = measure(command, environment(self._folder, "place"))
        made = Counter(key.split("/")[0] for key, at in _written(self._root).items() if before.get(key) != at)
        told = ", ".join(f"{count:,} {artifact}" for artifact, count in sorted(made.items())) or "nothing"
        print(f"{name:<14}{found.cpu:>10.2f}{found.wall:>10.2f}{found.read / 1e6:>12,.1f}   {told}", flush=True)
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if appending a file costs more than the target."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.append", description=__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--size", type=int, default=30_000, help="bytes of a file; a shard has two")
    parser.add_argument("--runs", type=int, default=3, help="of nothing new and of each append")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    names: dict[str, list[Measurement]] = {"nothing new": [], "1 file more": [], "10 files more": []}
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        folder, files = Path(name), 2 * arguments.shards
        defs, source = write_project(folder / "their-data", arguments.shards, arguments.size)
        bench = _Bench(folder)
        print(f"{files:,} files, {source / 1e6:,.1f} MB of text, {arguments.shards:,} shards")
        print(f"{'':<14}{'CPU s':>10}{'wall s':>10}{'MB read':>12}   made")
        first = bench.run("first build")
        for _ in range(arguments.runs):
            for (case, found), added in zip(names.items(), (0, 1, 10), strict=True):
                write_files(defs, files, added, arguments.size)
                files += added
                found.append(bench.run(case))
    cpu = {case: statistics.median(one.cpu for one in found) for case, found in names.items()}
    ratio = cpu["1 file more"] / cpu["nothing new"]
    share = (cpu["10 files more"] - cpu["nothing new"]) / first.cpu
    print(f"1 file more, to nothing new: {ratio:.2f} of the CPU (target: {TARGET})")
    print(
        f"10 files more, beside nothing new: {share:.1%} of the first build; they are {5 / arguments.shards:.1%} of it"
    )
    if arguments.json is not None:
        report = {"first": vars(first)} | {case: [vars(one) for one in found] for case, found in names.items()}
        arguments.json.write_text(json.dumps({**report, "ratio": ratio}, indent=1) + "\n")
    return int(ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
