"""The benchmark of clusters builds the same shards in parts as in one process."""

from pathlib import Path

import pytest

from dataprep_assets.execution.pool import ENGINE, PROCESSES
from dataprep_assets_tests.deploy.tiny_corpus import write_corpus
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files
from dataprep_assets_tests.tools.bench import scale_out

pytestmark = pytest.mark.slow


def test_the_parts_of_an_array_have_the_bytes_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE, PROCESSES)
    corpus = write_corpus(tmp_path / "corpus", 3)
    for number in range(2):
        measurements = scale_out.build_here(corpus, tmp_path / "parts", [], (number, 2))
        assert measurements.keys() == {"wall", "cpu", "overhead"}
        assert min(measurements.values()) > 0
    scale_out.build(corpus, tmp_path / "whole", (), {ENGINE: PROCESSES})
    files = data_files(tmp_path / "whole")
    assert len(files) > 3
    assert data_files(tmp_path / "parts") == files
