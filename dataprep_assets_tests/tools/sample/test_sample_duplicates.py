"""The sample with duplicates and leaks equals its generator's output, and loses exactly the documents that its URLs
mark.
"""

from collections import Counter
from pathlib import Path

import pytest

import dataprep_assets
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.curation.corpus_documents import CorpusDocuments
from dataprep_assets.pipelines.corpus.dataset import Corpus
from dataprep_assets_tests.engine.building import build_all, find_failed_checks, find_sample
from dataprep_assets_tests.tools.sample.make_sample_duplicates import COPIES, FRAMED, LEAKS, VERSIONS, write_sample

pytest.importorskip("rensa", reason="the extra `duplicates`")
COMMITTED = Path(dataprep_assets.__file__).parent / "defs" / "samples" / "sample_duplicates"


def test_the_committed_files_equal_the_generators_output(tmp_path: Path) -> None:
    write_sample(tmp_path)
    made = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*.jsonl")}
    assert made == {p.relative_to(COMMITTED): p.read_bytes() for p in COMMITTED.rglob("*.jsonl")}
    assert sum(map(len, made.values())) < 120_000


@pytest.mark.slow
def test_one_copy_of_each_page_stays_and_no_benchmark_item(tmp_path: Path) -> None:
    dataset, store = find_sample("sample_duplicates"), LocalArtifacts(tmp_path / "artifacts")
    assert isinstance(dataset, Corpus)
    build_all(dataset.specs, store)
    for spec in dataset.specs:
        assert not spec.checks or find_failed_checks(spec, store) == set(), spec.path
    rows = list(CorpusDocuments(dataset.declaration, store).rows())
    gone = [row for row in rows if not row["kept"]]
    # One document of each page, its copies and its versions is kept. Of similar documents in val and train, the
    # document in train is dropped.
    like = COPIES + VERSIONS + FRAMED + 2
    assert Counter(row["reason"] for row in gone) == {"duplicate": like, "benchmark": LEAKS}
    assert all(row["kind"] == "leak" for row in gone if row["reason"] == "benchmark")
    assert not any(row["kind"] == "template" or row["file"].startswith("val/") for row in gone)
    assert sum(row["similarity"] == 1 for row in gone if row["reason"] == "duplicate") >= COPIES
    assert all(row["representative"] for row in gone if row["reason"] == "duplicate")
