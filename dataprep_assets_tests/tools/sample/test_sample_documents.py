"""The sample with a document table: an upstream asset, its own tagger, rules, and the reason for each dropped
document.
"""

from pathlib import Path

import dagster as dg
import pytest

from dataprep_assets.declarations import open_declarations
from dataprep_assets.defs.samples.sample_cleaning import pages
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.curation.corpus_documents import CorpusDocuments
from dataprep_assets.pipelines.corpus.dataset import Corpus
from dataprep_assets.pipelines.corpus.source.source_rows import CorpusFiles
from dataprep_assets.project import find_project
from dataprep_assets.sources import upstream
from dataprep_assets.sources.upstream import Materialization
from dataprep_assets_tests.conftest import CHECKOUT
from dataprep_assets_tests.engine.building import build_all, find_failed_checks

pytestmark = pytest.mark.slow


def test_the_rule_is_shown_for_every_dropped_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CLEANED", tmp_path / "cleaned")
    made = pages.pages()
    assert isinstance(made, dg.MaterializeResult)
    assert made.metadata is not None
    told = {"path": str(tmp_path / "cleaned")}
    answer = [Materialization(partition=None, metadata=told)]
    monkeypatch.setattr(upstream, "_providers", [(lambda _: answer, lambda: None)])
    declared = open_declarations(find_project(str(CHECKOUT)))
    dataset = declared.load(declared.files["sample_documents"])
    assert isinstance(dataset, Corpus)
    store = LocalArtifacts(tmp_path / "artifacts")
    build_all(dataset.specs, store)
    for spec in dataset.specs:
        assert not spec.checks or find_failed_checks(spec, store) == set(), spec.path
    corpus = dataset.declaration
    rows = list(CorpusDocuments(corpus, store).rows())
    assert len(rows) == made.metadata["documents"]
    assert {row["reason"] for row in rows} == {None, *corpus.drop}
    assert sum(row["lines_dropped"] for row in rows) > 0
    source = CorpusFiles(corpus, store)
    for row in rows:
        if not row["kept"]:
            said = source.explain_refusal(row["file"], row["row"])
            assert said is not None
            assert f"is dropped by the rule {row['reason']!r}: {corpus.drop[row['reason']]}; " in said
    kept = next(row for row in rows if row["kept"])
    assert source.explain_refusal(kept["file"], kept["row"]) is None
