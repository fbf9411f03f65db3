"""Run `python -m dataprep_assets_tests.tools.bench.changes --rounds 300 --seed 1`: a table per kind of change."""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dataprep_assets_tests.tools.bench.changes.rounds import Round, rounds

_COLUMNS = ("rounds", "announced", "built", "kept", "red", "mismatches")


def table(judged: Sequence[Round]) -> str:
    """Return a row per kind of change, then their totals."""
    lines = [f"{'change':<32}" + "".join(f"{name:>12}" for name in _COLUMNS)]
    for kind in [*sorted({one.kind for one in judged}), "all"]:
        members = [one for one in judged if kind in (one.kind, "all")]
        sums = [
            len(members),
            *(sum(getattr(one, name) for one in members) for name in ("announced", "built", "kept")),
            sum(bool(one.mismatches) for one in members),
            sum(len(one.mismatches) for one in members),
        ]
        lines.append(f"{kind:<32}" + "".join(f"{value:>12,}" for value in sums))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.changes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="one change each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-every", type=int, default=10, help="rounds of a corpus between builds from scratch")
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND", help="kinds that begin so")
    parser.add_argument("--json", type=Path, help="leave every round in this file")
    arguments = parser.parse_args(argv)
    started, judged = time.monotonic(), []
    # Show the results so far after an interrupt, because all rounds take an hour or two.
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder, contextlib.suppress(KeyboardInterrupt):
        for one in rounds(
            Path(folder), arguments.rounds, arguments.seed, check_every=arguments.check_every, only=arguments.only
        ):
            judged.append(one)
            for mismatch in one.mismatches:
                print(f"round {one.number}, {one.dataset}, {one.kind}: {mismatch}", file=sys.stderr, flush=True)
            if len(judged) % 10 == 0:
                red = sum(bool(one.mismatches) for one in judged)
                print(f"{len(judged)} of {arguments.rounds} rounds, {red} with mismatches", file=sys.stderr, flush=True)
    print(table(judged))
    if judged:
        print("schedule: " + ", ".join(f"{name} {count:,}" for name, count in sorted(judged[-1].training.items())))
    print(f"seed {arguments.seed}; {time.monotonic() - started:,.0f} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(one) for one in judged], indent=1) + "\n")
    return int(any(one.mismatches for one in judged))


if __name__ == "__main__":
    sys.exit(main())
