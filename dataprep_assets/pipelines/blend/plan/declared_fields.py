"""Remarks on declared fields that none of a blend's first rows has, and on RL transforms and rules that need them.

The fields of the text and of the messages have their own remarks (`fields.py`).

Entry points: `LocalDataset`, `find_absent_field_remarks`, `extend_keys`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import DataprepError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.fields import reads_json
from dataprep_assets.pipelines.blend.rl.apply_transforms import SkippedRecord, apply_transforms
from dataprep_assets.pipelines.blend.rl.options import AUTO, NOWHERE, RESOLVE
from dataprep_assets.pipelines.blend.rl.record_parts import PartPaths
from dataprep_assets.pipelines.blend.rl.transforms import Record, compose_steps
from dataprep_assets.pipelines.blend.screening.conversation_columns import COLUMNS, measure_rows
from dataprep_assets.pipelines.blend.screening.row_texts import read_record
from dataprep_assets.sources.readers.first_rows import (
    FILES,
    ROWS,
    describe_absent_field,
    format_subject,
    list_present_fields,
    read_first_rows,
    sample_files,
)

Keys = tuple[str | int, ...]
_ANSWER_COLUMNS = frozenset({"answer_characters", "last_answer_characters", "answer_question_ratio"})
_PROMPT_COLUMNS = COLUMNS.keys() - {"source", "bytes", "characters"}
"""Columns of the document table that need the answer or the prompt of an RL record."""


def extend_keys(keys: Keys, name: str) -> Keys:
    """Return the YAML key of a setting of the dataset at `keys`; the key `blend` for a blend in a separate file."""
    return keys if keys == ("blend",) else (*keys, name)


@dataclass(frozen=True, kw_only=True)
class LocalDataset:
    """A dataset whose files are on this machine.

    Attributes:
        keys: YAML key for remarks on the dataset; the key `blend` for a blend in a separate file.
        split: Key of the blend that lists the dataset: `datasets`, or a split.
        dataset: The dataset.
        files: Its files, in order.
    """

    keys: Keys
    split: str
    dataset: BlendDataset
    files: Sequence[Path]

    def find_keys(self, name: str) -> Keys:
        """Return the YAML key of one of the dataset's settings."""
        return extend_keys(self.keys, name)

    def read_rows(self, blend: BlendDeclaration) -> list[dict[str, Any]]:
        """Return the first rows; an empty list if a file cannot be read, which other remarks report."""
        with suppress(DataprepError, OSError):
            rows = read_first_rows(sample_files(self.files), self.dataset.reading, as_json=reads_json(blend))
            return [row for row in rows if row]
        return []


def find_absent_field_remarks(
    blend: BlendDeclaration, datasets: Sequence[LocalDataset], *, is_whole: bool
) -> Iterator[Remark]:
    """Yield remarks on declared fields that none of the first rows of a dataset has.

    Such a field is a mistake if every row needs it, or if no row of any dataset has it. Otherwise the remark is a hint,
    because later rows may have the field.

    Args:
        blend: The declaration.
        datasets: Its datasets whose files are on this machine.
        is_whole: Whether these are all datasets of the blend.
    """
    absences: list[tuple[Keys, str, str]] = []
    present_options = set[str]()
    records_of_datasets: list[tuple[str, list[Record]]] = []
    is_local = is_whole
    for local in datasets:
        if blend.stage != "rl" and not any(_list_row_fields(blend, local)):
            continue
        rows, name = local.read_rows(blend), local.dataset.name
        is_whole &= len(rows) < ROWS and len(local.files) <= FILES
        fields = [(keys, option, rows, f"dataset {name}") for keys, option in _list_row_fields(blend, local)]
        if blend.stage == "rl" and (outcomes := transform_rows(blend, rows)) is not None:
            records = [outcome for outcome in outcomes if isinstance(outcome, dict)]
            records_of_datasets.append((name, records))
            if (step := _find_skipping_step(outcomes)) is not None:
                sentence = (
                    f"`rl.transforms`: dataset {name}: {format_subject(len(rows))} has the fields that `{step}` needs"
                )
                fields_note = list_present_fields(rows, "", hidden=blend.sensitive)
                yield Remark(keys=("rl", "transforms"), sentence=sentence + fields_note)
            fields += [(keys, option, records, f"records of dataset {name}") for keys, option in _list_parts(blend)]
        for keys, (key, field), field_rows, owner in fields:
            absence = describe_absent_field(field_rows, key, field, owner, hidden=blend.sensitive)
            if absence is not None:
                absences.append((keys, key, absence))
            elif any(field_rows):
                present_options.add(key)
    for keys, key, absence in absences:
        is_needed = key == "rl.prompt"  # of every record
        yield Remark(keys=keys, sentence=absence, hint=not is_needed and (key in present_options or not is_whole))
    if is_local and len(records_of_datasets) == len(datasets):
        yield from _find_rule_remarks(blend, records_of_datasets)


