"""A training run is stopped, changed and resumed, and `dataprep seen` reports the documents that its steps read.

The loop records the documents that it decodes from its batches, without using the ledger.
"""

import json
import os
import pickle
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.errors import ConfigError, NotFoundError
from dataprep_assets.formats.document_index import IDS
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_artifact import build_schedule
from dataprep_assets.serving.sampler import training_data
from dataprep_assets.serving.sampler.seen import SeenLedger, documents_of_step, find_documents, steps_of_document
from dataprep_assets.serving.sampler.training_data import IGNORED, Batch, TrainingData
from dataprep_assets.stores.connect import AWS_PAIR, READ_PAIR, WRITE_PAIR
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import Store
from dataprep_assets_tests.docs.run_blocks import find_blocks
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.fault_proxy import Fault, FaultProxy
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.schedule.training_project import (
    CORPUS,
    HOSTS,
    RUN,
    SCHEDULE,
    TrainingProject,
    copy,
    make,
)

pytestmark = pytest.mark.slow
PAGE = PROJECT_ROOT / "docs" / "pipelines" / "schedule.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingProject:
    return make(tmp_path_factory.mktemp("training"))


def train(
    project: TrainingProject, state: dict[str, Any] | None, steps: int, ranks: int
) -> tuple[dict[str, Any], dict[tuple[int, int], Counter[int]]]:
    """Train with several ranks; return the state for a checkpoint, and the records of its hook."""
    data, wrote = project.data(boundaries=True), {}
    first = data.restore(state)
    for step in range(first, first + steps):
        for rank in range(ranks):
            batch = data.batch(step, rank=rank, world_size=ranks)
            wrote.update({(step, position): told for position, told in project.told(batch).items()})
    return pickle.loads(pickle.dumps(data.state(first + steps))), wrote


def read_all(data: TrainingData, steps: range) -> None:
    for step in steps:
        data.batch(step)


def assert_same(one: Batch, other: Batch) -> None:
    assert np.array_equal(one.tokens, other.tokens)
    assert np.array_equal(one.labels, other.labels)


def row_number(project: TrainingProject, file: str, row: int) -> int:
    line = (project.defs / CORPUS / "texts" / file).read_text().splitlines()[row - 1]
    return int(json.loads(line)["text"].split()[1])


