"""Findings over a task folder's files: what is wrong, whether the trainer accepts it, and which files are examined.

A proof blocks only for what the trainer cannot read or reads as something else. What it reads as intended in spite of
the defect (a key that it never reads, a line that its loader skips), and any defect in a file that it never opens, is a
warning.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dataprep_assets.formats.task_rows import Defect, DefectKind, TaskRows
from dataprep_assets.graph.finding import Finding, Row, verdict
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.loader import LOADED

MEND = "Correct the file in the old project and migrate again"
"""What to do about a defect that came with the file."""
_UNOPENED = "The trainer never opens this file, so this is a warning"
_TAKEN = "The trainer takes this and trains as it should, so this is a warning"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and whether the trainer reads it as intended (`taken`).

    `split` is the file's, if it is a fault of a file: faults of a file that the loader does not open count as taken.
    """

    told: str
    taken: bool = False
    split: Split | None = None

    @property
    def warns(self) -> bool:
        """Whether training works in spite of the fault."""
        return self.taken or self._unopened

    @property
    def _unopened(self) -> bool:
        return self.split is not None and self.split not in LOADED

    @property
    def why(self) -> str:
        """Why it is a warning, if it is one."""
        return _UNOPENED if self._unopened else _TAKEN


def found(
    faults: Iterable[Fault],
    holds: str,
    todo: str,
    *,
    facts: Mapping[str, int | float | str] | None = None,
    table: Iterable[Row] | None = None,
) -> Finding:
    """A finding of these faults, those that spoil training first; a warning if the trainer accepts all of them.

    `holds` says what is true without faults, `todo` what to do about one that spoils training; `facts` and `table` are
    as in `verdict`.
    """
    known = sorted(faults, key=lambda fault: fault.warns)  # a stable sort: the order of files and lines stays
    warning = bool(known) and known[0].warns
    counts = {"taken": sum(fault.warns for fault in known)} if known else {}
    return verdict(
        (fault.told for fault in known),
        holds,
        known[0].why if warning else todo,
        facts={**(facts or {}), **counts},
        table=table,
        warning=warning,
    )


def over_kinds(
    task: TaskFolder,
    kinds: Sequence[DefectKind],
    holds: str,
    todo: str,
    *,
    taken: Callable[[Split, Defect], bool] = lambda split, defect: False,
) -> Finding:
    """No line of any file of `task` has a defect of these `kinds`.

    `holds` and `todo` are as in `over_rows`; `taken` says which defects the trainer accepts.
    """
    return over_rows(
        task,
        lambda split, rows: (
            Fault(str(_quiet(d) if task.sensitive else d), taken(split, d)) for d in rows.of_kind(*kinds)
        ),
        holds,
        todo,
    )


def _quiet(defect: Defect) -> Defect:
    """A defect that names no key of a row, which may be any text."""
    return replace(defect, detail="gives a key twice") if defect.kind == "duplicate_key" else defect


def over_rows(
    task: TaskFolder,
    wrong: Callable[[Split, TaskRows], Iterable[Fault]],
    holds: str,
    todo: str,
    *,
    splits: Sequence[Split] = (),
    facts: Mapping[str, int | float | str] | None = None,
) -> Finding:
    """A finding over the files of `task` that can be read, of these `splits` (by default all).

    `wrong` gives the faults of a split's rows; `holds` says what is true without one ("has bytes"), `todo` what to do
    about one. `facts` are added to those of the finding. At least one of the files can be read: `prove_task_folder`
    asks of no other.
    """
    wanted = [f for s, f in task.files.items() if not splits or s in splits]
    left_out = [f.name for f in wanted if f.split not in task.rows and (f.required or f.present)]
    files = [f for f in wanted if f.split in task.rows]
    subject = files[0].name if len(files) == 1 else f"Each of {', '.join(f.name for f in files)}"
    note = f" Not judged: {', '.join(left_out)}." if left_out else ""
    return found(
        (
            replace(fault, told=f"{f.name}: {fault.told}", split=f.split)
            for f in files
            for fault in wrong(f.split, task.rows[f.split])
        ),
        f"{subject} {holds}.{note}",
        todo,
        facts={"rows": sum(len(task.rows[f.split].rows) for f in files), "not_judged": len(left_out), **(facts or {})},
    )


def nothing_to_compare(task: TaskFolder, why: str) -> Finding:
    """A warning for a proof that needs the rows of an original; `why` says in words what is missing."""
    return Finding(
        passed=False,
        warning=True,
        facts={"not_judged": 1},
        summary=f"Nothing was compared: {why}. Declare `original`, the folder that holds {task.contract.folder}/.",
    )
