"""The batch script on a real Slurm of this machine: an array builds the shards, and a final run combines and checks
them.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.deploy.cluster import DEPLOY
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.fakes.slurm_cluster import SlurmCluster, run_slurm_cluster
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris
from dataprep_assets_tests.project import cloned_project

pytestmark = pytest.mark.slow
SHARDS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with run_slurm_cluster() as running:
        yield running


class Project:
    """A project with one corpus, and the jobs that build it."""

    def __init__(self, cluster: SlurmCluster, folder: Path, documents: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.folder, self.root = cluster, folder, folder / "artifacts"
        # Use the slow engine, so that a task can be killed while it works. Both engines write the same bytes.
        self.declared = make_attributes(write_corpus(folder / "corpus", SHARDS, documents), SHARDS, workers=1)
        self.declared["tokenizer"] |= {"engine": "tokenizers"}
        self.clone = cloned_project(folder / "clone")
        defs = self.clone / "dataprep_assets" / "defs"
        for other in [path for path in defs.iterdir() if path.is_dir()]:
            shutil.rmtree(other)
        (defs / "tiny").mkdir()
        of_file = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": self.declared}
        (defs / "tiny" / "defs.yaml").write_text(json.dumps(of_file))
        for name, value in {
            "DATAPREP": f"{sys.executable} -m dataprep_assets.cli",
            "DATAPREP_PROJECT": str(self.clone),
            "DATAPREP_ROOT": str(self.root),
            "DAGSTER_HOME": str(folder / "home"),
            "PYTHONPATH": str(self.clone),
        }.items():
            monkeypatch.setenv(name, value)

    def submit(self, *options: str) -> str:
        """Submit the batch script and return the id of its job."""
        own = ("--cpus-per-task=1", "--mem=0", f"--output={self.folder}/%A-%a.out", f"--chdir={self.clone}")
        return self.cluster.submit(*own, *options, str(DEPLOY / "slurm" / "run.sbatch"), "tiny")

    def wait(self, job: str) -> dict[str, str]:
        """Wait until the tasks of a job have ended, and return their states by index."""
        ended = {"COMPLETED", "FAILED", "CANCELLED"}
        self.cluster.wait(lambda: set(self.cluster.states(job).values()) <= ended, 300, f"job {job}")
        return self.cluster.states(job)

    def output(self, job: str, index: int = 0) -> str:
        """Return the output of an array's task."""
        return (self.folder / f"{job}-{index}.out").read_text()

    def receipts(self) -> dict[str, int]:
        """Return each shard → when its receipt was written."""
        found = self.root.glob(f"tiny/token_bins/*/{NAME}")
        return {path.parent.name: path.stat().st_mtime_ns for path in found}


def test_an_array_with_a_killed_task_resumes_with_the_bytes_of_a_single_process(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(cluster, tmp_path, 3_000, monkeypatch)
    job = project.submit("--array=0-1")
    halves = [{f"train-{number:05d}" for number in range(SHARDS)[part : part + 3]} for part in (0, 3)]
    project.cluster.wait(lambda: bool(halves[0] & project.receipts().keys()), 300, "a shard of the first task")
    project.cluster.run("scancel", "--signal=KILL", "--full", f"{job}_0")
    assert project.wait(job) == {"0": "CANCELLED", "1": "COMPLETED"}, project.output(job, 1)
    before = project.receipts()
    assert halves[1] <= before.keys()
    assert 0 < len(halves[0] & before.keys()) < 3, "it was killed at work"

    job = project.submit("--array=0-1")
    last = project.submit(f"--dependency=afterok:{job}")
    assert project.wait(job) == {"0": "COMPLETED", "1": "COMPLETED"}, project.output(job)
    made = project.receipts()
    assert made.keys() == halves[0] | halves[1]
    assert {name: made[name] for name in before} == before
    assert not list(project.root.glob("tiny/nanogpt/*")), "what is made of all shards is left to the final run"
    assert project.wait(last) == {"N/A": "COMPLETED"}
    assert project.receipts() == made
    assert debris(project.root) == []
    quiet = LocalArtifacts(project.folder / "quiet")
    build_all(corpus_specs(CorpusDeclaration.model_validate(project.declared)), quiet)
    expected = {path: data for path, data in data_files(quiet.root).items() if "/token_bins/" in path or ".bin" in path}
    found = data_files(project.root)
    assert len(expected) > 2 * SHARDS
    assert {path: found.get(path) for path in expected} == expected


def test_a_failed_part_fails_its_task_and_the_final_run_does_not_start(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(cluster, tmp_path, 10, monkeypatch)
    damaged = project.folder / "corpus" / "train" / "chunk1" / f"example_train_{SHARDS - 1}.jsonl.zst"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    job = project.submit("--array=0-1")
    last = project.submit(f"--dependency=afterok:{job}", "--kill-on-invalid-dep=yes")
    states = project.wait(job)
    failed = {index for index, state in states.items() if state == "FAILED"}
    assert len(failed) == 1, states
    assert damaged.name in project.output(job, int(*failed))
    assert project.wait(last) == {"N/A": "CANCELLED"}
    assert len(project.receipts()) == SHARDS - 1
