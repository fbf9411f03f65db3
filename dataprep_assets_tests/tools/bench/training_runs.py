"""Compare random training runs with an independent loop: `python -m dataprep_assets_tests.tools.bench.training_runs
--runs 200`.

The runs include packs, boundaries, Megatron indices, appends, removals, edits in place, other batch sizes, lengths,
weights and sources, and going back. Printed are the number of each change, and each run that differed, with its seed;
the exit code is 1 if one did.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from dataprep_assets_tests.serving.training_runs import run_of


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    changes, samples, looked_up, differ = Counter[str](), 0, 0, 0
    for seed in range(arguments.first, arguments.first + arguments.runs):
        with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
            told = run_of(Path(folder), seed)
        changes += told.changes
        samples, looked_up, differ = samples + told.samples, looked_up + told.megatron, differ + bool(told.wrong)
        for wrong in told.wrong[:3]:
            print(f"seed {seed}: {wrong}", file=sys.stderr, flush=True)
    print(f"{arguments.runs} runs: {samples:,} samples read, {looked_up:,} looked up as Megatron does, {differ} differ")
    print("changes: " + ", ".join(f"{name} {count}" for name, count in sorted(changes.items())))
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
