"""`dataprep check`: find errors in declarations before anything is built."""

import json
from typing import Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, dataset_names, tell_wrong
from dataprep_assets.errors import count_of

_WRONG = 2


def command(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]",
            help="Dataset names. [default: all datasets that the code location shows]",
            autocompletion=dataset_names,
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
        tell_wrong(json.dumps(mistake.to_json(), ensure_ascii=False) if json_ else summary)
    if not json_:
        summary = f"{count_of(error_count, 'error')}" if error_count else "no errors found"
        print(f"{count_of(len(files), 'declaration')}: {summary}")
    return _WRONG if error_count else 0
