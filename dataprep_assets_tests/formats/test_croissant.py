"""The reference implementation of Croissant reads our metadata."""

import json
from pathlib import Path

import pytest

from dataprep_assets.formats import croissant
from dataprep_assets.formats.croissant import ParquetColumn

DIGEST = "0123456789abcdef" * 4
ROWS = "view/data/train-00000-of-00001.parquet"
IDS = [ParquetColumn(name="ids", about="Ids.")]
DESCRIBED: croissant.Node = {
    "name": "letters",
    "description": "Letters that nobody sent.",
    "license": ["https://spdx.org/licenses/CC0-1.0", "and words"],
    "url": "https://example.org/letters",
    "creator": [
        croissant.build_creator_node("Organization", "Post Office", "https://example.org"),
        croissant.build_creator_node("Person", "A. Writer", None),
    ],
    "datePublished": "2026-01-31",
    "version": "1.0.0",
    "citeAs": "@misc{letters}",
    "prov:wasDerivedFrom": [
        croissant.build_source_node("hf://datasets/a/b at c", license="MIT", url="https://example.org/b", citation=None)
    ],
    "distribution": [
        croissant.build_file_node(ROWS, f"../{ROWS}", size=7, sha256=DIGEST, made_by="view, version 2"),
        croissant.build_file_node("bins/train.bin", "../bins/train.bin", size=0, sha256=DIGEST, made_by="bins"),
        croissant.build_file_set_node("all", "*.parquet", "All.", encoding=croissant.PARQUET, contained_in=[ROWS]),
    ],
    "recordSet": [
        croissant.build_records_node("one", "Of a file.", {"fileObject": {"@id": ROWS}}, IDS),
        croissant.build_records_node("two", "Of several.", {"fileSet": {"@id": "all"}}, IDS),
    ],
}


def test_the_reference_implementation_accepts_all_metadata_without_a_warning(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="validates Croissant: install the extra dev")
    path = tmp_path / croissant.NAME
    path.write_bytes(croissant.encode_description(DESCRIBED))
    dataset = mlcroissant.Dataset(jsonld=str(path))
    assert (dataset.metadata.ctx.issues.errors, dataset.metadata.ctx.issues.warnings) == (set(), set())
    assert dataset.metadata.ctx.conforms_to.value == croissant.CONFORMS_TO
    assert [file.sha256 for file in dataset.metadata.file_objects] == [DIGEST, DIGEST]
    assert [records.id for records in dataset.metadata.record_sets] == ["one", "two"]
    assert {creator.name for creator in dataset.metadata.creators} == {"Post Office", "A. Writer"}
    assert dataset.metadata.license == ["https://spdx.org/licenses/CC0-1.0", "and words"]


def test_undeclared_properties_are_left_out() -> None:
    bare = json.loads(croissant.encode_description({"name": "a", "description": "b", "url": None, "creator": []}))
    assert set(bare) == {"@context", "@type", "name", "description", "conformsTo"}
