"""`python -m dataprep_assets_tests.orchestration.dying_step HEARD`: a step that says a line and dies with its process.

With HEARD `yes` the command hears what is said on its standard output.
"""

import contextlib
import os
import sys
from tempfile import TemporaryDirectory

import dagster as dg

from dataprep_assets.orchestration.runs.terminal import print_line, write_printed_lines


def main(arguments: list[str]) -> None:
    """The command; it never returns."""

    @dg.asset
    def says() -> None:
        print_line("said while the step is at work")
        os._exit(9)

    hearing = write_printed_lines(sys.stdout) if arguments == ["yes"] else contextlib.nullcontext()
    with TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance, hearing:
        dg.materialize([says], instance=instance)


if __name__ == "__main__":
    main(sys.argv[1:])
