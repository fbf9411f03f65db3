"""A tokenizing worker killed half-way: its run goes on, and ends as if nothing had happened."""

import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, receipts, run_pipeline
from dataprep_assets_tests.project import project

SHARDS = 12


def token_bins(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in data_files(root).items() if name.startswith("tiny/token_bins/")}


class Killer(threading.Thread):
    """Kills a worker of this process as soon as some shards are committed; `there` are those, with their times."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self._root = root
        self.there: dict[str, int] = {}
        self.killed: int | None = None
        self.done = threading.Event()

    def run(self) -> None:
        while self.killed is None and not self.done.wait(0.01):
            found = {p.parent.name: p.stat().st_mtime_ns for p in self._root.glob(f"tiny/token_bins/*/{NAME}")}
            if 3 <= len(found) < SHARDS and (workers := self._workers()):
                self.there, self.killed = found, workers[0]
                os.kill(workers[0], signal.SIGKILL)

    @staticmethod
    def _workers() -> list[int]:
        return [worker.pid for worker in multiprocessing.active_children() if worker.pid is not None]


@pytest.mark.slow
def test_a_run_goes_on_without_a_killed_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    declared = make_attributes(write_corpus(tmp_path / "corpus", SHARDS, documents=8_000), SHARDS, views=[])
    with project(declared, tmp_path / "disturbed") as made:
        key = made.key
        assert made.run([key("manifest"), key("engine_certificate")]).success
        killer = Killer(made.root)
        killer.start()
        outcome = made.tokenize("train")
        killer.done.set()
        killer.join()
        assert killer.killed is not None, "no worker was caught"
        assert outcome.success
        (said,) = [text for text in caplog.messages if "its worker process died (killed by signal 9, " in text]
        assert re.match(r"train-\d{5}.* Retrying$", said)
        assert made.instance.get_materialized_partitions(key("token_bins", "train")) == set(made.shards("train"))
        kept = {name: (made.directory("token_bins", name) / NAME).stat().st_mtime_ns for name in killer.there}
        assert kept == killer.there, "what was committed is not made again"
        run_pipeline(CorpusDeclaration.model_validate(declared), tmp_path / "quiet", workers=2)
        assert token_bins(made.root) == token_bins(tmp_path / "quiet")
        quiet = receipts(tmp_path / "quiet")
        assert {k: v for k, v in receipts(made.root).items() if k in quiet and "token_bins" in k} == {
            k: v for k, v in quiet.items() if "token_bins" in k
        }
        assert debris(made.root) == []