def _list_row_fields(blend: BlendDeclaration, local: LocalDataset) -> Iterator[tuple[Keys, tuple[str, str]]]:
    """Yield each declared field that is read from rows of the source: its YAML key, and the option with its value."""
    if blend.id_field is not None:
        yield ("id_field",), ("id_field", blend.id_field)
    for path in blend.keep_fields or ():
        yield ("keep_fields", path), ("keep_fields", path)
    options = {"sft": blend.sft, "pairs": blend.pairs}.get(blend.stage)
    if blend.stage in ("sft", "pairs") and local.dataset.tools_field is not None:
        yield local.find_keys("tools_field"), ("tools_field", local.dataset.tools_field)
    elif options is not None and options.tools_field != type(options).model_fields["tools_field"].default:
        yield (blend.stage, "tools_field"), ("tools_field", options.tools_field)
    if options is not None and options.used_in_filter:
        yield (blend.stage, "used_in_field"), ("used_in_field", options.used_in_field)


def _list_parts(blend: BlendDeclaration) -> Iterator[tuple[Keys, tuple[str, str]]]:
    """Yield each declared field of RL records: its YAML key, and the option with its value."""
    for key, field in blend.record_locations.items():
        if field not in (AUTO, NOWHERE):
            yield ("rl", key), (f"rl.{key}", field)


def transform_rows(blend: BlendDeclaration, rows: Sequence[Record]) -> list[Any] | None:
    """Return the outcomes of the transforms; None if they run code of the user, read other files, or are invalid."""
    options = blend.rl_options
    with suppress(DataprepError):  # a different remark reports invalid transforms
        steps = compose_steps(options.transforms, rules=options.rules)
        if not any(step.is_user_function or step.name == RESOLVE for step in steps):
            # Accept records without a prompt, whose field is a remark of its own.
            rules = replace(options.rules, prompt=NOWHERE)
            return [apply_transforms(row, steps, rules, "") for row in rows]
    return None


def _find_skipping_step(outcomes: Sequence[Any]) -> str | None:
    """Return the transform that left out all records; None if there is a record, or if several transforms did."""
    names = {outcome.by if isinstance(outcome, SkippedRecord) else None for outcome in outcomes}
    return names.pop() if len(names) == 1 else None


def _find_rule_remarks(
    blend: BlendDeclaration, records_of_datasets: Sequence[tuple[str, Sequence[Record]]]
) -> Iterator[Remark]:
    """Yield a hint for each rule with a column that needs a prompt or an answer, if no examined record has one."""
    rules = {name: rule.columns & _PROMPT_COLUMNS for name, (_, rule) in blend.rules.items()}
    if not any(rules.values()):
        return
    paths = PartPaths.from_options(blend.rl_options)
    used_columns, has_records, has_prompts, has_answers = set[str](), False, False, False
    for dataset, records in records_of_datasets:
        values = measure_rows([read_record(record, paths) for record in records], dataset)
        used_columns |= {column for column in _PROMPT_COLUMNS if any(values[column])}
        for prompts, answers in map(paths.find_values, records):
            has_records, has_prompts, has_answers = True, has_prompts or bool(prompts), has_answers or bool(answers)
    for name, columns in rules.items() if has_records else ():
        for column in sorted(columns - used_columns):
            part = "prompt" if not has_prompts else "answer" if column in _ANSWER_COLUMNS and not has_answers else None
            if part is not None:
                key = "keep" if name in blend.keep else "drop"
                sentence = (
                    f"{key}.{name}: `{column}` is the same in all examined records, because none has a known {part}. "
                    f"Set `rl.{part}` to its field, or remove the rule"
                )
                yield Remark(keys=(key, name), sentence=sentence, hint=True)
