"""View for TRL's `KTOTrainer`: Parquet with one answer per row, and a label that is true for chosen answers."""

from collections.abc import Iterator, Mapping
from typing import Any

from dataprep_assets.formats.conversations.preference_rows import PreferenceRow
from dataprep_assets.formats.conversations.sft_rows import split_name
from dataprep_assets.pipelines.blend.pairs.view import LabeledAnswer, PreferenceView, PreferenceViewFacts


def _build_records(row: PreferenceRow) -> Iterator[dict[str, Any]]:
    for label, answer in ((True, row.chosen_answer), (False, row.rejected_answer)):
        if answer is not None:
            yield {
                "prompt": row.prompt,
                "completion": answer.messages,
                "label": label,
                "tools": row.tools,
                "chat_template_kwargs": dict(row.kwargs),
            }


def _read_answers(record: Mapping[str, Any]) -> Iterator[LabeledAnswer]:
    yield LabeledAnswer(record["prompt"], record["completion"], record["label"])


def _format_trainer_lines(where: str, facts: PreferenceViewFacts) -> Iterator[str]:
    split = split_name(next(iter(facts.rows)))
    yield f"TRL: KTOTrainer(train_dataset=load_dataset({where!r}, split={split!r}))"


VIEW = PreferenceView(
    name="kto",
    description="Parquet with one answer per row and its label (good or bad), for TRL's `KTOTrainer`.",
    kinds=frozenset({"parquet", "huggingface"}),
    columns={
        "prompt": "list<arrow.json>",
        "completion": "list<arrow.json>",
        "label": "bool",
        "tools": "arrow.json",
        "chat_template_kwargs": "arrow.json",
    },
    column_descriptions={
        "prompt": "Messages before the answer.",
        "completion": "Messages of the answer.",
        "label": "Whether the answer is the chosen one.",
        "tools": "Declared tools.",
        "chat_template_kwargs": "Variables of the chat template.",
    },
    records=_build_records,
    answers=_read_answers,
    trainer=_format_trainer_lines,
    is_parquet=True,
    per_answer=True,
)
