"""Fields that a blend reads, and faults of its datasets: no rows, a missing field, or only unusable rows.

`remarks.py` reports faults of local sources before the plan is built, and the preview reports faults of all sources.

Entry points: `find_field_option`, `get_conversation_fields`, `list_read_fields`, `reads_json`, `find_fault`,
`describe_all_refused`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.fields import value_at
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.losses import describe_by_file
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers.first_rows import ROWS, format_subject, list_present_fields, read_first_rows
from dataprep_assets.sources.readers.read_options import ReadOptions
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.sources.readers.unreadable import detect_file_shape
from dataprep_assets.tokenization.chat.messages import (
    ADVICE,
    FILTERED,
    Conversation,
    ConversationFields,
    Refusal,
    read_conversation,
    read_preference,
)
from dataprep_assets.tokenization.chat.row_forms import NO_FORM

_ABSENT: Any = object()
_BLANK = "blank"


def find_field_option(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, str] | None:
    """Return the option that sets the field to read, and the field; None for RL, where transforms select fields."""
    if blend.stage == "pretrain":
        return "text_field", dataset.text_field
    if blend.stage in ("sft", "pairs"):
        return "messages_field", dataset.messages_field or blend.chat_options.messages_field
    return None


def get_conversation_fields(options: SftOptions, dataset: BlendDataset) -> ConversationFields:
    """Return the fields of a conversation in a dataset's rows; the dataset's own keys override the `options`."""
    return ConversationFields(
        messages=dataset.messages_field or options.messages_field,
        tools=dataset.tools_field or options.tools_field,
        used_in=options.used_in_field,
        used_in_filter=options.used_in_filter,
        format=dataset.format or options.format,
    )


def list_read_fields(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, ...] | None:
    """Return the fields that the shards of a dataset read; None for stages that read whole rows."""
    return (dataset.text_field,) if blend.stage == "pretrain" else None


def reads_json(blend: BlendDeclaration) -> bool:
    """Return whether the shards of a blend read Parquet rows as JSON (see `InputFile`)."""
    if blend.stage in ("sft", "pairs"):
        return blend.chat_options.choices.reads_json
    return blend.stage == "rl" and blend.rl_options.rules.reads_json


def find_fault(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Iterable[Path], *, is_whole: bool = True
) -> str | None:
    """Return a sentence about a fault in the first rows of a dataset's files; None if there is no fault.

    None is also returned for unreadable files, which other checks report.

    Args:
        blend: The declaration.
        dataset: One of the blend's datasets.
        paths: Some of the dataset's files, in order.
        is_whole: Whether `paths` are all files of the dataset, so that the dataset is empty if they have no rows.
    """
    files = list(paths)
    try:
        return _find_fault_of_rows(blend, dataset, files, is_whole=is_whole)
    except (CorruptSourceError, OSError):
        return None


def describe_all_refused(
    blend: BlendDeclaration,
    dataset: BlendDataset,
    paths: Iterable[Path],
    refusal: Callable[[dict[str, Any]], str | None],
) -> str | None:
    """Return a sentence with the reasons, by file, why none of the rows read is usable; None if one is usable.

    Args:
        blend: The declaration.
        dataset: One of the blend's datasets.
        paths: Some of the dataset's files, whose first rows are read.
        refusal: Returns the reason why a row is unusable; None if it is usable.

    Raises CorruptSourceError or OSError if a file cannot be read.
    """
    files: dict[str, Counter[str]] = {}
    first_error = ""
    for path in paths:
        for number, reason in _find_refusals(path, dataset.reading, refusal, reads_json(blend)):
            if reason is None:
                return None
            location = "a file" if blend.sensitive else path.name
            first_error = first_error or f"{location}, row {number}: {reason}"
            # Omit the part of the reason in parentheses, because it may describe a single message, and rows with the
            # same problem should be counted together.
            files.setdefault(reason.partition(" (")[0], Counter())[path.name] += 1
    if not files:
        return None
    counts = ", ".join(files) if blend.sensitive else describe_by_file(files)
    return f"dataset {dataset.name}: none of the rows examined can be used: {counts}. First error: {first_error}"


def _find_refusals(
    path: Path, reading: ReadOptions, refusal: Callable[[dict[str, Any]], str | None], as_json: bool
) -> Iterator[tuple[int, str | None]]:
    """Yield the number of each of a file's first rows, with the reason why it is unusable; None if it is usable."""
    kind, compression = file_format(path.name)
    row_count = 0
    for block in read_rows(
        path, format=kind, compression=compression, label=path.name, reading=reading, as_json=as_json
    ):
        # Merge the rows with the records that cannot be parsed, because the reader returns the two separately.
        outcomes: list[tuple[int, str | None]] = [(bad.row, bad.reason) for bad in block.bad]
        outcomes += [(number, refusal(row)) for row, number in zip(block.rows, block.numbers, strict=True)]
        yield from sorted(outcomes, key=lambda pair: pair[0])
        row_count += len(outcomes)
        if row_count >= ROWS:
            return


