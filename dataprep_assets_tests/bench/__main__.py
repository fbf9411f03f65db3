"""`python -m dataprep_assets_tests.bench`: compare, print the table and the targets, leave a JSON file if asked."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataprep_assets_tests.bench import table
from dataprep_assets_tests.bench.comparison import (
    BLENDS,
    NAMES,
    REPOSITORY,
    Comparison,
    available,
    default_repeat,
    find_corpus,
)

_SHARED = REPOSITORY.parent / "shared"
_SAMPLE = REPOSITORY / "dataprep_assets" / "defs" / "sample_corpus"


def _default(shared: Path, sample: Path) -> Path:
    return shared if shared.exists() else sample


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.bench", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with .jsonl.zst files")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json and its configuration")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=min(2, len(os.sched_getaffinity(0))))
    parser.add_argument("--repeat", type=int, help="passes of ours and the floor over the files")
    parser.add_argument("--only", default="a,b,c,d,floor", help="contenders, of a,b,c,d,floor")
    parser.add_argument("--sample-rate", type=float, default=0.0005, help="share re-encoded by the reference")
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    parser.add_argument("--scratch", type=Path, help="where the streams are written and removed again")
    parser.add_argument("--orchestration", action="store_true", help="measure what Dagster costs, instead")
    found = parser.parse_args(argv)
    both_shared = found.data is None and found.tokenizer is None
    shared_corpus, shared_tokenizer = _SHARED / "data" / "corpus" / "train", _SHARED / "tokenizers" / "qwen3"
    if both_shared and not (shared_corpus.exists() and shared_tokenizer.exists()):
        found.data, found.tokenizer = _SAMPLE / "data" / "train", _SAMPLE / "tokenizer"
    found.data = found.data or _default(shared_corpus, _SAMPLE / "data" / "train")
    found.tokenizer = found.tokenizer or _default(shared_tokenizer, _SAMPLE / "tokenizer")
    return found


def _chosen(only: str, repeat: int) -> list[str]:
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in NAMES or name in BLENDS]:
        raise SystemExit(f"--only {only}: unknown {unknown}; choose of a,b,c,d,floor")
    wanted = set(names) | ({"d1"} if "d" in names and repeat > 1 else set())
    chosen = []
    for name in NAMES:
        if name in wanted:
            if why := available(name):
                print(why)
            else:
                chosen.append(name)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; 1 when a contender's ids are wrong."""
    arguments = _arguments(argv)
    if arguments.orchestration:
        from dataprep_assets_tests.bench.orchestration import orchestration_report

        _write(arguments.json, orchestration_report(arguments.runs))
        return 0
    corpus = find_corpus(arguments.data)
    repeat = arguments.repeat or default_repeat(corpus)
    names = _chosen(arguments.only, repeat)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-", dir=arguments.scratch) as scratch:
        compared = Comparison(
            corpus,
            arguments.tokenizer,
            workers=arguments.workers,
            repeat=repeat,
            sample_rate=arguments.sample_rate,
            scratch=Path(scratch),
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        compared.run(names, arguments.runs)
    print(table.render(compared.facts(), compared.results, arguments.runs))
    _write(arguments.json, table.as_json(compared.facts(), compared.results, arguments.runs))
    return int(any(result.faults for result in compared.results.values()))


def _write(path: Path | None, value: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
