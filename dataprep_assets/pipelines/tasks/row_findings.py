"""Findings over the rows of a task folder's files: which files are judged, and what is said of those that are not."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dataprep_assets.formats.task_rows import DefectKind, TaskRows
from dataprep_assets.graph.finding import Finding, verdict
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder

__all__ = ["MEND", "nothing_judged", "nothing_to_compare", "over_kinds", "over_rows"]

MEND = "Mend the file in the old project and migrate again"
"""What to do about a defect that came with the file."""


def over_kinds(task: TaskFolder, kinds: Sequence[DefectKind], holds: str, todo: str) -> Finding:
    """No line of any file of `task` has a defect of these `kinds`; `holds` and `todo` as in `over_rows`."""
    return over_rows(task, lambda split, rows: (str(d) for d in rows.of_kind(*kinds)), holds, todo)


def over_rows(
    task: TaskFolder,
    wrong: Callable[[Split, TaskRows], Iterable[str]],
    holds: str,
    todo: str,
    *,
    splits: Sequence[Split] = (),
    facts: Mapping[str, int | float | str] | None = None,
) -> Finding:
    """A finding over the files of `task` that can be read, of these `splits` (by default all).

    `wrong` gives the defects of a split's rows; `holds` says what is true without one ("has bytes"), `todo` what to do
    about one. `facts` are added to those of the finding.
    """
    wanted = [f for s, f in task.files.items() if not splits or s in splits]
    left_out = [f.name for f in wanted if f.split not in task.rows and (f.required or f.present)]
    files = [f for f in wanted if f.split in task.rows]
    if not files:
        return nothing_judged(left_out)
    subject = files[0].name if len(files) == 1 else f"Each of {', '.join(f.name for f in files)}"
    note = f" Not judged: {', '.join(left_out)}." if left_out else ""
    return verdict(
        (f"{f.name}: {defect}" for f in files for defect in wrong(f.split, task.rows[f.split])),
        f"{subject} {holds}.{note}",
        todo,
        facts={"rows": sum(len(task.rows[f.split].rows) for f in files), "not_judged": len(left_out), **(facts or {})},
    )


def nothing_judged(names: Sequence[str]) -> Finding:
    what = ", ".join(names) or "The file"
    return Finding(
        passed=False,
        warning=True,
        facts={"not_judged": max(len(names), 1)},
        summary=f"{what} cannot be read, so nothing was judged. The checks of files, names and links say why.",
    )


def nothing_to_compare(task: TaskFolder, why: str) -> Finding:
    return Finding(
        passed=False,
        warning=True,
        facts={"not_judged": 1},
        summary=f"Nothing was compared: {why}. Declare `original`, the folder that holds {task.contract.folder}/.",
    )
