"""Dagster shows an artifact as out of date exactly if the content of its inputs has changed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from dataprep_assets.orchestration.partitions import asset_key
from dataprep_assets_tests.engine.notices import KEYS
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path) as made:
        assert made.materialize()
        yield made


def make_resolver(board: NoticeBoard) -> CachingStaleStatusResolver:
    """Return the staleness resolver of the UI."""
    graph = board.definitions.resolve_asset_graph()
    return CachingStaleStatusResolver(board.instance, graph, LoadingContextForTest(board.instance))


def is_fresh(board: NoticeBoard) -> bool:
    """Return whether nothing of the dataset is out of date."""
    asked, notices = make_resolver(board), asset_key(board.specs[0])
    keys = [(notices, key) for key in KEYS] + [(asset_key(spec), None) for spec in board.specs[1:]]
    return all(asked.get_status(key, partition) == StaleStatus.FRESH for key, partition in keys)


def read_versions(outcome: dg.ExecuteInProcessResult) -> dict[str | None, str]:
    """Return each partition → its data version; a partition may be reported only once."""
    found = {}
    for event in outcome.get_asset_materialization_events():
        materialization = event.materialization
        assert materialization.tags is not None
        assert materialization.partition not in found
        found[materialization.partition] = materialization.tags["dagster/data_version"]
    return found


def read_contents(board: NoticeBoard) -> dict[str | None, str]:
    return {key: board.store.require(board.declaration.artifact("notices", key)).content[:32] for key in KEYS}


def test_a_partitions_data_version_is_its_content_in_runs_of_many_and_of_one(board: NoticeBoard) -> None:
    together = read_versions(board.run(board.specs[0], partitions=KEYS))
    assert together == read_contents(board)
    assert len(set(together.values())) == len(KEYS)
    assert read_versions(board.run(board.specs[0], partitions=["n-2"])) == {"n-2": together["n-2"]}


def test_rebuilding_the_same_content_leaves_everything_in_sync(board: NoticeBoard) -> None:
    assert is_fresh(board)
    for partitions in (["n-2"], ["n-0", "n-1"], KEYS):
        assert board.run(board.specs[0], partitions=partitions).success
        assert is_fresh(board), partitions


def test_a_changed_partition_puts_downstream_artifacts_out_of_sync_and_is_named(board: NoticeBoard) -> None:
    board.say("n-1", "something else")
    assert board.run(board.specs[0], partitions=KEYS).success
    asked, key = make_resolver(board), asset_key(board.specs[1])
    assert asked.get_status(key) == StaleStatus.STALE
    (cause,) = asked.get_stale_causes(key)
    assert (cause.reason, cause.dependency_partition_key) == ("has a new dependency data version", "n-1")
    assert board.run(board.specs[1]).success
    # The report depends on the board, whose content changed.
    assert make_resolver(board).get_status(asset_key(board.specs[2])) == StaleStatus.STALE
    assert board.run(board.specs[2]).success
    assert is_fresh(board)


def test_a_newer_version_of_a_step_puts_only_its_artifact_out_of_sync(board: NoticeBoard) -> None:
    notices, whole, report = board.specs
    newer = NoticeBoard(board.declaration, [notices, replace(whole, version=2), report], board.instance, board.storage)
    asked = make_resolver(newer)
    (cause,) = asked.get_stale_causes(asset_key(whole))
    assert cause.reason == "has a new code version"
    assert asked.get_status(asset_key(notices), "n-0") == StaleStatus.FRESH


def test_a_failed_partition_leaves_the_others_in_sync(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-1.txt").unlink()
    assert not board.run(board.specs[0], partitions=KEYS).success
    assert is_fresh(board)
