"""Proofs on a task's folder and its files: names, kinds, permissions, encoding, lines."""

from dataclasses import replace

from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.pipelines.tasks.contract import TaskContract
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.placing import MODE
from dataprep_assets.pipelines.tasks.row_findings import MEND, over_kinds, over_rows

__all__ = [
    "every_line_object",
    "files_present",
    "line_ends",
    "names_exact",
    "no_blank_lines",
    "non_empty",
    "readable_0644",
    "regular_or_valid_links",
    "task_folder_name",
    "utf8_no_bom",
]


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
    """A required file that has another spelling is there for this proof; `names_exact` says what is wrong with it."""
    told = {a.name: a.detail for a in task.record.absent} if task.record else {}
    return verdict(
        (
            f"{f.name}: is missing in {task.folder}" + (f" ({told[f.name]})" if f.name in told else "")
            for f in task.files.values()
            if f.required and not f.present and not f.alike
        ),
        f"{', '.join(f.name for f in task.files.values() if f.present)} are there.",
        f"{_symptom(task.contract)}. Put the file into the old project under exactly this name, or choose a version "
        "that has it, and migrate again",
        facts={"files": sum(f.present for f in task.files.values())},
    )


def _symptom(contract: TaskContract) -> str:
    """What a person sees who trains without a file."""
    if contract.loader.missing_file == "no_samples":
        return "The trainer would load 0 samples and say nothing"
    return f'The trainer would say "{contract.loader.missing_message}"'


@judged
def names_exact(task: TaskFolder) -> Finding:
    """Names that a person would take for the contract's, and the loader does not."""
    return verdict(
        [
            *(
                f"{alike}: the trainer reads {f.name} and does not look at this file"
                for f in task.files.values()
                for alike in f.alike
            ),
            *task.absent_because("other_case"),
        ],
        "Every name is exactly the contract's.",
        f"{_symptom(task.contract)}. Give the file its exact name in the old project and migrate again",
        facts={"files": sum(f.present for f in task.files.values())},
    )


@judged
def regular_or_valid_links(task: TaskFolder) -> Finding:
    """No folder, device or broken link stands in a file's place."""
    present = [f for f in task.files.values() if f.present]
    return verdict(
        [
            *(f"{f.name}: {f.problem}" for f in present if f.problem is not None),
            *task.absent_because("broken_link", "directory", "not_regular", "outside_old_project"),
        ],
        f"{sum(f.link for f in present)} links and {sum(not f.link for f in present)} regular files.",
        'The trainer may say "Unable to load JSONL file". Put the file in its place in the old project and migrate '
        "again: links are made anew",
        facts={"links": sum(f.link for f in present), "files": len(present)},
    )


@judged
def readable_0644(task: TaskFolder) -> Finding:
    """Judged by the permissions, not by trying: the trainer runs as somebody else. Of a link, its target's count."""
    files = [f for f in task.files.values() if f.present and f.problem is None]
    closed = [
        f"{f.name}: its permissions are {f.permissions:04o}: not everyone may read it"
        for f in files
        if f.permissions & 0o444 != 0o444
    ]
    other = [
        f"{f.name}: its permissions are {f.permissions:04o}, not {MODE:04o}"
        for f in files
        if not f.link and f.permissions != MODE and f.permissions & 0o444 == 0o444
    ]
    closed += task.absent_because("unreadable")
    return verdict(
        closed + other,
        f"Everyone may read the {len(files)} files.",
        'The trainer may say "Unable to load JSONL file". Run `chmod 644` on the file (for a link, on its target), or '
        "migrate again",
        warning=not closed,
        facts={"files": len(files)},
    )


@judged
def non_empty(task: TaskFolder) -> Finding:
    """A file of no bytes loads as 0 samples, mostly without a word."""
    return over_rows(
        task,
        lambda split, rows: ["is empty"] if rows.bytes == 0 else [],
        "has bytes",
        f"The trainer's dataset is empty after loading. {MEND}",
    )


@judged
def utf8_no_bom(task: TaskFolder) -> Finding:
    """The loaders decode strictly, and a byte order mark spoils the first row."""
    return over_kinds(
        task,
        ("bom", "not_utf8"),
        "is UTF-8 without a byte order mark",
        "Save the file as UTF-8 without a byte order mark (an empty dataset after loading can come of this)",
    )


@judged
def line_ends(task: TaskFolder) -> Finding:
    """CR LF and CR are defects; a last line without its end is a warning, because every loader takes it."""
    found = over_kinds(
        task,
        ("carriage_return", "unterminated"),
        "has LF line ends",
        "Convert the line ends, for example with `sed -i 's/\\r$//'`, and end the last line",
    )
    only_last = not found.passed and not any(r.of_kind("carriage_return") for r in task.rows.values())
    return replace(found, warning=found.warning or only_last)


@judged
def no_blank_lines(task: TaskFolder) -> Finding:
    """Some loaders skip a blank line, those of ARC stop at it."""
    stops = task.contract.loader.blank_line == "stops"
    return over_kinds(
        task,
        ("blank",),
        "has no blank line",
        f"The trainer's loader {'stops at' if stops else 'skips'} blank lines. Take them out",
    )


@judged
def every_line_object(task: TaskFolder) -> Finding:
    """One JSON object a line, complete, without a key given twice or half a character."""
    stops = task.contract.loader.bad_line == "stops"
    return over_kinds(
        task,
        ("bad_json", "cut_short", "not_an_object", "duplicate_key", "lone_surrogate"),
        "has one JSON object a line",
        f"The trainer's loader {'stops at' if stops else 'leaves out'} lines that it cannot parse (an empty dataset "
        "after loading can come of this). Mend these lines",
    )
