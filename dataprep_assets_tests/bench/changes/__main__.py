"""`python -m dataprep_assets_tests.bench.changes --count 300 --seed 1`: a table by kind of change; 1 on a mismatch."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dataprep_assets_tests.bench.changes.mutations import KINDS
from dataprep_assets_tests.bench.changes.rounds import Round, rounds

_COLUMNS = ("rounds", "announced", "provisional", "rebuilt", "reused", "mismatches")


def table(judged: Sequence[Round]) -> str:
    """A row a kind of change, then their sums."""
    rows = {kind: [one for one in judged if one.kind == kind] for kind in KINDS}
    lines = [f"{'change':<28}" + "".join(f"{name:>13}" for name in _COLUMNS)]
    for kind, members in [*((k, m) for k, m in rows.items() if m), ("all", list(judged))]:
        sums = [
            len(members),
            *(sum(getattr(one, name) for one in members) for name in ("announced", "provisional", "built", "reused")),
            sum(len(one.mismatches) for one in members),
        ]
        lines.append(f"{kind:<28}" + "".join(f"{value:>13,}" for value in sums))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.bench.changes", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="rounds, one change each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="leave every round in this file")
    arguments = parser.parse_args(argv)
    started, judged = time.process_time(), []
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
        for one in rounds(Path(folder), arguments.count, arguments.seed):
            judged.append(one)
            for mismatch in one.mismatches:
                print(f"round {one.number}, {one.kind}, {one.what}: {mismatch}", file=sys.stderr, flush=True)
    print(table(judged))
    print(f"seed {arguments.seed}; {time.process_time() - started:,.0f} CPU seconds without those of workers")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(one) for one in judged], indent=1) + "\n")
    return int(any(one.mismatches for one in judged))


if __name__ == "__main__":
    sys.exit(main())
