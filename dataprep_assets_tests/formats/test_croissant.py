"""Croissant as its reference implementation reads it, and what is found in a file that is none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.formats import croissant
from dataprep_assets.formats.croissant import (
    Column,
    DescribedFile,
    DescribedFiles,
    DescribedRecords,
    DescribedSource,
    Description,
)

DIGEST = "0123456789abcdef" * 4
ROWS = "view/data/train-00000-of-00001.parquet"


def described(**changes: Any) -> Description:
    """A description that says everything."""
    every: dict[str, Any] = {
        "name": "letters",
        "description": "Letters that nobody sent.",
        "licenses": ["https://spdx.org/licenses/CC0-1.0", "and words"],
        "url": "https://example.org/letters",
        "creators": [("Organization", "Post Office", "https://example.org"), ("Person", "A. Writer", None)],
        "published": "2026-01-31",
        "version": "1.0.0",
        "cite_as": "@misc{letters}",
        "sources": [DescribedSource(name="hf://datasets/a/b at c", license="MIT", url="https://example.org/b")],
        "files": [
            DescribedFile(id=ROWS, url=f"../{ROWS}", bytes=7, sha256=DIGEST, made_by="view, version 2"),
            DescribedFile(id="bins/train.bin", url="../bins/train.bin", bytes=0, sha256=DIGEST, made_by="bins"),
        ],
        "sets": [
            DescribedFiles(
                id="all", includes="*.parquet", about="All.", encoding=croissant.PARQUET, contained_in=[ROWS]
            )
        ],
        "records": [
            DescribedRecords(
                id="one", about="Of a file.", source=ROWS, several=False, columns=[Column(name="ids", about="Ids.")]
            ),
            DescribedRecords(
                id="two", about="Of several.", source="all", several=True, columns=[Column(name="ids", about="Ids.")]
            ),
        ],
    }
    return Description(**(every | changes))


def test_the_reference_implementation_accepts_all_of_it_without_a_warning(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="validates Croissant: install the extra dev")
    path = tmp_path / croissant.NAME
    path.write_bytes(croissant.to_bytes(described()))
    dataset = mlcroissant.Dataset(jsonld=str(path))
    assert (dataset.metadata.ctx.issues.errors, dataset.metadata.ctx.issues.warnings) == (set(), set())
    assert dataset.metadata.ctx.conforms_to.value == croissant.CONFORMS_TO
    assert [file.sha256 for file in dataset.metadata.file_objects] == [DIGEST, DIGEST]
    assert [records.id for records in dataset.metadata.record_sets] == ["one", "two"]
    assert {creator.name for creator in dataset.metadata.creators} == {"Post Office", "A. Writer"}
    assert dataset.metadata.license == ["https://spdx.org/licenses/CC0-1.0", "and words"]


def test_what_was_not_declared_is_left_out() -> None:
    bare = json.loads(croissant.to_bytes(Description(name="a", description="b")))
    assert set(bare) == {"@context", "@type", "name", "description", "conformsTo"}


def test_a_good_file_has_no_defect_and_one_spelling() -> None:
    assert list(croissant.defects(croissant.to_bytes(described()))) == []
    assert croissant.to_bytes(described()) == croissant.to_bytes(described())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda v: v.update(conformsTo="http://mlcommons.org/croissant/1.0"), "it conforms to"),
        (lambda v: v["@context"].pop("prov"), "its context"),
        (lambda v: v.pop("distribution"), "without distribution"),
        (lambda v: v["distribution"][0].pop("sha256"), f"{ROWS} has no sha256"),
        (lambda v: v["distribution"][0].update(sha256="ab"), "is not 64 hex digits"),
        (lambda v: v["distribution"][0].update(contentUrl="/home/me/x"), "is absolute"),
        (lambda v: v["distribution"].append(v["distribution"][0]), "occurs twice"),
        (lambda v: v["distribution"][2].pop("includes"), "all has no includes"),
        (lambda v: v["distribution"][0].update({"@id": "x"}), f"refers to {ROWS}"),
        (lambda v: v["recordSet"][0].update({"@type": "cr:Table"}), "one is a cr:Table"),
    ],
)
def test_each_defect_is_told(fault: Callable[[dict[str, Any]], object], told: str) -> None:
    value = json.loads(croissant.to_bytes(described()))
    fault(value)
    assert any(told in defect for defect in croissant.defects(json.dumps(value).encode()))


@pytest.mark.parametrize("data", [b"{", b"[]"])
def test_what_is_no_object_is_a_defect(data: bytes) -> None:
    assert len(list(croissant.defects(data))) == 1
