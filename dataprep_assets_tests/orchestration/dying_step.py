"""Run a step that prints a line and dies with its process: `python -m dataprep_assets_tests.orchestration.dying_step
HEARD`.

With HEARD `yes` the command forwards the step's lines to its standard output.
"""

import contextlib
import os
import sys
from tempfile import TemporaryDirectory

import dagster as dg

from dataprep_assets.orchestration.runs.terminal import print_line, write_printed_lines


def main(arguments: list[str]) -> None:
    """Run the step; the command never returns."""

    @dg.asset
    def says() -> None:
        print_line("said while the step is at work")
        os._exit(9)

    hearing = write_printed_lines(sys.stdout) if arguments == ["yes"] else contextlib.nullcontext()
    with TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance, hearing:
        dg.materialize([says], instance=instance)


if __name__ == "__main__":
    main(sys.argv[1:])
