"""A file is appended with the sensor on, and arrives: through Dagster's own daemon, with no further action."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.component import declared
from dataprep_assets.orchestration.source_sensor import CHANGE
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.deploy.daemon import daemon
from dataprep_assets_tests.deploy.tiny_corpus import attributes, write_corpus
from dataprep_assets_tests.fakes.listeners import webhook
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline

LONGEST_SECONDS = 240.0
FIRST, ADDED = "train/chunk1/example_train_0.jsonl.zst", "train/chunk1/added.jsonl.zst"


def wait_for(happened: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not happened():
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.5)


@pytest.mark.slow
def test_an_appended_file_arrives_by_itself(tmp_path: Path) -> None:
    source, root, path = tmp_path / "source", tmp_path / "artifacts", tmp_path / "corpus.json"
    write_corpus(source, files=4)
    with webhook() as hook:
        automation = {"on_new_files": "5s", "freshness": "36h", "on_failure": {"webhook": hook.url}}
        path.write_text(json.dumps(attributes(source, shards=2, automation=automation)))
        corpus = declared(CorpusDeclaration, json.loads(path.read_bytes()), path)
        run_pipeline(corpus, root)
        store = LocalArtifacts(root)
        with daemon(tmp_path, path, root) as log:
            wait_for(lambda: "tiny_on_new_files skipped: the source is as it was planned" in log.read_text(), log)
            before = store.require(corpus.artifact("nanogpt_bins")).content
            shutil.copy(write_corpus(tmp_path / "more", files=1, seed=8) / FIRST, source / ADDED)
            wait_for(lambda: store.require(corpus.artifact("nanogpt_bins")).content != before, log)
            wait_for(lambda: "nothing changed since the last look" in log.read_text(), log)
        assert store.partitions("tiny", "token_bins") == ["train-00000", "train-00001", "train-00002"]
        home = str(tmp_path / "home")
        with mock.patch.dict(os.environ, {"DAGSTER_HOME": home}), dg.DagsterInstance.from_config(home) as found:
            (launched,) = [run for run in found.get_runs() if run.job_name == "build_tiny"]
            assert launched.tags[CHANGE] == "1 file added, 1 shard new"
            assert launched.status == dg.DagsterRunStatus.SUCCESS
        assert hook.got == []
