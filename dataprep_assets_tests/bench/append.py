"""What appending costs: `python -m dataprep_assets_tests.bench.append`.

A corpus of 1,000 shards of invented text is built, then run again with nothing new, then with 1 % more files, the last
two as often as asked. Each run is a process of its own; CPU seconds and bytes read are those of all its processes. The
ratio is (append - nothing new) to the first build: what a run verifies anyway is in both and counts in neither.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.bench.invented_text import SEPARATORS, sentence, train_tokenizer, vocabulary
from dataprep_assets_tests.bench.runner import Measurement, measure
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline

TARGET = 0.03


@cache
def _lines() -> list[str]:
    """Documents, a line each, of which files are drawn."""
    rng, words = random.Random(0), vocabulary()
    return [json.dumps({"text": sentence(rng, words, rng.randint(50, 400))}) + "\n" for _ in range(5_000)]


def write_files(folder: Path, first: int, count: int, size: int) -> int:
    """So many files of documents below `folder/data/train`, each of `size` bytes or a little more; their bytes."""
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


def declared(folder: Path, shards: int, workers: int) -> CorpusDeclaration:
    """The corpus in a folder."""
    return CorpusDeclaration.model_validate(
        {
            "dataset": "appended",
            "source": {"kind": "local", "path": folder / "data"},
            "include": ["**/*.jsonl"],
            "splits": {"train": ["train/**"]},
            "tokenizer": {"path": folder / "tokenizer"},
            "document": {"separator": SEPARATORS[0]},
            "shards": {"count": shards},
            "views": ["nanogpt", "megatron"],
            "workers": workers,
        }
    )


def once(folder: Path, shards: int, workers: int) -> int:
    """One run, in this process; prints how many artifacts of which kind it built."""
    outcome = run_pipeline(declared(folder, shards, workers), folder / "root", workers)
    built: dict[str, int] = {}
    for name in outcome.built:
        built[name.split("/")[0]] = built.get(name.split("/")[0], 0) + 1
    (folder / "built.json").write_text(json.dumps(built))
    return int(bool(outcome.failed))


def _measured(folder: Path, arguments: argparse.Namespace) -> tuple[Measurement, dict[str, int]]:
    command = [sys.executable, "-m", "dataprep_assets_tests.bench.append", "--once", str(folder)]
    found = measure([*command, "--shards", str(arguments.shards), "--workers", str(arguments.workers)])
    return found, json.loads((folder / "built.json").read_text())


def _line(name: str, found: Measurement, built: dict[str, int]) -> str:
    made = ", ".join(f"{count} {artifact}" for artifact, count in built.items()) or "nothing"
    return f"{name:<14}{found.cpu:>10.2f}{found.wall:>10.2f}{found.read / 1e6:>12,.1f}   {made}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 when appending costs more than the target."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.bench.append", description=__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--size", type=int, default=300_000, help="bytes of a file; a shard has two")
    parser.add_argument("--runs", type=int, default=3, help="of nothing new and of append")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.once is not None:
        return once(arguments.once, arguments.shards, arguments.workers)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        folder, files = Path(name), 2 * arguments.shards
        rng, words = random.Random(0), vocabulary()
        train_tokenizer(folder / "tokenizer", [sentence(rng, words, 200) for _ in range(500)], size=2_000)
        source = write_files(folder, 0, files, arguments.size)
        print(f"{files:,} files, {source / 1e6:,.1f} MB of text, {arguments.shards:,} shards")
        print(f"{'':<14}{'CPU s':>10}{'wall s':>10}{'MB read':>12}   built")
        first, built = _measured(folder, arguments)
        print(_line("first build", first, built), flush=True)
        nothing, appended = [], []
        for _ in range(arguments.runs):
            found, built = _measured(folder, arguments)
            nothing.append(found)
            print(_line("nothing new", found, built), flush=True)
            added = max(1, files // 100)
            write_files(folder, files, added, arguments.size)
            files += added
            found, built = _measured(folder, arguments)
            appended.append(found)
            print(_line("1 % appended", found, built), flush=True)
    pairs = list(zip(nothing, appended, strict=True))
    ratios = {
        "cpu": statistics.median(new.cpu - old.cpu for old, new in pairs) / first.cpu,
        "read": statistics.median(new.read - old.read for old, new in pairs) / max(1, first.read),
    }
    print(f"append - nothing new, to the first build: CPU {ratios['cpu']:.2%}, bytes read {ratios['read']:.2%}")
    if arguments.json is not None:
        report = {"first": vars(first), "nothing": [vars(n) for n in nothing], "append": [vars(a) for a in appended]}
        arguments.json.write_text(json.dumps({**report, "ratios": ratios}, indent=1) + "\n")
    return int(ratios["cpu"] > TARGET)


if __name__ == "__main__":
    sys.exit(main())
