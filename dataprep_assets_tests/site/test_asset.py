"""The asset `datasets` writes the site, and its sensor requests it when something has changed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.code_location import definitions_of
from dataprep_assets.project_template import write_project
from dataprep_assets.site.asset import DATASETS, build_site_definitions
from dataprep_assets.site.folder import INDEX, SITE
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets_tests.engine.notices_dataset import NoticesDataset
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path, home=tmp_path / "home") as made:
        yield made


def test_an_invalid_declaration_is_listed_with_the_others(tmp_path: Path) -> None:
    write_project(root := tmp_path / "night_shift")
    folder = root / "night_shift" / "defs"
    (folder / "bad").mkdir()
    (folder / "bad" / "defs.yaml").write_text(
        "type: dataprep_assets.components.TokenizedCorpus\nattributes: {spilts: 1}\n"
    )
    sys.path.insert(0, str(root))
    try:
        job = definitions_of(root).resolve_implicit_global_asset_job_def()
        with dg.DagsterInstance.ephemeral() as instance:
            assert job.execute_in_process(asset_selection=[DATASETS], instance=instance).success
            event = instance.get_latest_materialization_event(DATASETS)
    finally:
        sys.path.remove(str(root))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = {name: entry.value for name, entry in event.asset_materialization.metadata.items()}
    assert metadata == {
        "site": "[/site/index.html](/site/index.html)",
        "path": str(root / SITE / INDEX),
        "datasets": 1,
        "cannot be loaded": 1,
        "to build": 0,
        "checks failed": 0,
        "checks warned": 0,
        "pages not made": 0,
    }
    page = (root / SITE / INDEX).read_text()
    assert "defs.yaml:2: dataset: missing" in page
    assert 'data-dagster="assets/bad/cannot_be_loaded"' in page
    assert ">never built</span>" in page
    assert (root / SITE / "datasets" / "sample_corpus" / INDEX).is_file()


def test_the_sensor_requests_the_pages_only_after_a_run_ended(board: NoticeBoard, tmp_path: Path) -> None:
    dataset = StoredDataset(NoticesDataset(board.declaration), board.store)
    site = build_site_definitions(tmp_path, lambda: every, lambda: [dataset])
    every = dg.Definitions.merge(board.definitions, site)
    (sensor,) = every.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    job = every.resolve_implicit_global_asset_job_def()

    def tick(cursor: str | None) -> tuple[object, str | None]:
        with dg.build_sensor_context(board.instance, cursor=cursor) as context:
            return sensor(context), context.cursor

    first, cursor = tick(None)
    assert isinstance(first, dg.RunRequest)
    assert first.asset_selection == [DATASETS]
    assert job.execute_in_process(asset_selection=[DATASETS], instance=board.instance).success
    assert isinstance(tick(cursor)[0], dg.SkipReason), "its own run changes nothing"
    board.materialize()
    assert isinstance(tick(cursor)[0], dg.RunRequest)
