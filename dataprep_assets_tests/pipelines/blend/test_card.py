"""The data card of a blend: a license for each of its datasets, which decides no byte of them."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.engine.card.card import DATA_CARD, PAGE
from dataprep_assets.formats import croissant
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import compute_plan_key
from dataprep_assets.pipelines.blend.plan.planner import plan_blend
from dataprep_assets_tests.pipelines.blend.pipeline import blend_json, finished, pretraining, small_sources


def licensed(folder: Path) -> BlendDeclaration:
    """The small blend, one of its datasets with a license."""
    value: dict[str, Any] = blend_json(folder)
    value["datasets"][0] |= {"license": "MIT", "homepage": "https://example.org/code"}
    return pretraining(folder, blend=value)


def test_a_license_is_in_the_card_and_in_no_key(tmp_path: Path) -> None:
    folder = small_sources(tmp_path / "sources")
    plain, told = pretraining(folder), licensed(folder)
    assert compute_plan_key(plan_blend(plain)) == compute_plan_key(plan_blend(told))
    _, receipt, _ = finished(plain, tmp_path / "out")
    assert finished(told, tmp_path / "out")[1] == receipt
    store = LocalArtifacts(tmp_path / "out")
    (outcome,) = TrainingBlend(told).spec(DATA_CARD).build(BuildRequest(store=store))
    assert outcome.error is None
    directory = store.directory(told.artifact(DATA_CARD))
    page = (directory / PAGE).read_text()
    assert "| code | local | – | – | 2 | " in page
    assert "| MIT | <https://example.org/code> |" in page
    assert "No license is declared for web." in page
    assert receipt.ledger is not None
    assert f"{receipt.ledger.rows_in:,} rows read" in page
    assert str(tmp_path) not in page + (directory / croissant.NAME).read_text()


def test_a_license_does_not_list_a_frozen_source_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirrored dataset stays at the revision that was planned, whatever is said of it for the card."""
    folder = small_sources(tmp_path / "sources")
    frozen = plan_blend(pretraining(folder))
    kept = {unit.name: unit.dataset.unattributed for unit in frozen.units}
    for unit in licensed(folder).load_data_blend().list_units():
        assert unit.dataset.unattributed == kept[unit.name]
    assert licensed(folder).load_data_blend().list_units()[0].dataset != kept["code"]
