"""The asset of a spec: its declared properties, and the results that a run reports for finished and failed
partitions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.engine.artifact.spec import BuildRequest, DatasetInput
from dataprep_assets.errors import DataprepError, WorkerDiedError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.orchestration.component import build_asset
from dataprep_assets.orchestration.partitions import asset_key
from dataprep_assets.orchestration.runs.runs import POOLS
from dataprep_assets.orchestration.runs.step_build import _build_failure
from dataprep_assets.planning.cost import SHARDS_PER_RUN
from dataprep_assets.resources import io_manager
from dataprep_assets_tests.engine import notices as notices_module
from dataprep_assets_tests.engine.notices import KEYS, NoticeFacts
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board
from dataprep_assets_tests.project import failure_of


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path) as made:
        yield made


def read_contents(board: NoticeBoard) -> dict[str, str]:
    return {key: board.store.require(board.declaration.artifact("notices", key)).content for key in KEYS}


def read_versions(outcome: dg.ExecuteInProcessResult) -> dict[str | None, str]:
    """Return the data version of each partition of the notices that a run reports."""
    found = {}
    for event in outcome.get_asset_materialization_events():
        materialization = event.materialization
        if materialization.asset_key.path[-1] == "notices":
            assert materialization.tags is not None
            found[materialization.partition] = materialization.tags["dagster/data_version"]
    return found


def test_an_asset_is_declared_according_to_its_spec(board: NoticeBoard) -> None:
    notices, everything, _ = board.specs
    declaration = notices.declaration.model_copy(
        update={"description": "Of a school.", "owners": ("team:signs",), "sensitive": True, "storage": "s3://b/p"}
    )
    made = build_asset(replace(notices, declaration=declaration, name="snapshot", split="hall"))
    (spec,) = made.specs
    assert spec.key == dg.AssetKey(["notices", "snapshot_hall"])
    assert spec.description is not None
    assert spec.description.startswith(
        "What is to be said.\n\nOf a school.\n\nThe job [build_notices](/guess/build_notices) builds and checks all"
    )
    assert (spec.group_name, spec.kinds, list(spec.owners)) == ("notices", {"file"}, ["team:signs"])
    assert spec.tags["dataprep/sensitive"] == "true"
    assert spec.metadata[io_manager.STORAGE] == "s3://b/p"
    assert spec.code_version == "1"
    assert made.partitions_def == dg.StaticPartitionsDefinition(list(KEYS))
    assert made.backfill_policy == dg.BackfillPolicy.multi_run(SHARDS_PER_RUN)
    assert made.op.pool == POOLS["network"]
    other = build_asset(replace(everything, inputs=(notices, DatasetInput(dataset="corpus", name="nanogpt_bins"))))
    assert {dep.asset_key for dep in next(iter(other.specs)).deps} == {
        asset_key(notices),
        dg.AssetKey(["corpus", "nanogpt_bins"]),
    }
    assert other.partitions_def is None
    assert other.op.pool is None


def test_descriptions_for_the_catalog_contain_no_markdown_because_it_shows_plain_text(board: NoticeBoard) -> None:
    made = build_asset(replace(board.specs[0], description="`<split>.bin` and `meta.pkl` of a folder."))
    (spec,) = made.specs
    assert (spec.description or "").partition("\n")[0] == "SPLIT.bin and meta.pkl of a folder."


def test_an_asset_shows_its_location_and_columns_before_it_is_built(board: NoticeBoard) -> None:
    columns = {"greeting": "string", "words": "list<int32>"}
    (spec,) = build_asset(replace(board.specs[0], columns=columns, version=3), {"dataprep/pipeline": "notices"}).specs
    (reference,) = spec.metadata["dagster/code_references"].code_references
    assert reference.file_path == notices_module.__file__
    lines = Path(reference.file_path).read_text().splitlines()
    assert lines[reference.line_number - 1].startswith("def _build_notices(")
    schema = spec.metadata["dagster/column_schema"]
    assert {column.name: column.type for column in schema.columns} == columns
    assert (spec.code_version, spec.tags["dataprep/pipeline"]) == ("3", "notices")


def test_rows_are_counted_per_partition_and_for_the_whole(board: NoticeBoard) -> None:
    notices, whole, _ = board.specs
    specs = [
        replace(notices, rows=lambda receipt: NoticeFacts.from_receipt(receipt).words),
        replace(whole, rows=lambda _: 9),
    ]
    counting = NoticeBoard(board.declaration, specs, board.instance, board.storage)
    outcomes = [counting.run(specs[0], partitions=KEYS), counting.run(specs[1])]
    events = [event for outcome in outcomes for event in outcome.get_asset_materialization_events()]
    for event in events[:3]:
        metadata = event.materialization.metadata
        assert metadata["dagster/partition_row_count"].value == 3
        assert "dagster/row_count" not in metadata
        assert str(metadata["dagster/uri"].value) == Path(str(metadata["path"].value)).as_uri()
    assert events[3].materialization.metadata["dagster/row_count"].value == 9


def test_each_partition_is_reported_with_its_own_counts(board: NoticeBoard) -> None:
    board.say("n-1", "one two three four five")
    outcome = board.run(board.specs[0], partitions=KEYS)
    assert outcome.success
    events = outcome.get_asset_materialization_events()
    assert {e.materialization.partition: e.materialization.metadata["words"].value for e in events} == {
        "n-0": 3,
        "n-1": 5,
        "n-2": 3,
    }
    for event in events:
        metadata = event.materialization.metadata
        assert metadata["reused"].value is False
        assert metadata["content_digest"].value == read_contents(board)[event.materialization.partition or ""]
        assert isinstance(metadata["kind"], dg.MarkdownMetadataValue)
        assert str(metadata["path"].value).endswith(f"notices/notices/{event.materialization.partition}")


def test_failed_partitions_are_named_and_the_others_reported_normally(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-1.txt").unlink()
    outcome = board.run(board.specs[0], partitions=KEYS)
    assert not outcome.success
    assert board.instance.get_materialized_partitions(asset_key(board.specs[0])) == {"n-0", "n-2"}
    kept = {key: board.store.require(board.declaration.artifact("notices", key)).content[:32] for key in ("n-0", "n-2")}
    assert read_versions(outcome) == kept
    assert_names(failure_of(outcome), 1, 3, "n-1", "n-1.txt")
    (failure,) = [e.step_failure_data for e in outcome.all_events if e.is_step_failure]
    assert failure.user_failure_data is not None
    (table,) = [v for k, v in failure.user_failure_data.metadata.items() if k == "failed_notices"]
    assert [dict(record.data) for record in table.records] == [{"notice": "n-1", "error": "n-1.txt: is not there"}]  # type: ignore[attr-defined]


def test_for_many_failed_partitions_the_number_of_omitted_ones_is_shown(board: NoticeBoard) -> None:
    failure = _build_failure(
        board.specs[0], board.store, {f"n-{n:02}": DataprepError("is not there") for n in range(25)}, 3
    )
    assert str(failure.description).startswith("25 of 28 notices failed")
    assert str(failure.description).count("is not there") == 1, "one reason is given once, with all that have it"
    assert str(failure.description).endswith("n-19: is not there | and 5 more: the log names every notice")
    rows = [dict(record.data) for record in failure.metadata["failed_notices"].records]  # type: ignore[union-attr]
    assert (len(rows), rows[-1]) == (21, {"notice": "and 5 more", "error": "the log names every notice"})


def test_partitions_finished_before_a_worker_died_are_reported(board: NoticeBoard) -> None:
    notices = board.specs[0]

    def dies(request: BuildRequest) -> Iterable[Outcome]:
        yield from notices.build(replace(request, partitions=request.partitions[:2]))
        raise WorkerDiedError("n-2 (encode 3): its worker process died")

    broken = replace(notices, build=dies)
    dying = NoticeBoard(board.declaration, [broken], board.instance, board.storage)
    outcome = dying.run(broken, partitions=KEYS)
    assert not outcome.success
    assert board.instance.get_materialized_partitions(asset_key(notices)) == {"n-0", "n-1"}
    assert "n-2 (encode 3)" in failure_of(outcome)
    assert board.run(notices, partitions=KEYS).success, "the next run goes on"


def test_an_artifact_without_files_reports_the_result_of_its_build(board: NoticeBoard) -> None:
    assert board.materialize()
    event = board.instance.get_latest_materialization_event(asset_key(board.specs[2]))
    assert event is not None
    materialization = event.asset_materialization
    assert materialization is not None
    assert isinstance(materialization.metadata["words"], dg.TableMetadataValue)
    assert [dict(record.data) for record in materialization.metadata["words"].records] == [
        {"notice": key, "words": 3} for key in KEYS
    ]
    assert materialization.tags is not None
    content = board.store.require(board.declaration.artifact("board")).content
    assert materialization.tags["dagster/data_version"] == content[:32]
    assert not (Path(board.storage.root) / "notices" / "report").exists()


def test_a_warning_during_a_build_is_in_the_log_of_the_run(board: NoticeBoard) -> None:
    assert board.run(board.specs[0], partitions=KEYS).success
    outcome = board.run(board.specs[1])
    logged = board.instance.all_logs(outcome.run_id)
    assert "the board is small" in [entry.user_message for entry in logged]
