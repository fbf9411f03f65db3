"""The sample corpus, built once, and copies of it that a test may change."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration


@pytest.fixture(scope="package")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a finished run."""
    root = tmp_path_factory.mktemp("built")
    assert run_pipeline(sample_declaration(), root, 2).failed == {}
    return root


@pytest.fixture
def corpus(tmp_path: Path, built: Path) -> ChangedCorpus:
    """Return a copy that the test may change."""
    return ChangedCorpus(tmp_path, built)