def test_a_run_that_is_changed_four_times_reads_the_documents_that_seen_reports(
    made: TrainingProject, tmp_path: Path
) -> None:
    project = copy(made, tmp_path / "run")
    state, wrote = train(project, None, 30, ranks=2)

    # Change the batch size and the mixture, and train on three ranks.
    sources = [{"dataset": CORPUS, "split": "train", "name": "long", "weight": 1}]
    sources += [{"dataset": CORPUS, "split": "val", "name": "short", "weight": 1}]
    project.declare(batch=9, sources=sources)
    assert "revision 1 from step 30" in project("schedule", RUN, "--from-step", "30").stdout
    project("run", RUN)
    state, more = train(project, state, 10, ranks=3)
    wrote |= more

    # Append documents, and retract a document that the run has read.
    project.write_texts("train_2.jsonl", range(300, 340))
    gone = next(document for told in wrote.values() for document in told if document < 200)
    file, row = ("train_0.jsonl", gone + 1) if gone < 120 else ("train_1.jsonl", gone - 119)
    (project.folder / "ids").write_text(f"{file}:{row}\n")
    steps_of_gone = {step for (step, _), told in wrote.items() if gone in told}
    retracted = project("retract", CORPUS, "--ids", str(project.folder / "ids")).stdout
    assert_names(retracted, RUN, "steps")
    project("run", CORPUS)
    with raises(ConfigError, "removed", "dataprep schedule first_model --from-step N"):
        read_all(project.data(), range(40, 60))
    standing = json.loads(project("status", RUN, "--json").stdout)["standing"]
    assert_names("\n".join(standing), RUN, "source long", "1 new shard", "train-00002")
    assert "revision 2 from step 40" in project("schedule", RUN, "--from-step", "40").stdout
    project("run", RUN)
    state, more = train(project, state, 60, ranks=1)
    assert not any(gone in told for told in more.values())
    assert any(300 <= document < 340 for told in more.values() for document in told)
    wrote |= more

    # Return to step 80, and continue with longer samples.
    project.declare(batch=9, sources=sources, sequence_length=128)
    project("schedule", RUN, "--from-step", "80", "--trained", "100")
    project("run", RUN)
    with raises(ConfigError, 80):
        train(project, state, 1, ranks=1)
    state, more = train(project, {**state, "step": 80}, 60, ranks=9)
    wrote = {(step, position): told for (step, position), told in wrote.items() if step < 80} | more

    ledger = SeenLedger(project.data())
    first_epoch = Counter[str]()
    for step in range(140):
        seen = documents_of_step(ledger, step)
        for position in {position for at, position in wrote if at == step}:
            told = {row_number(project, one.file, one.row): one.tokens for one in seen if one.position == position}
            assert set(wrote[step, position]) <= set(told)
            assert {document for document, tokens in told.items() if tokens >= 30} <= set(wrote[step, position])
        for one in seen:
            if (one.source, one.epoch) == ("short", 0):
                first_epoch[f"{one.file}:{one.row}"] += one.tokens
    # Across all revisions, the first epoch of `short` reads every document exactly once.
    val_shard = next(shard for _, shard in ledger.shards.values() if shard.name == "val-00000")
    ends = ledger.data.open_document_ends(val_shard)
    assert sorted(first_epoch.values()) == sorted(np.diff(ends, prepend=np.uint64(0)).tolist())

    # `seen` reports the positions of a rank in each step, and the steps that read the retracted document.
    lines = project("seen", RUN, "--step", "35", "--rank", "1", "--world", "3", "--json").stdout.splitlines()
    assert [json.loads(line)["position"] for line in lines] == sorted(json.loads(line)["position"] for line in lines)
    assert {json.loads(line)["position"] for line in lines} == {1, 4, 7}
    several = project("seen", RUN, "--step", "35", "--until", "38", "--rank", "1", "--world", "3", "--json").stdout
    assert several.splitlines()[: len(lines)] == lines
    assert {json.loads(line)["step"] for line in several.splitlines()} == {35, 36, 37}
    value = json.loads(project("seen", RUN, "--document", f"{file}:{row}", "--json").stdout.splitlines()[0])
    assert {one["step"] for one in value["read"] if one["tokens"] >= 30} <= steps_of_gone
    assert steps_of_gone <= {one["step"] for one in value["read"]}
    assert_names(project("schedule", RUN).stdout, "steps 80 to 99", "revision 2")
    revisions = json.loads(project("schedule", RUN, "--json").stdout)["revisions"]
    assert [one["first_step"] for one in revisions] == [0, 30, 40, 80]
    assert revisions[1]["changes"] == ["batch 6 → 9", "long 75.0% → 50.0%", "short 25.0% → 50.0%"]
    assert "sequence_length 64 → 128" in revisions[3]["changes"]


def test_an_unfinished_revision_is_replaced_when_its_shards_are_missing(made: TrainingProject, tmp_path: Path) -> None:
    project = copy(made, tmp_path / "replaced")
    # The second retraction replaces a shard of the unfinished revision, so `schedule` replaces this revision.
    for row in (3, 4):
        (project.folder / "ids").write_text(f"train_0.jsonl:{row}\n")
        project("retract", CORPUS, "--ids", str(project.folder / "ids"))
        project("run", CORPUS)
        assert "revision 1 from step 40" in project("schedule", RUN, "--from-step", "40").stdout
    project("run", RUN)
    assert [one.first_step for one in project.data().schedule.revisions] == [0, 40]
    project.declare(batch=9)
    assert "revision 2 from step 40" in project("schedule", RUN, "--from-step", "40").stdout


