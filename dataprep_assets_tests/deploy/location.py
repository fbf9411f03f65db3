"""A code location with the corpus in the JSON file that DATAPREP_TEST_CORPUS names, like `definitions.py`.

A list in the file declares several corpora.
"""

import json
import os
from pathlib import Path

import dagster as dg

from dataprep_assets.code_location import bind_resources
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

DECLARATION = "DATAPREP_TEST_CORPUS"


@dg.definitions
def defs() -> dg.Definitions:
    """Return the corpora bound to the resources of the environment."""
    path = Path(os.environ[DECLARATION])
    found = json.loads(path.read_bytes())
    corpora = [
        validate_declaration(CorpusDeclaration, one, path) for one in (found if isinstance(found, list) else [found])
    ]
    built = [TokenizedCorpus(corpus).build_defs(None) for corpus in corpora]  # type: ignore[arg-type]
    return bind_resources(dg.Definitions.merge(*built), path.parent)
