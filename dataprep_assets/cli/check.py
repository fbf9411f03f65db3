"""`dataprep check`: find errors in declarations before anything is built."""

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, complete_dataset_names, print_error_line
from dataprep_assets.errors import DataprepError, count_of

_WRONG = 2


def _format_boundary_lines(files: Collection[Path]) -> Iterator[str]:
    """Yield a line per dataset about the tokens around its documents, because wrong tokens show only after training."""
    names = [name for name, path in project.load_declarations().files.items() if path in files]
    for dataset in project.current_project().load_all(names):
        with suppress(DataprepError):  # `dataprep run` reports the error
            if line := dataset.describe_boundaries():
                yield f"{dataset.declaration.dataset}: {line}"


def command(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]",
            help="Names of the datasets to validate. [default: all datasets of the project, except hidden samples]",
            autocompletion=complete_dataset_names,
        ),
    ] = None,
    json_: AsJson = False,
) -> int:
    """Validate declarations, tokenizers and local sources without building anything."""
    open_project, error_count = project.current_project(), 0
    files = open_project.files(datasets or None)
    for mistake in open_project.check(datasets or None):
        error_count += not mistake.hint
        summary = f"note: {mistake}" if mistake.hint else str(mistake)
        print_error_line(json.dumps(mistake.to_json(), ensure_ascii=False) if json_ else summary)
    if not json_:
        for line in () if error_count else _format_boundary_lines(files):
            print(line)
        summary = f"{count_of(error_count, 'error')}" if error_count else "no errors found"
        print(f"{count_of(len(files), 'declaration')}: {summary}")
    return _WRONG if error_count else 0