def _find_fault_of_rows(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path], *, is_whole: bool
) -> str | None:
    """Return the sentence of `find_fault`. Raises CorruptSourceError or OSError if a file cannot be read."""
    field_option = find_field_option(blend, dataset)
    examined_rows: list[dict[str, Any]] = []
    reasons: dict[str, Counter[str]] = {}
    rows_with_field = 0
    as_json = reads_json(blend)
    rows = ((path, row) for path in paths for row in read_first_rows([path], dataset.reading, as_json=as_json))
    for file, row in itertools.islice(rows, ROWS):
        if field_option is None or (reason := explain_unusable(blend, dataset, row)) is None:
            return None
        reasons.setdefault(reason, Counter())[file.name] += 1
        has_form = blend.stage in ("sft", "pairs") and reason != NO_FORM
        rows_with_field += has_form or value_at(row, field_option[1], _ABSENT) is not _ABSENT
        examined_rows.append(row)
    count = len(examined_rows)
    if not count and is_whole:
        return f"dataset {dataset.name} is empty: no rows found in {dataset.path}"
    if field_option is None or not any(examined_rows):
        return None
    # Hide the fields of a sensitive dataset, because a field's name may itself be sensitive.
    fields_note = list_present_fields(examined_rows, field_option[1], hidden=blend.sensitive)
    first_file = "" if blend.sensitive else f" (first file: {paths[0].name})"
    subject = f"dataset {dataset.name}{first_file}: {format_subject(count)}"
    sentence = f"`{field_option[0]}: {field_option[1]}`: {subject}"
    is_default = field_option[1] == ConversationFields.messages
    is_any_pair = blend.stage == "pairs" and get_conversation_fields(blend.chat_options, dataset).format == "auto"
    if is_any_pair and {*reasons} == {NO_FORM} and (rows_with_field or is_default):
        remedy = ". Use `stage: sft` for conversations" if _has_conversation(blend, dataset, examined_rows) else ""
        answers = "`chosen` and `rejected`, or with an answer and its boolean `label`"
        return f"{subject} has a prompt with {answers}{remedy}{fields_note}"
    if not rows_with_field:
        # If only one row was read, detect the shape of the file, because it may not be JSON Lines.
        kind = detect_file_shape(paths[0], *file_format(paths[0].name)) if count == 1 else None
        forms = f" ({ADVICE[NO_FORM]})" if is_default else ""
        return f"{sentence} has this field{forms}{fields_note}" + ("" if kind is None else f"; {kind}")
    if count == ROWS and (blend.bad_records.policy == "drop" or {*reasons} == {_BLANK}):
        return None  # report nothing, because later rows may be usable
    main_reason = max(reasons, key=lambda reason: reasons[reason].total())
    advice = f" ({ADVICE[main_reason]})" if main_reason in ADVICE else ""
    counts = ", ".join(reasons) if blend.sensitive else describe_by_file(reasons)
    return f"{sentence} can be used: {counts}{advice}{fields_note}"


def _has_conversation(blend: BlendDeclaration, dataset: BlendDataset, rows: Iterable[dict[str, Any]]) -> bool:
    """Return whether one of the rows is a conversation of any form, which `stage: sft` can use."""
    fields = replace(get_conversation_fields(blend.chat_options, dataset), format="auto")
    return any(isinstance(read_conversation(row, fields, blend.chat_options.choices), Conversation) for row in rows)


def explain_unusable(blend: BlendDeclaration, dataset: BlendDataset, row: dict[str, Any]) -> str | None:
    """Return a short reason why a row cannot be used for training; None if it can, or if the declaration filters it."""
    if blend.stage in ("sft", "pairs"):
        read = read_preference if blend.stage == "pairs" else read_conversation
        conversation = read(row, get_conversation_fields(blend.chat_options, dataset), blend.chat_options.choices)
        return (
            conversation.reason if isinstance(conversation, Refusal) and conversation.reason not in FILTERED else None
        )
    text = value_at(row, dataset.text_field)
    if not isinstance(text, str):
        return "not a string"
    return None if text.strip() else _BLANK
