"""View for verl's `RLHFDataset`: Parquet with `data_source`, `prompt`, `ability`, `reward_model` and `extra_info`."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dataprep_assets.formats.conversations.sft_rows import split_name
from dataprep_assets.pipelines.blend.rl.record_columns import (
    ParquetRecords,
    RecordColumns,
    SharedValues,
    build_parquet_view,
)
from dataprep_assets.pipelines.blend.rl.view import RecordViewFacts, SplitRecord

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS = ("data_source", "ability", "agent_name")
# These fields have native columns instead of JSON text, because verl's agent loops need objects.
_KWARGS = ("need_tools_kwargs", "tools_kwargs", "interaction_kwargs")


def _build_schema(columns: RecordColumns) -> "pa.Schema":
    import pyarrow as pa

    types = columns.build_schema_fields()
    extra_fields = [
        ("index", pa.int64()),
        ("split", pa.string()),
        ("ground_truth_format", pa.string()),
        *([("tools", pa.string())] if columns.has_tools else []),
        *((name, types[name]) for name in _KWARGS if name in types),
        ("record", pa.string()),
    ]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", types["prompt"]),
            ("ability", pa.string()),
            *([("agent_name", pa.string())] if "agent_name" in columns.texts else []),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", types["answer"])])),
            ("extra_info", pa.struct(extra_fields)),
        ]
    )


def _choose_style(record: SplitRecord) -> str:
    """Return the record's own style or, without one, `rule` if the record has an expected answer, otherwise `model`."""
    reward_model = record.parts.record.get("reward_model")
    if isinstance(reward_model, dict) and isinstance(style := reward_model.get("style"), str):
        return style
    return "model" if record.parts.answer is None else "rule"


def _build_row(values: SharedValues, record: SplitRecord, split: str) -> dict[str, Any]:
    texts = values.texts
    return {
        "data_source": texts["data_source"] or record.dataset,
        "prompt": values.prompt,
        "ability": texts["ability"] or "",
        "agent_name": texts["agent_name"],
        "reward_model": {"style": _choose_style(record), "ground_truth": values.answer},
        "extra_info": {
            "index": record.number,
            "split": split,
            "ground_truth_format": values.answer_format,
            "tools": values.tools,
            **values.values,
            "record": values.record,
        },
    }


def _extract_shared_values(row: Mapping[str, Any]) -> SharedValues:
    extra_info = row["extra_info"]
    return SharedValues(
        prompt=row["prompt"],
        answer=row["reward_model"]["ground_truth"],
        answer_format=extra_info["ground_truth_format"],
        tools=extra_info.get("tools"),
        texts={"agent_name": row.get("agent_name")},
        values={name: extra_info[name] for name in _KWARGS if name in extra_info},
        record=extra_info["record"],
    )


def _compare_values(row: Mapping[str, Any], record: SplitRecord) -> dict[str, tuple[Any, Any]]:
    parts = record.parts
    return {
        "data_source": (row["data_source"], parts.get_text("data_source") or record.dataset),
        "ability": (row["ability"], parts.get_text("ability") or ""),
        "reward_model.style": (row["reward_model"]["style"], _choose_style(record)),
        "extra_info.index": (row["extra_info"]["index"], record.number),
    }


def _format_trainer_lines(where: str, facts: RecordViewFacts) -> Iterator[str]:
    keys = {"train": "data.train_files", "validation": "data.val_files"}
    settings = []
    for split, files in facts.files.items():
        if (key := keys.get(split_name(split))) is not None:  # verl has no setting for other splits
            paths = [f"{where}/{name}" for name in files]
            settings.append(f"{key}={paths[0] if len(paths) == 1 else json.dumps(paths, ensure_ascii=False)}")
    yield f"verl: {' '.join(settings) or where}"


VIEW = build_parquet_view(
    "verl",
    "Parquet with prompt, data source, reward model and extra information, for verl's `RLHFDataset`.",
    ParquetRecords(
        texts=_TEXTS,
        values=tuple(("extra_info", name) for name in _KWARGS),
        schema=_build_schema,
        row=_build_row,
        shared=_extract_shared_values,
        compare=_compare_values,
    ),
    columns={
        "data_source": "string",
        "prompt": "list<object>",
        "ability": "string",
        "reward_model": "object",
        "extra_info": "object",
    },
    column_descriptions={
        "data_source": "Source of the record, by which the trainer chooses its reward function.",
        "prompt": "Messages of the prompt.",
        "ability": "Kind of the task.",
        "reward_model": "Style of the reward, and the expected answer.",
        "extra_info": "Other fields of the record.",
    },
    trainer=_format_trainer_lines,
)
