"""Code location: every dataset declared below `defs/`, with the storage that the environment configures."""

from pathlib import Path

import dagster as dg

from dataprep_assets.code_location import definitions_of


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of all datasets."""
    return definitions_of(Path(__file__).resolve().parents[1])
