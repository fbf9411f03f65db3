"""`dataprep_assets.components.TokenizedCorpus`: a text corpus, from source to validated bins, declared in YAML."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, build_scaffolder
from dataprep_assets.pipelines.corpus.dataset import Corpus


@dg.scaffold_with(build_scaffolder(Path(__file__).with_name("tokenized_corpus.scaffold.yaml")))
class TokenizedCorpus(Corpus, DatasetComponent):
    """A text corpus, from its source to token bins for trainers, with every artifact verified."""
