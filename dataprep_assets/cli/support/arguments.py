"""The arguments that several commands have."""

import sys
from pathlib import Path
from typing import Annotated

import typer


class Options:
    """The global options, which may stand before or after the command."""

    verbose = False
    quiet = False
    """Whether standard output is closed."""


def tell_wrong(line: str) -> None:
    """Print a line about something that is wrong, which `--quiet` shows, too: then on standard error."""
    print(line, file=sys.stderr if Options.quiet else sys.stdout, flush=True)


def dataset_names(incomplete: str) -> list[str]:
    """Names of declared datasets, for shell completion."""
    from dataprep_assets.cli.support.project import names

    return [name for name in names() if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A dataset, by its `dataset:`.", autocompletion=dataset_names)
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Datasets, by their `dataset:`.", autocompletion=dataset_names),
]
NamesOrAll = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME...]", help="Datasets, by their `dataset:`.", autocompletion=dataset_names),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Select = Annotated[
    list[str] | None, typer.Option("--select", metavar="GLOB", help="Only what matches this; may be repeated.")
]
Splits = Annotated[
    list[str] | None,
    typer.Option("--split", metavar="SPLIT", help="Only these splits: val,test, or the option repeated."),
]
LockFile = Annotated[Path | None, typer.Option("--lock", metavar="FILE", help="A lock that `dataprep lock` wrote.")]
Profile = Annotated[
    str | None, typer.Option(metavar="PROFILE", help="A profile of boto3's configuration: credentials and endpoint.")
]
