"""Code location of this repository: the shipped samples and examples, and the datasets declared in a checkout."""

from pathlib import Path

import dagster as dg

from dataprep_assets.code_location import definitions_of

PROJECT_ROOT = Path(__file__).resolve().parent.parent


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of all datasets declared in `defs/`."""
    return definitions_of(PROJECT_ROOT)