def test_a_run_is_queried_by_fields_of_documents(made: TrainingProject, tmp_path: Path) -> None:
    ledger = SeenLedger(made.data())
    by_host, steps = Counter[str](), set[int]()
    for step in range(250):  # 250 steps are more than an epoch of the short source
        for one in documents_of_step(ledger, step):
            host = HOSTS[row_number(made, one.file, one.row) % 3]
            by_host[host] += one.tokens
            steps |= {step} if host == HOSTS[1] and step < 40 else set()
    assert json.loads(made("seen", RUN, "--until", "250", "--by", "host", "--json").stdout) == by_host
    lines = made("seen", RUN, "--until", "250", "--by", "host").stdout.splitlines()
    assert lines[1].split()[:2] == [(most := by_host.most_common(1)[0])[0], f"{most[1]:,}"]
    where = f"host == '{HOSTS[1]}'"
    told = made("seen", RUN, "--where", where, "--until", "40", "--json").stdout.splitlines()
    values = [json.loads(line) for line in told]
    assert {row_number(made, one["file"], one["row"]) % 3 for one in values} == {1}
    assert len(values) == sum(number % 3 == 1 for number in (*range(200), *range(900, 940)))
    assert {reading["step"] for one in values for reading in one["read"]} == steps
    first = made("seen", RUN, "--where", where, "--until", "40").stdout.splitlines()[0]
    assert first.startswith(f"{len(values):,} documents, read at steps {min(steps)}, ")

    # `trace` reports the steps for one document, and `retract` for all documents that match an expression.
    one = next(one for one in values if one["read"])
    traced = json.loads(made("trace", CORPUS, "--file", one["file"], "--row", str(one["row"]), "--json").stdout)
    kept = find_documents(ledger, rows={one["file"]: [one["row"]]})
    assert traced["trained"] == {RUN: sorted({r.step for found in kept for r in steps_of_document(ledger, found)})}
    project = copy(made, tmp_path / "retracted")
    retracted = project("retract", CORPUS, "--where", where).stdout
    assert_names(retracted, RUN, "steps")
    assert f"{len(values)} of {len(values)} lines" in retracted


def test_a_batch_has_the_tokens_of_its_spans_and_the_following_tokens_as_labels(made: TrainingProject) -> None:
    data = made.data()
    bins = {
        shard.content: np.asarray(data.open_tokens(source, shard))
        for source in data.schedule.revisions[0].sources
        for shard in source.shards
    }
    for step in (0, 7, data.steps - 1):
        batch, spans = data.batch(step), data.sampler.find_step_spans(step)
        sources = data.schedule.revisions[0].sources
        for row, source, _, shard, start, stop in zip(*(column.tolist() for column in spans), strict=True):
            stream = bins[sources[source].shards[shard].content]
            count = stop - start
            assert np.array_equal(batch.tokens[row, :count], stream[start:stop])
            after = stream[start + 1 : stop + 1]
            assert np.array_equal(batch.labels[row, : len(after)], after)
            assert (batch.labels[row, len(after) :] == IGNORED).all()
        alone = data.sample(step, 3)
        assert np.array_equal(alone.tokens[0], batch.tokens[3])


