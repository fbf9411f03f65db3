"""`python -m dataprep_assets_tests.tools.bench.packing`: every packing algorithm beside the scan that it replaces.

The baseline is first-fit-decreasing as it is usually written (Nemotron, ``data_prep/packing/algorithms.py``): a loop
over a list of bins for every sequence. Lengths are log-normal, drawn once for each count. Rates are medians
of wall time in this process, from lengths to finished bins. The baseline's bins must be those of ours, or the bench
fails.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.packing.algorithms import ALGORITHMS, pack_items
from dataprep_assets.packing.bins import Bins, measure_fill
from dataprep_assets.packing.next_fit import concat_then_split
from dataprep_assets_tests.packing.excerpt import to_lists
from dataprep_assets_tests.packing.lengths import make_realistic

BASELINE = "naive first_fit_decreasing"
CUT = "concat_then_split"
TARGET_COUNT = 100_000
TARGET_RATE, TARGET_FILL, TARGET_RATIO = 500_000, 0.999, 300
_FULLEST = ("first_fit_decreasing", "best_fit_decreasing")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an algorithm on one set of lengths: median sequences per second, fill, and the ratio to the
    baseline's rate.
    """

    algorithm: str
    count: int
    runs: int
    rate: float
    fill: float
    ratio: float | None


def naive_first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the bins of a scan over all of them for each sequence, which takes quadratic time."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        length = lengths[item]
        for at, room in enumerate(rooms):
            if room >= length:
                bins[at].append(item)
                rooms[at] -= length
                break
        else:
            bins.append([item])
            rooms.append(capacity - length)
    return bins


def timed(work: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """Return the median seconds of some runs, and the result of the last one."""
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        made = work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), made


def compare(
    lengths: NDArray[np.int64], capacity: int, *, runs: int, naive_runs: int, say: Callable[[str], None]
) -> list[Result]:
    """Run all algorithms on the same lengths; the baseline first, unless ``naive_runs`` is 0."""
    found: list[Result] = []
    naive_bins: list[list[int]] | None = None

    def add(algorithm: str, times: int, work: Callable[[], Any], share: Callable[[Any], float]) -> Any:
        seconds, made = timed(work, times)
        rate = lengths.size / seconds
        ratio = rate / found[0].rate if naive_runs and found else None
        result = Result(algorithm=algorithm, count=lengths.size, runs=times, rate=rate, fill=share(made), ratio=ratio)
        found.append(result)
        say(f"{lengths.size:,}: {algorithm}: {rate:,.0f} sequences/s")
        return made

    def filled(bins: int) -> float:
        return int(lengths.sum()) / (bins * capacity)

    if naive_runs:
        plain = lengths.tolist()
        naive_bins = add(
            BASELINE, naive_runs, lambda: naive_first_fit_decreasing(plain, capacity), lambda made: filled(len(made))
        )
    for algorithm in ALGORITHMS:
        bins: Bins = add(
            algorithm,
            runs,
            lambda algorithm=algorithm: pack_items(lengths, capacity, algorithm),
            lambda made: measure_fill(made, lengths, capacity),
        )
        if algorithm == "first_fit_decreasing" and naive_bins is not None and to_lists(bins) != naive_bins:
            raise SystemExit(f"{lengths.size:,} sequences: first_fit_decreasing has other bins than the scan")
    add(CUT, runs, lambda: concat_then_split(lengths, capacity), lambda made: filled(len(made)))
    return found


def table(results: Sequence[Result]) -> str:
    """Return the results as text, one row each."""
    head = ("algorithm", "sequences", "runs", "sequences/s", "fill", "over naive")
    cells = [
        (
            r.algorithm,
            f"{r.count:,}",
            f"{r.runs}",
            f"{r.rate:,.0f}",
            f"{r.fill:.5f}",
            "-" if r.ratio is None else f"{r.ratio:,.1f}x",
        )
        for r in results
    ]
    widths = [max(len(row[at]) for row in [head, *cells]) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *cells]
    )


def targets(results: Sequence[Result]) -> list[tuple[str, float, bool]]:
    """Return `(target, measured, met)` for results that have a target: the algorithms with the best fill at
    `TARGET_COUNT`.
    """
    found = []
    for r in results:
        if r.count != TARGET_COUNT or r.algorithm not in _FULLEST:
            continue
        found.append((f"{r.algorithm}: at least {TARGET_RATE:,} sequences/s", r.rate, r.rate >= TARGET_RATE))
        found.append((f"{r.algorithm}: fill of at least {TARGET_FILL}", r.fill, r.fill >= TARGET_FILL))
        if r.ratio is not None:
            found.append((f"{r.algorithm}: at least {TARGET_RATIO} times the scan", r.ratio, r.ratio >= TARGET_RATIO))
    return found


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.packing", description=__doc__)
    parser.add_argument("--counts", default="10000,100000,1000000", help="numbers of sequences, with commas")
    parser.add_argument("--capacity", type=int, default=4096, help="tokens of a bin")
    parser.add_argument("--mean", type=float, default=500, help="mean length before it is clipped to the capacity")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--naive-runs", type=int, default=3, help="runs of the quadratic scan; 0 leaves it out")
    parser.add_argument("--naive-most", type=int, default=TARGET_COUNT, help="sequences beyond which it is left out")
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; return 1 if a target is missed."""
    arguments = _arguments(argv)
    results: list[Result] = []
    for count in (int(part) for part in arguments.counts.split(",")):
        lengths = make_realistic(count, capacity=arguments.capacity, mean=arguments.mean, seed=arguments.seed)
        results += compare(
            lengths,
            arguments.capacity,
            runs=arguments.runs,
            naive_runs=arguments.naive_runs if count <= arguments.naive_most else 0,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(table(results))
    judged = targets(results)
    if judged:
        print("\nTargets:")
    for target, measured, met in judged:
        print(f"  {'met' if met else 'MISSED'}  {target}: {measured:,.4f}")
    if arguments.json:
        facts = {"capacity": arguments.capacity, "mean": arguments.mean, "seed": arguments.seed}
        arguments.json.write_text(json.dumps({"facts": facts, "results": [asdict(r) for r in results]}, indent=1))
    return 0 if all(met for _, _, met in judged) else 1


if __name__ == "__main__":
    raise SystemExit(main())
