"""The whole pipeline of notes, without Dagster: a function, and a command to kill.

`python -m dataprep_assets_tests.pipelines.notes.pipeline SOURCE ROOT WORKERS` runs the sample's declaration.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import dataprep_assets
from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import plan_sharded_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import PackedCohort, ensure_packed_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import build_packed_cohorts, packed_cohorts
from dataprep_assets.pipelines.notes.cohorts.sharded_cohort import ShardedCohort, ensure_sharded_cohort
from dataprep_assets.pipelines.notes.dataset import notes_engine
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.tfds.tfds_directory import build_tfds_directory
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets_tests.pipelines.corpus import pipeline as corpus_pipeline

SAMPLES = Path(dataprep_assets.__file__).parent / "defs" / "samples"
SAMPLE = SAMPLES / "sample_notes" / "data"
C = TypeVar("C", PackedCohort, ShardedCohort)
KEY = "a key for fictional data, known to everyone"


def declaration(source: Path = SAMPLE, **changes: Any) -> NotesDeclaration:
    """The sample's notes, with changes of top-level keys."""
    declared: dict[str, Any] = {
        "dataset": "sample_notes",
        "sensitive": False,
        "source": {"kind": "local", "path": source},
        "cohorts": {
            "fields": {
                "birth_date": "birth_date",
                "patient": {"colour": "favourite_colour"},
                "note": {"kind": "type", "author": "author", "on": "date"},
            }
        },
        "months": {"first": "2010-11", "last": "2011-02"},
        "template": {
            "header": "{kind}, {on}, {author}, likes {colour}\n",
            "defaults": {"colour": "no colour"},
        },
        "tokenizer": {"path": SAMPLES / "sample_corpus" / "tokenizer", "name": "sample-bpe-4096"},
        "document": {"separator": "<|endoftext|>"},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"public": KEY},
        "row_length": 256,
        "rows_per_shard": 8,
        "sample_rate": 0.05,
    }
    if changes.get("layout") == "unpacked":
        del declared["pad"]
    return NotesDeclaration.model_validate(declared | changes)


def in_this_process(cohorts: Iterable[C], build: Callable[[C], tuple[Receipt, bool]]) -> Iterator[Outcome]:
    """What `run_tasks` yields, without its worker processes."""
    for cohort in cohorts:
        try:
            yield Outcome.from_receipt(*build(cohort))
        except DataprepError as error:
            yield Outcome(partition=cohort.month, error=error)


def run_notes(
    notes: NotesDeclaration, root: Path, workers: int = 0, kept: ArtifactStore | None = None
) -> corpus_pipeline.Outcome:
    """Certificate, packed cohorts, then for each format shards and directory, unless a cohort failed.

    With no workers everything is done in this process, which spares a small test the start of theirs. Artifacts go to
    the folder `root`, unless they are `kept` elsewhere.
    """
    outcome, store = corpus_pipeline.Outcome(), kept or LocalArtifacts(root)
    outcome.add(*ensure_certificate(notes_engine(notes), store))
    months = notes.months.expected_keys
    cohorts = packed_cohorts(notes, store, months)
    results = list(
        build_packed_cohorts(cohorts, workers=workers) if workers else in_this_process(cohorts, ensure_packed_cohort)
    )
    for format in notes.formats:
        if all(result.error is None for result in results):
            sharded = plan_sharded_cohorts(notes, store, months, format)
            results += (
                run_tasks([TaskJob(cohort, ensure_sharded_cohort) for cohort in sharded], workers=workers)
                if workers
                else in_this_process(sharded, ensure_sharded_cohort)
            )
    for result in results:
        if result.receipt is not None:
            outcome.add(result.receipt, result.reused)
        elif result.error is not None:
            outcome.failed[result.partition] = result.error
    if not outcome.failed:
        for format in notes.formats:
            outcome.add(*build_tfds_directory(notes, store, format))
    return outcome


def main() -> None:
    """See the module."""
    source, root, workers = sys.argv[1:]
    outcome = run_notes(declaration(Path(source)), Path(root), int(workers))
    if outcome.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
