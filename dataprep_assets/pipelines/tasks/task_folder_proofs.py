"""Proofs on a task folder in the trainer's tree: defects that otherwise appear only when training fails, or never.

Each proof is one line of the contract (docs/formats/task-folders.md#invariants). They examine the present folder,
whoever put the files there; with the record of a migration they also report what the old project lacked, and whether a
file has changed since. A file that cannot be read at all is covered by the proofs about names; the others say that they
left it out, and are skipped if nothing else is left to examine.

The proofs are in modules by subject: `file_proofs` (the folder and its files), `row_proofs` (each file's rows),
`original_proofs` (rows against those that they were rewritten from), `loader_proofs` (the trainer's own view),
`migrated_proofs` (the folder against the record of its migration).

Messages name files, lines, bytes, keys and labels, never a row's text or id; if `sensitive`, no labels either,
and no keys but the contract's.
Entry points: `TASK_PROOFS`, `proofs_for`, `prove_task_folder`.
"""

from collections.abc import Callable, Mapping

from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.spec import Proof
from dataprep_assets.pipelines.tasks.contract import Split, TaskContract, domains
from dataprep_assets.pipelines.tasks.file_proofs import (
    every_line_object,
    files_present,
    line_ends,
    names_exact,
    no_blank_lines,
    non_empty,
    readable_0644,
    regular_or_valid_links,
    task_folder_name,
    utf8_no_bom,
)
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.loader_proofs import loads_as_trainer
from dataprep_assets.pipelines.tasks.migrated_proofs import as_migrated
from dataprep_assets.pipelines.tasks.original_proofs import (
    labels_equal_original,
    no_train_text_in_validation,
    validation_untouched,
)
from dataprep_assets.pipelines.tasks.row_proofs import (
    answer_key,
    choices_lengths,
    ids_unique,
    label_domain,
    no_empty_text,
    question_domain,
    row_counts,
    schema,
)

TASK_PROOFS = (
    Proof("task_folder_name", "The last component of TASK is the task, without a trailing slash."),
    Proof("files_present", "Every file that the trainer's loader reads is there."),
    Proof("names_exact", "File names are exact: case, hyphens and suffix count."),
    Proof("regular_or_valid_links", "Every file is a regular file, or a link to one."),
    Proof("readable_0644", "Everyone may read every file; copies have the permissions 0644."),
    Proof("non_empty", "No file is empty."),
    Proof("utf8_no_bom", "Every file is UTF-8 without a byte order mark."),
    Proof("line_ends", "Every line, the last too, ends with LF alone."),
    Proof("no_blank_lines", "No line is blank."),
    Proof("every_line_object", "Every line is one complete JSON object, without a key given twice.", version=2),
    Proof("schema", "Every row has exactly the contract's keys, with values of their types.", version=2),
    Proof("label_domain", "Labels are those of the task; hidden labels (-1) occur in test alone."),
    Proof("question_domain", "Keys with a fixed set of values hold one of them."),
    Proof("answer_key", "The answer is the label of one of the row's choices."),
    Proof("choices_lengths", "A row has as many choice texts as labels, within bounds, no label twice."),
    Proof("no_empty_text", "No text of a row is empty."),
    Proof("ids_unique", "No id occurs twice in a file.", blocking=False),
    Proof("row_counts", "Every file has as many rows as the reference.", blocking=False),
    Proof("labels_equal_original", "Every train row has the label of the original row with its id."),
    Proof("validation_untouched", "The validation file is byte for byte the original's.", blocking=False),
    Proof("no_train_text_in_validation", "No train row has the text of a validation row.", blocking=False),
    Proof("loads_as_trainer", "The trainer's loader makes a sample of every row, as written."),
    Proof("as_migrated", "Every file is what the migration put there.", version=2),
)
"""All proofs of a task folder. Each is a function of one of the modules above.

A proof blocks for what the trainer cannot read (it stops), reads as something else (another label, other samples than
the file's rows), or what cannot have been intended (a lost line, an empty text, a file changed since its migration):
such training is wasted. What the trainer reads as intended, and any defect in a file that it never opens, is a warning
of the same proof. The four proofs that never block are about data that can be trained on as it is. A number of rows
other than the original's (`version_4-3` has 700, with repeated ids) may be an experiment, and must not fail the run of
the 24 good versions beside it. A changed validation file, or one that shares texts with train, spoils the measurement,
which can be repeated.
"""

_PROOFS: Mapping[str, Callable[[TaskFolder], Finding]] = {
    proof.__name__: proof
    for proof in (
        task_folder_name,
        files_present,
        names_exact,
        regular_or_valid_links,
        readable_0644,
        non_empty,
        utf8_no_bom,
        line_ends,
        no_blank_lines,
        every_line_object,
        schema,
        label_domain,
        question_domain,
        answer_key,
        choices_lengths,
        no_empty_text,
        ids_unique,
        row_counts,
        labels_equal_original,
        validation_untouched,
        no_train_text_in_validation,
        loads_as_trainer,
        as_migrated,
    )
}


def proofs_for(contract: TaskContract) -> tuple[Proof, ...]:
    """The proofs that apply to a task: without choices there is no answer key to prove."""
    applies = {
        "label_domain": bool(contract.labels),
        "question_domain": any(domains(contract.keys)),
        "answer_key": contract.choices is not None,
        "choices_lengths": contract.choices is not None,
        "ids_unique": contract.id is not None,
    }
    return tuple(proof for proof in TASK_PROOFS if applies.get(proof.name, True))


_OF_NAMES = {"task_folder_name", "files_present", "names_exact", "regular_or_valid_links", "readable_0644"}
"""Proofs that need no file content: they say why a file cannot be read."""
_NEEDS: Mapping[str, tuple[Split, ...]] = {
    "labels_equal_original": ("train",),
    "validation_untouched": ("validation",),
    "no_train_text_in_validation": ("train", "validation"),
}
"""The files without which a proof has nothing to examine; any other proof of rows needs at least one file."""


def prove_task_folder(task: TaskFolder) -> dict[str, Finding]:
    """Every proof that applies to the folder's task and has something to examine, by name.

    `as_migrated` needs a record of the migration. For a folder without readable files only the proofs of names apply,
    and say why.
    """
    names = [proof.name for proof in proofs_for(task.contract)]
    return {name: _PROOFS[name](task) for name in names if _can_judge(task, name)}


def _can_judge(task: TaskFolder, name: str) -> bool:
    if name == "as_migrated":
        return task.record is not None
    return name in _OF_NAMES or (bool(task.rows) and all(split in task.rows for split in _NEEDS.get(name, ())))
