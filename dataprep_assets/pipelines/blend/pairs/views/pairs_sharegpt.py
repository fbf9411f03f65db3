"""View for LLaMA-Factory and axolotl: JSON Lines with a conversation, and a chosen and a rejected message."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dataprep_assets.formats.conversations.preference_rows import SIDES, PreferenceRow
from dataprep_assets.formats.conversations.sft_rows import split_name
from dataprep_assets.pipelines.blend.pairs.view import LabeledAnswer, PreferenceView, PreferenceViewFacts
from dataprep_assets.stores.files import canonical_json

_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "system_tag": "system",
}


def _build_records(row: PreferenceRow) -> Iterator[dict[str, Any]]:
    sides = {side: answer.messages[0] for side, answer in zip(SIDES, row.answers, strict=True)}
    yield {"messages": row.prompt, **sides}


def _read_answers(record: Mapping[str, Any]) -> Iterator[LabeledAnswer]:
    for name in SIDES:
        yield LabeledAnswer(record["messages"], [record[name]], name == "chosen")


def _build_sidecars(dataset: str, splits: Sequence[str]) -> Mapping[str, bytes]:
    info = {
        f"{dataset}_{split_name(split)}": {
            "file_name": VIEW.get_file_name(split),
            "formatting": "sharegpt",
            "ranking": True,
            "columns": {"messages": "messages", "chosen": "chosen", "rejected": "rejected"},
            "tags": _TAGS,
        }
        for split in splits
    }
    return {"dataset_info.json": canonical_json(info) + b"\n"}


def _format_trainer_lines(where: str, facts: PreferenceViewFacts) -> Iterator[str]:
    split = next(iter(facts.rows))
    folder, file = (json.dumps(path, ensure_ascii=False) for path in (where, f"{where}/{VIEW.get_file_name(split)}"))
    yield f"LLaMA-Factory: stage: dpo, dataset_dir: {folder}, dataset: the name in dataset_info.json"
    yield f"axolotl: rl: dpo, datasets: [{{path: {file}, ds_type: json, split: train, type: chat_template.default}}]"


VIEW = PreferenceView(
    name="pairs_sharegpt",
    description="JSON Lines with a chosen and a rejected message per conversation, for LLaMA-Factory and axolotl.",
    kinds=frozenset({"json"}),
    columns={"messages": "list<object>", "chosen": "object", "rejected": "object"},
    column_descriptions={
        "messages": "Messages before the answers.",
        "chosen": "Message of the chosen answer.",
        "rejected": "Message of the rejected answer.",
    },
    records=_build_records,
    answers=_read_answers,
    trainer=_format_trainer_lines,
    sidecars=_build_sidecars,
    texts_only=True,
)
