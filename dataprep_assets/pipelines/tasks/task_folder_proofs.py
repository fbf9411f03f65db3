"""Proofs on a task folder in the trainer's tree: what a person finds only when the training run fails, or never.

Each proof is one line of the contract (FORMATS E.6). They judge the folder as it is now, whoever put the files there;
with the record of a migration they also tell what the old project lacked, and whether a file has changed since. A
file that cannot be read at all is judged by the proofs about files, and by the others only where nothing else is left
to judge; these say which files they left out.

`loads_as_trainer` is the consumer's own view (`builds/tasks/loader.py`): the number of samples, and what the loader
would do without stopping.

Messages name files, lines, bytes, keys and labels, never a row's text or id; labels neither where `sensitive`.
Entry points: `TaskFolder`, `TASK_PROOFS`, `proofs_for`, `prove_task_folder`.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.formats.task_rows import DefectKind, TaskRow, TaskRows, read_rows
from dataprep_assets.graph.finding import Finding, Row, judged, verdict
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.pipelines.tasks.contract import KeySpec, Split, TaskContract, value_at
from dataprep_assets.pipelines.tasks.difference import compare, pairs, row_ids
from dataprep_assets.pipelines.tasks.loader import HARMLESS, LOADED, Load, SilentAct, load_as_trainer
from dataprep_assets.pipelines.tasks.placing import MODE
from dataprep_assets.pipelines.tasks.record import AbsenceCause, MigrationRecord
from dataprep_assets.pipelines.tasks.work import TaskWork, task_value

__all__ = ["TASK_PROOFS", "TaskFolder", "proofs_for", "prove_task_folder"]

TASK_PROOFS: Mapping[str, str] = {
    "task_folder_name": "The last component of TASK is the task, without a trailing slash.",
    "files_present": "Every file that the trainer's loader reads is there.",
    "names_exact": "File names are exact: case, hyphens and suffix count.",
    "regular_or_valid_links": "Every file is a regular file, or a link to one.",
    "readable_0644": "Everyone may read every file; copies have the permissions 0644.",
    "non_empty": "No file is empty.",
    "utf8_no_bom": "Every file is UTF-8 without a byte order mark.",
    "line_ends": "Every line, the last too, ends with LF alone.",
    "no_blank_lines": "No line is blank.",
    "every_line_object": "Every line is one complete JSON object, without a key given twice.",
    "schema": "Every row has exactly the contract's keys, with values of their types.",
    "label_domain": "Labels are those of the task; hidden labels (-1) occur in test alone.",
    "question_domain": "Keys with a fixed set of values hold one of them.",
    "answer_key": "The answer is the label of one of the row's choices.",
    "choices_lengths": "A row has as many choice texts as labels, within bounds, and no label twice.",
    "ids_unique": "No id occurs twice in a file.",
    "row_counts": "Every file has as many rows as the reference.",
    "labels_equal_original": "Every train row has the label of the original row with its id.",
    "validation_untouched": "The validation file is byte for byte the original's.",
    "no_train_text_in_validation": "No train row has the text of a validation row.",
    "loads_as_trainer": "The trainer's loader makes a sample of every row, as written.",
    "as_migrated": "Every file is what the migration put there.",
}
"""Name of each proof of a task folder, and what it proves. Each is a function of this module."""

_MEND = "Mend the file in the old project and migrate again"


@dataclass(frozen=True, kw_only=True)
class _File:
    """How one file of the contract lies in the folder. `problem` is None when it can be read."""

    split: Split
    name: str
    required: bool
    present: bool
    alike: tuple[str, ...]
    problem: str | None
    permissions: int
    link: bool


@dataclass(frozen=True, kw_only=True)
class TaskFolder:
    """A task folder to judge. Everything is read once, when a proof first needs it.

    `reference` is the folder of the rows that these were rewritten from, `reference_name` what it is (`original` or
    `base`); `record` is the migration's, where there was one.
    """

    folder: Path
    contract: TaskContract
    task_value: str
    reference: Path | None = None
    reference_name: str | None = None
    record: MigrationRecord | None = None
    sensitive: bool = False

    @classmethod
    def of(cls, work: TaskWork, record: MigrationRecord | None, *, sensitive: bool = False) -> "TaskFolder":
        """The folder of a migration's partition."""
        return cls(
            folder=work.target,
            contract=work.contract,
            task_value=task_value(work),
            reference=work.reference,
            reference_name=work.reference_name,
            record=record,
            sensitive=sensitive,
        )

    @cached_property
    def files(self) -> Mapping[Split, _File]:
        """Every file of the contract."""
        try:
            names = sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            names = []
        return {split: self._file(split, names) for split in self.contract.splits}

    def _file(self, split: Split, names: Sequence[str]) -> _File:
        spec = self.contract.file(split)
        alike = tuple(n for n in names if n != spec.name and _shape(n) == _shape(spec.name))
        present, permissions, link, problem = spec.name in names, 0, False, None
        if present:
            path = self.folder / spec.name
            link = path.is_symlink()
            try:
                kind = path.stat().st_mode
            except OSError as error:
                problem = f"is a link to {os.readlink(path)}, which is not there" if link else str(error.strerror)
            else:
                permissions = stat.S_IMODE(kind)
                if not stat.S_ISREG(kind):
                    what = "a folder" if stat.S_ISDIR(kind) else "no regular file"
                    problem = f"is {'a link to ' if link else ''}{what}"
        return _File(
            split=split,
            name=spec.name,
            required=spec.required,
            present=present,
            alike=alike,
            problem=problem,
            permissions=permissions,
            link=link,
        )

    @cached_property
    def rows(self) -> Mapping[Split, TaskRows]:
        """The rows of every file that can be read."""
        return _read({s: self.folder / f.name for s, f in self.files.items() if f.present and f.problem is None})

    @cached_property
    def reference_rows(self) -> Mapping[Split, TaskRows]:
        """The rows of the reference's files that can be read."""
        if self.reference is None:
            return {}
        return _read({s: self.reference / self.contract.file(s).name for s in self.contract.splits})

    @cached_property
    def load(self) -> Load:
        """What the trainer's loader makes of the folder."""
        return load_as_trainer(self.task_value, self.contract)

    def absent_because(self, *causes: AbsenceCause) -> Iterator[str]:
        """What the migration found in the old project in place of a file, one sentence a file."""
        for absent in self.record.absent if self.record else ():
            if absent.cause in causes:
                yield f"{absent.name}: {absent.detail}"

    def shown(self, value: Any) -> str:
        """A label as a message may show it."""
        if self.sensitive or not isinstance(value, bool | int | str):
            return f"a {type(value).__name__}"
        return repr(value)[:24]


