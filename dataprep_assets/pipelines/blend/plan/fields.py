"""Detection of blend datasets without usable data: empty, without the field to read, or with unusable rows only.

Faults are reported before the plan if the source is on this machine (`remarks.py`), and always by the preview.

Entry points: `field_to_read`, `conversation_fields`, `read_fields`, `fault_of_files`, `describe_all_refused`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.fields import value_at
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.losses import describe_by_file
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers.first_rows import ROWS, fields_there, first_rows, none_subject
from dataprep_assets.sources.readers.input_format import ReadOptions
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.sources.readers.unreadable import shape_of
from dataprep_assets.tokenization.chat.messages import ADVICE, FILTERED, ConversationFields, Refusal, read_conversation

_ABSENT: Any = object()
_BLANK = "blank"


def field_to_read(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, str] | None:
    """Return the option that names the field to read, and the field; None for RL, where transforms decide."""
    if blend.stage == "pretrain":
        return "text_field", dataset.text_field
    if blend.stage == "sft":
        return "messages_field", dataset.messages_field or blend.sft_options.messages_field
    return None


def conversation_fields(options: SftOptions, dataset: BlendDataset) -> ConversationFields:
    """Return the fields of messages and tools in a dataset's rows: the dataset's own, or the fields of `options`."""
    return ConversationFields(
        messages=dataset.messages_field or options.messages_field,
        tools=dataset.tools_field or options.tools_field,
        used_in=options.used_in_field,
        used_in_filter=options.used_in_filter,
    )


def read_fields(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, ...] | None:
    """Return the fields that the shards of a dataset read; None for RL, which reads whole rows."""
    if blend.stage == "pretrain":
        return (dataset.text_field,)
    return conversation_fields(blend.sft_options, dataset).names if blend.stage == "sft" else None


def fault_of_files(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Iterable[Path], *, whole: bool = True
) -> str | None:
    """Return a sentence on the fault of a dataset, from the first rows of its files; None without a fault.

    Other checks report unreadable files.

    Args:
        blend: The declaration.
        dataset: One of its datasets.
        paths: Some of its files, in order.
        whole: Whether these are all its files, so that a lack of rows means an empty dataset.
    """
    files = list(paths)
    try:
        return _fault_of_rows(blend, dataset, files, whole=whole)
    except (CorruptSourceError, OSError):
        return None


def describe_all_refused(
    blend: BlendDeclaration,
    dataset: BlendDataset,
    paths: Iterable[Path],
    refusal: Callable[[dict[str, Any]], str | None],
) -> str | None:
    """Return a sentence that counts by file why no row is usable, with the first error; None if a row is usable.

    Args:
        blend: The declaration.
        dataset: One of its datasets.
        paths: Some of its files, whose first rows are read.
        refusal: Returns why a row is unusable; None if it is usable.

    Raises CorruptSourceError or OSError if a file cannot be read.
    """
    files: dict[str, Counter[str]] = {}
    first_error = ""
    for path in paths:
        for number, reason in _refusals(path, dataset.reading, refusal):
            if reason is None:
                return None
            where = "a file" if blend.sensitive else path.name
            first_error = first_error or f"{where}, row {number}: {reason}"
            # the part in brackets is left out, because it may name a message, which differs from row to row
            files.setdefault(reason.partition(" (")[0], Counter())[path.name] += 1
    if not files:
        return None
    counts = ", ".join(files) if blend.sensitive else describe_by_file(files)
    return f"dataset {dataset.name}: none of the rows read can be used: {counts}. First error: {first_error}"


def _refusals(
    path: Path, reading: ReadOptions, refusal: Callable[[dict[str, Any]], str | None]
) -> Iterator[tuple[int, str | None]]:
    """Yield the numbers of a file's first rows, and why each is unusable; None if it is usable."""
    kind, compression = file_format(path.name)
    row_count = 0
    for block in read_rows(path, format=kind, compression=compression, label=path.name, reading=reading):
        # lines that cannot be parsed are in a separate list
        outcomes: list[tuple[int, str | None]] = [(bad.row, bad.reason) for bad in block.bad]
        outcomes += [(number, refusal(row)) for row, number in zip(block.rows, block.numbers, strict=True)]
        yield from sorted(outcomes, key=lambda pair: pair[0])
        row_count += len(outcomes)
        if row_count >= ROWS:
            return


def _fault_of_rows(blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path], *, whole: bool) -> str | None:
    """Do the work of `fault_of_files`; raise CorruptSourceError or OSError if a file cannot be read."""
    field_option = field_to_read(blend, dataset)
    looked_at: list[dict[str, Any]] = []
    reasons: dict[str, Counter[str]] = {}
    having = 0
    rows = ((path, row) for path in paths for row in first_rows([path], dataset.reading))
    for file, row in itertools.islice(rows, ROWS):
        if field_option is None or (reason := why_unusable(blend, dataset, row)) is None:
            return None
        reasons.setdefault(reason, Counter())[file.name] += 1
        having += value_at(row, field_option[1], _ABSENT) is not _ABSENT
        looked_at.append(row)
    count = len(looked_at)
    if not count and whole:
        return f"dataset {dataset.name} is empty: no rows found in {dataset.path}"
    if field_option is None or not any(looked_at):
        return None
    # any text can be the name of a field, so a sensitive dataset's fields are not shown
    fields_note = fields_there(looked_at, field_option[1], hidden=blend.sensitive)
    sentence = f"`{field_option[0]}: {field_option[1]}`: {none_subject(count)} of dataset {dataset.name}"
    sentence += "" if blend.sensitive else f", from {paths[0].name} on,"
    if not having:
        # a single row may mean that the file is not JSON Lines
        kind = shape_of(paths[0], *file_format(paths[0].name)) if count == 1 else None
        return f"{sentence} has it{fields_note}" + ("" if kind is None else f"; {kind}")
    if count == ROWS and (blend.bad_records.policy == "drop" or {*reasons} == {_BLANK}):
        return None  # later rows may be usable
    main_reason = max(reasons, key=lambda reason: reasons[reason].total())
    advice = f" ({ADVICE[main_reason]})" if main_reason in ADVICE else ""
    counts = ", ".join(reasons) if blend.sensitive else describe_by_file(reasons)
    return f"{sentence} can be used: {counts}{advice}{fields_note}"


def why_unusable(blend: BlendDeclaration, dataset: BlendDataset, row: dict[str, Any]) -> str | None:
    """Return why a row is unusable for training, in a word or two; None if it is usable."""
    if blend.stage == "sft":
        fields = conversation_fields(blend.sft_options, dataset)
        conversation = read_conversation(row, fields, blend.sft_options.choices)
        return (
            conversation.reason if isinstance(conversation, Refusal) and conversation.reason not in FILTERED else None
        )
    text = value_at(row, dataset.text_field)
    if not isinstance(text, str):
        return "not a string"
    return None if text.strip() else _BLANK
