"""Arguments and options shared by several commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer


class Options:
    """Values of the global options, which can be given before or after the command, and the start of the command."""

    verbose = False
    quiet = False
    """Whether standard output is closed."""
    began = 0.0
    """Start of the command, in seconds of `time.monotonic`."""


def tell_wrong(line: str) -> None:
    """Print a line about an error; with `--quiet`, print it to standard error."""
    print(line, file=sys.stderr if Options.quiet else sys.stdout, flush=True)


def dataset_names(incomplete: str) -> list[str]:
    """Return the names of declared datasets that start with `incomplete`, for shell completion."""
    from dataprep_assets.cli.support.project import names

    return [name for name in names() if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Dataset name (the `dataset:` key).", autocompletion=dataset_names)
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Dataset names (the `dataset:` key).", autocompletion=dataset_names),
]
NamesOrAll = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME...]", help="Dataset names (the `dataset:` key).", autocompletion=dataset_names),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON Lines.")]
Select = Annotated[
    list[str] | None, typer.Option("--select", metavar="GLOB", help="Only paths that match this glob. Repeatable.")
]
Splits = Annotated[
    list[str] | None,
    typer.Option("--split", metavar="SPLIT", help="Only these splits, e.g. val,test. Repeatable."),
]
LockFile = Annotated[Path | None, typer.Option("--lock", metavar="FILE", help="Lock file written by `dataprep lock`.")]
Profile = Annotated[
    str | None, typer.Option(metavar="PROFILE", help="AWS profile to take credentials and endpoint from.")
]
