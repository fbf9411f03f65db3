"""The history of a dataset: read from Dagster's records once, and then only extended."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.site.history import CheckRecord, DatasetHistory, read_history
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets_tests.engine.notices_dataset import NoticesDataset
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board

POLITE = ("notices", "is_polite")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path, home=tmp_path / "home") as made:
        made.specs = NoticesDataset(made.declaration).specs
        yield made


def read(board: NoticeBoard, folder: Path | None = None, runs: Sequence[dg.RunRecord] = ()) -> DatasetHistory:
    return read_history(board.instance, StoredDataset(NoticesDataset(board.declaration), board.store), folder, runs)


def report(board: NoticeBoard, **counts: int) -> None:
    """Report a data card as an earlier release did, without a table of losses."""
    board.instance.report_runless_asset_event(dg.AssetMaterialization(["notices", DATA_CARD], metadata=counts))


def test_each_build_and_each_evaluation_is_a_record(board: NoticeBoard) -> None:
    assert read(board) == DatasetHistory()
    board.say("n-1", "LEAVE")
    board.materialize()
    board.say("n-1", "please leave now")
    assert board.materialize()
    history = read(board)
    runs = [run.dagster_run.run_id for run in reversed(board.instance.get_run_records())]
    assert [build.run_id for build in history.builds] == runs
    assert history.builds[0].time < history.builds[1].time
    assert [(record.passed, record.severity) for record in history.checks[POLITE]] == [
        (False, "ERROR"),
        (True, "ERROR"),
    ]
    assert [count for _, count in history.count_unpassed_checks()] == [1, 0]
    assert history.details == {}, "the newest evaluations passed"
    board.say("n-1", "LEAVE")
    board.materialize()
    assert [row["notice"] for row in read(board).details[POLITE]] == ["n-1"]


def test_an_older_build_without_losses_has_its_counts(board: NoticeBoard) -> None:
    report(board, rows=100, documents=90, tokens=900, dropped=10)
    (build,) = read(board).builds
    assert (build.rows, build.documents, build.tokens, build.dropped, build.volumes) == (100, 90, 900, 10, {})
    assert build.drop_rate == 0.1


def test_only_new_records_are_read(board: NoticeBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in range(20):
        report(board, rows=count)
    assert board.materialize()
    first = read(board, tmp_path / "kept")
    limits: list[int] = []
    fetch = board.instance.fetch_materializations

    def record_limit(key: dg.AssetKey, limit: int, cursor: str | None = None) -> object:
        limits.append(limit)
        return fetch(key, limit=limit, cursor=cursor)

    monkeypatch.setattr(board.instance, "fetch_materializations", record_limit)
    assert read(board, tmp_path / "kept") == first == read(board)
    report(board, rows=99)
    extended = read(board, tmp_path / "kept")
    assert extended.builds[:-1] == first.builds
    assert extended.builds[-1].rows == 99
    assert limits == [5, 400, 5]


def test_a_single_new_run_gives_the_same_history_without_a_query_per_check(
    board: NoticeBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[dg.AssetCheckKey] = []
    fetch = board.instance.event_log_storage.get_asset_check_execution_history

    def record_check(key: dg.AssetCheckKey, limit: int, cursor: int | None = None) -> object:
        checked.append(key)
        return fetch(key, limit=limit, cursor=cursor)

    def read_with_runs(folder: Path) -> DatasetHistory:
        with monkeypatch.context() as patch:
            patch.setattr(board.instance.event_log_storage, "get_asset_check_execution_history", record_check)
            return read(board, folder, board.instance.get_run_records())

    for words in ("LEAVE", "please leave now"):
        board.say("n-1", words)
        board.materialize()
        extended = read_with_runs(tmp_path / "kept")
        assert (extended, checked) == (read(board), [])
    assert [record.passed for record in extended.checks[POLITE]] == [False, True]
    # Two new runs may both have evaluated a check.
    assert read_with_runs(tmp_path / "empty") == extended
    assert checked


def test_records_of_another_instance_are_dropped(board: NoticeBoard, tmp_path: Path) -> None:
    report(board, rows=1)
    read(board, tmp_path / "kept")
    with make_notice_board(tmp_path / "other", home=tmp_path / "other_home") as other:
        report(other, rows=2)
        assert [build.rows for build in read(other, tmp_path / "kept").builds] == [2]


def test_a_damaged_file_is_read_again(board: NoticeBoard, tmp_path: Path) -> None:
    assert board.materialize()
    history = read(board, tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text('{"builds": 3}')
    assert read(board, tmp_path) == history


def test_a_private_history_has_no_counts_of_documents(tmp_path: Path) -> None:
    with make_notice_board(tmp_path, sensitive=True) as board:
        board.specs = NoticesDataset(board.declaration).specs
        assert board.materialize()
        history = read(board)
    (build,) = history.builds
    assert history.is_private
    assert (build.volumes, build.documents) == ({}, 0)


def test_evaluations_in_the_same_second_stay_in_order() -> None:
    records = (CheckRecord(1.0, False, run_id="first"), CheckRecord(1.0, True, run_id="second"))
    history = DatasetHistory(checks={POLITE: records})
    assert history.count_unpassed_checks() == [(1.0, 1), (1.0, 0)]