@pytest.mark.parametrize("samples", ["windows", "documents"])
def test_boundaries_are_at_the_ends_of_documents(made: TrainingProject, tmp_path: Path, samples: str) -> None:
    project = made
    if samples == "documents":
        project = copy(made, tmp_path / "packed")
        project.declare(samples="documents", sequence_length=512)
        project("schedule", RUN, "--from-step", "0")
        project("run", RUN)
    data = project.data(boundaries=True)
    separator = project.tokenizer().token_to_id("<|endoftext|>")
    for step in range(10):
        batch = data.batch(step)
        assert batch.document_ids is not None
        assert batch.position_ids is not None
        for tokens, labels, documents, places in zip(
            batch.tokens, batch.labels, batch.document_ids, batch.position_ids, strict=True
        ):
            held = int((documents >= 0).sum())
            ends = np.flatnonzero(tokens[:held] == separator)
            assert (labels[ends] == IGNORED).all()
            begins = np.concatenate([[0], ends + 1])
            begins = begins[begins < held]
            if samples == "documents":
                starts = np.flatnonzero(places[:held] == 0)
                assert set(begins.tolist()) <= set(starts.tolist())
            else:
                assert np.array_equal(np.flatnonzero(places[:held] == 0), begins)
            assert np.array_equal(np.unique(documents[:held]), np.arange(documents[:held].max() + 1))
            assert (np.diff(documents[:held]) == (places[1:held] == 0)).all()
    if samples == "documents":
        held = sum(int((data.batch(step).document_ids >= 0).sum()) for step in range(20))  # type: ignore[operator]
        assert held / (20 * 6 * 512) > 0.9


def test_the_loop_of_the_page_reads_every_step(made: TrainingProject, monkeypatch: pytest.MonkeyPatch) -> None:
    block = find_blocks(PAGE)[0].replace(".dataprep/artifacts", str(made.artifacts)).replace("my_run", RUN)
    data = made.data(boundaries=True)
    steps: list[int] = []

    def train(batch: Batch) -> None:
        assert np.array_equal(batch.tokens, data.batch(batch.step, rank=1, world_size=2).tokens)
        steps.append(batch.step)

    scope = {"state": data.state(390), "rank": 1, "ranks": 2, "train": train}
    exec(compile(block, "schedule.md", "exec"), scope)
    assert steps == list(range(390, 400))
    ledger: dict[str, Any] = {}
    exec(
        compile(
            find_blocks(PAGE)[1].replace(".dataprep/artifacts", str(made.artifacts)).replace("my_run", RUN), "b", "exec"
        ),
        ledger,
    )
    assert 3 in ledger["steps"]
    assert scope["state"] == data.state(400)


def test_the_state_is_small_and_valid_for_one_schedule(made: TrainingProject) -> None:
    data = made.data()
    state = data.state(17)
    assert len(json.dumps(state)) < 1024
    assert data.restore(state) == 17
    assert data.restore(None) == 0
    with raises(ConfigError, "0" * 12):
        data.restore({**state, "digest": "0" * 64})
    with raises(ConfigError, "state of a schedule"):
        data.restore({"step": 3})
    with raises(NotFoundError, 400, "dataprep schedule"):
        data.batch(400)
    again = pickle.loads(pickle.dumps(data))
    assert np.array_equal(again.batch(5).tokens, data.batch(5).tokens)


