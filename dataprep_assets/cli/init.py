"""`dataprep init`: a new project with a sample that runs without a network."""

from pathlib import Path
from typing import Annotated

import typer

from dataprep_assets.project_template import write_project


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or not there.")],
) -> int:
    """Make a project: a small dataset that runs without a network, its settings, and room for your own."""
    write_project(folder)
    print(f"{folder}: a project with one dataset, sample_corpus. Next:")
    print(f"  cd {folder}")
    print("  dataprep run sample_corpus")
    print("  dg scaffold defs dataprep_assets.components.TokenizedCorpus my_corpus")
    return 0
