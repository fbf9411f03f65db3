"""Arguments and options shared by several commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dataprep_assets.screen import print_lines


class Options:
    """Values of the global options, which can be given before or after the command, and the start of the command."""

    verbose = False
    quiet = False
    """Whether standard output is closed."""
    began = 0.0
    """Start of the command, in seconds of `time.monotonic`."""


def print_error_line(line: str) -> None:
    """Print a line about an error; with `--quiet`, print it to standard error."""
    print_lines([line], sys.stderr if Options.quiet else sys.stdout)


def complete_dataset_names(incomplete: str) -> list[str]:
    """Return the names of declared datasets that start with `incomplete`, for shell completion."""
    from dataprep_assets.cli.support.project import list_dataset_names

    return [name for name in list_dataset_names() if name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the dataset (its `dataset:` key).", autocompletion=complete_dataset_names
    ),
]
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="Names of the datasets (their `dataset:` keys).", autocompletion=complete_dataset_names
    ),
]
NamesOrAll = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME...]",
        help="Names of the datasets (their `dataset:` keys).",
        autocompletion=complete_dataset_names,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON Lines instead of text.")]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="GLOB", help="Select only paths that match this glob. Can be repeated."),
]
Splits = Annotated[
    list[str] | None,
    typer.Option("--split", metavar="SPLIT", help="Select only these splits, e.g., val,test. Can be repeated."),
]
LockFile = Annotated[
    Path | None, typer.Option("--lock", metavar="FILE", help="Use this lock file, which `dataprep lock` wrote.")
]
Profile = Annotated[
    str | None, typer.Option(metavar="PROFILE", help="Use the credentials and endpoint of this AWS profile.")
]
