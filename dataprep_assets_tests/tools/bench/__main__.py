"""Run `python -m dataprep_assets_tests.tools.bench`: compare, print a table and the targets, write JSON if
requested.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataprep_assets_tests.tools.bench import table
from dataprep_assets_tests.tools.bench.comparison import REPOSITORY, add_arguments, compare
from dataprep_assets_tests.tools.bench.languages import write_languages

_CONTENDERS = "a,s,b,c,d,r,n,k,floor,bare"
_OF_LANGUAGES = "d,n,k,floor,bare"
"""Contenders on forty languages; all others behave as on the shared corpus, and take minutes."""
_SHARED = REPOSITORY.parent / "shared"
_SAMPLE = REPOSITORY / "dataprep_assets" / "defs" / "samples" / "sample_corpus"


_HAS_SHARED = (_SHARED / "data" / "corpus" / "train").exists() and (_SHARED / "tokenizers" / "qwen3").exists()
CORPUS = _SHARED / "data" / "corpus" / "train" if _HAS_SHARED else _SAMPLE / "data" / "train"
TOKENIZER = _SHARED / "tokenizers" / "qwen3" if _HAS_SHARED else _SAMPLE / "tokenizer"
"""The default corpus and tokenizer: the shared data, or the sample without them."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench", description=__doc__)
    add_arguments(parser, _CONTENDERS)
    parser.add_argument("--languages", action="store_true", help="on a corpus of forty languages that is built here")
    parser.add_argument("--orchestration", action="store_true", help="measure what Dagster costs, instead")
    languages = "--languages" in (sys.argv[1:] if argv is None else argv)
    # Require a smaller share of the floor for forty languages, because words of many scripts are rarely in the engine's
    # cache.
    parser.set_defaults(of_floor=0.33 if languages else 0.45, only=_OF_LANGUAGES if languages else _CONTENDERS)
    found = parser.parse_args(argv)
    found.data, found.tokenizer = found.data or CORPUS, found.tokenizer or TOKENIZER
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a contender's ids are wrong."""
    arguments = _arguments(argv)
    if arguments.orchestration:
        from dataprep_assets_tests.tools.bench.orchestration import orchestration_report

        _write(arguments.json, orchestration_report(arguments.runs))
        return 0
    with tempfile.TemporaryDirectory(prefix="dataprep-languages-", dir=arguments.scratch) as folder:
        if arguments.languages:
            arguments.data = Path(folder)
            write_languages(arguments.data, files=8, documents_a_file=2_000)
        compared = compare(arguments, _CONTENDERS)
    print(table.render(compared.facts(), compared.results, arguments.runs))
    _write(arguments.json, table.as_json(compared.facts(), compared.results, arguments.runs))
    return int(any(result.faults for result in compared.results.values()))


def _write(path: Path | None, value: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
