"""The trial of a blend on its first rows, for `dataprep check` and first runs.

Entry point: `build_trial`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.curation.rewriters.rewriting import RewritingError
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.trial import MAX_ROWS, Trial, TrialRows
from dataprep_assets.errors import DataprepError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.declared_fields import transform_rows
from dataprep_assets.pipelines.blend.plan.fields import get_conversation_fields, reads_json
from dataprep_assets.pipelines.blend.remarks import list_datasets_with_keys, list_local_files, open_local_part
from dataprep_assets.pipelines.blend.screening.conversation_columns import COLUMNS, measure_rows, select_text
from dataprep_assets.pipelines.blend.screening.row_rules import Row, load_row_columns
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation, read_preference


def build_trial(blend: BlendDeclaration) -> Trial:
    """Return the trial of a blend. Raises ConfigError for an invalid tagger or rewriter."""
    return Trial(
        taggers=blend.taggers,
        texts=blend.tag_text,
        rewriting=blend.rewriting,
        rules=blend.rules,
        types=blend.columns,
        sensitive=blend.sensitive,
        noun="row",
        scope="the first rows of each dataset",
        read=partial(_read_first_rows, blend),
    )


def _read_first_rows(blend: BlendDeclaration) -> list[TrialRows]:
    """Return the first rows of each local dataset, as `Trial.read` describes."""
    rows: list[TrialRows] = []
    for keys, dataset in list_datasets_with_keys(blend.load_data_blend()):
        files = list_local_files(blend, dataset, keys)
        if not isinstance(files, list) or not files:
            continue
        try:
            first_rows = _read_file(blend, dataset, files[0])
        except RewritingError:
            raise
        except (DataprepError, OSError):  # another remark reports the unreadable source
            continue
        rows += [] if first_rows is None else [first_rows]
    return rows


def _read_file(blend: BlendDeclaration, dataset: BlendDataset, path: Path) -> TrialRows | None:
    """Return the first usable rows of a file; None if it has none."""
    part, columns = open_local_part(blend, dataset, path), load_row_columns(blend, dataset.name)
    # Read only one block, because the part has no digest, which is compared after the last block.
    block = next(iter(part.read_rows(as_json=reads_json(blend))), None)
    if block is None:
        return None
    rows = list(_read_contents(blend, dataset, block.rows[:MAX_ROWS], block.numbers, part.label))
    if not rows:
        return None
    contents = [columns.read(row) for _, row in rows]
    values = {**measure_rows(contents, dataset.name), "row": [number for number, _ in rows]}
    batches = dict[str, DocumentBatch]()
    for choice in dict.fromkeys(("all", *blend.tag_text.values())):
        texts = [select_text(content, choice) for content in contents]
        good = [index for index, text in enumerate(texts) if text]
        batches[choice] = DocumentBatch(values, good, [texts[index] for index in good], part.label, COLUMNS)
    return TrialRows(columns=values, batches=batches)


def _read_contents(
    blend: BlendDeclaration,
    dataset: BlendDataset,
    rows: Sequence[Mapping[str, Any]],
    numbers: Sequence[int],
    label: str,
) -> Iterator[tuple[int, Row]]:
    """Yield the number and the content of each usable row. Raises RewritingError, naming the row."""
    if blend.stage == "rl":
        # Leave out the records of transforms that run code of the user or read other files.
        outcomes = transform_rows(blend, [dict(row) for row in rows]) or []
        yield from (pair for pair in zip(numbers, outcomes, strict=False) if isinstance(pair[1], dict))
        return
    fields = replace(get_conversation_fields(blend.chat_options, dataset), rewriting=blend.rewriting)
    read_row = read_preference if blend.stage == "pairs" else read_conversation
    for number, row in zip(numbers, rows, strict=False):
        try:
            content = read_row(row, fields, blend.chat_options.choices)
        except RewritingError as error:
            raise RewritingError(f"{label}: row {number}: {error}") from error
        if not isinstance(content, Refusal):
            yield number, content
