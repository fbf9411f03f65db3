"""A code location of one corpus, declared in the JSON file that DATAPREP_TEST_CORPUS names, as `definitions.py` is."""

import json
import os
from pathlib import Path

import dagster as dg

from dataprep_assets.definitions import bound
from dataprep_assets.orchestration.component import declared
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

DECLARATION = "DATAPREP_TEST_CORPUS"


@dg.definitions
def defs() -> dg.Definitions:
    """The corpus bound to the resources of the environment."""
    path = Path(os.environ[DECLARATION])
    corpus = declared(CorpusDeclaration, json.loads(path.read_bytes()), path)
    return bound(TokenizedCorpus(corpus).build_defs(None), path.parent)  # type: ignore[arg-type]
