"""A real Ray cluster gives the same bytes as processes, and a lost worker is retried or named, never ignored."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import BadRecordError, ConfigError
from dataprep_assets.execution.pool import choose_engine, open_pool
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stream.shard_job import ensure_shard
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets_tests import forked
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.execution.ray_runs import (
    GUARD_SECONDS,
    SHARDS,
    Run,
    read_outcomes,
    read_token_bins,
    run_ray_cluster,
)
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, run_pipeline
from dataprep_assets_tests.pipelines.corpus.shards import (
    build,
    build_whole_shards,
    shard_work,
    source,
    stream_plan,
    write_lines,
)
from dataprep_assets_tests.servers import find_descendants, wait_until

FILES = 36


@pytest.fixture(scope="module")
def needs_ray() -> None:
    # Do not import Ray, because only the processes that these tests start use it.
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")


@pytest.fixture(scope="module")
def answers(needs_ray: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of every case of `ray_tasks`, run in one cluster."""
    folder = tmp_path_factory.mktemp("marks")
    command = [sys.executable, "-m", "dataprep_assets_tests.execution.ray_tasks", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=GUARD_SECONDS)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), FILES, documents=40)


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of the same corpus, built by worker processes."""
    root = tmp_path_factory.mktemp("processes")
    run_pipeline(CorpusDeclaration.model_validate(make_attributes(corpus, SHARDS, views=[])), root, workers=2)
    return root


@pytest.fixture(scope="module")
def finished(needs_ray: None, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Run, list[str]]]:
    """Return two runs and their output, which used one cluster at the same time and lost its second node.

    The first is on Ray by its environment, the second by its declaration. They use Ray's client protocol, whose server
    drops a connection that starts slowly on a busy machine.
    """
    folder = tmp_path_factory.mktemp("cluster")
    folders = [folder / name for name in ("one", "two")]
    with run_ray_cluster(folder) as cluster:
        for own in folders:
            own.mkdir()
        runs = [
            Run(corpus, folders[0], DATAPREP_ENGINE="ray", **cluster.variables),
            Run(corpus, folders[1], "ray", **cluster.variables),
        ]
        node = cluster.second

        def is_at_work() -> bool:
            return any("ray::train-" in title for title in find_descendants(node.process.pid).values())

        wait_until(lambda: is_at_work() and any(run.committed() for run in runs), GUARD_SECONDS, every=0.05)
        node.lose()
        ends = [run.finish() for run in runs]
    assert [code for code, _ in ends] == [0, 0], ends
    return [(run, lines) for run, (_, lines) in zip(runs, ends, strict=True)]


@pytest.mark.slow
def test_the_second_node_takes_over_from_a_lost_one_and_concurrent_connections_all_succeed(
    finished: list[tuple[Run, list[str]]], undisturbed: Path
) -> None:
    for run, lines in finished:
        assert lines[0] == "ray: True", lines
        assert read_token_bins(run.root) == read_token_bins(undisturbed)
        assert debris(run.root) == []


@pytest.mark.slow
def test_the_environment_selects_ray_and_processes_reuse_the_bytes(
    finished: list[tuple[Run, list[str]]], corpus: Path
) -> None:
    run, (engine, *lines) = finished[0]
    assert engine == "ray: True"
    # If the node was lost between a shard's commit and its answer, the retry finds the finished shard.
    became = read_outcomes(lines)
    assert became.keys() <= {"built", "reused"}
    assert len(became.get("reused", [])) <= 1
    before = run.committed()
    assert sorted(partition for shards in became.values() for partition in shards) == sorted(before)
    code, lines = Run(corpus, run.root.parent).finish()
    assert (code, lines[0]) == (0, "ray: False"), lines
    assert {what: len(shards) for what, shards in read_outcomes(lines[1:]).items()} == {"reused": SHARDS}
    assert run.committed() == before


@pytest.mark.slow
def test_a_dataset_on_ray_names_the_missing_extra(corpus: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from dataprep_assets_tests.execution import ray_run; "
    program = f"{code}sys.exit(ray_run.main(sys.argv[1:]))"
    ended = forked.run(["-c", program, corpus, tmp_path, SHARDS, "ray"], timeout=GUARD_SECONDS)
    assert ended.returncode == 1
    assert "pip install 'dataprep-assets[ray]'" in ended.stdout
    assert not list((tmp_path / "artifacts").glob("*/token_bins/*"))


@pytest.mark.slow
def test_a_pool_without_an_address_starts_a_cluster_and_ends_it(answers: dict[str, Any]) -> None:
    assert answers["cluster"] == [True, False]


@pytest.mark.slow
def test_a_worker_that_dies_twice_is_retried(answers: dict[str, Any]) -> None:
    assert answers["retried"] == {"train-00004": 3, "tokens": 0, "tries": 3}


@pytest.mark.slow
def test_a_worker_that_always_dies_fails_the_run_and_names_the_shard(answers: dict[str, Any]) -> None:
    assert answers["hopeless"]["raised"].startswith("WorkerDiedError: train-00004: its Ray worker died 3 times")
    assert answers["hopeless"]["tries"] == 3


@pytest.mark.slow
def test_errors_of_a_task_arrive_unchanged_and_are_not_retried(answers: dict[str, Any]) -> None:
    assert answers["errors"]["refused"] == repr(BadRecordError("a.jsonl: row 3, byte 12: not JSON"))
    assert "bug: ZeroDivisionError" in answers["errors"]["bug"]
    assert answers["errors"]["fine"] == 0.5


@pytest.mark.slow
def test_settings_progress_and_cancelling_work_as_in_the_process_pool(answers: dict[str, Any]) -> None:
    assert answers["settings"]["setting"] == "seen"
    assert answers["progress"] == {"counts": 8, "tokens": 80, "tries": 0}
    assert answers["cancelled"]["outstanding"] == 6
    assert {name for name in answers["cancelled"] if name.startswith("part")} == {f"part (sleep {n})" for n in range(4)}


def test_the_environment_chooses_the_engine() -> None:
    assert choose_engine({}) == "processes"
    assert choose_engine({"DATAPREP_ENGINE": "ray"}) == "ray"
    assert choose_engine({"DATAPREP_ENGINE": "ray"}, "processes") == "processes", "a dataset's own choice goes first"
    assert isinstance(open_pool(2, {}, {}), WorkerPool)
    with raises(ConfigError, "DATAPREP_ENGINE", "'dask'"):
        choose_engine({"DATAPREP_ENGINE": "dask"})


def test_an_address_without_a_cluster_is_refused_by_name(needs_ray: None) -> None:
    code = (
        "from dataprep_assets.execution.pool import open_pool\n"
        "with open_pool(1, {}, {'DATAPREP_ENGINE': 'ray', 'RAY_ADDRESS': '127.0.0.1:1'}): pass"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GUARD_SECONDS)
    assert ended.returncode == 1
    assert "RAY_ADDRESS: 127.0.0.1:1: no Ray cluster found" in ended.stderr


def test_whole_shards_on_processes_equal_files_on_processes(tmp_path: Path) -> None:
    plan = stream_plan()
    files = [source(write_lines(tmp_path / f"{n}.jsonl.zst", [f"document {n}", "and more"]), n) for n in range(3)]
    by_files = build(shard_work(tmp_path / "files", plan, files))
    work = shard_work(tmp_path / "shards", plan, files)
    with open_pool(1, {}, {}) as pool:
        (result,) = build_whole_shards([work], pool)
    assert result.error is None
    assert data_files(tmp_path / "shards") == data_files(tmp_path / "files")
    with open_pool(1, {}, {}) as pool:
        (again,) = build_whole_shards([work], pool)
    assert again.reused
    assert again.receipt is not None
    assert again.receipt.content == by_files.receipt.content


def test_a_failed_shard_is_named_and_the_others_are_built(tmp_path: Path) -> None:
    good = source(write_lines(tmp_path / "good.jsonl.zst", ["good"]))
    bad = source(write_lines(tmp_path / "bad.jsonl.zst", [b"{"]))
    plan = stream_plan()
    works = [
        shard_work(tmp_path / "out", plan, [good]),
        named(shard_work(tmp_path / "out", plan, [bad]), "train-00001"),
    ]
    with open_pool(2, {}, {}) as pool:
        results = {r.partition: r for r in build_whole_shards(works, pool)}
    assert results["train-00000"].receipt is not None
    assert isinstance(results["train-00001"].error, BadRecordError)


def test_a_source_that_is_not_on_the_machine_is_downloaded(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "far.jsonl.zst", ["from afar"])
    work = shard_work(tmp_path / "out", stream_plan(), [source(path)])
    away = path.rename(tmp_path / "away")
    brought: list[Path] = []

    def bring() -> None:
        brought.append(away.rename(path))

    receipt, reused = ensure_shard(work, "full", bring)
    assert (brought, reused, receipt.ledger is not None) == ([path], False, True)
    assert ensure_shard(work, "full", bring)[1]
    assert len(brought) == 1


def named(work: TokenShard, partition: str) -> TokenShard:
    return replace(work, artifact=replace(work.artifact, partition=partition))


def test_two_runs_that_need_one_shard_build_it_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl.zst", ["a document"] * 50)
    work = shard_work(tmp_path / "out", stream_plan(), [source(path)])
    with open_pool(2, {}, {}) as pool:
        for label in ("one", "other"):
            pool.submit(Task(TaskId(label), ensure_shard, (work, "full", None)))
        answers = [event for event in pool.events() if isinstance(event, FinishedTask)]
    assert [answer.error for answer in answers] == [None, None]
    assert sorted(answer.result[1] for answer in answers) == [False, True]
    assert debris(tmp_path / "out") == []
