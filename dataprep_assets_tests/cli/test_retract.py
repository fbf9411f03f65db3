"""`dataprep retract` and the next `dataprep run` also remove documents from obsolete artifacts of a user's project."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import numpy as np
import pytest
import yaml

from dataprep_assets.cli.support import project
from dataprep_assets.cli.training import training_steps
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.commit import open_staging
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.samples import SAMPLE

TEXTS = [f"Document {number} " + " ".join(f"w{number * 7 + at}" for at in range(20)) for number in range(40)]
GONE = 33
"""The retracted document, which is in the last file and thus in the last shard."""


class Own:
    """A user's project over four files of ten documents, in four shards."""

    def __init__(self, root: Path) -> None:
        self.root, self.artifacts = root, root / "artifacts" / "mine"
        self.defs = root / "their_data" / "defs" / "mine"
        self.list = self.defs / "retracted.jsonl"

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        home = {"DAGSTER_HOME": str(self.root / "home"), "DATAPREP_ROOT": str(self.root / "artifacts")}
        return dataprep(self.root, "--project", str(self.root), *arguments, **home)

    def run(self, code: int = 0) -> str:
        done = self("run", "mine")
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def declare(self, **changes: object) -> None:
        attributes = {
            "dataset": "mine",
            "source": {"kind": "local", "path": "./data"},
            "include": ["**/*.jsonl"],
            "splits": {"train": ["train/**"]},
            "tokenizer": {"path": str(SAMPLE / "tokenizer"), "name": "sample"},
            "document": {"separator": "<|endoftext|>", "id_field": "id"},
            "shards": {"count": 4},
            "views": ["nanogpt", "megatron"],
        }
        value = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": attributes | changes}
        (self.defs / "defs.yaml").write_text(yaml.safe_dump(value))

    def retract(self, content: str | bytes, *options: str) -> subprocess.CompletedProcess[str]:
        ids = self.root / "ids"
        ids.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self("retract", "mine", "--ids", str(ids), *options)

    def listed(self) -> list[str]:
        if not self.list.exists():
            return []
        return [json.loads(line)["id"] for line in self.list.read_text().splitlines()]

    def find_traces(self, number: int) -> set[str]:
        """Return the artifact and staging folders with a file that contains the tokens of a document."""
        engine = ReferenceEngine(TokenizerBundle.load(SAMPLE / "tokenizer", name="sample"), "text")
        wanted = np.array(engine.encode([TEXTS[number]])[0], "<u2").tobytes()
        files = [path for path in self.artifacts.rglob("*") if path.is_file() and wanted in path.read_bytes()]
        return {path.parent.relative_to(self.artifacts).as_posix() for path in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that was built in four shards, declared again with two shards and one view less, and rebuilt."""
    root = tmp_path_factory.mktemp("retract") / "their-data"
    assert dataprep(root.parent, "init", str(root)).returncode == 0
    own = Own(root)
    (own.defs / "data" / "train").mkdir(parents=True)
    for file in range(4):
        rows = [{"id": f"doc-{n}", "text": TEXTS[n]} for n in range(file * 10, file * 10 + 10)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (own.defs / "data" / "train" / f"f_{file}.jsonl").write_text(lines)
    own.declare()
    own.run()
    own.declare(shards={"count": 2}, views=["nanogpt"])
    own.run()
    return root


@pytest.fixture
def own(built: Path, tmp_path: Path) -> Own:
    return Own(Path(shutil.copytree(built, tmp_path / "their-data", symlinks=True)))


def test_a_retraction_names_the_revisions_on_the_hub(own: Own) -> None:
    own.declare(shards={"count": 2}, views=["nanogpt"], publish={"hub": "org/mine"})
    ended = own.retract(f"doc-{GONE}\n")
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if "hf://datasets/org/mine" in line]
    assert_names(line, "lock-…", "HfApi.super_squash_history")


def test_the_run_after_a_retraction_removes_the_document_from_obsolete_artifacts(
    own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {"token_bins/train-00003", "megatron_bins"}
    assert own.find_traces(GONE) == left | {"token_bins/train-00001", "combined_bins/train", "nanogpt_bins"}
    # Leave the staged files of a killed build of an obsolete shard that has no other files.
    with open_staging(own.artifacts / "token_bins" / "train-00007", "0123456789abcdef") as staged:
        shutil.copy(own.artifacts / "token_bins" / "train-00003" / "tokens.bin", staged)
    begun = "token_bins/.staging/train-00007-0123456789abcdef"
    before = json.loads(own("status", "mine", "--json").stdout)
    assert (before["rebuild"], before["retracted_in_no_plan"]) == ([], []), "nothing is retracted yet"
    told = own.retract(f"doc-{GONE}\n").stdout
    assert "found 1 entry: 1 document" in told, told
    assert "train-00003" in told
    assert "obsolete" in told
    assert str(own.artifacts / "token_bins" / "train-00007") in told
    assert str(own.artifacts / "megatron_bins") in told
    assert "train-00002" not in told, "it holds other documents"
    status = own("status", "mine", "--json")
    assert status.returncode == 1
    places = {one["artifact"] for one in json.loads(status.stdout)["retracted_in_no_plan"]}
    assert places == {"mine/token_bins/train-00003", "mine/token_bins/train-00007", "mine/megatron_bins"}
    assert left | {begun} <= own.find_traces(GONE), "nothing is removed before the run"
    said = own.run()
    assert_names(said, "mine/megatron_bins")
    assert own.find_traces(GONE) == set()
    assert not (own.artifacts / ".findings" / "token_bins" / "train-00003.json").exists()
    assert own.find_traces(25), "the other documents are there"
    assert (own.artifacts / "token_bins" / "train-00002" / "tokens.bin").exists(), "it held none"
    assert own("status", "mine").returncode == 0
    monkeypatch.setenv("DAGSTER_HOME", str(own.root / "home"))
    with dg.DagsterInstance.from_config(str(own.root / "home")) as instance:
        (run, *_) = instance.get_runs(limit=1)
        records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
        events = [record.event_log_entry.dagster_event for record in records]
        told = [event.asset_check_evaluation_data for event in events if event is not None]
    of_bins = dg.AssetCheckKey(dg.AssetKey(["mine", "token_bins_train"]), "no_retracted_document")
    warned, passed = [one for one in told if one.asset_check_key == of_bins]
    assert [(one.passed, one.severity.value) for one in (warned, passed)] == [(False, "WARN"), (True, "ERROR")]
    assert_names(str(warned.description), "mine/token_bins/train-00003", "obsolete")


def test_artifacts_that_lost_their_plan_are_out_of_date_and_the_next_run_removes_them(own: Own) -> None:
    kept = shutil.copytree(own.artifacts / "token_bins" / "train-00003", own.root / "kept")
    own.retract(f"doc-{GONE}\n")
    own.run()
    shutil.copytree(kept, own.artifacts / "token_bins" / "train-00003")
    status = own("status", "mine")
    assert (status.returncode, "up to date" in status.stdout) == (1, False), status.stdout
    assert "token_bins/train-00003" in status.stdout
    assert_names(own.run(), "mine/token_bins/train-00003")
    assert own.find_traces(GONE) == set()
    assert own("status", "mine").returncode == 0


def test_a_failed_run_removes_nothing(own: Own) -> None:
    own.retract(f"doc-{GONE}\n")
    before = own.find_traces(GONE)
    with (own.defs / "data" / "train" / "f_0.jsonl").open("a") as file:
        file.write("{broken\n")
    own.run(code=1)
    assert {"token_bins/train-00003", "megatron_bins"} <= own.find_traces(GONE) <= before


def test_strict_writes_nothing_when_an_id_is_not_found(own: Own) -> None:
    done = own.retract("doc-3\ndoc-none\n", "--strict")
    assert done.returncode == 1
    assert "line 2: doc-none" in done.stdout
    assert "nothing was written" in done.stdout
    assert own.listed() == []
    assert own.retract("doc-3\n", "--strict").returncode == 0
    assert own.retract("doc-3\n", "--strict").returncode == 0, "it was retracted before"
    assert own.listed() == ["doc-3"]
    assert own.retract("doc-none\n").returncode == 0
    assert own.listed() == ["doc-3", "doc-none"]


def test_a_dry_run_prints_the_same_and_writes_nothing(own: Own) -> None:
    before = {path: path.stat().st_mtime_ns for path in own.root.rglob("*") if path.is_file()}
    dry = own.retract(f"doc-{GONE}\ndoc-none\n", "--dry-run")
    assert own.listed() == []
    after = {path: path.stat().st_mtime_ns for path in own.artifacts.rglob("*") if path.is_file()}
    assert {path: before[path] for path in after} == after
    done = own.retract(f"doc-{GONE}\ndoc-none\n")
    assert (dry.returncode, done.returncode) == (0, 0)
    # Compare all lines except the last, which reports what was or would be written.
    told = [[line for line in one.stdout.splitlines() if str(own.list) not in line] for one in (dry, done)]
    assert told[0] == told[1]
    assert own.retract("doc-other\n", "--dry-run", "--strict").returncode == 1
    assert own.listed() == [f"doc-{GONE}", "doc-none"]


def test_documents_do_not_return_because_the_list_is_missing(own: Own) -> None:
    own.retract(f"doc-{GONE}\n")
    own.run()
    moved = own.list.rename(own.root / "moved")
    # A damaged receipt does not hide the others.
    (own.artifacts / "token_bins" / "train-00000" / "receipt.json").write_text("{")
    done = own("run", "mine")
    assert done.returncode == 2, done.stdout
    assert_names(done.stdout + done.stderr, "retractions", own.list, "empty file")
    assert own.find_traces(GONE) == set()
    own.list.touch()
    own.run()
    assert own.find_traces(GONE)
    moved.replace(own.list)
    own.run()
    assert own.find_traces(GONE) == set()


def test_a_row_that_does_not_exist_is_said_not_to_be_added(own: Own) -> None:
    told = own.retract("train/f_0.jsonl:999\ndoc-none\n").stdout
    assert_names(told, "2 entries", "not added", "train/f_0.jsonl:999")
    assert own.listed() == ["doc-none"]


def test_a_list_written_by_windows_is_read_completely(own: Own) -> None:
    told = own.retract(b"\xef\xbb\xbfdoc-3\r\ndoc-4\r\n", "--strict")
    assert told.returncode == 0, told.stdout
    assert own.listed() == ["doc-3", "doc-4"]


@pytest.mark.parametrize("row", ["0", "x", "-3", "1.5", "", " 3"])
def test_an_invalid_row_is_reported_with_its_line(own: Own, row: str) -> None:
    done = own.retract(f"doc-3\ntrain/f_0.jsonl:{row}\n")
    assert done.returncode == 2
    assert_names(done.stderr, "line 2", "row")
    assert own.listed() == []


def test_a_sensitive_corpus_shows_the_training_steps_but_no_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training_steps, "find_training_runs", lambda _: [("first_model", None)])
    monkeypatch.setattr(training_steps, "find_listed_documents", lambda *_: {1: [7, 9]})
    monkeypatch.setattr(training_steps, "find_steps", lambda _, steps: steps)
    given: Any = [None] * 3
    store = LocalArtifacts(tmp_path)
    declaration = SimpleNamespace(sensitive=True, small_cell=11, dataset="tales", store=lambda _: store)
    sensitive: Any = SimpleNamespace(declaration=declaration)
    read = "first_model reads these documents at steps 7, 9"
    with project.scope_privacy():
        assert next(training_steps.describe_trained_steps("tales", given)).startswith(f"{read} (1 of 3 ")
        project.apply_privacy(sensitive)
        assert next(training_steps.describe_trained_steps("tales", given)) == read
