"""All datasets at a glance: what the page says is what runs and checks left in the instance."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.code_location import definitions_of
from dataprep_assets.graph.card import data_card_spec
from dataprep_assets.graph.card_contents import CardSubject
from dataprep_assets.orchestration.overview import CheckResult, DatasetOverview, LastRun, broken, overview
from dataprep_assets.orchestration.overview_page import DATASETS, overview_definitions, page
from dataprep_assets.orchestration.slots import FailedSlots, Slots
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.bench.overview import report
from dataprep_assets_tests.graph.notices import KEYS, notices_specs
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, notice_board

NUMBERS = ["artifacts failed", "checks failed", "checks warned"]
WIDE = ["state of each", "size of each"]
NONE = Slots(wanted=3, made=3, stale=0, failed=[])
NOTICES = dg.AssetKey(["notices", "notices"])
POLITE = dg.AssetCheckKey(dg.AssetKey(["notices", "notices"]), "is_polite")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    # on disk, where the events of a run have ids of their own
    with notice_board(tmp_path, home=tmp_path / "home") as made:
        yield carded(made)


def carded(board: NoticeBoard) -> NoticeBoard:
    """With a data card, which makes it a dataset."""
    specs = notices_specs(board.declaration)
    card = CardSubject(
        declaration=board.declaration,
        specs=specs,
        products=[spec for spec in specs if spec.name == "board"],
        counted=[],
        sources=lambda _store, _receipts: [],
    )
    board.specs = [*specs, data_card_spec(card)]
    return board


def definitions(board: NoticeBoard) -> dg.Definitions:
    every = dg.Definitions.merge(board.definitions, overview_definitions(lambda: every))
    return every


def seen(board: NoticeBoard) -> DatasetOverview:
    (dataset,) = overview(definitions(board), board.instance)
    return dataset


def test_a_dataset_that_never_ran_is_on_the_page(board: NoticeBoard) -> None:
    dataset = seen(board)
    assert (dataset.dataset, dataset.last_run, dataset.made, dataset.documents) == ("notices", None, None, None)
    assert (dataset.unknown, dataset.passed) == (dataset.checks, 0)
    assert dataset.slots == Slots(wanted=len(KEYS) + 3, made=0, stale=0, failed=[])
    shown = page([dataset])
    assert "notices" not in shown
    assert shown["never run"].value == "notices"


def test_counts_age_and_cost_are_those_of_the_run(board: NoticeBoard) -> None:
    assert board.materialize()
    dataset = seen(board)
    runs = board.instance.get_run_records()
    assert dataset.last_run is not None
    assert (dataset.last_run.run_id, dataset.last_run.status) == (runs[0].dagster_run.run_id, "SUCCESS")
    assert (dataset.passed, dataset.unknown) == (dataset.checks, 0)
    assert dataset.checks >= 4
    assert dataset.slots == Slots(wanted=len(KEYS) + 3, made=len(KEYS) + 3, stale=0, failed=[])
    product = board.store.require(board.declaration.artifact("board"))
    assert dataset.bytes == product.total_bytes > 0
    assert dataset.build_seconds is not None
    receipts = [product, *(board.store.require(board.declaration.artifact("notices", key)) for key in KEYS)]
    assert dataset.build_seconds == round(sum(r.measured["wall_seconds"] for r in receipts), 1)
    assert dataset.made is not None
    assert runs[-1].create_timestamp.timestamp() <= dataset.made <= dataset.last_run.at + 1


def test_a_failed_check_is_told_with_its_sentence_and_stays_while_later_runs_do_not_reach_it(
    board: NoticeBoard,
) -> None:
    board.say("n-1", "LEAVE")
    board.materialize()
    (failed,) = seen(board).failed
    assert failed.key == POLITE
    assert "n-1" in failed.sentence
    (board.declaration.folder / "n-2.txt").unlink()
    assert not board.materialize()
    after = seen(board)
    assert after.last_run is not None
    assert after.last_run.status == "FAILURE"
    assert list(after.failed) == [failed], "the check was planned again and never ran: what it found still stands"
    text = page([after])["look at 1"].value
    assert isinstance(text, str)
    assert text.startswith("**[notices](/assets/notices)**: last run: [failure ")
    assert f"not made: [notices](/assets/notices/notices) n-2, see [its run](/runs/{after.last_run.run_id})" in text
    assert "[failure " in text
    assert f"(/runs/{after.last_run.run_id})" in text
    assert "[notices/is\\_polite](/assets/notices/notices?view=checks&checkDetail=is_polite)" in text


def test_a_run_of_several_datasets_that_failed_at_another_is_no_failure_of_this_one(board: NoticeBoard) -> None:
    assert board.materialize()

    @dg.asset(key=["letters", "data_card"])
    def card() -> None:
        raise ValueError("no letters")

    # the page of both, of a run in which all of the notices are made and the letters fail
    both = dg.Definitions.merge(board.definitions, dg.Definitions(assets=[card]))
    job = both.resolve_implicit_global_asset_job_def()
    wanted = [dg.AssetKey(["notices", "board"]), dg.AssetKey(["letters", "data_card"])]
    assert not job.execute_in_process(instance=board.instance, asset_selection=wanted, raise_on_error=False).success
    every = dg.Definitions.merge(both, overview_definitions(lambda: every))
    told = {one.dataset: one for one in overview(every, board.instance)}
    shown = page(list(told.values()))
    (look_at,) = [str(value.value) for name, value in shown.items() if name.startswith("look at")]
    assert look_at.startswith("**[letters](/assets/letters)**: last run of several datasets: [failure ")


def test_an_accepted_failure_shows_the_reason(board: NoticeBoard) -> None:
    board.declaration = board.declaration.model_copy(update={"accept": {"is_polite": "the guard shouts"}})
    carded(board)
    board.say("n-1", "LEAVE")
    assert board.materialize()
    dataset = seen(board)
    assert ([r.key for r in dataset.accepted], dataset.failed, dataset.warned) == ([POLITE], [], [])
    assert dataset.passed == dataset.checks
    assert list(page([dataset])) == [*NUMBERS, "all datasets", *WIDE, "never run"], "nobody has to look at it"


def test_a_freshness_policy_is_told_in_words(board: NoticeBoard) -> None:
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=36))
    declared = definitions(board).map_asset_specs(
        func=lambda spec: spec.replace_attributes(freshness_policy=policy) if spec.key.path[-1] == "board" else spec
    )
    (dataset,) = overview(declared, board.instance)
    assert (dataset.freshness_policy, dataset.freshness) == ("within 36 h", "UNKNOWN")


def _quiet(name: str, **changes: object) -> DatasetOverview:
    """A dataset of which all is well."""
    made = DatasetOverview(
        dataset=name,
        last_run=LastRun(run_id="1", status="SUCCESS", at=0.0, shared=False),
        checks=30,
        passed=30,
        failed=[],
        warned=[],
        accepted=[],
        made=0.0,
        freshness_policy=None,
        freshness=None,
        slots=NONE,
        proven=0.0,
        proof_level="sample",
        made_again=0.46,
        documents=1,
        tokens=2,
        bytes=3,
        build_seconds=4.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_needs_a_person_comes_first_and_every_entry_is_shown_in_place() -> None:
    results = [
        CheckResult(
            key=dg.AssetCheckKey(dg.AssetKey(["b", "train", "bins"]), f"c{at}"), sentence="a | <b> *c*" * 40, at=0.0
        )
        for at in range(30)
    ]
    shards = FailedSlots(key=dg.AssetKey(["d", "bins"]), partitions=[f"s-{at}" for at in range(9)], run_id="r")
    datasets = [_quiet("a"), _quiet("b", failed=results, passed=0), _quiet("c", warned=results[:1], passed=29)]
    datasets.append(_quiet("d", slots=Slots(wanted=12, made=3, stale=0, failed=[shards])))
    shown = page(datasets, {dg.AssetKey(["e", "cannot_be_loaded"]): "defs.yaml:3: splits: <wrong>"})
    looks = [f"look at {at}" for at in (1, 2, 3)]
    assert list(shown) == ["cannot be loaded", *NUMBERS, *looks, "all datasets", *WIDE, "never run"]
    assert [shown[name].value for name in NUMBERS] == [9, 30, 1]
    assert str(shown["cannot be loaded"].value) == (
        "- [e](/assets/e/cannot_be_loaded): defs.yaml:3: splits: \\<wrong\\>"
    )
    first, second, _ = texts = [str(shown[name].value) for name in looks]
    assert all(len(text) < 1_000 for text in texts), "the UI keeps longer Markdown behind a click"
    assert "not made: [bins](/assets/d/bins) s-0, s-1, s-2, s-3, s-4 and 4 more, see [its run](/runs/r)" in first
    assert r"a \| \<b\> \*c\*" in second
    listed = second.count("- failed")
    assert 0 < listed < 30
    assert f"and {30 - listed} more" in second


def test_the_table_is_narrow_and_its_numbers_stand_to_the_right() -> None:
    many = Slots(wanted=4_021, made=21, stale=3, failed=[])
    datasets = [_quiet("a_corpus_of_unspeakablylongwordsindeed", proven=0.0, slots=many), _quiet("b")]
    shown = page([datasets[0], replace(datasets[1], proven=86_400.0 * 8)], now=86_400.0 * 10)
    rows = [record.data for record in shown["all datasets"].value.records]  # type: ignore[union-attr]
    assert [row["missing"] for row in rows] == ["\u00a04,000", "\u00a0" * 5 + "0"]
    assert [row["proof"] for row in rows] == ["10\u00a0d", "\u00a02\u00a0d"]
    assert str(rows[0]["dataset"]).replace("\u200b", "") == "a_corpus_of_unspeakablylongwordsindeed"
    assert max(map(len, str(rows[0]["dataset"]).split("\u200b"))) <= 18
    for name in WIDE:
        assert len(str(shown[name].value)) > 1_000, "the UI shows it behind a click, not in the page"
        lines = str(shown[name].value).strip().splitlines()
        assert len({line.count(" | ") for line in lines}) == 1
        assert lines[3].startswith("| [b](/assets/b) |")
    assert "| [1970\u201101\u201101](/runs/1) | 21 | 4,000 | 0 | 3 |" in str(shown["state of each"].value)


def test_a_later_success_of_something_else_does_not_hide_a_failed_partition(board: NoticeBoard) -> None:
    assert board.materialize()
    board.say("n-1", "another")
    (board.declaration.folder / "n-2.txt").unlink()
    assert not board.materialize()
    (failed,) = seen(board).slots.failed
    assert (failed.key, failed.partitions) == (dg.AssetKey(["notices", "notices"]), ["n-2"]), "it was made before"
    assert board.run(board.specs[0], partitions=["n-0"]).success
    dataset = seen(board)
    assert dataset.last_run is not None
    assert dataset.last_run.status == "SUCCESS"
    assert dataset.slots.failed == [failed]
    assert page([dataset])["artifacts failed"].value == 1
    board.say("n-2", "it is there again")
    assert board.materialize()
    assert seen(board).slots == Slots(wanted=len(KEYS) + 3, made=len(KEYS) + 3, stale=0, failed=[])


def test_a_partition_that_a_run_of_assets_did_not_make_failed(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-2.txt").unlink()
    assert not board.run(board.specs[0], partitions=KEYS).success
    (failed,) = seen(board).slots.failed
    (run,) = board.instance.get_runs()
    assert failed == FailedSlots(key=NOTICES, partitions=["n-2"], run_id=run.run_id)
    assert seen(board).slots.made == 2
    board.say("n-2", "it is there again")
    assert board.materialize()
    assert seen(board).slots.failed == []
    (board.declaration.folder / "n-1.txt").unlink()
    assert not board.run(board.specs[0], partitions=["n-1"]).success
    (failed,) = seen(board).slots.failed
    assert failed.partitions == ["n-1"], "it was made before, and is not what it should be"


def test_what_is_made_of_what_changed_is_stale_until_the_job_has_looked(board: NoticeBoard) -> None:
    assert board.materialize()
    assert board.run(board.specs[0], partitions=KEYS).success
    assert seen(board).slots.stale == 0, "reported again, and the same"
    board.say("n-1", "another")
    assert board.run(board.specs[0], partitions=["n-1"]).success
    assert seen(board).slots.stale == 1
    (newer,) = [spec for spec in board.specs if spec.name == "report"]
    assert board.materialize()
    assert seen(board).slots.stale == 0
    assert newer is not None


def test_an_artifact_without_partitions_that_a_run_of_assets_did_not_make_failed(board: NoticeBoard) -> None:
    assert board.materialize()
    (board.store.root / "notices" / "notices" / "n-1" / "receipt.json").unlink()
    (whole,) = (spec for spec in board.specs if spec.name == "board")
    assert not board.run(whole).success
    (failed,) = seen(board).slots.failed
    assert (failed.key, failed.partitions) == (dg.AssetKey(["notices", "board"]), [])
    assert board.materialize()
    assert seen(board).slots.failed == []


def test_a_declaration_that_cannot_be_loaded_is_known(tmp_path: Path) -> None:
    write_project(root := tmp_path / "night_shift")
    folder = root / "night_shift" / "defs"
    (folder / "bad").mkdir()
    (folder / "bad" / "defs.yaml").write_text(
        "type: dataprep_assets.components.TokenizedCorpus\nattributes: {spilts: 1}\n"
    )
    sys.path.insert(0, str(root))
    try:
        found = broken(definitions_of(root))
    finally:
        sys.path.remove(str(root))
    ((key, why),) = found.items()
    assert key == dg.AssetKey(["bad", "cannot_be_loaded"])
    assert "spilts" in why
    assert "defs.yaml" in why


def test_materialize_makes_the_page(board: NoticeBoard) -> None:
    board.materialize()
    job = definitions(board).resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(asset_selection=[DATASETS], instance=board.instance).success
    event = board.instance.get_latest_materialization_event(DATASETS)
    assert event is not None
    assert event.asset_materialization is not None
    assert "all datasets" in event.asset_materialization.metadata
    (dataset,) = overview(definitions(board), board.instance)
    assert dataset.dataset == "notices", "the page is no dataset"


def test_the_sensor_makes_the_page_when_a_run_has_ended_and_only_then(board: NoticeBoard) -> None:
    (sensor,) = definitions(board).sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)

    def tick(cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        context = dg.build_sensor_context(board.instance, cursor=cursor)
        found = sensor(context)
        assert isinstance(found, dg.SensorResult | dg.SkipReason)
        return found

    first = tick(None)
    assert isinstance(first, dg.SensorResult)
    assert isinstance(tick(first.cursor), dg.SkipReason)
    board.materialize()
    second = tick(first.cursor)
    assert isinstance(second, dg.SensorResult)
    (event,) = second.asset_events
    assert isinstance(event, dg.AssetMaterialization)
    assert event.asset_key == DATASETS
    assert "| [notices](/assets/notices) | [20" in str(event.metadata["state of each"].value)
    assert isinstance(tick(second.cursor), dg.SkipReason)


@pytest.mark.slow
def test_an_instance_of_many_is_read_in_bulk() -> None:
    ((_, cpu),) = report(datasets=3, shards=20, evaluations=3, repetitions=1)
    assert cpu < 20, "seconds"
