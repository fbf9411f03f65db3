"""Proofs on a task's folder and its files: names, kinds, permissions, encoding, lines."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dataprep_assets.formats.task_rows import Defect
from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.pipelines.tasks.contract import Split, TaskContract, value_at
from dataprep_assets.pipelines.tasks.judged_folder import FolderFile, TaskFolder
from dataprep_assets.pipelines.tasks.placing import MODE, PRIVATE_MODE
from dataprep_assets.pipelines.tasks.record import AbsenceCause
from dataprep_assets.pipelines.tasks.row_findings import MEND, Fault, found, over_kinds, over_rows
from dataprep_assets.stores.private import OTHERS


@judged
def task_folder_name(task: TaskFolder) -> Finding:
    """The trainer takes the task from what follows the last slash of TASK."""
    last = task.task_value.rpartition("/")[2]
    wanted = task.contract.folder
    if task.task_value.endswith("/"):
        defects = [f"TASK={task.task_value} ends with a slash"]
    elif last.lower() != task.contract.task:
        defects = [f"TASK={task.task_value} ends with {last!r}, which names no task"]
    else:
        defects = []
    return verdict(
        defects,
        f"TASK={task.task_value}",
        f'The trainer would say "Unknown task name or path": TASK has to end with {wanted!r} and no slash; a version '
        f"goes above it, as in versions/version_1/{wanted}",
        facts={"task": task.contract.task, "TASK": task.task_value},
    )


@judged
def files_present(task: TaskFolder) -> Finding:
    """A required file with a misspelt name counts as present here; `names_exact` says what is wrong with it."""
    told = {a.name: a.detail for a in task.record.absent} if task.record else {}
    return found(
        (
            Fault(f"{f.name}: is missing in {task.folder}" + (f" ({told[f.name]})" if f.name in told else ""), split=s)
            for s, f in task.files.items()
            if f.required and not f.present and not f.alike
        ),
        f"{', '.join(f.name for f in task.files.values() if f.present)} are there.",
        f"{_symptom(task.contract)}. Put the file into the old project under exactly this name, or choose a version "
        "that has it, and migrate again",
        facts={"files": sum(f.present for f in task.files.values())},
    )


def _symptom(contract: TaskContract) -> str:
    """The symptom of training without a file."""
    if contract.loader.missing_file == "no_samples":
        return "The trainer would load 0 samples and say nothing"
    return f'The trainer would say "{contract.loader.missing_message}"'


def _absent(task: TaskFolder, *causes: AbsenceCause) -> Iterator[Fault]:
    """The files that the migration could not take for one of these causes."""
    absent = task.record.absent if task.record else ()
    return (Fault(f"{a.name}: {a.detail}", split=a.split) for a in absent if a.cause in causes)


@judged
def names_exact(task: TaskFolder) -> Finding:
    """Names that look like the contract's, but that the loader does not find."""
    return found(
        [
            *(
                # beside the file that the trainer reads, this one is only left over
                Fault(f"{alike}: the trainer reads {f.name} and does not look at this file", f.present, s)
                for s, f in task.files.items()
                for alike in f.alike
            ),
            *_absent(task, "other_case"),
        ],
        "Every name is exactly the contract's.",
        f"{_symptom(task.contract)}. Give the file its exact name in the old project and migrate again",
        facts={"files": sum(f.present for f in task.files.values())},
    )


@judged
def regular_or_valid_links(task: TaskFolder) -> Finding:
    """No file's name is taken by a folder, a device or a broken link."""
    present = [f for f in task.files.values() if f.present]
    return found(
        [
            *(Fault(f"{f.name}: {f.problem}", split=f.split) for f in present if f.problem is not None),
            *_absent(task, "broken_link", "directory", "not_regular", "outside_old_project"),
        ],
        f"{sum(f.link for f in present)} links and {sum(not f.link for f in present)} regular files.",
        'The trainer may say "Unable to load JSONL file". Put the file in its place in the old project and migrate '
        "again: links are made again",
        facts={"links": sum(f.link for f in present), "files": len(present)},
    )


