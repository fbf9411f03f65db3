"""A packed cohort to prove: made below a root, changed, and proven again. Holds no test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.verdicts import find_all
from dataprep_assets.formats.packed_rows import PackedRowBlock, open_packed_file, write_rows
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import PackedCohort
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts_checks import COHORT_CHECKS, open_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_files import list_packed_paths
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

MONTH = "2010-12"
BOS: dict[str, Any] = {
    "document": {"separator": "<|endoftext|>", "bos": "<|pad|>"},
    "pad": {"id": 5, "may_occur": True},
}


def packed(root: Path, notes: NotesDeclaration, month: str = MONTH) -> PackedCohort:
    """A month that was packed below a root."""
    assert not run_notes(notes, root).failed
    (cohort,) = packed_cohorts(notes, LocalArtifacts(root), [month])
    return cohort


def prove_cohort(cohort: PackedCohort) -> dict[str, Finding]:
    """The finding of every check of a cohort."""
    return find_all(COHORT_CHECKS, open_cohort, None, cohort)


def failed(found: dict[str, Finding]) -> dict[str, str]:
    """The summaries of what failed, by proof."""
    return {name: finding.summary for name, finding in found.items() if not finding.passed}


def rewritten(cohort: PackedCohort, change: Callable[[PackedRowBlock], PackedRowBlock]) -> None:
    """Write the columnar file again with other rows."""
    rewrite_rows(
        cohort.store.directory(cohort.artifact) / list_packed_paths(cohort.plan.notes, cohort.month)["train"].rows,
        change,
    )


def rewrite_rows(path: Path, change: Callable[[PackedRowBlock], PackedRowBlock]) -> None:
    """Write a file of rows without a mask again with other rows."""
    blocks = [change(block) for block in open_packed_file(path, masked=False)]
    path.unlink()
    write_rows(path, blocks, masked=False)
