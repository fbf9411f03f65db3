"""The job of a dataset: one run builds it, skips up-to-date artifacts, and a failure blocks only downstream
artifacts.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, DatasetInput
from dataprep_assets.engine.checks.check import Check, Finding
from dataprep_assets.engine.checks.results import UnpassedCheck, read_results
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.orchestration.build import StepResult, build_job
from dataprep_assets.orchestration.component import build_definitions
from dataprep_assets.orchestration.partitions import DATASET, asset_key, job_name
from dataprep_assets.resources import create_resources
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, find_pending, make_notice_board
from dataprep_assets_tests.project import Project, failure_of, project, sample_attributes
from dataprep_assets_tests.samples import SMALL

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
NOTICES, BOARD, REPORT = (dg.AssetKey(["notices", name]) for name in ("notices", "board", "report"))


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path) as made:
        yield made


def build(board: NoticeBoard) -> dg.ExecuteInProcessResult:
    """Launch the job once as a run worker does, with the repository to which it belongs."""
    job = board.definitions.get_repository_def().get_job(job_name("notices"))
    return job.execute_in_process(instance=board.instance, raise_on_error=False)


def list_materializations(result: dg.ExecuteInProcessResult) -> list[tuple[str, str | None]]:
    """Return the materializations of a run in order: the asset's name and the partition."""
    events = [event.materialization for event in result.get_asset_materialization_events()] + [
        event.event_specific_data.materialization  # type: ignore[union-attr]
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION and not event.asset_key
    ]
    return [(one.asset_key.path[-1], one.partition) for one in events]


def test_one_run_builds_everything_and_the_next_one_nothing(board: NoticeBoard) -> None:
    assert board.left() == {"notices", "board", "report"}
    first = build(board)
    assert first.success, failure_of(first)
    assert list_materializations(first) == [
        *(("notices", f"n-{n}") for n in range(3)),
        ("board", None),
        ("report", None),
    ]
    assert {e.check_name for e in first.get_asset_check_evaluations()} == {"has_words", "is_polite"}
    assert board.instance.get_materialized_partitions(NOTICES) == {"n-0", "n-1", "n-2"}
    assert board.left() == set()
    (run,) = board.instance.get_runs()
    assert run.tags[DATASET] == "notices"
    second = build(board)
    assert second.success
    assert list_materializations(second) == []
    assert list(second.get_asset_check_evaluations()) == []


def test_of_a_changed_partition_only_it_and_what_is_made_of_it_are_made(board: NoticeBoard) -> None:
    assert build(board).success
    board.say("n-1", "another")
    again = build(board)
    assert list_materializations(again) == [("notices", "n-1"), ("board", None), ("report", None)]
    (evaluation,) = [e for e in again.get_asset_check_evaluations() if e.check_name == "has_words"]
    assert evaluation.metadata["notices_checked"].value == 1


