"""The history of a check after a hundred runs: each line names the examined or failing partitions, and none grows."""

from collections.abc import Iterator, Sequence

import dagster as dg
import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.orchestration.checks import (
    MAX_DESCRIPTION_LENGTH,
    build_check_evaluation,
    build_check_result,
    examine_artifact,
)
from dataprep_assets.orchestration.partitions import asset_key
from dataprep_assets_tests.engine.notices import KEYS, build_notice
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board

RUNS = 100
SHOUTING = range(40, 43)
"""Runs in which the notice is in upper case; it is corrected in its next turn."""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoticeBoard]:
    """Return a board after a hundred runs, each of which changes, builds and examines one notice in turn."""
    with make_notice_board(tmp_path_factory.mktemp("board")) as board:
        notices = board.specs[0]
        for number in range(RUNS):
            key = KEYS[number % len(KEYS)]
            board.say(key, "LEAVE" if number in SHOUTING else "word " * (number + 1))
            for made in KEYS if number == 0 else (key,):
                build_notice(board.declaration, board.store, made)
            for name, finding in examine_artifact(notices, board.store, [key], is_rebuild=True).items():
                board.instance.report_runless_asset_event(build_check_evaluation(notices, board.store, name, finding))
        yield board


def read_history(board: NoticeBoard, check: str) -> Sequence[dg.AssetCheckEvaluation]:
    """Return all evaluations of a check, oldest first, as the UI's tab gets them."""
    key = dg.AssetCheckKey(asset_key(board.specs[0]), check)
    records = board.instance.event_log_storage.get_asset_check_execution_history(key, limit=2 * RUNS)
    found = [record.evaluation for record in reversed(records)]
    return [evaluation for evaluation in found if evaluation is not None]


def test_every_evaluation_names_the_examined_partitions_and_the_result(board: NoticeBoard) -> None:
    evaluations = read_history(board, "has_words")
    assert len(evaluations) == RUNS
    for number, evaluation in enumerate(evaluations):
        words = 1 if number in SHOUTING else number + 1
        assert evaluation.passed
        assert f"For example, {KEYS[number % 3]}: {words} words" in (evaluation.description or ""), number
    assert len({evaluation.description for evaluation in evaluations}) == RUNS, "no two runs read alike"


def test_a_failure_is_named_until_it_is_corrected(board: NoticeBoard) -> None:
    evaluations = read_history(board, "is_polite")
    failed = [number for number, evaluation in enumerate(evaluations) if not evaluation.passed]
    assert failed == list(range(40, 45)), "of three, the last is mended in its next turn"
    said = {number: evaluations[number].description or "" for number in failed}
    assert said[40].startswith("1 of 3 notices fails (1 checked now, 2 before); the first is n-1: shouted")
    assert said[42].startswith("3 of 3 notices fail")
    assert said[44].startswith("1 of 3 notices fails (1 checked now, 2 before); the first is n-0: shouted")


def test_evaluations_do_not_grow(board: NoticeBoard) -> None:
    for check in ("has_words", "is_polite"):
        evaluations = read_history(board, check)
        lengths = [len(dg.serialize_value(evaluation)) for evaluation in evaluations]
        assert max(lengths[50:]) <= max(lengths[:50]) + 20, "digits of counts alone"
        assert max(lengths) < 3_000, "bytes"


def test_the_length_of_a_description_is_limited(board: NoticeBoard) -> None:
    """The UI shows the whole description in a line of the history; the table has the rest."""
    rows = tuple({"what": f"defect {number}"} for number in range(10_000))
    finding = Finding(passed=False, summary="All of it is wrong, " * 10_000, table=rows)
    result = build_check_result(board.specs[0], board.store, "has_words", finding)
    assert result.description is not None
    assert MAX_DESCRIPTION_LENGTH - 3 < len(result.description) <= MAX_DESCRIPTION_LENGTH
    assert result.description.endswith("…")
    table = result.metadata["table"]
    assert isinstance(table, dg.TableMetadataValue)
    assert len(table.records) == 50