@judged
def readable_0644(task: TaskFolder) -> Finding:
    """Blocks if nobody, or not this user, may read a file; the trainer may run as another user.

    For a link, its target's permissions count. In a sensitive dataset only the owner may read a file."""
    files = [f for f in task.files.values() if f.present and f.problem is None]
    if task.sensitive:
        return _closed_0600(task, files)
    told = {f.split: f"{f.name}: its permissions are {f.permissions:04o}" for f in files}
    closed = [f for f in files if f.permissions & 0o444 != 0o444]
    # of a link only that it can be read: the file behind it is the old project's
    other = [f for f in files if f not in closed and not f.link and f.permissions != MODE]
    return found(
        [
            *(Fault(f"{told[f.split]}: not everyone may read it", f.readable, f.split) for f in closed),
            *(Fault(f"{told[f.split]}, not {MODE:04o}", taken=True, split=f.split) for f in other),
            *_absent(task, "unreadable"),
        ],
        f"Everyone may read the {len(files)} files.",
        'The trainer may say "Unable to load JSONL file". Run `chmod 644` on the file (for a link, on its target), or '
        "migrate again",
        facts={"files": len(files)},
    )


def _closed_0600(task: TaskFolder, files: Sequence[FolderFile]) -> Finding:
    """For a sensitive dataset: only the owner may read a file. The target of a link belongs to the source."""
    told = {f.split: f"{f.name}: its permissions are {f.permissions:04o}" for f in files}
    return found(
        [
            *(Fault(f"{told[f.split]}: this user may not read it", False, f.split) for f in files if not f.readable),
            *(
                Fault(f"{told[f.split]}: others may read it, and the dataset is sensitive", f.link, f.split)
                for f in files
                if f.permissions & OTHERS
            ),
            *_absent(task, "unreadable"),
        ],
        f"Nobody but the owner may read the {len(files)} files.",
        f"Run `chmod {PRIVATE_MODE:o}` on the file, or migrate again",
        facts={"files": len(files)},
    )


@judged
def non_empty(task: TaskFolder) -> Finding:
    """An empty file loads as 0 samples, mostly without an error."""
    return over_rows(
        task,
        lambda split, rows: [Fault("is empty")] if rows.bytes == 0 else [],
        "has bytes",
        f"The trainer's dataset is empty after loading. {MEND}",
    )


@judged
def utf8_no_bom(task: TaskFolder) -> Finding:
    """The loaders decode strictly, and a byte order mark breaks the first row."""
    return over_kinds(
        task,
        ("bom", "not_utf8"),
        "is UTF-8 without a byte order mark",
        "Save the file as UTF-8 without a byte order mark (an empty dataset after loading can come of this)",
    )


@judged
def line_ends(task: TaskFolder) -> Finding:
    """Every loader reads in Python's text mode, which takes CR LF, CR and a last line without its end: warnings."""
    return over_kinds(
        task,
        ("carriage_return", "unterminated"),
        "has LF line ends",
        "Convert the line ends, for example with `sed -i 's/\\r$//'`, and end the last line",
        taken=lambda split, defect: True,
    )


@judged
def no_blank_lines(task: TaskFolder) -> Finding:
    """Most loaders skip a blank line, those of ARC stop at it."""
    return over_kinds(
        task,
        ("blank",),
        "has no blank line",
        "The trainer's loader stops at blank lines. Take them out",
        taken=lambda split, defect: task.contract.loader.blank_line == "skipped",
    )


@judged
def every_line_object(task: TaskFolder) -> Finding:
    """One complete JSON object per line; duplicate keys, NaN, and half a surrogate pair outside of texts only warn.

    A line that cannot be read is a lost row, even if a loader silently skips it.
    """
    stops = task.contract.loader.bad_line == "stops"
    values = {split: {row.line: row.value for row in rows.rows} for split, rows in task.rows.items()}

    def taken(split: Split, defect: Defect) -> bool:
        if defect.kind == "lone_surrogate":
            # half a surrogate pair stops the tokenizer, which sees only what is put into the prompt
            row = values[split][defect.line]
            return all(_encodes(value_at(row, path)) for path in task.contract.prompted)
        return defect.kind in ("duplicate_key", "constant")

    return over_kinds(
        task,
        ("bad_json", "cut_short", "not_an_object", "constant", "duplicate_key", "lone_surrogate"),
        "has one JSON object a line",
        f"The trainer's loader {'stops at' if stops else 'leaves out'} lines that it cannot parse (an empty dataset "
        "after loading can come of this). Correct these lines",
        taken=taken,
    )


def _encodes(value: Any) -> bool:
    """Whether a tokenizer can take the text, or each text of a list."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
