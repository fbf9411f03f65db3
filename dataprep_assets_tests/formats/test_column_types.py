"""The columns in asset metadata are the columns of the written files."""

import pyarrow as pa
import pytest

from dataprep_assets.formats import hf_parquet, packed_rows


def spelled(schema: pa.Schema) -> dict[str, str]:
    return {field.name: f"list<{field.type.value_type}>" for field in schema}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (packed_rows.build_schema(), packed_rows.list_column_types()),
        (hf_parquet._build_schema(), hf_parquet.COLUMN_TYPES),
    ],
    ids=["packed_sft", "hf_parquet"],
)
def test_asset_columns_equal_the_written_columns(schema: pa.Schema, said: dict[str, str]) -> None:
    assert spelled(schema) == said
    assert all(field.type.value_field.name == "element" for field in schema)