def _read(paths: Mapping[Split, Path]) -> dict[Split, TaskRows]:
    found = {}
    for split, path in paths.items():
        try:
            if path.is_file():
                found[split] = read_rows(path)
        except OSError:
            continue  # the proofs about files say why
    return found


def _shape(name: str) -> str:
    """What two names have in common that a person could take for each other."""
    stem = name.strip().casefold().replace("-", "_").replace(" ", "_")
    for suffix in (".txt", ".jsonl", ".json"):
        stem = stem.removesuffix(suffix)
    return stem


def proofs_for(contract: TaskContract) -> tuple[str, ...]:
    """The names of the proofs that say something about a task: without choices there is no answer key to prove."""
    without = {
        "label_domain": bool(contract.labels),
        "question_domain": any(_domains(contract.keys)),
        "answer_key": contract.choices is not None,
        "choices_lengths": contract.choices is not None,
        "ids_unique": contract.id is not None,
    }
    return tuple(name for name in TASK_PROOFS if without.get(name, True))


def prove_task_folder(task: TaskFolder) -> dict[str, Finding]:
    """Every proof that applies to the folder's task, by name; `as_migrated` needs a record of the migration."""
    proofs: Mapping[str, Callable[[TaskFolder], Finding]] = {
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
            ids_unique,
            row_counts,
            labels_equal_original,
            validation_untouched,
            no_train_text_in_validation,
            loads_as_trainer,
            as_migrated,
        )
    }
    names = [n for n in proofs_for(task.contract) if n != "as_migrated" or task.record is not None]
    return {name: proofs[name](task) for name in names}


# --- the folder and its files


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
    return _over_rows(
        task,
        lambda split, rows: ["is empty"] if rows.bytes == 0 else [],
        "has bytes",
        f"The trainer's dataset is empty after loading. {_MEND}",
    )


