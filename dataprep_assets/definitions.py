"""The code location of this repository: the samples and examples that it ships, and what a checkout declares."""

from pathlib import Path

import dagster as dg

from dataprep_assets.code_location import definitions_of

PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dg.definitions
def defs() -> dg.Definitions:
    """All datasets declared in `defs/`."""
    return definitions_of(PROJECT_ROOT)
