"""Runs of one dataset at the same time: on one machine, on two machines over one bucket, and beside one that is killed.

Real `dataprep run` processes. Whatever the order, what is there afterwards is what one quiet run makes.
"""

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests import forked
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.pipelines.corpus.pipeline import debris, products, receipts
from dataprep_assets_tests.project import cloned_project
from dataprep_assets_tests.samples import SMALL

pytestmark = pytest.mark.slow

DATASET = "sample_corpus"
SECONDS = 400


class Machine:
    """A home of Dagster and what `dataprep` needs to know; ends what it started."""

    def __init__(self, project: Path, folder: Path, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        cleaned = {k: v for k, v in os.environ.items() if not k.startswith(("DATAPREP_", "DAGSTER_", "R2_", "AWS_"))}
        self.environment = {
            **cleaned,
            "PYTHONPATH": str(project),
            "DAGSTER_HOME": str(folder / "home"),
            "DATAPREP_WORKERS": "2",
            **variables,
        }
        self._project, self._folder = project, folder

    def start(self, *arguments: str) -> "Started":
        """A `dataprep` of this machine, under way."""
        handle, name = tempfile.mkstemp(dir=self._folder)
        command = ["-m", "dataprep_assets.cli", *arguments]
        try:
            process = forked.start(command, env=self.environment, cwd=self._project, stdout=handle, stderr=handle)
        finally:
            os.close(handle)
        return Started(process, Path(name))


@dataclass(frozen=True)
class Started:
    """A command under way, and where it prints."""

    process: forked.Forked
    output: Path


def said(started: Started) -> str:
    """What a command printed, when it has ended; it must have ended well."""
    code, out = started.process.wait(SECONDS), started.output.read_text()
    assert code == 0, out
    return out


def until_a_shard_is_there(root: Path, started: Started) -> None:
    deadline = time.monotonic() + SECONDS
    while not list(root.glob(f"{DATASET}/token_bins/*/{NAME}")):
        assert started.process.poll() is None, "the run ended before its first shard"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def until_it_says_something(started: Started) -> None:
    """Wait for the first line of a command: its first run begins."""
    deadline = time.monotonic() + SECONDS
    while not started.output.read_text():
        assert started.process.poll() is None, "the run ended without a word"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with two views of the small corpus alone: more of them, or of its documents, race no more."""
    project = cloned_project(tmp_path_factory.mktemp("project") / "clone")
    samples = project / "dataprep_assets" / "defs" / "samples"
    shutil.rmtree(samples.with_name("examples"))
    for other in samples.iterdir():
        if other.name != DATASET:
            shutil.rmtree(other)
    shutil.rmtree(samples / DATASET / "data")
    shutil.copytree(SMALL, samples / DATASET / "data")
    declaration = samples / DATASET / "defs.yaml"
    text, count = re.subn("views: .*", "views: [nanogpt, megatron]", declaration.read_text())
    assert count == 1
    declaration.write_text(text)
    return project


@pytest.fixture(scope="module")
def quiet(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("quiet")
    said(Machine(project, folder, DATAPREP_ROOT=str(folder / "artifacts")).start("run", DATASET))
    return folder / "artifacts"


def test_two_runs_of_one_machine_make_everything_once(project: Path, quiet: Path, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    machine = Machine(project, tmp_path, DATAPREP_ROOT=str(root))
    rivals = [machine.start("run", DATASET) for _ in range(2)]
    for rival in rivals:
        said(rival)
    assert products(root) == products(quiet)
    assert receipts(root) == receipts(quiet)
    assert debris(root) == []
    assert "all match their receipts" in said(machine.start("verify"))


def test_a_run_killed_while_another_starts_stops_nobody(project: Path, quiet: Path, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    machine = Machine(project, tmp_path, DATAPREP_ROOT=str(root))
    doomed = machine.start("run", DATASET)
    until_a_shard_is_there(root, doomed)
    other = machine.start("run", DATASET)
    until_it_says_something(other)
    doomed.process.kill()
    doomed.process.wait(SECONDS)
    said(other)
    assert products(root) == products(quiet)
    assert receipts(root) == receipts(quiet)
    assert debris(root, after_a_kill=True) == []


def test_two_machines_over_one_bucket_leave_what_one_run_leaves(
    project: Path, quiet: Path, moto: str, tmp_path: Path
) -> None:
    pytest.importorskip("dagster_aws", reason="the extra `r2` is not installed")
    bucket = new_bucket(moto)
    machines = [
        Machine(
            project,
            tmp_path / name,
            DATAPREP_STORAGE="r2",
            DATAPREP_BUCKET=bucket,
            DATAPREP_ROOT="some/prefix",
            DATAPREP_ENDPOINT_URL=moto,
            DATAPREP_CACHE=str(tmp_path / name / "cache"),
            R2_DATASET_WRITE_ACCESS_KEY_ID=KEY_ID,
            R2_DATASET_WRITE_SECRET_ACCESS_KEY=SECRET,
        )
        for name in ("first", "second")
    ]
    for process in [machine.start("run", DATASET) for machine in machines]:
        said(process)
    client = new_client(moto)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="some/prefix/")
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    found = {
        key.removeprefix("some/prefix/"): client.get_object(Bucket=bucket, Key=key)["Body"].read()
        for key in keys
        if not key.endswith(f"/{NAME}") and "/." not in key
    }
    assert found == products(quiet)
    assert {key for key in keys if "/.staging/" in key} == set(), "nothing of a publication is left over"
    assert "all match their receipts" in said(machines[1].start("verify"))