@judged
def utf8_no_bom(task: TaskFolder) -> Finding:
    """The loaders decode strictly, and a byte order mark spoils the first row."""
    return _of_kinds(
        task,
        ("bom", "not_utf8"),
        "is UTF-8 without a byte order mark",
        "Save the file as UTF-8 without a byte order mark (an empty dataset after loading can come of this)",
    )


@judged
def line_ends(task: TaskFolder) -> Finding:
    """CR LF and CR are defects; a last line without its end is a warning, because every loader takes it."""
    found = _of_kinds(
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
    return _of_kinds(
        task,
        ("blank",),
        "has no blank line",
        f"The trainer's loader {'stops at' if stops else 'skips'} blank lines. Take them out",
    )


@judged
def every_line_object(task: TaskFolder) -> Finding:
    """One JSON object a line, complete, without a key given twice or half a character."""
    stops = task.contract.loader.bad_line == "stops"
    return _of_kinds(
        task,
        ("bad_json", "cut_short", "not_an_object", "duplicate_key", "lone_surrogate"),
        "has one JSON object a line",
        f"The trainer's loader {'stops at' if stops else 'leaves out'} lines that it cannot parse (an empty dataset "
        "after loading can come of this). Mend these lines",
    )


# --- rows


@judged
def schema(task: TaskFolder) -> Finding:
    """Exact key set and types, nested keys too. A label of the wrong type is a matter of this proof."""
    return _over_rows(
        task,
        lambda split, rows: (
            f"line {row.line} (byte {row.byte}): {defect}"
            for row in rows.rows
            for defect in _misfits(row.value, task.contract.keys)
        ),
        "has rows with exactly the contract's keys and types",
        f"The contract's keys are {', '.join(f'{k} ({s.type})' for k, s in task.contract.keys.items())}. {_MEND}",
    )


def _misfits(value: Mapping[str, Any], keys: Mapping[str, KeySpec], above: str = "") -> Iterator[str]:
    for name, spec in keys.items():
        if name not in value:
            yield f"has no key {above + name!r}"
        elif not _fits(value[name], spec):
            yield f"{above + name!r} is {_type_name(value[name])}, not {spec.type}"
        elif spec.type == "object":
            yield from _misfits(value[name], spec.keys, f"{above}{name}.")
    for name in value:
        if name not in keys:
            yield f"has a key {(above + name)[:40]!r}, which the contract does not have"


def _fits(value: Any, spec: KeySpec) -> bool:
    if spec.type == "strings":
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    # exact types: in Python a boolean is an integer
    return type(value) is {"string": str, "integer": int, "boolean": bool, "object": dict}[spec.type]


def _type_name(value: Any) -> str:
    if isinstance(value, list):
        return "an array of other things"
    names = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", dict: "an object"}
    return names.get(type(value), "null")


@judged
def label_domain(task: TaskFolder) -> Finding:
    """Labels of the right type that the split does not allow; -1 hides a label, which only test may do."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        allowed = task.contract.labels[split]
        spec = task.contract.keys[task.contract.label]
        for row in rows.rows:
            label = row.value.get(task.contract.label)
            if _fits(label, spec) and label not in allowed:
                why = "a hidden label" if label == -1 else "no label of this task"
                yield f"line {row.line} (byte {row.byte}): {task.contract.label} {task.shown(label)} is {why}"

    return _over_rows(
        task,
        wrong,
        "has labels of the task alone",
        f"Allowed in train are {', '.join(map(str, task.contract.labels.get('train', ())))}. A file with hidden labels "
        f"is a test file. {_MEND}",
        facts={f"{split}_{k}": n for split, counts in _label_counts(task).items() for k, n in counts.items()},
    )


def _label_counts(task: TaskFolder) -> dict[Split, dict[str, int]]:
    """How many rows have each allowed label."""
    return {
        split: {
            str(label): sum(row.value.get(task.contract.label) == label for row in rows.rows)
            for label in task.contract.labels.get(split, ())
        }
        for split, rows in task.rows.items()
    }


@judged
def question_domain(task: TaskFolder) -> Finding:
    """Values that the trainer's prompt chooses its words by."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        for path, spec in _domains(task.contract.keys):
            for row in rows.rows:
                value = value_at(row.value, path)
                if _fits(value, spec) and value not in spec.one_of:
                    allowed = ", ".join(map(str, spec.one_of))
                    yield f"line {row.line} (byte {row.byte}): {path} is {task.shown(value)}, not one of {allowed}"

    return _over_rows(
        task,
        wrong,
        "has allowed values alone",
        f"The file loads, and training stops with NotImplementedError at the first such row. {_MEND}",
    )


def _domains(keys: Mapping[str, KeySpec], above: str = "") -> Iterator[tuple[str, KeySpec]]:
    """Path and specification of every key with a fixed set of values."""
    for name, spec in keys.items():
        if spec.one_of:
            yield above + name, spec
        yield from _domains(spec.keys, f"{above}{name}.")


@judged
def answer_key(task: TaskFolder) -> Finding:
    """The answer is one of the row's own labels, not only one of the task's."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        for row, _, labels, answer in _choices(task.contract, rows.rows):
            if isinstance(answer, str) and answer not in labels:
                yield f"line {row.line} (byte {row.byte}): answer {task.shown(answer)} is none of its choices' labels"

    stops = task.contract.loader.answer.rule == "choice_text"
    return _over_rows(
        task,
        wrong,
        "has answers among its choices",
        f"The trainer's loader {'stops with a ValueError' if stops else 'takes such a row and can never be right'}. "
        f"{_MEND}",
    )


@judged
def choices_lengths(task: TaskFolder) -> Finding:
    """As many texts as labels, within the contract's bounds, every label once."""
    group = task.contract.choices
    assert group is not None  # `proofs_for` asks for this proof only then

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        for row, texts, labels, _ in _choices(task.contract, rows.rows):
            where = f"line {row.line} (byte {row.byte}):"
            if len(texts) != len(labels):
                yield f"{where} {len(texts)} texts for {len(labels)} labels"
            elif not group.least <= len(labels) <= group.most:
                yield f"{where} {len(labels)} choices, not {group.least} to {group.most}"
            elif len(set(labels)) < len(labels):
                yield f"{where} two choices have the same label"

    return _over_rows(task, wrong, "has complete choices", f"The trainer stops, or takes the wrong text. {_MEND}")


def _choices(contract: TaskContract, rows: Sequence[TaskRow]) -> Iterator[tuple[TaskRow, list[str], list[str], object]]:
    """Row, texts, labels and answer of the rows whose choices have the right types; `schema` names the others."""
    group = contract.choices
    assert group is not None  # see `proofs_for`
    strings = KeySpec(type="strings")
    for row in rows:
        texts, labels = value_at(row.value, group.texts), value_at(row.value, group.labels)
        if _fits(texts, strings) and _fits(labels, strings):
            yield row, texts, labels, value_at(row.value, group.answer)


@judged
def ids_unique(task: TaskFolder) -> Finding:
    """An id that occurs again names both lines; the id itself may identify a person and is not shown."""

    def repeated(split: Split, rows: TaskRows) -> Iterator[str]:
        first: dict[object, int] = {}
        having = [row for row in rows.rows if task.contract.id in row.value]
        for name, row in zip(row_ids(having, task.contract), having, strict=True):
            if name in first:
                yield f"line {row.line} (byte {row.byte}): has the {task.contract.id} of line {first[name]}"
            else:
                first[name] = row.line

    return _over_rows(
        task,
        repeated,
        "has every id once",
        "Rows that occur several times weigh several times in training. Choose another version, or take them out",
    )


@judged
def row_counts(task: TaskFolder) -> Finding:
    """Lines that are not blank, against the contract's counts; where it has none, against the original's."""
    expected = {
        split: task.contract.file(split).rows
        or ((_count(task.reference_rows[split]),) if split in task.reference_rows else ())
        for split in task.contract.splits
    }
    if not any(expected.values()):
        return _nothing_to_compare(task, "neither the contract nor an original says how many rows there should be")

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        if expected[split] and _count(rows) not in expected[split]:
            yield f"{_count(rows)} rows, the reference has {' or '.join(map(str, expected[split]))}"

    return _over_rows(
        task,
        wrong,
        "has the reference's number of rows",
        "Rows were lost, repeated or added when the version was made. Choose another version, or mend it",
        facts={f"{split}_rows": _count(rows) for split, rows in task.rows.items()},
    )


def _count(rows: TaskRows) -> int:
    return rows.lines - len(rows.of_kind("blank"))


# --- against the original


@judged
def labels_equal_original(task: TaskFolder) -> Finding:
    """A rewrite changes words; a changed label, or a row that the original does not have, is a wrong example."""
    if "train" not in task.reference_rows:
        return _nothing_to_compare(task, "there is no original train file to compare with")
    original = task.reference_rows["train"].rows

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        for pair in pairs(original, rows.rows, task.contract):
            where = f"line {pair.row.line} (byte {pair.row.byte}):"
            if pair.original is None:
                yield f"{where} the original has no row of this {task.contract.id or 'place'}"
            elif pair.relabelled(task.contract):
                was, now = (value_at(r.value, task.contract.label) for r in (pair.original, pair.row))
                yield f"{where} label {task.shown(now)}, original line {pair.original.line} has {task.shown(was)}"

    facts: dict[str, int | float | str] = {"compared_with": str(task.reference_name)}
    if "train" in task.rows:
        facts |= compare(original, task.rows["train"].rows, task.contract).model_dump()
    return _over_rows(
        task,
        wrong,
        f"has the labels of the {task.reference_name}",
        "Take the original's labels, or leave these rows out",
        splits=("train",),
        facts=facts,
    )


@judged
def validation_untouched(task: TaskFolder) -> Finding:
    """One digest: a rewritten validation file measures something else, and can hold what was trained on."""
    if "validation" not in task.reference_rows:
        return _nothing_to_compare(task, "there is no original validation file to compare with")
    original = task.reference_rows["validation"]

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        if rows.sha256 != original.sha256:
            yield f"sha256 {rows.sha256[:12]}…, the {task.reference_name}'s is {original.sha256[:12]}…"

    return _over_rows(
        task,
        wrong,
        f"is the {task.reference_name}'s, byte for byte",
        "Take the original's validation file: accuracies on another one cannot be compared",
        splits=("validation",),
    )


@judged
def no_train_text_in_validation(task: TaskFolder) -> Finding:
    """Texts are compared without regard to case and white space."""
    name = task.contract.file("train").name
    if "train" not in task.rows:
        return _nothing_judged([name])
    train: dict[tuple[str, ...], int] = {}
    for row in task.rows["train"].rows:
        train.setdefault(_text(row, task.contract), row.line)

    def leaked(split: Split, rows: TaskRows) -> Iterator[str]:
        for row in rows.rows:
            if (line := train.get(_text(row, task.contract))) is not None:
                yield f"line {row.line} (byte {row.byte}): has the text of line {line} of {name}"

    return _over_rows(
        task,
        leaked,
        f"shares no text with {name}",
        "The model would be measured on what it was trained on. Take these rows out of train",
        splits=("validation",),
    )


def _text(row: TaskRow, contract: TaskContract) -> tuple[str, ...]:
    values = (value_at(row.value, path) for path in contract.text)
    flat = (item for value in values for item in (value if isinstance(value, list) else [value]))
    return tuple(" ".join(str(item).casefold().split()) for item in flat)


# --- the trainer, and the migration


@judged
def loads_as_trainer(task: TaskFolder) -> Finding:
    """What `builds/tasks/loader.py` finds; fails for an error, for no samples, and for anything done silently."""
    load = task.load
    defects = [] if load.error is None else [f"the trainer's loader stops: {load.error}"]
    names = {split: task.contract.file(split).name for split in LOADED}
    lines: dict[tuple[Split, SilentAct], list[int]] = {}
    for act in load.acts:
        if act.act not in HARMLESS:
            lines.setdefault((act.split, act.act), []).append(act.line)
    for (split, what), where in lines.items():
        defects.append(f"{names[split]}: {_silently(what, where)}")
    for split, count in load.samples.items():
        if not count and load.error is None and (split, "missing_file") not in lines:
            defects.append(f"{names[split]}: 0 samples, and the loader says nothing")
    counts = Counter((act.split, act.act) for act in load.acts)
    table: list[Row] = [
        {
            "split": split,
            "samples": load.samples.get(split, 0),
            **{act: n for (s, act), n in counts.items() if s == split},
        }
        for split in LOADED
    ]
    samples = " and ".join(f"{load.samples.get(split, 0)} {split}" for split in LOADED)
    return verdict(
        defects,
        f"{samples} samples, every row as written.",
        f"A training run would have {samples} samples. The other checks of this folder name the file and the line",
        facts={f"{split}_samples": load.samples.get(split, 0) for split in LOADED},
        table=table,
    )


def _silently(act: SilentAct, lines: Sequence[int]) -> str:
    """What the loader does without stopping, and where first."""
    many = f"{len(lines)} rows" if len(lines) > 1 else "a row"
    told = {
        "missing_file": "is missing, and the loader takes that for 0 samples without an error",
        "blank_line_skipped": f"{many} skipped as blank",
        "bad_line_skipped": f"{many} left out because they cannot be parsed",
        "row_dropped": f"{many} left out because the label or a key is wrong",
        "empty_sample": f"{many} kept as an empty sample, at which training fails",
        "truth_of_no_boolean": f"{many} with an answer that is no boolean: any string that is not empty counts as Yes",
        "answer_not_a_choice": f"{many} with an answer that none of the choices has",
    }[act]
    return told if lines[0] == 0 else f"{told} (first: line {lines[0]})"


@judged
def as_migrated(task: TaskFolder) -> Finding:
    """Every file has the digest that the migration recorded, and is the copy or the link that it made."""
    if task.record is None:
        raise MissingArtifactError(f"{task.folder}: there is no record of a migration. Migrate this task first")
    return verdict(
        _changed(task, task.record),
        f"{len(task.record.files)} files of {task.record.version} are as they were migrated.",
        "Somebody changed it since, here or (behind a link) in the old project. Migrate again, and mind what would be "
        "overwritten",
        facts={"version": task.record.version, "mode": task.record.mode, "replaced": len(task.record.history)},
        table=task.record.origin_table(),
    )


def _changed(task: TaskFolder, record: MigrationRecord) -> Iterator[str]:
    made_names = {made.name for made in record.files}
    for file in task.files.values():
        if file.present and file.name not in made_names:
            yield f"{file.name}: is there, and this migration of {record.version} did not put it there"
    for made in record.files:
        path = task.folder / made.name
        if not path.is_file():
            yield f"{made.name}: was {made.how} from {made.source}, and is no file now"
        elif (actual := sha256_file(path)) != made.sha256:
            yield f"{made.name}: sha256 {actual[:12]}…, {made.how} from {made.source} was {made.sha256[:12]}…"
        elif path.is_symlink() != (made.how == "linked"):
            yield f"{made.name}: was {made.how}, and is a {'link' if path.is_symlink() else 'regular file'} now"


# --- how proofs go over files


def _of_kinds(task: TaskFolder, kinds: Sequence[DefectKind], holds: str, todo: str) -> Finding:
    """No line of any file has a defect of these kinds."""
    return _over_rows(task, lambda split, rows: (str(d) for d in rows.of_kind(*kinds)), holds, todo)


def _over_rows(
    task: TaskFolder,
    wrong: Callable[[Split, TaskRows], Iterable[str]],
    holds: str,
    todo: str,
    *,
    splits: Sequence[Split] = (),
    facts: Mapping[str, int | float | str] | None = None,
) -> Finding:
    """A finding over the files of these splits (all by default) that can be read. `holds` follows "every file"."""
    wanted = [f for s, f in task.files.items() if not splits or s in splits]
    left_out = [f.name for f in wanted if f.split not in task.rows and (f.required or f.present)]
    files = [f for f in wanted if f.split in task.rows]
    if not files:
        return _nothing_judged(left_out)
    subject = files[0].name if len(files) == 1 else f"Each of {', '.join(f.name for f in files)}"
    note = f" Not judged: {', '.join(left_out)}." if left_out else ""
    return verdict(
        (f"{f.name}: {defect}" for f in files for defect in wrong(f.split, task.rows[f.split])),
        f"{subject} {holds}.{note}",
        todo,
        facts={"rows": sum(len(task.rows[f.split].rows) for f in files), "not_judged": len(left_out), **(facts or {})},
    )


def _nothing_judged(names: Sequence[str]) -> Finding:
    what = ", ".join(names) or "The file"
    return Finding(
        passed=False,
        warning=True,
        facts={"not_judged": max(len(names), 1)},
        summary=f"{what} cannot be read, so nothing was judged. The checks of files, names and links say why.",
    )


def _nothing_to_compare(task: TaskFolder, why: str) -> Finding:
    return Finding(
        passed=False,
        warning=True,
        facts={"not_judged": 1},
        summary=f"Nothing was compared: {why}. Declare `original`, the folder that holds {task.contract.folder}/.",
    )
