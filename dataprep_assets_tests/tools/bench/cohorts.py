"""Measure the cost of a packed cohort's checks compared with its build: `python -m
dataprep_assets_tests.tools.bench.cohorts`.

One month of invented patients, with log-normal note lengths and a header per note, becomes packed rows and TFRecord and
ArrayRecord shards; then every check of each runs. CPU-seconds in one process, medians of runs in which builds and
checks alternate.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.checks.check import require_ledger
from dataprep_assets.execution.processes import ONE_THREAD
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts import cohort_shards, packed_cohorts_checks
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import plan_sharded_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import ensure_packed_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_files import PackedCohortFacts
from dataprep_assets.pipelines.notes.cohorts.sharded_cohort import ensure_sharded_cohort
from dataprep_assets.pipelines.notes.dataset import notes_engine
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets_tests.pipelines.notes.pipeline import KEY
from dataprep_assets_tests.tools.bench.check_costs import CheckCosts, report_together
from dataprep_assets_tests.tools.bench.sft import SHARED_TOKENIZER, WORDS

_MONTH = "1961-03"
_NOTES_A_PATIENT = 12
_TOKENS_A_WORD = 2.2
"""Approximate tokens per word of our pages, to write enough notes to fill the rows."""


def write_month(path: Path, tokens: int, seed: int = 0) -> None:
    """Write a file of patients whose notes have about this many tokens, with a median of 250 words per note."""
    draw, lengths = random.Random(seed), np.random.default_rng(seed)
    patients: list[dict[str, Any]] = []
    words = 0
    while words * _TOKENS_A_WORD < tokens:
        notes = []
        for day in range(_NOTES_A_PATIENT):
            length = max(5, min(5000, int(lengths.lognormal(np.log(250), 0.9))))
            words += length
            text = " ".join(draw.choices(WORDS, k=length))
            notes.append(
                {"text": text, "type": "ward round", "author": "Dr. Invented", "date": f"2022-01-{day + 1:02}"}
            )
        patients.append({"patient_id": f"patient {len(patients)}", "notes": notes})
    path.write_text(json.dumps(patients, ensure_ascii=False), encoding="utf-8")


def declared(source: Path, row_length: int, tokenizer: Path) -> NotesDeclaration:
    """Return the month as a dataset with two splits and both formats."""
    return NotesDeclaration.model_validate(
        {
            "dataset": "wards",
            "sensitive": False,
            "source": {"kind": "local", "path": source},
            "cohorts": {"fields": {"note": {"kind": "type", "author": "author", "on": "date"}}},
            "months": {"first": _MONTH, "last": _MONTH},
            "template": {"header": "{kind}, {on}, {author}\n"},
            "tokenizer": {"path": tokenizer, "name": "bench"},
            "document": {"separator": "<|endoftext|>"},
            "pad": {"token": "<|vision_pad|>"},
            "patient_key": {"public": KEY},
            "row_length": row_length,
            "splits": {"train": 0.9, "val": 0.1},
            "formats": ["tfrecord", "array_record"],
        }
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.cohorts", description=__doc__)
    parser.add_argument("--rows", type=int, default=512, help="of the month, about")
    parser.add_argument("--row-length", type=int, default=8192)
    parser.add_argument("--tokenizer", type=Path, default=SHARED_TOKENIZER)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    given = parser.parse_args(argv)
    os.environ.update(ONE_THREAD)
    packed = CheckCosts("packed_cohorts", packed_cohorts_checks.COHORT_CHECKS)
    sharded = {
        format: CheckCosts(f"{format}_shards", cohort_shards.SHARD_CHECKS) for format in ("tfrecord", "array_record")
    }
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        folder = Path(name)
        (folder / "source").mkdir()
        write_month(folder / "source" / f"{_MONTH}.json", given.rows * given.row_length)
        notes = declared(folder / "source", given.row_length, given.tokenizer)
        certified = LocalArtifacts(folder / "certificate")
        ensure_certificate(notes_engine(notes), certified)
        for run in range(given.runs + 1):
            root = folder / str(run)
            (folder / "certificate").rename(root)  # keep the certificate, because only the other artifacts are measured
            store = LocalArtifacts(root)
            (cohort,) = packed_cohorts(notes, store, [_MONTH])
            receipt, _ = packed.build(lambda cohort=cohort: ensure_packed_cohort(cohort))
            packed.check(lambda cohort=cohort: packed_cohorts_checks.open_cohort(cohort))
            for format, costs in sharded.items():
                (shards,) = plan_sharded_cohorts(notes, store, [_MONTH], format)
                costs.build(lambda shards=shards: ensure_sharded_cohort(shards))
                costs.check(lambda shards=shards: cohort_shards.open_shards(shards))
            for artifact in ("packed_cohorts", "tfrecord_shards", "array_record_shards"):
                shutil.rmtree(root / notes.dataset / artifact)
            root.rename(folder / "certificate")
            if not run:
                for costs in (packed, *sharded.values()):
                    costs.forget()
    facts = PackedCohortFacts.from_receipt(receipt)
    rows, tokens = sum(split.rows for split in facts.splits.values()), require_ledger(receipt).tokens
    print(f"{rows:,} rows of {given.row_length:,}, {tokens:,} tokens of {require_ledger(receipt).documents:,} notes")
    met = [costs.report() for costs in (packed, *sharded.values())]
    met += [report_together(f"a cohort from notes to {format}", [packed, costs]) for format, costs in sharded.items()]
    if given.json:
        found = {name: costs.as_json() for name, costs in (("packed_cohorts", packed), *sharded.items())}
        given.json.write_text(json.dumps({"rows": rows, "tokens": tokens, **found}, indent=1) + "\n")
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
