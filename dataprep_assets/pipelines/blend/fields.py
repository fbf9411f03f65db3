"""Finds datasets of a blend with nothing to train on: they are empty, or no row has the field to read, or one of use.

Reported before the plan if the source is on this machine (`remarks.py`), and by the preview in any case.

Entry points: `asked_field`, `conversation_fields`, `read_fields`, `fault_of_files`, `first_refused`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.losses import by_reason
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sentences import safe, sentence
from dataprep_assets.sources.first_rows import ROWS, first_rows
from dataprep_assets.sources.rows import read_rows
from dataprep_assets.tokenization.chat.messages import ADVICE, FILTERED, ConversationFields, Refusal, read_conversation

_SHOWN = 8
"""Most fields that a message names."""
_BLANK = "blank"


def asked_field(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, str] | None:
    """The option that names the field to read from a dataset, and the field; None for RL, where transforms decide."""
    if blend.stage == "pretrain":
        return "text_field", dataset.text_field
    if blend.stage == "sft":
        return "messages_field", dataset.messages_field or blend.sft_options.messages_field
    return None


def conversation_fields(options: SftOptions, dataset: BlendDataset) -> ConversationFields:
    """Where the messages and tools of a dataset's rows are: its own fields, or those of `options`."""
    return ConversationFields(
        messages=dataset.messages_field or options.messages_field,
        tools=dataset.tools_field or options.tools_field,
        used_in=options.used_in_field,
        used_in_filter=options.used_in_filter,
    )


def read_fields(blend: BlendDeclaration, dataset: BlendDataset) -> tuple[str, ...] | None:
    """The fields that the shards of a dataset read of its rows; None for RL, which reads whole rows."""
    if blend.stage == "pretrain":
        return (dataset.text_field,)
    return conversation_fields(blend.sft_options, dataset).names if blend.stage == "sft" else None


def fault_of_files(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Iterable[Path], *, whole: bool = True
) -> str | None:
    """What is wrong with a dataset, in a sentence, from the first rows of its files; None if nothing is found.

    Unreadable files are left to others.

    Args:
        blend: The declaration.
        dataset: One of its datasets.
        paths: Files of it, in order.
        whole: Whether these are all its files, so that it is empty if they are.
    """
    files = list(paths)
    try:
        return _fault_of_rows(blend, dataset, files, whole=whole)
    except (CorruptSourceError, OSError):
        return None


def first_refused(blend: BlendDeclaration, dataset: BlendDataset, paths: Iterable[Path]) -> str | None:
    """A sentence that names the first row, of files of which no row can be trained, and why not; None if it can.

    Raises CorruptSourceError or OSError for a file that cannot be read.
    """
    for path in paths:
        kind, compression = file_format(path.name)
        for block in read_rows(path, format=kind, compression=compression, label=path.name):
            # No row of these files can be used, so the first one is enough. It is a line that cannot be parsed or a row
            # that is refused; these are in lists of their own, and the lower number was first.
            refused = [(bad.row, bad.reason) for bad in block.bad[:1]]
            for row, number in zip(block.rows, block.numbers, strict=True):
                if asked_field(blend, dataset) is None or (reason := _of_no_use(blend, dataset, row)) is None:
                    return None
                refused.append((number, reason))
                break
            if refused:
                number, reason = min(refused)
                file = "a file" if blend.sensitive else path.name
                return sentence(
                    f"dataset {dataset.name}: no row that was read can be used; {file}, row {safe(number)}: {reason}"
                )
    return None


def _fault_of_rows(blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path], *, whole: bool) -> str | None:
    """As `fault_of_files`; raises CorruptSourceError or OSError for a file that cannot be read."""
    asked = asked_field(blend, dataset)
    seen: dict[str, None] = {}
    reasons: Counter[str] = Counter()
    count = having = 0
    for row in first_rows(paths):
        if asked is None or (reason := _of_no_use(blend, dataset, row)) is None:
            return None
        reasons[reason] += 1
        count += 1
        having += asked[1] in row
        seen.update(dict.fromkeys(row))
    if not count and whole:
        return f"dataset {dataset.name} is empty: there is no row in {dataset.path}"
    if asked is None or not seen:
        return None
    shown = ", ".join(f"`{name}`" for name in list(seen)[:_SHOWN]) + (", …" if len(seen) > _SHOWN else "")
    # any text can be a field's name, so those of a sensitive dataset are not shown
    told = "" if blend.sensitive else f"; they have {shown}"
    begun = f"`{asked[0]}: {asked[1]}`: none of the first {count:,} rows of dataset {dataset.name}"
    begun += "" if blend.sensitive else f", from {paths[0].name} on,"
    if not having:
        return f"{begun} has it{told}"
    if count == ROWS and (blend.bad_records.policy == "drop" or {*reasons} == {_BLANK}):
        return None  # later rows may be of use
    ((first, _),) = reasons.most_common(1)
    advice = f" ({ADVICE[first]})" if first in ADVICE else ""
    return f"{begun} can be used: {', '.join(reasons) if blend.sensitive else by_reason(reasons)}{advice}{told}"


def _of_no_use(blend: BlendDeclaration, dataset: BlendDataset, row: dict[str, Any]) -> str | None:
    """Why nothing of a row can be trained, in a word or two; None if something can."""
    if blend.stage == "sft":
        fields = conversation_fields(blend.sft_options, dataset)
        found = read_conversation(row, fields, blend.sft_options.choices)
        return found.reason if isinstance(found, Refusal) and found.reason not in FILTERED else None
    text = row.get(dataset.text_field)
    if not isinstance(text, str):
        return "not a text"
    return None if text.strip() else _BLANK
