"""The cost of a corpus is computed from its plan, with the rates of finished shards."""

from pathlib import Path

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.planning.cost import Machine
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration

MACHINE = Machine(cores=2, bandwidth=1e6)


def test_the_plan_of_a_corpus_is_equal_before_and_after_its_build(tmp_path: Path) -> None:
    corpus, store = sample_declaration(views=["nanogpt"]), LocalArtifacts(tmp_path)
    component = TokenizedCorpus(corpus)
    before = component.cost(store, MACHINE)
    assert before.measured == 0
    assert list(tmp_path.rglob("*")) == []
    made = run_pipeline(corpus, tmp_path, workers=2)
    after = component.cost(store, MACHINE)
    assert after.measured == sum(name.startswith("token_bins/") for name in made.built)
    assert after.cost.splits == before.cost.splits
    stored = sum(path.stat().st_size for path in tmp_path.glob("*/token_bins/*/tokens.bin"))
    assert after.cost.artifact_bytes == 2 * stored, "once in shards, once joined; the view is links"