def test_a_failure_is_reported_with_its_own_message_and_the_next_launch_repairs(board: NoticeBoard) -> None:
    board.say("n-1", "")
    result = build(board)
    assert not result.success
    (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None
    (evaluation,) = [e for e in result.get_asset_check_evaluations() if not e.passed]
    assert evaluation.description == "1 of 3 notices fails; the first is n-1: 0 words"
    description = f"notices/notices: check has_words failed: {evaluation.description}"
    assert failure.user_failure_data.description == description
    assert [name for name, _ in list_materializations(result)] == ["notices"] * 3, "nothing is made of it"
    board.say("n-1", "mended")
    assert build(board).success


def run_downstream(board: NoticeBoard) -> dg.ExecuteInProcessResult:
    """Run once a dataset that is built from the notices and from the board."""

    def of_it(request: BuildRequest) -> list[Outcome]:
        return [Outcome(partition="", content="made of the notices")]

    others = tuple(DatasetInput(dataset="notices", name=name) for name in ("notices", "board"))
    declared = DatasetDeclaration(dataset="readers")
    reader = replace(board.specs[1], declaration=declared, kept=False, inputs=others, build=of_it, check_groups=())
    mine = dg.Definitions.merge(build_definitions([reader]), dg.Definitions(resources=create_resources(board.storage)))
    job = mine.resolve_job_def(job_name("readers"))
    return job.execute_in_process(instance=board.instance, raise_on_error=False, run_config=QUIET)


def test_a_failed_artifact_without_partitions_blocks_another_dataset(board: NoticeBoard) -> None:
    notices, whole, _ = board.specs
    signed = [False]
    check = Check("is_signed", "It has a name.", lambda seen: Finding(passed=seen[0], summary="looked at"))
    checks = WholeArtifactChecks(checks=(check,), open=lambda *_: signed)
    checked = replace(board, specs=[notices, replace(whole, check_groups=(checks,))])
    assert not build(checked).success
    assert_names(failure_of(run_downstream(checked)), "notices/board", "is_signed")
    signed[0] = True
    assert build(checked).success
    assert run_downstream(checked).success


def test_nothing_is_built_from_a_failed_artifact_until_it_passes(board: NoticeBoard) -> None:
    whole = board.specs[1]

    def told() -> list[str]:
        by_hand = board.run(whole)
        other = run_downstream(board)
        assert by_hand.success == other.success
        return [failure_of(one) for one in (by_hand, other) if not one.success]

    assert build(board).success
    assert told() == []
    board.say("n-1", "")
    assert not build(board).success
    first, second = told()
    for said in (first, second):
        assert_names(said, "notices/notices", "has_words")
        assert "`dataprep run notices`" in said
    board.say("n-1", "mended")
    assert board.run(board.specs[0], partitions=["n-1"]).success
    assert told() == [], "the verdict was about what is there no more"


def test_a_failed_partition_leaves_the_others_built_and_recorded(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-1.txt").unlink()
    result = build(board)
    assert not result.success
    assert_names(failure_of(result), 1, 3, "n-1")
    assert list_materializations(result) == [("notices", "n-0"), ("notices", "n-2")]
    board.say("n-1", "here it is")
    assert list_materializations(build(board))[0] == ("notices", "n-1")


def test_a_failure_blocks_only_downstream_artifacts(tmp_path: Path) -> None:
    with project(sample_attributes(), tmp_path / "corpus") as corpus:
        job = corpus.definitions.resolve_job_def(job_name("corpus"))
        assert job.execute_in_process(instance=corpus.instance, run_config=QUIET).success
        victim = next(path for path in corpus.directory("token_bins", "val-00000").iterdir() if path.suffix == ".bin")
        (corpus.directory("combined_bins", "val") / "receipt.json").unlink()
        train = corpus.directory("combined_bins", "train") / "receipt.json"
        before = train.stat().st_mtime_ns
        train.unlink()
        victim.unlink()
        victim.mkdir()  # damage that a build may be unable to repair
        result = job.execute_in_process(instance=corpus.instance, raise_on_error=False, run_config=QUIET)
        names = [name for name, _ in list_materializations(result)]
        assert "combined_bins_train" in names
        assert train.stat().st_mtime_ns != before
        assert result.success or "nanogpt_bins" not in names


def test_damage_of_equal_size_is_found_when_a_downstream_build_fails(tmp_path: Path) -> None:
    with project(sample_attributes(verify="size", views=["nanogpt"]), tmp_path / "corpus") as corpus:
        job = corpus.definitions.resolve_job_def(job_name("corpus"))
        assert job.execute_in_process(instance=corpus.instance, run_config=QUIET).success
        whole = corpus.directory("combined_bins", "train") / "train.bin"
        right = whole.read_bytes()
        with open(whole, "r+b") as file:  # damages all hard links to the file
            file.seek(100)
            file.write(bytes([right[100] ^ 1]))
        shutil.rmtree(corpus.directory("nanogpt_bins"))
        result = job.execute_in_process(instance=corpus.instance, raise_on_error=False, run_config=QUIET)
        assert result.success, failure_of(result)
        assert {name for name, _ in list_materializations(result)} >= {"combined_bins_train", "nanogpt_bins"}
        assert "token_bins_train" not in {name for name, _ in list_materializations(result)}
        assert whole.read_bytes() == right
        assert (corpus.directory("nanogpt_bins") / "train.bin").read_bytes() == right


def test_an_artifact_built_on_another_instance_is_recorded_without_a_rebuild(board: NoticeBoard) -> None:
    assert build(board).success
    receipts = {path: path.stat().st_ino for path in board.store.root.rglob("receipt.json")}
    with dg.DagsterInstance.ephemeral() as other:
        there = replace(board, instance=other)
        assert there.left("not recorded") == {"notices", "board", "report"}
        result = build(there)
        assert result.success
        assert len(list_materializations(result)) == 5
        assert len(list(result.get_asset_check_evaluations())) == 2
        assert there.left() == set()
    assert {path: path.stat().st_ino for path in board.store.root.rglob("receipt.json")} == receipts


class Watch:
    """An attendant that records its calls and refuses one artifact."""

    def __init__(self, refused: str = "") -> None:
        self.seen: list[tuple[str, str, list[str], bool | None]] = []
        self.sentences: list[str] = []
        self.checked: list[str] = []
        self.results: list[tuple[str, int, int, list[str]]] = []
        self.failures: list[tuple[str, str]] = []
        self._refused = refused

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        self.seen.append(("before", spec.name, list(partitions), current))
        if spec.name == self._refused:
            raise DataprepError(f"{spec.name} is not to be made")

    def checking(self, spec: ArtifactSpec) -> None:
        self.checked.append(spec.name)

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        self.seen.append(("after", spec.name, list(partitions), None))
        self.results.append((spec.name, result.built_count, result.reused, list(result.warned)))

    def failed(self, spec: ArtifactSpec, why: str) -> None:
        self.failures.append((spec.name, why))

    def report_line(self, sentence: str) -> None:
        self.sentences.append(sentence)


def run_attended(board: NoticeBoard, watch: Watch, only: dict[ArtifactSpec, Sequence[str]] | None = None) -> bool:
    """Run the job, or a part of it, with an attendant."""
    job = build_job(board.specs, only=only, listeners=[watch])
    bound = dg.Definitions(jobs=[job], resources=create_resources(board.storage)).resolve_job_def(job.name)
    return bool(bound.execute_in_process(instance=board.instance, raise_on_error=False).success)


def test_attendants_are_called_for_each_artifact_and_may_refuse_it(board: NoticeBoard) -> None:
    watch, keys = Watch(refused="board"), ["n-0", "n-1", "n-2"]
    assert not run_attended(board, watch)
    assert watch.seen == [
        ("before", "notices", keys, False),
        ("after", "notices", keys, None),
        ("before", "board", [], False),
    ]
    assert watch.checked == ["notices"]
    assert watch.results == [("notices", 3, 0, [])]
    assert watch.failures == [("board", "")]
    assert board.store.receipt(board.declaration.artifact("board")) is None
    watch = Watch()
    assert run_attended(board, watch)
    assert watch.seen[0] == ("before", "notices", keys, True)
    assert watch.sentences == ["the board is small"], "what its step warns of"


def test_a_part_can_be_built_by_itself(board: NoticeBoard) -> None:
    assert run_attended(board, Watch(), {board.specs[0]: ["n-1"]})
    assert board.instance.get_materialized_partitions(NOTICES) == {"n-1"}
    assert board.instance.get_latest_materialization_event(BOARD) is None


def test_re_execution_from_failure_builds_the_rest(board: NoticeBoard) -> None:
    (board.declaration.folder / "n-1.txt").unlink()
    job = board.definitions.get_repository_def().get_job(job_name("notices"))
    first = job.execute_in_process(instance=board.instance, raise_on_error=False)
    assert not first.success
    board.say("n-1", "here it is")
    failed = [event.step_key for event in first.all_events if event.is_step_failure and event.step_key]
    again = job.execute_in_process(instance=board.instance, op_selection=[f"{failed[0]}*"], raise_on_error=False)
    assert again.success, failure_of(again)
    assert list_materializations(again) == [("notices", "n-1"), ("board", None), ("report", None)]
    assert asset_key(board.specs[2]) == REPORT


def test_a_partition_that_was_deleted_in_the_ui_is_registered_again(tmp_path: Path) -> None:
    with project(sample_attributes(views=["nanogpt"]), tmp_path) as corpus:
        run_job(corpus)
        (name,) = [p.dynamic for spec in corpus.specs for p in spec.plans if p.dynamic and "train" in p.dynamic]
        planned = corpus.instance.get_dynamic_partitions(name)
        corpus.instance.delete_dynamic_partition(name, planned[1])
        assert find_pending(corpus.specs, corpus.store, corpus.instance) == {"manifest"}
        run_job(corpus)
        assert corpus.instance.get_dynamic_partitions(name) == planned
        assert find_pending(corpus.specs, corpus.store, corpus.instance) == set()


def test_every_check_is_examined_after_a_file_was_added_and_removed(tmp_path: Path) -> None:
    data = shutil.copytree(SMALL, tmp_path / "data")
    attributes = sample_attributes(source={"kind": "local", "path": str(data)}, views=["nanogpt"], shards={"count": 2})
    with project(attributes, tmp_path) as corpus:
        run_job(corpus)
        added = data / "train/chunk99/example_train_0.jsonl.zst"
        added.parent.mkdir()
        shutil.copy(data / "train/chunk10/example_train_0.jsonl.zst", added)
        run_job(corpus)
        added.unlink()
        run_job(corpus)
        found = [(spec.path, *one) for spec in corpus.specs for one in read_results(spec, corpus.store).items()]
        assert [(path, name) for path, name, result in found if result == UnpassedCheck()] == []


def run_job(corpus: Project) -> None:
    """Build all of a corpus with its job."""
    job = corpus.definitions.resolve_job_def(job_name("corpus"))
    result = job.execute_in_process(instance=corpus.instance, raise_on_error=False, run_config=QUIET)
    assert result.success, failure_of(result)


def test_there_are_no_totals_while_a_partition_is_missing(board: NoticeBoard) -> None:
    (spec, *_) = board.specs
    for key in ("n-0", "n-1", "n-2"):
        assert board.run(spec, partitions=[key]).success
        event = board.instance.get_latest_materialization_event(asset_key(spec))
        assert event is not None
        assert event.asset_materialization is not None
        assert ("total_bytes" in event.asset_materialization.metadata) == (key == "n-2")


def test_the_last_partition_of_a_build_is_reported_with_the_totals_of_all(board: NoticeBoard) -> None:
    def read_totals() -> list[dict[str, object]]:
        key = dg.AssetKey(["notices", "notices"])
        events = [one.asset_materialization for one in board.instance.fetch_materializations(key, limit=9).records]
        entries = [{name: entry.value for name, entry in one.metadata.items()} for one in events if one is not None]
        return [{name: value for name, value in one.items() if name.startswith("total_")} for one in entries]

    assert build(board).success
    first, *others = read_totals()
    assert others == [{}, {}]
    assert first["total_notices"] == 3
    board.say("n-1", "a much longer text of this notice")
    assert build(board).success
    second, *others = read_totals()
    assert others == [first, {}, {}]
    assert second["total_notices"] == 3
    assert isinstance(first["total_bytes"], int)
    assert isinstance(second["total_bytes"], int)
    assert second["total_bytes"] > first["total_bytes"]
