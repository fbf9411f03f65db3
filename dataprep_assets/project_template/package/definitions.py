"""The code location: every dataset declared below `defs/`, with the storage that the environment names."""

from pathlib import Path

import dagster as dg

from dataprep_assets.code_location import definitions_of


@dg.definitions
def defs() -> dg.Definitions:
    """All datasets of the project."""
    return definitions_of(Path(__file__).resolve().parents[1])
