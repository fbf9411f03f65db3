"""The data card of a blend has a license for each dataset, which changes none of their bytes."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.engine.card.contents import PAGE
from dataprep_assets.formats import croissant
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import compute_plan_key
from dataprep_assets.pipelines.blend.plan.planner import plan_blend
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    finish_blend,
    write_blend_json,
    write_small_sources,
)


def add_license(folder: Path) -> BlendDeclaration:
    """Return the small blend with a license for one of its datasets."""
    value: dict[str, Any] = write_blend_json(folder)
    value["datasets"][0] |= {"license": "MIT", "homepage": "https://example.org/code"}
    return declare_pretraining(folder, blend=value)


def test_a_license_is_in_the_card_but_in_no_key(tmp_path: Path) -> None:
    folder = write_small_sources(tmp_path / "sources")
    plain, told = declare_pretraining(folder), add_license(folder)
    assert compute_plan_key(plan_blend(plain)) == compute_plan_key(plan_blend(told))
    _, receipt, _ = finish_blend(plain, tmp_path / "out")
    assert finish_blend(told, tmp_path / "out")[1] == receipt
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
    """A mirrored dataset stays at the planned revision, whatever the card declares about it."""
    folder = write_small_sources(tmp_path / "sources")
    frozen = plan_blend(declare_pretraining(folder))
    kept = {unit.name: unit.dataset.unattributed for unit in frozen.units}
    for unit in add_license(folder).load_data_blend().list_units():
        assert unit.dataset.unattributed == kept[unit.name]
    assert add_license(folder).load_data_blend().list_units()[0].dataset != kept["code"]
