"""View for TRL's `GRPOTrainer`: Parquet with a conversational `prompt`, and columns that TRL passes to rewards."""

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

# Include `environment`, because TRL selects an example's environment by this field.
_TEXTS = ("data_source", "environment")


def _build_schema(columns: RecordColumns) -> "pa.Schema":
    import pyarrow as pa

    types = columns.build_schema_fields()
    return pa.schema(
        [
            ("prompt", types["prompt"]),
            ("solution", types["answer"]),
            ("solution_format", pa.string()),
            ("data_source", pa.string()),
            *([("tools", pa.string())] if columns.has_tools else []),
            *([("environment", pa.string())] if "environment" in columns.texts else []),
            ("record", pa.string()),
        ]
    )


def _build_row(values: SharedValues, record: SplitRecord, _: str) -> dict[str, Any]:
    return {
        "prompt": values.prompt,
        "solution": values.answer,
        "solution_format": values.answer_format,
        "data_source": values.texts["data_source"] or record.dataset,
        "tools": values.tools,
        "environment": values.texts["environment"],
        "record": values.record,
    }


def _extract_shared_values(row: Mapping[str, Any]) -> SharedValues:
    return SharedValues(
        prompt=row["prompt"],
        answer=row["solution"],
        answer_format=row["solution_format"],
        tools=row.get("tools"),
        texts={"environment": row.get("environment")},
        values={},
        record=row["record"],
    )


def _compare_values(row: Mapping[str, Any], record: SplitRecord) -> dict[str, tuple[Any, Any]]:
    return {"data_source": (row["data_source"], record.parts.get_text("data_source") or record.dataset)}


def _format_trainer_lines(where: str, facts: RecordViewFacts) -> Iterator[str]:
    # Name no file, because `datasets` finds the files of each split in README.md.
    split = next(iter(facts.files))
    yield f"TRL: GRPOTrainer(train_dataset=load_dataset({where!r})[{split_name(split)!r}], …)"


VIEW = build_parquet_view(
    "grpo",
    "Parquet with a conversational prompt and the expected answer as `solution`, for TRL's `GRPOTrainer`.",
    ParquetRecords(
        texts=_TEXTS,
        values=(),
        schema=_build_schema,
        row=_build_row,
        shared=_extract_shared_values,
        compare=_compare_values,
    ),
    columns={
        "prompt": "list<object>",
        "solution": "any",
        "solution_format": "string",
        "data_source": "string",
        "record": "string",
    },
    column_descriptions={
        "prompt": "Messages of the prompt.",
        "solution": "Expected answer.",
        "solution_format": "Format of the expected answer.",
        "data_source": "Source of the record; by default, the name of the blend's dataset.",
        "record": "The whole record, as JSON.",
    },
    trainer=_format_trainer_lines,
)
