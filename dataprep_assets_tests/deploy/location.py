"""A code location of one corpus, declared in the JSON file that DATAPREP_TEST_CORPUS names, as `definitions.py` is."""

import json
import os
from pathlib import Path

import dagster as dg

from dataprep_assets.builds.corpus import CorpusDeclaration
from dataprep_assets.components.dataset import declared
from dataprep_assets.components.tokenized_corpus import TokenizedCorpus
from dataprep_assets.definitions import bound

DECLARATION = "DATAPREP_TEST_CORPUS"


@dg.definitions
def defs() -> dg.Definitions:
    """The corpus bound to the resources of the environment."""
    path = Path(os.environ[DECLARATION])
    corpus = declared(CorpusDeclaration, json.loads(path.read_bytes()), path)
    return bound(TokenizedCorpus(corpus).build_defs(None), path.parent)  # type: ignore[arg-type]
