"""`dataprep retract` for conversations, pairs and records: `run`, `retract`, `run` and `trace`, also after a kill."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.faults.armed import make_armed_environment, read_log
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.retracted_blend import OPTIONS, ROWS, VIEWS, make_row, make_word
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.slow

STAGES = ("sft", "pairs", "rl")
SHARDS = ("packed_sft", "pairs", "rl_jsonl")
KILLED = "sft"
"""The stage whose run after the removal is killed."""
NOUNS = {"sft": "conversation", "pairs": "pair", "rl": "record"}
ROW, OTHER_ROW = 4, 7
"""Removed rows of the first file, by row number and by id."""
GONE = [make_word("first", ROW - 1), make_word("first", OTHER_ROW - 1)]


class Project:
    """A user's project with a blend for each stage."""

    def __init__(self, root: Path) -> None:
        self.root, self.artifacts = root, root / "artifacts"
        self.defs = root / "their_data" / "defs"

    @property
    def environment(self) -> dict[str, str]:
        return {"DAGSTER_HOME": str(self.root / "home"), "DATAPREP_ROOT": str(self.artifacts)}

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done: subprocess.CompletedProcess[str] = dataprep(
            self.root, "--project", str(self.root), *arguments, **self.environment
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout or done.stderr

    def declare(self, stage: str) -> None:
        folder = self.defs / stage
        for dataset in ("first", "second"):
            for part in range(2):
                numbers = range(part * ROWS // 2, (part + 1) * ROWS // 2)
                path = folder / "data" / dataset / f"{dataset[0]}{part}.jsonl"
                write_rows(path, [make_row(stage, dataset, number) for number in numbers])
        value: dict[str, Any] = {
            "dataset": stage,
            "stage": stage,
            "blend": {"datasets": [{"name": name, "path": f"./data/{name}"} for name in ("first", "second")]},
            stage: OPTIONS[stage],
            "id_field": "id",
            "views": [VIEWS[stage], *["sft_rows"] * (stage == "sft")],
            "num_shards": 2,
            "tolerance": 0.5,
        }
        if stage != "rl":
            write_chat_tokenizer(folder / "tokenizer")
            value["tokenizer"] = {"path": "./tokenizer", "engine": "tokenizers"}
        declared = {"type": "dataprep_assets.components.TrainingBlend", "attributes": value}
        (folder / "defs.yaml").write_text(yaml.safe_dump(declared))

    def shard(self, stage: str) -> str:
        """Return the shard of the first file."""
        return "first__train-00001" if stage == "rl" else "first-00001"

    def texts(self, stage: str) -> Iterator[tuple[str, str]]:
        """Return the name and the text of every file of a blend, with token ids decoded."""
        bundle = TokenizerBundle.load(self.defs / stage / "tokenizer") if stage != "rl" else None
        for path in (self.artifacts / stage).rglob("*"):
            if path.suffix == ".parquet":
                for row in pq.read_table(path).to_pylist():
                    assert bundle is not None
                    ids = [value for name, value in row.items() if name.endswith("ids") and value]
                    yield path.name, json.dumps(row, ensure_ascii=False) + "".join(map(bundle.decode, ids))
            elif path.is_file():
                yield path.relative_to(self.artifacts).as_posix(), path.read_bytes().decode(errors="replace")

    def files_with_removed(self, stage: str) -> set[str]:
        return {name for name, text in self.texts(stage) if any(gone in text for gone in GONE)}

    def retract(self, stage: str, *options: str) -> str:
        ids = self.root / "ids"
        ids.write_text(f"f0.jsonl:{ROW}\nfirst-{OTHER_ROW - 1}\n")
        return self("retract", stage, "--ids", str(ids), *options)

    def assert_removed(self, stage: str, told: str) -> None:
        """Assert that the last lines of the run, every file, and the trace name no removed row."""
        assert_names(told, "2 retracted")
        assert_names(told, "removed: 2 retracted rows", "no_retracted_document passed")
        assert self.files_with_removed(stage) == set()
        assert any(make_word("first", ROW) in text for _, text in self.texts(stage))
        for row in (ROW, OTHER_ROW):
            refused = self("trace", stage, "--file", "f0.jsonl", "--row", str(row), code=1)
            assert_names(refused, f"row {row} of f0.jsonl", "removed", "retraction list")
        assert_names(self("status", stage), "up to date")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose blends are built, and are each changed by one test."""
    folder = tmp_path_factory.mktemp("retract")
    made = Project(folder / "their-data")
    assert dataprep(folder, "init", str(made.root)).returncode == 0
    for stage in STAGES:
        made.declare(stage)
        made("run", stage)
    return made


@pytest.mark.parametrize("stage", STAGES)
def test_the_run_after_a_removal_rebuilds_one_shard_without_the_rows_also_after_kills(
    project: Project, stage: str, tmp_path: Path
) -> None:
    assert project.files_with_removed(stage)
    rehearsed = project.retract(stage, "--dry-run")
    assert_names(
        rehearsed, "found 2 entries", f"2 {NOUNS[stage]}s in 1 shard", project.shard(stage), VIEWS[stage], "Dry run"
    )
    assert not (project.defs / stage / "retracted.jsonl").exists()
    told = project.retract(stage)
    assert_names(told, "found 2 entries", f"2 {NOUNS[stage]}s in 1 shard", project.shard(stage), VIEWS[stage])
    assert_names(told, "Added 2 entries")
    listed = [json.loads(line) for line in (project.defs / stage / "retracted.jsonl").read_text().splitlines()]
    assert [line["id"] for line in listed] == [f"f0.jsonl:{ROW}", f"first-{OTHER_ROW - 1}"]
    status = json.loads(project("status", stage, "--json", code=1))
    rebuilt = [line["partition"] for line in status["rebuild"] if line["artifact"].split("/")[-1] in SHARDS]
    assert rebuilt == [project.shard(stage)]
    if stage == KILLED:
        kill_runs(project, tmp_path)
    told = project("run", stage)
    project.assert_removed(stage, told)
    # Retracting the same rows again adds nothing.
    assert_names(project.retract(stage), "2 already retracted")
    # The rows are omitted again when their file changes and its shard is rebuilt.
    path = project.defs / stage / "data" / "first" / "f0.jsonl"
    path.write_text("\n" + path.read_text())
    project("run", stage)
    assert project.files_with_removed(stage) == set()


def kill_runs(project: Project, folder: Path) -> None:
    """Kill two runs of the blend, at a third and at two thirds of the writes of a whole run."""
    copy = Path(shutil.copytree(project.artifacts, folder / "copy", symlinks=True))
    points = _run(project, copy, folder / "count", at=0)
    assert points > 10
    for number, share in enumerate((0.3, 0.6)):
        _run(project, project.artifacts, folder / f"killed-{number}", at=int(points * share))


def _run(project: Project, artifacts: Path, home: Path, at: int) -> int:
    """Run the blend in a process that is killed at a write (0: never); return how many writes it passed."""
    environment = (
        make_armed_environment(home, artifacts, at=at) | project.environment | {"DATAPREP_ROOT": str(artifacts)}
    )
    command = ["-m", "dataprep_assets.cli", "--project", str(project.root), "run", KILLED]
    done = forked.run(command, env=environment, cwd=project.root, timeout=600)
    # The process that watches the command may end with the shell's exit code for the signal.
    assert done.returncode in ((-signal.SIGKILL, 128 + signal.SIGKILL) if at else (0,)), done.stdout + done.stderr
    return len(read_log(home, "parent"))