def test_a_query_without_an_answer_gives_one_sentence(made: TrainingProject) -> None:
    for arguments, code, said in (
        (("schedule", CORPUS), 2, "tales is a TokenizedCorpus, which has no training steps"),
        (("schedule", RUN, "--dry-run"), 2, "--trained and --dry-run need --from-step N"),
        (("schedule", RUN, "--from-step", "5"), 2, "nothing has changed"),
        (("seen", RUN), 2, "pass exactly one of --step, --document, --id and --where"),
        (("seen", RUN, "--step", "400"), 1, "step 400 is out of range: the schedule has steps 0 to 399"),
        (("seen", RUN, "--document", "nowhere:1"), 1, "no shard of first_model has the document nowhere:1"),
        (("seen", RUN, "--document", "nowhere"), 2, "must be FILE:ROW"),
        (("seen", RUN, "--until", "10", "--rank", "1", "--world", "2"), 2, "--rank and --world need --step"),
        (("seen", RUN, "--by", "host"), 2, "seen: pass exactly one of --step"),
        (("seen", RUN, "--step", "3", "--by", "host"), 2, "--by needs --until N"),
        (
            ("seen", RUN, "--until", "3", "--by", "colour"),
            2,
            "--by colour: unknown column of tales. Available: file, row",
        ),
        (("seen", RUN, "--where", "host == 'nobody'"), 1, "--where matched no document in first_model"),
        (("seen", CORPUS, "--step", "1"), 2, "which has no training steps. Name a TrainingSchedule"),
    ):
        done = made(*arguments, code=code)
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_bucket_is_read_by_ranges_with_retries_and_a_failure_names_the_step(
    made: TrainingProject, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = f"s3://{new_bucket(moto)}/artifacts"
    with FaultProxy(moto) as proxy:
        for name, value in (
            ("DATAPREP_ENDPOINT_URL", proxy.url),
            ("AWS_ACCESS_KEY_ID", KEY_ID),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        made("sync", str(made.artifacts), there)
        data, here = TrainingData(there, RUN, cache_dir=tmp_path / "cache"), made.data()
        proxy.seen.clear()
        for step in range(3):
            assert_same(data.batch(step), here.batch(step))
        worker = get_context("fork").Process(target=lambda: assert_same(data.batch(3), here.batch(3)), daemon=True)
        worker.start()
        worker.join(60)
        worker.kill()
        assert worker.exitcode == 0
        proxy.faults.append(Fault("503", "get", times=2))
        assert np.array_equal(data.batch(4).tokens, here.batch(4).tokens)
        assert not proxy.faults or not proxy.faults[0].times
        proxy.faults.append(Fault("403", "get", times=100))
        with raises(ConfigError, RUN, 5):
            data.batch(5)
        proxy.faults.clear()
        assert np.array_equal(data.batch(5).tokens, here.batch(5).tokens)


class Bucket:
    """A bucket location whose objects are files on this machine."""

    url = "s3://bucket/artifacts"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> Store:
        return LocalStore(self.folder)


@pytest.mark.parametrize("sensitive", [False, True])
def test_copies_of_a_sensitive_schedule_are_private(
    made: TrainingProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sensitive: bool
) -> None:
    project = copy(made, tmp_path / "copied")
    declaration = ScheduleDeclaration.model_validate(SCHEDULE | {"sensitive": sensitive})
    _, reused = build_schedule(declaration, LocalArtifacts(project.artifacts))
    assert reused is not sensitive
    monkeypatch.setattr(training_data, "parse_place", lambda *_, **__: Bucket(project.artifacts))
    before = os.umask(0o022)
    try:
        ledger = SeenLedger(TrainingData(Bucket.url, RUN, cache_dir=tmp_path / "cache"))
        assert ledger.ids(next(iter(ledger.shards))) is not None
    finally:
        os.umask(before)
    (folder,) = (tmp_path / "cache").iterdir()
    assert list(folder.rglob(IDS))
    assert bool(folder.stat().st_mode & 0o077) is not sensitive


def test_a_folder_url_is_a_folder_and_a_bucket_needs_keys_for_reading(
    made: TrainingProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TrainingData(made.artifacts.resolve().as_uri(), RUN).steps == 400
    with raises(ConfigError, "`cache_dir`"):
        TrainingData("s3://bucket/artifacts", RUN)
    for name in (*AWS_PAIR, *READ_PAIR, *WRITE_PAIR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("R2_DATASET_ACCOUNT_ID", "a" * 32)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with raises(ConfigError, READ_PAIR[0]):
        TrainingData("s3://bucket/artifacts", RUN, cache_dir=tmp_path / "cache")


def test_a_missing_shard_is_named_with_the_remedy(made: TrainingProject, tmp_path: Path) -> None:
    project = copy(made, tmp_path / "lost")
    (project.artifacts / CORPUS / "token_bins" / "train-00001" / "receipt.json").unlink()
    with raises(ConfigError, "long", "tales/token_bins/train-00001", "--from-step N"):
        read_all(project.data(), range(50))
    assert TrainingData(project.artifacts, RUN).steps == 400
