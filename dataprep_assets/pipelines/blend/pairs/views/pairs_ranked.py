"""View for NeMo-RL's `PreferenceDataset`: JSON Lines with a context and ranked completions."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dataprep_assets.formats.conversations.preference_rows import PreferenceRow
from dataprep_assets.pipelines.blend.pairs.view import LabeledAnswer, PreferenceView, PreferenceViewFacts


def _build_records(row: PreferenceRow) -> Iterator[dict[str, Any]]:
    completions = [{"rank": rank, "completion": answer.messages} for rank, answer in enumerate(row.answers)]
    yield {"context": row.prompt, "completions": completions}


def _read_answers(record: Mapping[str, Any]) -> Iterator[LabeledAnswer]:
    for completion in sorted(record["completions"], key=lambda completion: int(completion["rank"])):
        yield LabeledAnswer(record["context"], completion["completion"], completion["rank"] == 0)


def _format_trainer_lines(where: str, facts: PreferenceViewFacts) -> Iterator[str]:
    keys = {"train": "train", "valid": "validation"}
    entries = [
        f"{keys[split]}: {{dataset_name: PreferenceDataset, data_path: "
        f"{json.dumps(f'{where}/{VIEW.get_file_name(split)}', ensure_ascii=False)}}}"
        for split in facts.rows
        if split in keys
    ]
    yield f"NeMo-RL: data: {{{', '.join(entries)}}}"


VIEW = PreferenceView(
    name="pairs_ranked",
    description="JSON Lines with a context and two ranked completions, for NeMo-RL's `PreferenceDataset`.",
    kinds=frozenset({"json"}),
    columns={"context": "list<object>", "completions": "list<object>"},
    column_descriptions={"context": "Messages before the answers.", "completions": "Answers with their ranks."},
    records=_build_records,
    answers=_read_answers,
    trainer=_format_trainer_lines,
    texts_only=True,
)
